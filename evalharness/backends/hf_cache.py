"""Keys and values of a running batch: whether rows can be taken out of them, and how."""

from __future__ import annotations

from typing import Any

import torch

from evalharness.backends.hf_transformers import transformers

__all__ = ["select_rows", "selectable_cache"]


def selectable_cache(model: Any) -> Any:
    """Return an empty cache that rows can be taken out of; None for a model that keeps anything else than keys and values by row.

    Only plain growing layers are taken for that: what recurrent and windowed layers, or caches of a model's own, keep, and
    where, is theirs to know. Beside the cache Qwen's vision models keep `rope_deltas`, see `select_rows`.
    """
    supports = getattr(model, "_supports_default_dynamic_cache", None)
    if supports is None or not supports() or getattr(model.generation_config, "cache_implementation", None) is not None:
        return None
    if model.config.is_encoder_decoder:
        return None
    cache = transformers.DynamicCache(config=model.config.get_text_config(decoder=True))
    layers = getattr(cache, "layers", None)
    return cache if layers and all(type(layer) is transformers.cache_utils.DynamicLayer for layer in layers) else None


def select_rows(model: Any, cache: Any, indices: torch.Tensor) -> None:
    """Keep these rows of the cache, and of the position offsets that vision models remember from their prompts."""
    for module in model.modules():
        deltas = getattr(module, "rope_deltas", None)
        if isinstance(deltas, torch.Tensor) and deltas.shape[0] == cache.batch_size:
            module.rope_deltas = deltas[indices]
    cache.batch_select_indices(indices)
