"""Logits processors that give each row of a batch exactly what it would get alone.

transformers' own processors look at the padding of a left-padded batch, and its sampling draws all rows from one global
generator; both make a row depend on its neighbours. Order per step: raw scores → repetition penalty → no-repeat n-grams
→ banned tokens → plugins → temperature, top-k, top-p, min-p, typical-p → pick. Knows nothing about models and texts.
"""

from __future__ import annotations

import json
import random
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from evalharness.api.errors import ConfigError, MissingDependency, UnsupportedOption
from evalharness.api.hooks import GenerationPlugin, TokenBan
from evalharness.api.installing import missing_package
from evalharness.api.structured_output import StructuredOutput, unheld_keywords
from evalharness.api.thinking import ThinkingRow
from evalharness.backends.base import SamplingPlan
from evalharness.backends.hf._transformers import transformers


class RawScores(transformers.LogitsProcessor):
    """Keeps the model's own scores, before anything changes them.

    `broken_at` (rows,): the first step (from 0) without a usable number to choose by, `NEVER` if there was none; a row
    that has ended is still computed, so only a step before its end counts. `logprobs`, raw or processed, and `entropies`: per
    step (rows,) float32, natural log.
    """

    NEVER = 2**31 - 1

    def __init__(self, num_rows: int, device: torch.device, plan: SamplingPlan) -> None:
        self.broken_at = torch.full((num_rows,), self.NEVER, dtype=torch.int64, device=device)
        self.logprobs: list[torch.Tensor] = []
        self.entropies: list[torch.Tensor] = []
        self._keep_raw = plan.logprobs and plan.logprobs_kind == "raw"
        self._keep_processed = plan.logprobs and plan.logprobs_kind == "processed"
        self._keep_entropies = plan.entropies
        self._num_steps = 0
        self._kept: torch.Tensor | None = None  # (rows, vocab)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        self.note_broken(~torch.isfinite(scores.amax(dim=-1)))  # amax passes NaN on
        if self._keep_entropies or self._keep_raw:
            logprobs = scores.float().log_softmax(dim=-1)
            if self._keep_entropies:
                self.entropies.append(entropies_of(logprobs))
            if self._keep_raw:
                self._kept = logprobs
        return scores

    def note_processed(self, scores: torch.Tensor) -> None:
        """Take down the scores (rows, vocab) that the tokens of this step are picked by."""
        if self._keep_processed:
            self._kept = scores.float().log_softmax(dim=-1)

    def note_broken(self, is_broken: torch.Tensor) -> None:
        """Take down rows (rows,) that have nothing to choose by in this step."""
        self.broken_at = torch.where(is_broken, self.broken_at.clamp(max=self._num_steps), self.broken_at)

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Go on with these rows alone."""
        self.broken_at = self.broken_at[rows]
        self.logprobs = [step[rows] for step in self.logprobs]
        self.entropies = [step[rows] for step in self.entropies]

    def note_tokens(self, tokens: torch.Tensor) -> None:
        """Take down the log-probabilities of this step's tokens (rows,)."""
        if self._kept is not None:
            self.logprobs.append(self._kept.gather(1, tokens[:, None]).squeeze(1))
            self._kept = None
        self._num_steps += 1


def entropies_of(logprobs: torch.Tensor) -> torch.Tensor:
    """Return the entropy, in nats, of each distribution (…, vocab) given by its log-probabilities; impossible tokens add nothing."""
    return -(logprobs.exp() * logprobs.masked_fill(logprobs == -torch.inf, 0.0)).sum(dim=-1)


