"""Hands whole work units to xdist's workers, so that a unit's requests reach one engine together.

A worker prefers units of the engine it has loaded; big units go first. Sessions without evals get xdist's own
scheduler: which one it is shows only once the tests are collected, so this one waits for that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from xdist.scheduler import LoadScheduling

from evalharness.pytest_plugin.units import UnitKey

__all__ = ["DeferredScheduler", "UnitScheduler"]

AssignUnits = Callable[[Sequence[str]], dict[str, UnitKey]]


class UnitScheduler:
    """xdist's scheduling protocol over units; tests that are no evals form units of one."""

    def __init__(self, num_nodes: int, assign: AssignUnits) -> None:
        self._num_nodes = num_nodes
        self._assign = assign
        self._collections: dict[Any, list[str]] = {}
        self._collection: list[str] | None = None
        self._units: dict[str, UnitKey] = {}
        self._waiting: dict[object, list[int]] = {}
        self._pending: dict[Any, deque[int]] = {}
        self._loaded: dict[Any, str | None] = {}

    @property
    def nodes(self) -> list[Any]:
        """The workers that are up."""
        return list(self._pending)

    @property
    def collection_is_completed(self) -> bool:
        """Whether every worker has collected."""
        return len(self._collections) >= self._num_nodes

    @property
    def tests_finished(self) -> bool:
        """Whether nothing waits and each worker has at most the one test that it holds back."""
        return self.collection_is_completed and not self._waiting and all(len(pending) < 2 for pending in self._pending.values())

    @property
    def has_pending(self) -> bool:
        """Whether any test has not run yet."""
        return bool(self._waiting) or any(self._pending.values())

    def add_node(self, node: Any) -> None:
        """Add a worker."""
        self._pending[node] = deque()
        self._loaded[node] = None

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        """Note what a worker collected; it must be the same everywhere."""
        self._collections[node] = list(collection)
        first = next(iter(self._collections.values()))
        if list(collection) != first:
            raise RuntimeError(
                f"worker {node.gateway.id} collected {len(collection)} tests, others {len(first)}: cases or checkpoints changed meanwhile"
            )

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        """Note that a test ran and give the worker more where it needs some."""
        self._pending[node].remove(item_index)
        self._feed(node)

    def mark_test_pending(self, item: str) -> None:
        """Put a test back: its worker wants it run again."""
        assert self._collection is not None
        self._waiting[item] = [self._collection.index(item)]
        for node in self.nodes:
            self._feed(node)

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        """Take back tests that a worker gives up."""
        raise NotImplementedError("only xdist's work stealing asks for this")

    def remove_node(self, node: Any) -> str | None:
        """Remove a worker; returns the test that it crashed in, if any. The rest of its tests wait for another worker."""
        pending = self._pending.pop(node)
        del self._loaded[node]
        if not pending or self._collection is None:
            return None
        crashed = self._collection[pending.popleft()]
        for index in pending:
            self._waiting.setdefault(self._units.get(self._collection[index], self._collection[index]), []).append(index)
        for other in self.nodes:
            self._feed(other)
        return crashed

    def schedule(self) -> None:
        """Give every worker its first units; again after a worker was added."""
        if self._collection is None:
            self._collection = next(iter(self._collections.values()))
            self._units = self._assign(self._collection)
            for index, nodeid in enumerate(self._collection):
                self._waiting.setdefault(self._units.get(nodeid, nodeid), []).append(index)
        for node in self.nodes:
            self._feed(node)

    def _feed(self, node: Any) -> None:
        if node not in self._collections:
            return  # a replacement that has not collected yet; `schedule` comes again when it has
        # A worker holds its last test back until it knows what comes next, so the next unit goes out one test early.
        while len(self._pending[node]) < 2:
            if not self._waiting:
                if not node.shutting_down:
                    node.shutdown()
                return
            if node.shutting_down:
                return
            key = self._next_key(node)
            indices = self._waiting.pop(key)
            if isinstance(key, UnitKey):
                self._loaded[node] = key.engine
            self._pending[node].extend(indices)
            node.send_runtest_some(indices)

    def _next_key(self, node: Any) -> object:
        loaded = self._loaded[node]
        taken = {engine for other, engine in self._loaded.items() if other is not node}

        def rank(key: object) -> tuple[int, int]:
            engine = key.engine if isinstance(key, UnitKey) else None
            distance = 0 if engine == loaded else 1 if engine not in taken else 2
            return distance, -len(self._waiting[key])

        return min(self._waiting, key=rank)


class DeferredScheduler:
    """Chooses between units and xdist's own load scheduling once the first worker has collected."""

    def __init__(self, config: Any, log: Any, num_nodes: int, assign: AssignUnits) -> None:
        self._config = config
        self._log = log
        self._num_nodes = num_nodes
        self._assign = assign
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
            self._chosen = UnitScheduler(self._num_nodes, self._assign) if evals else LoadScheduling(self._config, self._log)
            for early in self._early_nodes:
                self._chosen.add_node(early)
        self._chosen.add_node_collection(node, collection)

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
