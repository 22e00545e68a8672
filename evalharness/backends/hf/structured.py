"""Answers held to a structure, and thoughts to a budget, while transformers generates.

The grammars are xgrammar's, which vLLM uses too, so both backends allow the same tokens at each step. Every row has a matcher of
its own and is told of its own tokens alone.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch

from evalharness.api.errors import ConfigError, MissingDependency, UnsupportedOption
from evalharness.api.installing import missing_package
from evalharness.api.structured_output import StructuredOutput, unheld_keywords
from evalharness.api.thinking import ThinkingRow
from evalharness.backends.base import SamplingPlan
from evalharness.backends.hf._transformers import transformers

__all__ = ["Grammars", "HeldToGrammar", "HeldToThinkingBudget"]

_MOST_KEPT = 256  # an eval may have a schema for each case, and with a large vocabulary a grammar takes megabytes


class Grammars:
    """Compiled grammars of one tokenizer, the last that were asked for kept; `vocab_size`: how many scores the model gives."""

    def __init__(self, tokenizer: Any, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._compiler: Any = None
        self._compiled: OrderedDict[StructuredOutput, Any] = OrderedDict()

    def check(self, plan: SamplingPlan) -> None:
        """Raise `ConfigError` for a structure that is none, `UnsupportedOption` for one that could not be held."""
        if plan.structured is not None:
            self.compiled(plan.structured)

    def processors(self, plan: SamplingPlan, prompts: Sequence[Sequence[int]]) -> list[Any]:
        """Return what holds the rows of one batch, by their prompts' ids: nothing where the plan asks for nothing."""
        found: list[Any] = []
        if plan.thinking is not None:
            found.append(HeldToThinkingBudget([ThinkingRow(plan.thinking, prompt, self._decode) for prompt in prompts]))
        if plan.structured is not None:
            found.append(HeldToGrammar(self.compiled(plan.structured), plan.stop_token_ids, len(prompts)))
        return found

    def _decode(self, token_ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def compiled(self, structured: StructuredOutput) -> Any:
        """Return xgrammar's grammar."""
        found = self._compiled.pop(structured, None)
        self._compiled[structured] = found = self._compile(structured) if found is None else found
        if len(self._compiled) > _MOST_KEPT:
            self._compiled.popitem(last=False)
        return found

    def _compile(self, structured: StructuredOutput) -> Any:
        if unheld := list(unheld_keywords(structured.json_schema)):
            raise UnsupportedOption(
                f"structured.json_schema asks for what backend 'hf' cannot hold an answer to: {', '.join(unheld)}; "
                "leave it out and check it in the test, or use --backend vllm"
            )
        if self._compiler is None:
            self._compiler = _compiler(self._tokenizer, self._vocab_size)
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


class HeldToGrammar(transformers.LogitsProcessor):
    """Leaves only tokens possible that a row's grammar allows next; `stop_token_ids` only where the text is complete."""

    def __init__(self, compiled: Any, stop_token_ids: Sequence[int], num_rows: int) -> None:
        import xgrammar

        self._xgrammar = xgrammar
        self._matchers = [xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(stop_token_ids)) for _ in range(num_rows)]
        self._has_ended = [False] * num_rows
        self._is_first = True

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self._is_first:
            for row, token_id in enumerate(input_ids[:, -1].tolist()):
                # What a row that has ended by a stop string or its cap is given is padding, which no grammar allows.
                if not self._has_ended[row]:
                    matcher = self._matchers[row]
                    self._has_ended[row] = not matcher.accept_token(token_id) or matcher.is_terminated()
        self._is_first = False
        mask = self._xgrammar.allocate_token_bitmask(len(self._matchers), scores.shape[-1])  # all allowed
        for row, matcher in enumerate(self._matchers):
            if not self._has_ended[row]:
                matcher.fill_next_token_bitmask(mask, row)
        self._xgrammar.apply_token_bitmask_inplace(scores, mask.to(scores.device))
        return scores

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Go on with these rows alone."""
        self._matchers = [self._matchers[row] for row in rows.tolist()]
        self._has_ended = [self._has_ended[row] for row in rows.tolist()]


class HeldToThinkingBudget(transformers.LogitsProcessor):
    """Writes the mark that ends a thought where a row's budget is used up."""

    def __init__(self, rows: Sequence[ThinkingRow]) -> None:
        self._rows = list(rows)
        self._is_first = True

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not self._is_first:
            for row, token_id in zip(self._rows, input_ids[:, -1].tolist(), strict=True):
                row.push(token_id)
        self._is_first = False
        forced = {position: row.forced for position, row in enumerate(self._rows) if row.forced is not None}
        if forced:
            scores = scores.clone()
            for position, token_id in forced.items():
                scores[position] = -torch.inf
                scores[position, token_id] = 0.0
        return scores

    def keep_rows(self, rows: torch.Tensor) -> None:
        """Go on with these rows alone."""
        self._rows = [self._rows[row] for row in rows.tolist()]
