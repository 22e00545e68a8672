"""Scores and logits as training loops multiply and average them: torch tensors without gaps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch


def without_gaps(values: Any, mask: Any) -> torch.Tensor:
    """Return values, `[batch, response]` or `[batch, response, vocab]`, as a tensor that is 0 where `mask` is False, not NaN.

    A gap then adds nothing to a sum, and equal logits nothing to a KL; gradients of all else are as they were.
    """
    values, mask = torch.as_tensor(values), torch.as_tensor(mask)
    if bool(mask.all()):
        return values
    return values.masked_fill(~mask.reshape(*mask.shape, *(1,) * (values.dim() - 2)), 0.0)


def padded(rows: Sequence[Sequence[float | None]]) -> torch.Tensor:
    """Return rows of numbers as float32 `[row, longest]`: 0 behind a short row, NaN for a number that is not known."""
    values = torch.zeros(len(rows), max(map(len, rows), default=0))
    for number, row in enumerate(rows):
        values[number, : len(row)] = torch.tensor([torch.nan if value is None else value for value in row])
    return values


def wants_gradients(model: Any) -> bool:
    """Return whether a call of the model would keep what a backward pass needs, as torch's own calls do."""
    return torch.is_grad_enabled() and any(parameter.requires_grad for parameter in model.parameters())
