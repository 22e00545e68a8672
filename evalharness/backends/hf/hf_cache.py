"""Keys and values of a running batch: whether rows can be taken out of them, and how."""

from __future__ import annotations

from typing import Any

import torch

from evalharness.backends.hf._transformers import transformers

__all__ = ["select_rows", "selectable_cache"]


def selectable_cache(model: Any) -> Any:
    """Return an empty cache that rows can be taken out of; None for a model that keeps anything else than keys and values by row.

    Only plain growing layers are taken for that: what recurrent and windowed layers, or caches of a model's own, keep, and
    where, is theirs to know. Vision models that keep positions by row beside the cache (`rope_deltas`) are not taken either.
    """
    supports = getattr(model, "_supports_default_dynamic_cache", None)
    if supports is None or not supports() or getattr(model.generation_config, "cache_implementation", None) is not None:
        return None
    if model.config.is_encoder_decoder or any(hasattr(module, "rope_deltas") for module in model.modules()):
        return None
    cache = transformers.DynamicCache(config=model.config.get_text_config(decoder=True))
    layers = getattr(cache, "layers", None)
    return cache if layers and all(type(layer) is transformers.cache_utils.DynamicLayer for layer in layers) else None


def select_rows(cache: Any, indices: torch.Tensor) -> None:
    """Keep these rows of the cache."""
    cache.batch_select_indices(indices)