class RepetitionPenalty(transformers.LogitsProcessor):
    """The penalty of CTRL over prompt and completion; transformers' own one also punishes the padding token."""

    def __init__(self, penalty: float, attention_mask: torch.Tensor) -> None:
        self._penalty = penalty
        self._mask = attention_mask.bool()
        self._seen: torch.Tensor | None = None  # (rows, vocab)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._seen is None:
            counts = torch.zeros(scores.shape, dtype=torch.int32, device=scores.device)
            counts.scatter_add_(1, input_ids, self._mask.to(torch.int32))
            self._seen = counts > 0
        else:
            self._seen.scatter_(1, input_ids[:, -1:], True)
        penalised = torch.where(scores < 0, scores * self._penalty, scores / self._penalty)
        return torch.where(self._seen, penalised, scores)

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Go on with these rows alone."""
        if self._seen is not None:
            self._seen = self._seen[rows]


class _ByRow(transformers.LogitsProcessor):
    """Changes each row's scores by a state of that row alone, which is told the row's new tokens."""

    def __init__(self, states: Sequence[Any]) -> None:
        self._states = list(states)
        self._is_first = True

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self._is_first:
            for state, token_id in zip(self._states, input_ids[:, -1].tolist(), strict=True):
                state.push(token_id)
        self._is_first = False
        return self.change(scores)

    def change(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores (rows, vocab) that the states leave: by default those of the tokens that they ban become impossible."""
        banned = [sorted(state.banned()) for state in self._states]
        if any(banned):
            scores = scores.clone()
            for row, token_ids in enumerate(banned):
                scores[row, token_ids] = -torch.inf
        return scores

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Go on with these rows alone."""
        self._states = [self._states[row] for row in rows.tolist()]


class NoRepeatNgrams(_ByRow):
    """Bans each token that would complete an n-gram its row (prompt included, padding not) already has."""

    def __init__(self, size: int, prompts: Sequence[Sequence[int]]) -> None:
        super().__init__([_Ngrams(size, prompt) for prompt in prompts])


class _Ngrams:
    def __init__(self, size: int, token_ids: Sequence[int]) -> None:
        self._size = size
        self._ids: list[int] = []
        self._next: dict[tuple[int, ...], set[int]] = {}
        for token_id in token_ids:
            self.push(token_id)

    def push(self, token_id: int) -> None:
        if len(self._ids) >= self._size - 1:
            self._next.setdefault(self._prefix(), set()).add(token_id)
        self._ids.append(token_id)

    def _prefix(self) -> tuple[int, ...]:
        return tuple(self._ids[len(self._ids) - self._size + 1 :])

    def banned(self) -> Iterable[int]:
        return self._next.get(self._prefix(), ())


def scores_of(processor: Any, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Return what a processor makes of scores `(rows, vocabulary)`; `TypeError` if these are not as many scores."""
    made = processor(input_ids, scores)
    if not isinstance(made, torch.Tensor) or made.shape != scores.shape:
        got = f"a tensor of shape {tuple(made.shape)}" if isinstance(made, torch.Tensor) else type(made).__name__
        raise TypeError(f"{type(processor).__name__} made {got} of scores of shape {tuple(scores.shape)}; it must return as many scores")
    return made


class OfBatch(transformers.LogitsProcessor):
    """Runs a plugin's processor on the whole batch."""

    def __init__(self, processor: Any) -> None:
        self._processor = processor

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores_of(self._processor, input_ids, scores)


