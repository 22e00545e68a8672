"""Chooses the scheduler of a session once its tests are known: work units for evals, xdist's own way for all others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xdist.scheduler import LoadScheduling

from evalharness.pytest_plugin.distributed.scheduler import AssignUnits, CrashJudge, Estimate, UnitScheduler, count_tests

__all__ = ["DeferredScheduler"]


class DeferredScheduler:
    """Chooses between units and xdist's own load scheduling once the first worker has collected."""

    def __init__(
        self,
        config: Any,
        log: Any,
        num_nodes: int,
        assign: AssignUnits,
        estimate: Estimate = count_tests,
        judge: CrashJudge | None = None,
    ) -> None:
        self._config = config
        self._log = log
        self._num_nodes = num_nodes
        self._assign = assign
        self._estimate = estimate
        self._judge = judge
        self._early_nodes: list[Any] = []
        self._chosen: Any = None

    def add_node(self, node: Any) -> None:
        """Add a worker, now or as soon as the choice is made."""
        if self._chosen is None:
            self._early_nodes.append(node)
        else:
            self._chosen.add_node(node)

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Choose by what was collected, then pass it on."""
        if self._chosen is None:
            evals = self._assign(collection)
            if evals:
                self._chosen = UnitScheduler(self._num_nodes, self._assign, self._estimate, self._judge)
            else:
                self._chosen = LoadScheduling(self._config, self._log)
            for early in self._early_nodes:
                self._chosen.add_node(early)
        self._chosen.add_node_collection(node, collection)

    def has_collected(self, node: Any) -> bool:
        """Return whether a worker has said what it collected."""
        return isinstance(self._chosen, UnitScheduler) and self._chosen.has_collected(node)

    def has_work(self, node: Any) -> bool:
        """Return whether a worker has units to run."""
        return isinstance(self._chosen, UnitScheduler) and self._chosen.has_work(node)

    def stop(self, reason: str) -> None:
        """End the workers that run units, each after the test that it is in."""
        if isinstance(self._chosen, UnitScheduler):
            self._chosen.stop(reason)

    @property
    def nodes(self) -> list[Any]:
        """The workers that are up."""
        return self._early_nodes if self._chosen is None else self._chosen.nodes

    @property
    def collection_is_completed(self) -> bool:
        """Whether every worker has collected."""
        return self._chosen is not None and self._chosen.collection_is_completed

    @property
    def tests_finished(self) -> bool:
        """Whether nothing is left to hand out."""
        return self._chosen is not None and self._chosen.tests_finished

    @property
    def has_pending(self) -> bool:
        """Whether any test has not run yet."""
        return self._chosen is not None and self._chosen.has_pending

    def remove_node(self, node: Any) -> str | None:
        """Remove a worker; returns the test that it crashed in, if any."""
        if self._chosen is not None:
            return self._chosen.remove_node(node)
        if node not in self._early_nodes:
            raise KeyError(node)  # what xdist expects of a worker that died before it was ready
        self._early_nodes.remove(node)
        return None

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Pass on."""
        self._chosen.mark_test_complete(node, item_index, duration)

    def mark_test_pending(self, item: str) -> None:
        """Pass on."""
        self._chosen.mark_test_pending(item)

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        """Pass on."""
        self._chosen.remove_pending_tests_from_node(node, indices)

    def schedule(self) -> None:
        """Pass on."""
        self._chosen.schedule()
