"""Which options of transformers' own a request may carry besides the named ones, and what they may be. Knows nothing about how they act."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from evalharness.api.errors import ConfigError, UnsupportedOption
from evalharness.backends.base import SamplingPlan

__all__ = ["EXTRA_OPTIONS", "check_extras"]


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
    """Raise `UnsupportedOption` for an unknown extra and `ConfigError` for a value that transformers would misread."""
    for name, value in plan.extra:
        if name not in _EXTRAS:
            raise UnsupportedOption(f"backend 'hf' cannot honour options.{name}; it knows the extras {', '.join(sorted(_EXTRAS))}")
        wanted, is_legal = _EXTRAS[name]
        if not is_legal(value):
            raise ConfigError(f"options.{name} must be {wanted}, got {value!r}")
        if name in ("bad_words_ids", "suppress_tokens"):
            ids = list(value) if name == "suppress_tokens" else [token_id for word in value for token_id in word]
            if max(ids) >= vocab_size:
                raise ConfigError(f"options.{name} holds token id {max(ids)}; the vocabulary ends at {vocab_size - 1}")
    if dict(plan.extra).get("min_new_tokens", 0) > plan.max_new_tokens:
        raise ConfigError(f"options.min_new_tokens must not exceed max_new_tokens ({plan.max_new_tokens})")
