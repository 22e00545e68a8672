"""A base's tensors with an adapter's product added: what a merged checkpoint would hold, made while it is read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from evalharness.api.errors import CheckpointError
from evalharness.checkpoints.adapter import ADAPTER_WEIGHTS, Adapter

__all__ = ["merged_weights"]


def merged_weights(weights: Iterable[tuple[str, Any]], adapter: Adapter, dtype: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of the base, adapted ones as `dtype`: the sum is made in float32 and rounded once.

    Raises `CheckpointError` at the end if any of the adapter's weights found none of the base's.
    """
    import torch
    from safetensors import safe_open

    left = {weight.base_name: weight for weight in adapter.weights}
    replaced = dict(adapter.replaced)
    with safe_open(adapter.path / ADAPTER_WEIGHTS, framework="pt") as file:
        for name, tensor in weights:
            weight = left.pop(name, None)
            if weight is not None:
                a, b = (file.get_tensor(part).to(torch.float32) for part in (weight.a, weight.b))
                yield name, (tensor.to(torch.float32).cpu() + weight.scaling * (b @ a)).to(dtype)
            elif name in replaced:
                yield name, file.get_tensor(replaced.pop(name))
            else:
                yield name, tensor
    missed = [*left, *replaced]
    if missed:
        raise CheckpointError(f"{len(missed)} weights of adapter {adapter.path} were not applied, such as the one of {missed[0]!r}")
