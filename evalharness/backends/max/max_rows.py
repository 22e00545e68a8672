"""One prompt while MAX works on it: from a `SamplingPlan` to MAX's context, and from its tokens to a `Completion`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from evalharness.api.errors import BackendError, UnsupportedOption
from evalharness.api.hooks import GenerationPlugin, RowWatchers
from evalharness.api.requests import GenerationFailure
from evalharness.backends.base import BackendOutput, Completion, Prompt, SamplingPlan
from evalharness.backends.max.max_seeds import max_seed
from evalharness.backends.plan_limits import check_limits
from evalharness.backends.stops import StopStringWatcher

__all__ = ["EXTRA_OPTIONS", "MaxRow", "sampling_params"]

EXTRA_OPTIONS: Mapping[str, Any] = {
    "top_k": -1,
    "min_p": 0.0,
    "min_new_tokens": 0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""Extra options that MAX honours, by its own names, and what they are where they are off."""


def sampling_params(plan: SamplingPlan, *, vocab_size: int) -> Any:
    """Return MAX's `SamplingParams` with every field set that a result depends on; a checkpoint's own ideas reach none of them.

    `UnsupportedOption` where MAX cannot honour the plan, or would change it without saying so.
    """
    from max.pipelines.context import SamplingParams

    check_limits(plan, "MAX")
    extra = dict(EXTRA_OPTIONS)
    for name, value in plan.extra:
        if name not in EXTRA_OPTIONS:
            raise UnsupportedOption(f"option {name!r} cannot be honoured by the max backend; it knows: {', '.join(sorted(EXTRA_OPTIONS))}")
        extra[name] = EXTRA_OPTIONS[name] if value is None else value
    if extra["min_new_tokens"] > plan.max_new_tokens:
        raise UnsupportedOption(f"option min_new_tokens={extra['min_new_tokens']} is more than max_new_tokens, {plan.max_new_tokens}")
    if not _stop_ids(plan, vocab_size):
        extra["min_new_tokens"] = 0  # nothing could end the row sooner, and MAX's mask of no tokens breaks its batch
    try:
        return SamplingParams(
            temperature=plan.temperature,
            top_p=plan.top_p,
            repetition_penalty=plan.repetition_penalty,
            seed=max_seed(plan.seed) if plan.seed is not None else 0,
            detokenize=False,
            **extra,
        )
    except (TypeError, ValueError) as error:
        raise UnsupportedOption(f"MAX refuses these generation options: {error}") from error


def _stop_ids(plan: SamplingPlan, vocab_size: int) -> set[int]:
    return {token_id for token_id in plan.stop_token_ids if token_id < vocab_size}


class _RawScores:
    """MAX's hook before sampling: keeps the scores of the next token, as penalties and masks change them in place afterwards."""

    def __init__(self) -> None:
        self._scores: Any = None

    def __call__(self, inputs: Any) -> None:
        self._scores = np.array(inputs.logits[-1, :].to_numpy(), dtype=np.float64)

    def logprob_and_entropy(self, token_id: int) -> tuple[float, float]:
        """Return the raw log-probability of a token at the place that was looked at last, and the entropy there; natural log."""
        shifted = self._scores - self._scores.max()
        logprobs = shifted - np.log(np.exp(shifted).sum())
        possible = logprobs[np.isfinite(logprobs)]
        return float(logprobs[token_id]), float(-(np.exp(possible) * possible).sum())


class MaxRow:
    """A prompt, MAX's context of it, and what has come of it."""

    def __init__(self, prompt: Prompt, watching: Sequence[GenerationPlugin], tokenizer: Any, *, vocab_size: int) -> None:
        from max.pipelines.context import EOSTracker, TextContext, TokenBuffer

        plan = prompt.plan
        params = sampling_params(plan, vocab_size=vocab_size)
        self._scores = _RawScores() if plan.logprobs or plan.entropies else None
        if self._scores is not None:
            params.logits_processors = [self._scores]
        self.prompt = prompt
        self.context = TextContext(
            max_length=len(prompt.token_ids) + plan.max_new_tokens,
            tokens=TokenBuffer(np.asarray(prompt.token_ids, dtype=np.int64)),
            eos_tracker=EOSTracker(eos_token_ids=_stop_ids(plan, vocab_size)),
            sampling_params=params,
            vocab_size=vocab_size,
        )
        self._stop_ids = frozenset(plan.stop_token_ids)
        self._strings = StopStringWatcher(tokenizer, plan.stop_strings, plan.skip_special_tokens) if plan.stop_strings else None
        self._watchers = RowWatchers(watching, tokenizer, plan.stop_token_ids) if watching else None
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._entropies: list[float] = []

    @property
    def num_tokens(self) -> int:
        """Room that the row may come to need: prompt and longest generation."""
        return len(self.prompt.token_ids) + self.prompt.plan.max_new_tokens

    def take(self, output: Any) -> BackendOutput | None:
        """Take the newest token out of MAX's output; return what has come of the row where it ends with it."""
        if output is None or len(output.tokens) != 1:
            return self._failure(f"MAX gave {0 if output is None else len(output.tokens)} tokens for one step")
        token_id = int(output.tokens[0])
        self._token_ids.append(token_id)
        if self._scores is not None:
            logprob, entropy = self._scores.logprob_and_entropy(token_id)
            self._logprobs.append(logprob)
            self._entropies.append(entropy)
        by_string = self._strings is not None and self._strings.push(token_id)
        by_plugin = self._watchers.push(token_id) if self._watchers is not None else None
        if token_id in self._stop_ids:
            return self._completion("id")
        if by_string:
            return self._completion("string")
        if by_plugin is not None:
            return self._completion("plugin", by_plugin)
        if len(self._token_ids) == self.prompt.plan.max_new_tokens:
            return self._completion("length")
        if output.is_done:
            return self._failure(f"MAX ended the row with {output.final_status.value!r}, where nothing was to end it")
        return None

    def _failure(self, problem: str) -> BackendOutput:
        return self.prompt.index, GenerationFailure("error", problem, BackendError(problem))

    def _completion(self, stopped_by: Literal["id", "string", "plugin", "length"], stop_name: str | None = None) -> Completion:
        return Completion(
            index=self.prompt.index,
            token_ids=tuple(self._token_ids),
            num_prompt_tokens=len(self.prompt.token_ids),
            stopped_by=stopped_by,
            logprobs=tuple(self._logprobs) if self.prompt.plan.logprobs else None,
            entropies=tuple(self._entropies) if self.prompt.plan.entropies else None,
            stop_name=stop_name,
        )