class WithoutPadding(transformers.LogitsProcessor):
    """Runs processors that read `input_ids`, one per row, on each row alone, without its padding, until `has_ended(row, ids)`."""

    def __init__(
        self, processors: Sequence[Any], num_padding: Sequence[int], has_ended: Callable[[int, torch.Tensor], bool] = lambda row, ids: False
    ) -> None:
        self._processors = list(processors)
        self._num_padding = tuple(num_padding)
        self._has_ended = has_ended

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.cat(
            [
                scores[row : row + 1]
                if self._has_ended(row, input_ids[row])
                else scores_of(self._processors[row], input_ids[row : row + 1, padding:], scores[row : row + 1])
                for row, padding in enumerate(self._num_padding)
            ]
        )

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Go on with these rows alone."""
        self._processors = [self._processors[row] for row in rows.tolist()]
        self._num_padding = tuple(self._num_padding[row] for row in rows.tolist())


class TokenBans(_ByRow):
    """Bans what each row's plugins ban, told by that row's new tokens alone."""

    def __init__(self, plugins: Sequence[GenerationPlugin], tokenizer: Any, vocab_size: int, num_rows: int) -> None:
        super().__init__([_Bans([plugin.plugin.ban(tokenizer, vocab_size) for plugin in plugins]) for _ in range(num_rows)])


class _Bans:
    def __init__(self, bans: Sequence[TokenBan]) -> None:
        self._bans = bans

    def push(self, token_id: int) -> None:
        for ban in self._bans:
            ban.push(token_id)

    def banned(self) -> Iterable[int]:
        return {token_id for ban in self._bans for token_id in ban.banned()}


class TokenPicker(transformers.LogitsProcessor):
    """The last processor: picks each row's token itself and leaves only that one possible.

    Row i draws one number per step from its own generator, seeded with `seeds[i]`, on the CPU whatever the device: the
    same seed gives the same draws in any batch.
    """

    def __init__(self, plan: SamplingPlan, seeds: Sequence[int | None], raw: RawScores) -> None:
        self._raw = raw
        self._temperature = max(plan.temperature, 1e-30)  # smaller values would be 0 in float32
        self._generators = [random.Random(seed) for seed in seeds] if plan.temperature > 0 else []
        self._warpers = warpers_for(plan)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        highest = scores.amax(dim=-1, keepdim=True)
        # Everything banned, or NaN from a plugin. An infinite score is a legal choice for greedy decoding only.
        self._raw.note_broken(~torch.isfinite(highest[:, 0]) if self._generators else ~(highest[:, 0] > -torch.inf))
        if not self._generators:
            self._raw.note_processed(scores)
            self._raw.note_tokens(scores.argmax(dim=-1))
            return scores
        scores = (scores - highest) / self._temperature  # the highest is 0: a tiny temperature cannot overflow
        for warper in self._warpers:
            scores = warper(input_ids, scores)
        self._raw.note_processed(scores)
        tokens = self._draw(scores)
        self._raw.note_tokens(tokens)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Go on with these rows alone, each drawing from where it was."""
        if self._generators:
            self._generators = [self._generators[row] for row in rows.tolist()]

    def _draw(self, scores: torch.Tensor) -> torch.Tensor:
        """Return one token per row (rows,): the first whose cumulated probability exceeds the row's drawn share."""
        shares = torch.tensor([generator.random() for generator in self._generators], dtype=torch.float64, device=scores.device)
        cumulated = scores.softmax(dim=-1).cumsum(dim=-1, dtype=torch.float64)  # (rows, vocab)
        target = shares[:, None] * cumulated[:, -1:]
        return torch.searchsorted(cumulated, target, right=True).squeeze(1).clamp_(max=scores.shape[-1] - 1)


def warpers_for(plan: SamplingPlan) -> list[Any]:
    """Return what cuts a distribution after temperature, in order; nothing where the plan is greedy."""
    extra = dict(plan.extra)
    if plan.temperature == 0:
        return []
    warpers: list[Any] = []
    if extra.get("top_k"):
        warpers.append(transformers.TopKLogitsWarper(extra["top_k"]))
    if plan.top_p < 1.0:
        warpers.append(transformers.TopPLogitsWarper(plan.top_p))
    if extra.get("min_p"):
        warpers.append(transformers.MinPLogitsWarper(float(extra["min_p"])))
    if extra.get("typical_p", 1.0) < 1.0:
        warpers.append(transformers.TypicalLogitsWarper(float(extra["typical_p"])))
    return warpers


