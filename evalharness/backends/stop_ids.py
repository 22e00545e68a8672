"""Stop token ids against a model's vocabulary: what the model cannot say never ends a text."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.backends.base import SamplingPlan

__all__ = ["check_stop_ids"]


def check_stop_ids(plan: SamplingPlan, *, vocab_size: int, eos_token_ids: Collection[int], tokenizer: Any) -> None:
    """Raise `ConfigError` for a stop token id beyond the vocabulary (rows of the model's embedding), which would never stop.

    Exempt are the checkpoint's own end-of-sequence ids, which nobody asked for, and ids of stop strings that are also
    looked for in the text.
    """
    for token_id in plan.stop_token_ids:
        if token_id < vocab_size or token_id in eos_token_ids:
            continue
        if plan.stop_strings and tokenizer.decode([token_id], skip_special_tokens=False) in plan.stop_strings:
            continue
        raise ConfigError(
            f"stop token id {token_id} would never stop: the model's vocabulary ends at {vocab_size - 1}; "
            "give ids of this checkpoint in options.stop and options.eos_token_id, or a stop string"
        )
