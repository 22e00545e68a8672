"""What stands for an engine while nothing has to be asked: where all is recorded, no model is loaded at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import RLock
from typing import TYPE_CHECKING, Any

from evalharness.api.cases import Case

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine
    from evalharness.runs.records import CaseRecords

__all__ = ["DeferredEngine", "asks_anything", "opened_engine"]


class DeferredEngine:
    """Is the engine as soon as anything but its name is asked of it; `open` loads it, and fails alike however often it is asked.

    `opened` is the engine itself, None as long as nobody needed it.
    """

    def __init__(self, name: str, load: Callable[[], Engine]) -> None:
        self.name = name
        self.opened: Engine | None = None
        self._load = load
        self._failure: BaseException | None = None
        self._lock = RLock()

    def open(self) -> Engine:
        """Return the engine, loaded at the first call."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self.opened is None:
                try:
                    self.opened = self._load()
                except BaseException as error:
                    self._failure = error
                    raise
            return self.opened

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copies and inspections are no reason to load anything
            raise AttributeError(name)
        return getattr(self.open(), name)


def opened_engine(engine: Engine, *, wanted: bool = False) -> Engine | None:
    """Return the engine itself, None where it was never needed; `wanted` loads it then, and passes on what fails."""
    deferred: object = engine
    if not isinstance(deferred, DeferredEngine):
        return engine
    return deferred.open() if wanted else deferred.opened


def asks_anything(cases: Iterable[Case], recorded: Callable[[str], CaseRecords | None], num_samples: int) -> bool:
    """Return whether any case has to be asked that is not recorded in full: only then is an engine needed."""
    found = (recorded(case.id) for case in cases if case.invalid is None)
    return any(one is None or not one.has_all(num_samples) for one in found)