def processors_for(
    plan: SamplingPlan,
    prompts: Sequence[Sequence[int]],
    seeds: Sequence[int | None],
    attention_mask: torch.Tensor,
    plugin_processors: Sequence[Any],
) -> tuple[list[Any], RawScores]:
    """Return the processors of one batch, in order, and the first of them; `attention_mask` (rows, width) shows the padding."""
    extra = dict(plan.extra)
    num_rows, width = attention_mask.shape
    device = attention_mask.device
    raw = RawScores(num_rows, device, plan)
    processors: list[Any] = [raw]
    if plan.repetition_penalty != 1.0:
        processors.append(RepetitionPenalty(plan.repetition_penalty, attention_mask))
    if plan.no_repeat_ngram_size > 0:
        processors.append(NoRepeatNgrams(plan.no_repeat_ngram_size, prompts))
    if "bad_words_ids" in extra:
        banned = transformers.NoBadWordsLogitsProcessor([list(word) for word in extra["bad_words_ids"]], eos_token_id=None)
        processors.append(WithoutPadding([banned] * num_rows, [width - len(prompt) for prompt in prompts]))
    if extra.get("min_new_tokens") and plan.stop_token_ids:
        stop_ids = torch.tensor(plan.stop_token_ids, device=device)
        processors.append(transformers.MinNewTokensLengthLogitsProcessor(width, extra["min_new_tokens"], stop_ids, device=str(device)))
    if "suppress_tokens" in extra:
        processors.append(transformers.SuppressTokensLogitsProcessor(list(extra["suppress_tokens"]), device=str(device)))
    processors.extend(plugin_processors)
    processors.append(TokenPicker(plan, seeds, raw))
    return processors, raw


def _is_int(value: object, minimum: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= minimum


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0.0 <= value <= 1.0


def _are_ids(value: object) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(_is_int(item, 0) for item in value)


_EXTRAS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "top_k": ("an int of at least 0 (0: off)", lambda value: _is_int(value, 0)),
    "min_p": ("a number from 0 to 1 (0: off)", _is_share),
    "typical_p": ("a number above 0 and at most 1 (1: off)", lambda value: _is_share(value) and value > 0),
    "min_new_tokens": ("an int of at least 0", lambda value: _is_int(value, 0)),
    "suppress_tokens": ("a non-empty list of token ids", _are_ids),
    "bad_words_ids": (
        "a non-empty list of non-empty lists of token ids",
        lambda value: isinstance(value, (list, tuple)) and bool(value) and all(_are_ids(item) for item in value),
    ),
}

EXTRA_OPTIONS: frozenset[str] = frozenset(_EXTRAS)
"""What `GenerationOptions.extra_generation_kwargs` may carry here, with transformers' meaning.

`top_k`, `min_p`, `typical_p`: cut the distribution, after temperature. `min_new_tokens`: no stop id before that many
tokens (a stop string still ends the text). `bad_words_ids`, `suppress_tokens`: token sequences and tokens never
generated.
"""


def check_extras(plan: SamplingPlan, vocab_size: int) -> None:
    """Raise `ConfigError` for a value that transformers would misread."""
    for name, value in plan.extra:
        wanted, is_legal = _EXTRAS[name]
        if not is_legal(value):
            raise ConfigError(f"options.{name} must be {wanted}, got {value!r}")
        if name in ("bad_words_ids", "suppress_tokens"):
            ids = list(value) if name == "suppress_tokens" else [token_id for word in value for token_id in word]
            if max(ids) >= vocab_size:
                raise ConfigError(f"options.{name} holds token id {max(ids)}; the vocabulary ends at {vocab_size - 1}")
    if dict(plan.extra).get("min_new_tokens", 0) > plan.max_new_tokens:
        raise ConfigError(f"options.min_new_tokens must not exceed max_new_tokens ({plan.max_new_tokens})")


_MOST_KEPT = 256  # an eval may have a schema for each case, and with a large vocabulary a grammar takes megabytes


