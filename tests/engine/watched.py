"""Weights of a fake backend that somebody else changes, without a word to the engine."""

from __future__ import annotations

from typing import Any

from evalharness import ModelLoadConfig
from evalharness.backends.fake import FakeBackend


class WatchedWeights:
    """Weights that others can reach: `number` is raised where they change."""

    number: int | None = 0
    is_shared = False

    def of(self, backend: FakeBackend) -> FakeBackend:
        """Return the backend, which now has these weights."""
        weights: Any = self
        backend.weights = weights
        return backend

    def stamp(self) -> int | None:
        return self.number

    def why_not_swap(self, config: ModelLoadConfig) -> None:
        return None

    def swap(self, config: ModelLoadConfig) -> None:
        self.number = 7
