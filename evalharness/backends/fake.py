"""A backend without weights: answers come from a script. For tests, demos and trying out evals and reports.

    FakeBackend.from_answers(["first answer", "second answer"])       # by request order, the last one repeats
    FakeBackend.from_answers(lambda prompt: prompt.text.upper())       # computed
    --backend fake --model answers.jsonl                               # rows {"contains": "BBU", "text": "…"}
    --backend fake --model echo                                        # repeats the prompt's last user turn

A script row may also carry `"error": "…"` (an infrastructure failure), `"invalid": "…"` and `"delay_s": 0.1`, and, for given
responses, `"logprobs"`: one number for each token, or a list with one for each, and `"is_greedy"`. The first row whose `contains` stands in
the prompt (with a given response: in prompt and response) answers; a row without `contains` answers everything. Everything behind the
answer is real: rendering, token counting, images, stop policy, sampling seeds, records.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from evalharness.api.checks import check_boolean, check_number, check_text
from evalharness.api.errors import CheckpointError, ConfigError, ContractTypeError, ContractValueError
from evalharness.api.hooks import GenerationPlugin
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.requests import GenerationFailure
from evalharness.api.structured_output import fits
from evalharness.api.thinking import within_budget
from evalharness.backends.base import BackendOutput, Capabilities, Completion, LiveWeights, Prompt, SamplingPlan, UnderWay, failure_of
from evalharness.backends.option_support import SCRIPTED
from evalharness.backends.stops import RowEnd

_SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|image_pad|>")
_FIRST_CHAR = len(_SPECIAL_TOKENS)
_SCRIPT = 'a JSONL file with rows {"contains": …, "text": …}'
_STEP_S = 0.05
_TEMPLATE = "<|im_start|>{role}\n{content}<|im_end|>\n"


@dataclass(frozen=True)
class FakeAnswer:
    """One scripted answer: a text, or a failure, after `delay_s` seconds. `ends` False leaves out the end token.

    `logprobs` answers for a given response: the log-probability of each of its tokens; `is_greedy`: whether greedy decoding gives it.
    """

    text: str = ""
    error: str | None = None
    invalid: str | None = None
    delay_s: float = 0.0
    ends: bool = True
    logprobs: float | Sequence[float] | None = None
    is_greedy: bool | None = None

    def __post_init__(self) -> None:
        check_text("answer.text", self.text)
        check_text("answer.error", self.error, optional=True)
        check_text("answer.invalid", self.invalid, optional=True)
        check_boolean("answer.ends", self.ends)
        check_boolean("answer.is_greedy", self.is_greedy, optional=True)
        check_number("answer.delay_s", self.delay_s, integer=False, minimum=0)
        values = self.logprobs if isinstance(self.logprobs, (list, tuple)) else [] if self.logprobs is None else [self.logprobs]
        if any(isinstance(value, bool) or not isinstance(value, (int, float)) or not value <= 0 for value in values):
            raise ContractValueError(f"answer.logprobs must be a number of at most 0, or a list of them, got {self.logprobs!r}")
        if self.error is not None and self.invalid is not None:
            raise ContractValueError("answer.error and answer.invalid exclude each other; an answer fails in one way")


_AS_IT_IS = FakeAnswer()
Answers: TypeAlias = "Callable[[Prompt], FakeAnswer | str] | Sequence[FakeAnswer | str]"


class FakeTokenizer:
    """One token a character, plus Qwen's special tokens; knows chat messages and images as Qwen's template does."""

    chat_template = _TEMPLATE
    all_special_tokens: ClassVar[list[str]] = list(_SPECIAL_TOKENS)
    all_special_ids: ClassVar[list[int]] = list(range(len(_SPECIAL_TOKENS)))
    eos_token = "<|im_end|>"
    pad_token = "<|endoftext|>"
    image_token = "<|image_pad|>"
    eos_token_id = _SPECIAL_TOKENS.index("<|im_end|>")
    pad_token_id = _SPECIAL_TOKENS.index("<|endoftext|>")
    _pieces = re.compile("(" + "|".join(map(re.escape, _SPECIAL_TOKENS)) + ")")

    def __len__(self) -> int:
        """Return the number of ids."""
        return _FIRST_CHAR + 0x110000

    def encode(self, text: str, add_special_tokens: bool = False, *, split_special_tokens: bool = False) -> list[int]:
        """Return one id per character or special token; `split_special_tokens`: these too by their characters."""
        ids: list[int] = []
        for piece in self._pieces.split(text) if "<|" in text and not split_special_tokens else [text]:
            if piece in _SPECIAL_TOKENS and not split_special_tokens:
                ids.append(_SPECIAL_TOKENS.index(piece))
            else:
                ids += [c + _FIRST_CHAR for c in map(ord, piece)]
        return ids

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False) -> str:
        """Return the text of the ids."""
        special = ("",) * _FIRST_CHAR if skip_special_tokens else _SPECIAL_TOKENS
        return "".join([chr(i - _FIRST_CHAR) if i >= _FIRST_CHAR else special[i] for i in token_ids])

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        tokenize: bool,
        continue_final_message: bool,
        enable_thinking: bool,
    ) -> str | list[int]:
        """Return the chat in Qwen's form; images stand as one `<|image_pad|>` each. There is nothing to think."""
        prompt = "".join(_TEMPLATE.format(role=m["role"], content=_content(m["content"])) for m in messages)
        if continue_final_message:
            prompt = prompt.removesuffix("<|im_end|>\n")
        if add_generation_prompt:
            prompt += "<|im_start|>assistant\n"
        return self.encode(prompt) if tokenize else prompt


