"""Tells the controller a worker's signs of life, and lets it kill workers that show none, on whatever host they are.

A worker's thread sends two counts every few seconds: results (phases of tests, generations, decoding steps), and intervals in which the
worker's processes computed or read files. A loading engine, a long prefill or a slow test gives
no results for a long time but computes; a deadlock does neither. A stopped or frozen process sends nothing. A process that computes for
ever without a result is caught only by a longer time limit.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

BUSY_FACTOR = 6
"""How many hang timeouts a worker has that computes without a result."""
_MIN_CPU_SHARE = 0.1  # of one core; a process that only waits, and its threads that look now and then, takes a hundredth
_MIN_READ_BYTES = 1 << 16


def beat_every_s(hang_timeout_s: float) -> float:
    """Return how often a worker sends: often enough that no single beat matters."""
    return min(10.0, hang_timeout_s / 10)


class Heartbeat:
    """Calls `tell(results, busy)` with this process's signs of life. `num_results()` grows with results.

    `is_busy()` may tell whether the process is at work; if it returns None, CPU time and bytes read decide.
    """

    def __init__(
        self, tell: Callable[[int, int], None], every_s: float, num_results: Callable[[], int], is_busy: Callable[[], bool | None]
    ) -> None:
        self._tell = tell
        self._every_s = every_s
        self._num_results = num_results
        self._is_busy = is_busy
        self._num_busy = 0
        self._last = _effort()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            now = _effort()
            known = self._is_busy()
            self._num_busy += _is_busy(self._last, now) if known is None else known
            self._last = now
            self._tell(self._num_results(), self._num_busy)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join()


@dataclass(frozen=True)
class _Effort:
    at_s: float
    cpu_s: float
    read_bytes: int


def _is_busy(before: _Effort, now: _Effort) -> bool:
    computed = now.cpu_s - before.cpu_s >= _MIN_CPU_SHARE * (now.at_s - before.at_s)
    return computed or now.read_bytes - before.read_bytes >= _MIN_READ_BYTES


def _effort() -> _Effort:
    """Return the CPU time and the bytes read by this process and its descendants."""
    import psutil

    cpu_s, read_bytes = 0.0, 0
    own = psutil.Process()
    processes = [own]
    # psutil reads /proc, where a process that just ends may be found half: it raises the last two then. Were the thread to die of
    # that, its worker would be taken for one that hangs.
    unreadable = (psutil.Error, OSError, RuntimeError, ValueError)
    with contextlib.suppress(*unreadable):
        processes += own.children(recursive=True)
    for process in processes:
        with contextlib.suppress(*unreadable):
            times = process.cpu_times()
            cpu_s += times.user + times.system
            if hasattr(process, "io_counters"):  # not on macOS
                counters = process.io_counters()
                read_bytes += counters.read_bytes + getattr(counters, "read_chars", 0)
    return _Effort(time.monotonic(), cpu_s, read_bytes)


@dataclass
class WatchedWorker:
    """One worker as the controller sees it."""

    kill: Callable[[], None]
    is_busy: Callable[[], bool]
    """Whether it has anything to do; a worker without work may be as still as it likes."""
    is_ready: Callable[[], bool]
    """Whether it has collected; before that it gives no signs."""
    told: tuple[int, int] = (0, 0)
    """Its latest signs: results and busy intervals."""
    seen: tuple[int, int] = (0, 0)
    result_at_s: float = 0.0
    sign_at_s: float = 0.0


class Watch:
    """Kills workers that show no sign of life; `on_kill(worker, reason)` is called before."""

    def __init__(self, hang_timeout_s: float, on_kill: Callable[[str, str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = hang_timeout_s
        self._on_kill = on_kill
        self._clock = clock
        self._every_s = min(2.0, hang_timeout_s / 10)
        self._workers: dict[str, WatchedWorker] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._looked_at_s = clock()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if self._thread is None and not self._stop.is_set():
            self._looked_at_s = self._clock()
            self._thread = threading.Thread(target=self._run, name="watch-workers", daemon=True)
            self._thread.start()

    def add(self, name: str, worker: WatchedWorker) -> None:
        """Watch one more worker."""
        with self._lock:
            worker.result_at_s = worker.sign_at_s = self._clock()
            self._workers[name] = worker

    def note(self, name: str, results: int, busy: int) -> None:
        """Take a worker's signs; for any thread."""
        worker = self._workers.get(name)
        if worker is not None:
            worker.told = results, busy

    def remove(self, name: str) -> None:
        """Stop watching a worker that has ended."""
        with self._lock:
            self._workers.pop(name, None)

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.look()

    def look(self) -> None:
        """Look at every worker once; kill those whose time is up."""
        now = self._clock()
        # Where this process itself stood still (a suspended machine, Ctrl-Z), so did the workers.
        lost_s = max(0.0, now - self._looked_at_s - 3 * self._every_s)
        self._looked_at_s = now
        with self._lock:
            for name, worker in list(self._workers.items()):
                worker.result_at_s += lost_s
                worker.sign_at_s += lost_s
                self._note_signs(worker, now)
                reason = self._reason(worker, now)
                if reason is not None:
                    del self._workers[name]
                    self._on_kill(name, reason)
                    worker.kill()

    def _note_signs(self, worker: WatchedWorker, now: float) -> None:
        before, worker.seen = worker.seen, worker.told
        idle = not worker.is_busy()
        if worker.seen[0] != before[0] or idle:
            worker.result_at_s = now
        if worker.seen != before or idle:
            worker.sign_at_s = now

    def _reason(self, worker: WatchedWorker, now: float) -> str | None:
        patience_s = self._timeout_s if worker.is_ready() else self._timeout_s * BUSY_FACTOR
        if now - worker.sign_at_s > patience_s:
            return f"hung (no sign of life for {patience_s:g} s) and was killed"
        if now - worker.result_at_s > self._timeout_s * BUSY_FACTOR:
            return f"hung (busy, but no result for {self._timeout_s * BUSY_FACTOR:g} s) and was killed"
        return None
