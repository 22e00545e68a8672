"""Shows, twice a second, how far the run is, and leaves word of it for others: in the run's folder, and in the index of all runs.

A thread of the reporting process does it: the main thread may be loading a model for minutes. Workers send their snapshots each second.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from evalharness.api.checks import any_text
from evalharness.api.errors import RecordError
from evalharness.pytest_plugin.progress.counts import Snapshot, snapshot
from evalharness.pytest_plugin.progress.gathering import Gathering
from evalharness.pytest_plugin.progress.terminal import SharedTerminal
from evalharness.runs.progress import EVERY_S, RunProgress, remove_progress, write_progress

if TYPE_CHECKING:
    from evalharness.pytest_plugin.session import EvalSession

LOG_EVERY_S = 30.0
INDEX_EVERY_S = 60.0
_FIRST_INDEX_S = 15.0  # a run of seconds is in the index once it has ended
_LIVE_S, _QUIET_S, _SEND_S = 0.5, 1.0, 0.5
_END_S = 10.0


class Ticker(threading.Thread):
    """Calls `tick` every so many seconds, and a last time once it is stopped; an error ends it, and `on_error` is told."""

    def __init__(self, name: str, every_s: float, tick: Callable[[], None], on_error: Callable[[Exception], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._every_s = every_s
        self._tick = tick
        self._on_error = on_error
        self._is_told_to_stop = threading.Event()

    def run(self) -> None:
        """Tick."""
        try:
            is_last = False
            while not is_last:
                is_last = self._is_told_to_stop.wait(self._every_s)
                self._tick()
        except Exception as error:
            self._on_error(error)

    def stop(self) -> None:
        """End the thread; it may be at work for a moment. Idempotent."""
        self._is_told_to_stop.set()
        if self.is_alive() and self is not threading.current_thread():
            self.join(_END_S)


def sending(take: Callable[[], Snapshot], send: Callable[[Snapshot], None]) -> Ticker:
    """Return a started thread that sends this worker's snapshot to the controller whenever it has changed."""
    sent: list[Snapshot] = []

    def tick() -> None:
        taken = take()
        news: list[Snapshot] = [{**taken, "for_s": 0.0, "busy_s": 0.0}]
        if news != sent:
            send({**taken, "asked": [] if sent else taken["asked"]})
            sent[:] = news

    ticker = Ticker("progress", _SEND_S, tick, lambda error: None)  # the controller has gone
    ticker.start()
    return ticker


class Progress:
    """The progress of a run in the process that reports: `take_own` gives its own snapshot, None in a controller."""

    def __init__(
        self, config: pytest.Config, run_dir: Path, gathering: Gathering, take_own: Callable[[], Snapshot] | None, *, num_tests: int
    ) -> None:
        self.gathering = gathering
        self.gathering.num_tests = num_tests
        from evalharness.report.progress import progress_line  # rich, only where a run begins

        self._line = progress_line
        self._run_dir = run_dir
        self._take_own = take_own
        self._terminal = SharedTerminal.open(config)
        self._is_quiet = config.get_verbosity() < -1
        self._logged_at = self._written_at = now = time.monotonic()
        self._indexed_at = now - INDEX_EVERY_S + _FIRST_INDEX_S
        is_live = self._terminal is not None and self._terminal.is_live
        self._ticker = Ticker("progress", _LIVE_S if is_live else _QUIET_S, self._tick, self._failed)

    def start(self) -> None:
        """Begin to show it; first store it where `close` is called on it, as Ctrl-C may come at any time."""
        self._ticker.start()

    def _tick(self) -> None:
        now = time.monotonic()
        if self._take_own is not None:
            self.gathering.take("main", self._take_own())
        progress = self.gathering.look()
        self._show(now, progress)
        if now - self._written_at >= EVERY_S:
            self._written_at = now
            with suppress(RecordError):  # the journal will say that nothing can be written
                write_progress(self._run_dir, progress)
        is_loading = any(worker.doing == "loading" for worker in progress.workers)
        if now - self._indexed_at >= INDEX_EVERY_S and not (is_loading and self._take_own is not None):  # vLLM forks while it loads
            self._indexed_at = now
            from evalharness.report.html.index_page import write_index  # jinja, not before it is needed

            with suppress(Exception):  # whatever lies in that folder; the run's end says so
                write_index(self._run_dir.parent)

    def _show(self, now: float, progress: RunProgress) -> None:
        if self._terminal is None:
            return
        if self._terminal.is_live:
            self._terminal.show(self._line(progress, self._terminal.columns() - 1))
        elif now - self._logged_at >= LOG_EVERY_S and not self._is_quiet:
            self._logged_at = now
            self._terminal.log(f"evalharness {datetime.now():%H:%M:%S}: {self._line(progress).partition(': ')[2]}")

    def _failed(self, error: Exception) -> None:
        if self._terminal is not None:
            self._terminal.log(f"evalharness: progress is not shown any more: {type(error).__name__}: {any_text(error)[:200]}")

    def say(self, line: str) -> bool:
        """Write a line of its own at once, in whatever the main thread is; return whether there is anywhere to write it."""
        if self._terminal is not None:
            self._terminal.log(line)
        return self._terminal is not None

    def pause(self, *, on: bool) -> None:
        """Show nothing while a debugger has the terminal."""
        if self._terminal is not None:
            self._terminal.pause(on=on)

    def close(self) -> None:
        """Show nothing more, and take away what was shown and written. Idempotent."""
        self._ticker.stop()
        if self._terminal is not None:
            self._terminal.close()
        remove_progress(self._run_dir)


def progress_of(config: pytest.Config, state: EvalSession) -> Progress:
    """Return the progress of a run that begins now, of this process or of its workers."""
    execution, context = state.execution, state.context
    gathering = Gathering(state.registry.engine_ids, is_resumed=context.resumed is not None)
    take_own = None
    if context.worker == "main":
        execution.asked  # noqa: B018  # now: the plan changes while tests run
        take_own = partial(snapshot, execution)
    return Progress(config, context.run_dir, gathering, take_own, num_tests=len(execution.plan.units))