class Grammars:
    """Compiled grammars of one tokenizer, the last that were asked for kept; `vocab_size`: how many scores the model gives."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer, self.vocab_size = tokenizer, vocab_size
        self._compiler: Any = None
        self._compiled: OrderedDict[StructuredOutput, Any] = OrderedDict()

    def check(self, plan: SamplingPlan) -> None:
        """Raise `ConfigError` for an invalid structure, `UnsupportedOption` for one that xgrammar cannot enforce."""
        if plan.structured is not None:
            self.compiled(plan.structured)

    def processors(self, plan: SamplingPlan, prompts: Sequence[Sequence[int]]) -> list[Any]:
        """Return the processors that constrain the rows of one batch, given their prompts' ids; [] for a free plan."""
        processors: list[Any] = []
        if plan.thinking is not None:
            processors.append(HeldToThinkingBudget([ThinkingRow(plan.thinking, prompt, self._decode) for prompt in prompts]))
        if plan.structured is not None:
            processors.append(HeldToGrammar(self.compiled(plan.structured), plan.stop_token_ids, len(prompts)))
        return processors

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def compiled(self, structured: StructuredOutput) -> Any:
        """Return xgrammar's grammar."""
        grammar = self._compiled.pop(structured, None)
        self._compiled[structured] = grammar = self._compile(structured) if grammar is None else grammar
        if len(self._compiled) > _MOST_KEPT:
            self._compiled.popitem(last=False)
        return grammar

    def _compile(self, structured: StructuredOutput) -> Any:
        if unheld := list(unheld_keywords(structured.json_schema)):
            raise UnsupportedOption(
                f"structured.json_schema asks for what backend 'hf' cannot hold an answer to: {', '.join(unheld)}; "
                "leave it out and check it in the test, or use --backend vllm"
            )
        if self._compiler is None:
            self._compiler = _compiler(self._tokenizer, self.vocab_size)
        make: dict[str, Callable[[], Any]] = {
            "json_schema": lambda: self._compiler.compile_json_schema(json.dumps(structured.json_schema)),
            "regex": lambda: self._compiler.compile_regex(structured.regex),
            "choice": lambda: self._compiler.compile_grammar(structured.as_choice_grammar()),
            "grammar": lambda: self._compiler.compile_grammar(structured.grammar),
        }
        try:
            return make[structured.kind]()
        except (RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split()).partition(": ")[2] or str(error)  # behind time and line of its source
            raise ConfigError(f"structured.{structured.kind} cannot be made a grammar: {reason}") from error


def _compiler(tokenizer: Any, vocab_size: int) -> Any:
    try:
        import xgrammar
    except ImportError as error:
        raise MissingDependency(missing_package("structured output on backend 'hf'", error, "structured")) from error
    info = xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=vocab_size)
    return xgrammar.GrammarCompiler(info, max_threads=min(8, torch.get_num_threads()), cache_enabled=False)


class HeldToGrammar(_ByRow):
    """Leaves only tokens possible that a row's grammar allows next; `stop_token_ids` only where the text is complete."""

    def __init__(self, compiled: Any, stop_token_ids: Sequence[int], num_rows: int) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        stop_ids = list(stop_token_ids)
        super().__init__([_Matching(xgrammar.GrammarMatcher(compiled, override_stop_tokens=stop_ids)) for _ in range(num_rows)])

    def change(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores (rows, vocab) with what the grammars forbid impossible."""
        mask = self._xgrammar.allocate_token_bitmask(len(self._states), scores.shape[-1])  # all allowed
        for row, state in enumerate(self._states):
            if not state.has_ended:
                state.matcher.fill_next_token_bitmask(mask, row)
        self._xgrammar.apply_token_bitmask_inplace(scores, mask.to(scores.device))
        return scores


class _Matching:
    def __init__(self, matcher: Any) -> None:
        self.matcher, self.has_ended = matcher, False

    def push(self, token_id: int) -> None:
        # What a row that has ended by a stop string or its cap is given is padding, which no grammar allows.
        if not self.has_ended:
            self.has_ended = not self.matcher.accept_token(token_id) or self.matcher.is_terminated()


class HeldToThinkingBudget(_ByRow):
    """Writes the mark that ends a thought where the budget of a row, a `ThinkingRow`, is used up."""

    def change(self, scores: torch.Tensor) -> torch.Tensor:
        """Return the scores (rows, vocab) with nothing but the forced tokens possible."""
        forced = {position: state.forced for position, state in enumerate(self._states) if state.forced is not None}
        if forced:
            scores = scores.clone()
            for position, token_id in forced.items():
                scores[position] = -torch.inf
                scores[position, token_id] = 0.0
        return scores