def _content(content: str | Sequence[Mapping[str, Any]]) -> str:
    if isinstance(content, str):
        return content
    return "".join("<|image_pad|>" if part.get("type") == "image" else str(part.get("text", "")) for part in content)


class FakeBackend:
    """Answers from a script; honours every option that shows in a text, and opens images like the real ones."""

    name = "fake"
    capabilities = Capabilities(
        supports_vlm=True,
        supports_token_watchers=True,
        supports_no_repeat_ngram=True,
        supports_use_cache_off=True,
        supports_scoring=True,
        supports_greedy_checks=True,
        structures=frozenset({"json_schema", "regex", "choice"}),
        supports_thinking_budget=True,
        extra_options=frozenset({"top_k", "min_p", "min_new_tokens"}),
    )
    weights: LiveWeights | None = None

    def __init__(self, config: ModelLoadConfig, preprocess: VlmPreprocessOptions) -> None:
        self._start(read_script(config.model_name_or_path), None)

    @classmethod
    def from_answers(cls, answers: Answers, *, max_model_len: int | None = None) -> FakeBackend:
        """Return a backend that answers from a function of the prompt or from a sequence, by request order."""
        backend = cls.__new__(cls)
        backend._start(answers, max_model_len)
        return backend

    def _start(self, answers: Answers, max_model_len: int | None) -> None:
        if not callable(answers) and not answers:
            raise ConfigError("the fake backend needs at least one answer; give a sequence of answers or a function of the prompt")
        self._answers = answers
        self.tokenizer = FakeTokenizer()
        self.processor = self.tokenizer
        self.eos_token_ids: tuple[int, ...] = (FakeTokenizer.eos_token_id, FakeTokenizer.pad_token_id)
        self.max_model_len = max_model_len
        self.num_calls = 0
        self._should_stop: Callable[[], bool] = lambda: False
        self._now: tuple[float, float, int] | None = None
        """Of the answer that is delayed: since when, by how many seconds, and its number of tokens."""

    def check_plan(self, plan: SamplingPlan) -> None:
        """Take every plan: an answer is scripted."""

    def generate(
        self, prompts: Iterable[Prompt], *, plugins: Sequence[GenerationPlugin] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[BackendOutput]:
        """Yield the scripted outputs in order."""
        self.num_calls += 1
        self._should_stop = should_stop
        for prompt in prompts:
            if should_stop():
                return
            output = self._complete(prompt, plugins)
            if should_stop():
                return
            yield output

    def _wait(self, delay_s: float, num_tokens: int) -> None:
        """Wait as if the answer were being made, token by token, unless told to stop."""
        started = time.monotonic()
        self._now = (started, delay_s, num_tokens)
        while (left := started + delay_s - time.monotonic()) > 0 and not self._should_stop():
            time.sleep(min(left, _STEP_S))
        self._now = None

    def under_way(self) -> UnderWay:
        """Return the share of a delayed answer whose time has passed."""
        now = self._now
        return UnderWay() if now is None else UnderWay(1, int(now[2] * min(1.0, (time.monotonic() - now[0]) / now[1])))

    def _complete(self, prompt: Prompt, plugins: Sequence[GenerationPlugin]) -> BackendOutput:
        text, answer = self._answer(prompt)
        if answer.delay_s:
            self._wait(answer.delay_s, min(len(text), prompt.plan.max_new_tokens))
        if answer.error is not None:
            return prompt.index, GenerationFailure("error", answer.error)
        if answer.invalid is not None:
            return prompt.index, GenerationFailure("invalid", answer.invalid)
        if prompt.load_images is not None:
            try:
                prompt.check_length(len(prompt.token_ids), None)  # here an image is one token
                prompt.load_images()
            except Exception as error:  # one prompt must not take the others along
                return prompt.index, failure_of(error, "preparing the prompt")
        if prompt.response_ids is not None:
            return _scored(prompt, prompt.response_ids, answer)
        structured = prompt.plan.structured
        if structured is not None and not structured.optional and not fits(text, structured):
            return prompt.index, GenerationFailure("error", f"the scripted answer is not what structured asks for: {text[:80]!r}")
        ids = self.tokenizer.encode(text)
        if prompt.plan.thinking is not None:
            ids = within_budget(ids, prompt.plan.thinking, prompt.token_ids)
        return self._end(prompt, [*ids, self.tokenizer.eos_token_id] if answer.ends else ids, plugins)

    def _answer(self, prompt: Prompt) -> tuple[str, FakeAnswer]:
        """Return the text, and what else its script says of it."""
        given = self._answers(prompt) if callable(self._answers) else self._answers[min(prompt.index, len(self._answers) - 1)]
        return (given, _AS_IT_IS) if isinstance(given, str) else (given.text, given)

    def _end(self, prompt: Prompt, ids: Sequence[int], plugins: Sequence[GenerationPlugin]) -> Completion:
        row, kept, end = RowEnd(prompt.plan, self.tokenizer, plugins), [], None
        for token_id in ids:
            kept.append(token_id)
            if (end := row.push(token_id)) is not None:
                break
        stopped_by, stop_name = end or ("length", None)
        logprobs = tuple(0.0 for _ in kept) if prompt.plan.logprobs else None
        return Completion(prompt.index, tuple(kept), len(prompt.token_ids), stopped_by, logprobs, stop_name=stop_name)

    def describe(self) -> Mapping[str, Any]:
        """Return plain facts for run.json."""
        return {"backend": self.name, "options_without_effect": list(SCRIPTED)}

    def close(self) -> None:
        """Nothing to free."""


def _scored(prompt: Prompt, response_ids: tuple[int, ...], answer: FakeAnswer) -> BackendOutput:
    if answer.logprobs is None:
        return prompt.index, GenerationFailure("error", "the script has no logprobs for this response; add them to its answer")
    values = [float(answer.logprobs)] * len(response_ids) if isinstance(answer.logprobs, (int, float)) else list(answer.logprobs)
    if len(values) != len(response_ids):
        problem = f"the script has {len(values)} logprobs for a response of {len(response_ids)} tokens (characters)"
        return prompt.index, GenerationFailure("error", problem)
    if prompt.asks_greedy and answer.is_greedy is None:
        return prompt.index, GenerationFailure("error", "the script has no is_greedy for this response; add it to its answer")
    first = () if prompt.token_ids or not values else (None,)  # before a first token of all there is nothing
    is_greedy = answer.is_greedy if prompt.asks_greedy and values and not first else None
    return Completion(prompt.index, response_ids, len(prompt.token_ids), "given", (*first, *values[len(first) :]), is_greedy=is_greedy)


def read_script(source: str) -> Answers:
    """Return the answers that a model argument names: `echo`, or a JSONL file of script rows."""
    if source == "echo":
        return _echo
    path = Path(source)
    if not path.is_file():
        raise CheckpointError(f"backend 'fake' got --model {source!r}; give 'echo' or {_SCRIPT}")
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # not splitlines: a text may hold other line ends as they are
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path.name} is not a script ({error}); give {_SCRIPT}") from None
    rows = [_script_row(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not rows:
        raise CheckpointError(f"{path.name} has no answers; give {_SCRIPT}")

    def answer(prompt: Prompt) -> FakeAnswer:
        # By their ids: joined as texts, a response has the spaces that the prompt's text ends with.
        asked = prompt.text if prompt.response_ids is None else FakeTokenizer().decode((*prompt.token_ids, *prompt.response_ids))
        for contains, scripted in rows:
            if contains is None or contains in asked:
                return scripted
        return FakeAnswer(error=f"no row of {path.name} answers this prompt; add a row without 'contains'")

    return answer


def _script_row(path: Path, number: int, line: str) -> tuple[str | None, FakeAnswer]:
    try:
        row = json.loads(line)
        contains = row.pop("contains", None)
        if not isinstance(contains, (str, type(None))):
            raise ContractTypeError(f"contains must be a text, got {contains!r}")
        return contains, FakeAnswer(**row)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        known = "contains, text, error, invalid, delay_s, ends, logprobs, is_greedy"
        raise CheckpointError(f"{path.name}:{number} is not a script row ({error}); known keys: {known}") from None


def _echo(prompt: Prompt) -> str:
    turns = prompt.text.split("<|im_start|>user\n")
    return turns[-1].split("<|im_end|>")[0].replace("<|image_pad|>", "")
