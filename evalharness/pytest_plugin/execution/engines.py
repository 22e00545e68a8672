"""How a session's engines come and go: opened for the first test that needs one, with its facts noted, and kept for the next checkpoint."""

from __future__ import annotations

import os
import threading
import time
import warnings
from typing import TYPE_CHECKING

from evalharness.api.errors import ConfigError
from evalharness.pytest_plugin.execution.deferred_engine import opened_engine
from evalharness.pytest_plugin.execution.engine_pool import EnginePool
from evalharness.pytest_plugin.execution.takeover import read_crashes

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine
    from evalharness.pytest_plugin.execution.engine_specs import EngineSpec
    from evalharness.pytest_plugin.session import EvalSession

__all__ = ["EngineOpening"]


class EngineOpening:
    """The engines of one session, at most one of them open."""

    def __init__(self, session: EvalSession) -> None:
        self._session = session
        self._notices: list[str] = []
        self._pool = EnginePool(session.run, self._note)
        self.card_problem: str | None = None
        """Why no engine can be opened on this process's GPUs."""
        self.is_at_work = False
        """Whether one is being opened just now."""

    def check_cache(self) -> None:
        """Raise `ConfigError` where the folder of the run's cache cannot be used, before anything runs."""
        self._pool.cache  # noqa: B018

    def may_not_be_needed(self, spec: EngineSpec) -> bool:
        """Return whether all that an engine would be asked may be recorded: by earlier sessions, or by a worker that died."""
        session = self._session
        if session.resumed is not None:
            return True
        return session.is_worker and any(note.engine == spec.id for note in read_crashes(session.run_dir, session.session_number))

    def open(self, spec: EngineSpec) -> Engine:
        """Return the opened engine of a spec and note its facts."""
        session = self._session
        if session.num_workers:
            # Before torch is imported; without it every worker's torch would use all cores.
            os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // session.num_workers)))
        if self.card_problem is not None:
            raise ConfigError(self.card_problem)
        session.journal.write("engine_start", {"id": spec.id})
        self.is_at_work = True
        try:
            engine, opening = self._pool.open(spec)
        finally:
            self.is_at_work = False
        facts = engine.describe()
        problem = None if session.resumed is None else session.resumed.engine_change(spec, facts)
        if problem is not None:
            self._pool.give_back(spec, engine)
            raise ConfigError(problem)
        where = {"worker": session.journal.worker, "devices": None if session.cards is None else list(session.cards)}
        session.journal.write("engine", {"id": spec.id, **opening.to_json(), "settings": facts, "ended_s": time.time(), **where})
        return engine

    def give_back(self, spec: EngineSpec, engine: Engine) -> None:
        """Keep an engine for the next checkpoint. Its facts are noted again: some are counts of what happened since it was opened."""
        opened = opened_engine(engine)
        if opened is None:
            return
        facts = opened.describe()
        self._pool.give_back(spec, opened)
        self._session.journal.write("engine", {"id": spec.id, "settings": facts, "worker": self._session.journal.worker})

    def close(self) -> None:
        """Close the engine that was kept."""
        self._pool.close()

    def _note(self, message: str) -> None:
        # A warning that is an error would end the thread that generates, and with it every case of the unit.
        if threading.current_thread() is threading.main_thread():
            _warn(message)
        else:
            self._notices.append(message)

    def warn_of_notices(self) -> None:
        """Warn, in the thread of the tests, of what engines have done otherwise than asked."""
        while self._notices:
            _warn(self._notices.pop(0))


def _warn(message: str) -> None:
    from evalharness.engine.engine import EngineWarning

    warnings.warn(message, EngineWarning, stacklevel=2)
