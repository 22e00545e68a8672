"""The processes that vLLM starts: they can import transformers, and they end with this one."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import psutil

from evalharness.api.threads import VARIABLE, are_users_choice
from evalharness.backends.vllm._internals import inspecting_with

PR_SET_PDEATHSIG = 1
CONFIG_KEY = "evalharness"
LOOK_S = 0.2
REMIND_S = 5.0
RARELY = 50_000  # objects between two rounds of the garbage collector; Python waits for 700

_INSPECTION = """
from runpy import run_module
from evalharness.backends.torchvision_cpu import register_missing_operators
register_missing_operators()
run_module("vllm.model_executor.models.registry", run_name="__main__", alter_sys=True)
"""

_starting_engine = threading.local()


class ChildProcesses:
    """The child processes that appear while an engine starts, and all below them; others of this program are left alone."""

    def __init__(self) -> None:
        self._known_before = set(psutil.Process().children(recursive=True))
        self._started: set[psutil.Process] = set()

    def look(self) -> None:
        """Take note of all that have been started by now; to be called when the engine has started, and not later."""
        self._started |= set(psutil.Process().children(recursive=True)) - self._known_before

    def look_below(self) -> None:
        """Take note of what those have started since; before they end, for then nothing tells whose it was."""
        for process in list(self._started):
            with contextlib.suppress(psutil.NoSuchProcess):
                self._started |= set(process.children(recursive=True))

    def kill_started(self) -> None:
        """Kill what has been started by now, while the engine still starts."""
        for process in set(psutil.Process().children(recursive=True)) - self._known_before:
            if process.pid != _resource_tracker_pid():
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()

    def end(self, *, grace_s: float) -> int:
        """End those that are left: wait, then SIGKILL; return how many had to be killed. Takes `grace_s` + 10 s at most."""
        self.look_below()
        processes = [process for process in self._started if process.pid != _resource_tracker_pid()]
        _, alive = psutil.wait_procs(processes, timeout=grace_s)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(alive, timeout=10)
        self._started.clear()
        return len(alive)


def _resource_tracker_pid() -> int | None:
    """Return the id of Python's own helper process, which serves the whole program and ends with it."""
    from multiprocessing import resource_tracker

    return getattr(getattr(resource_tracker, "_resource_tracker", None), "_pid", None)


@contextlib.contextmanager
def children_prepared() -> Iterator[None]:
    """Prepare every process that is started in here, by fork or by spawn, see `_prepare`.

    A spawned process knows nothing of this one, and vLLM on CPU always spawns. The first thing that it unpickles is the
    configuration that Python's multiprocessing hands from parent to child, before the function that it is to run (and so
    before it imports vLLM): an object in there is unpickled by a call of `_prepare`.
    """
    config: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    config[CONFIG_KEY] = _Preparation(ends_with_parent=threading.current_thread() is threading.main_thread())
    _starting_engine.preparation = config[CONFIG_KEY]
    try:
        with _inspection_prepared():
            yield
    finally:
        del config[CONFIG_KEY], _starting_engine.preparation


@contextlib.contextmanager
def one_thread_each(*, wanted: bool) -> Iterator[None]:
    """Have processes that are started in here, by fork or by spawn, use one thread of torch's own, unless the user has named a number.

    On a GPU they compute little else with torch on the CPU than copies. With 64 threads, on a host of 64 cores, torch.cat in vLLM's engine
    core copied 0.5 GB/s of photos, for half of a run's time.
    """
    if not wanted or are_users_choice():
        yield
        return
    import torch

    before, num_threads = os.environ.get(VARIABLE), torch.get_num_threads()
    os.environ[VARIABLE] = "1"
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        os.environ.pop(VARIABLE)
        if before is not None:
            os.environ[VARIABLE] = before


def use_one_thread() -> None:
    """Have torch use one thread in the calling thread, unless the user has named a number."""
    if not are_users_choice():
        import torch

        torch.set_num_threads(1)


@contextlib.contextmanager
def _inspection_prepared() -> Iterator[None]:
    """Let vLLM look at a model's class, which it does in a program of its own, once per architecture and machine.

    That program is no child of multiprocessing, and imports transformers before it loads vLLM's plugins.
    """
    from evalharness.backends.torchvision_cpu import register_missing_operators

    if not register_missing_operators():
        yield
        return
    with inspecting_with(_INSPECTION):
        yield


class _Interrupted(BaseException):
    """Ctrl-C, under a name that vLLM does not catch."""


@contextlib.contextmanager
def interrupts_get_through(children: ChildProcesses) -> Iterator[None]:
    """Let Ctrl-C end a start of vLLM within seconds.

    vLLM catches `KeyboardInterrupt` and then waits ten minutes for its dead engine. An exception that a signal raises just
    anywhere may also fall into a destructor and be lost, or leave a thread half registered, for which the interpreter then
    waits for ever at its end. So vLLM's processes are ended first, which makes it fail in its own way.
    """
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(previous):
        yield
        return
    ending = _Ending(children, previous)
    signal.signal(signal.SIGINT, ending.interrupt)
    try:
        try:
            yield
        finally:
            ending.stop()
    except _Interrupted:
        raise KeyboardInterrupt from None
    except Exception:
        if ending.begun:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, previous)
    if ending.begun:  # it had started all the same
        raise KeyboardInterrupt


class _Ending:
    """What Ctrl-C does while vLLM starts: end its processes; at a second one, or after `REMIND_S`, raise until that gets through."""

    def __init__(self, children: ChildProcesses, previous: Callable[[int, FrameType | None], Any]) -> None:
        self.begun = False
        self._children = children
        self._previous = previous
        self._over = threading.Event()
        self._raising = threading.Lock()

    def interrupt(self, number: int, frame: FrameType | None) -> None:
        if self.begun:
            raise _Interrupted
        try:
            self._previous(number, frame)
        except KeyboardInterrupt:
            self.begun = True
            threading.Thread(target=self._run, name="evalharness-interrupt", daemon=True).start()

    def _run(self) -> None:
        deadline = time.monotonic() + REMIND_S
        while not self._over.is_set() and time.monotonic() < deadline:
            self._children.kill_started()
            self._over.wait(LOOK_S)
        while not self._over.is_set():
            with self._raising:
                if not self._over.is_set():
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            self._over.wait(REMIND_S)

    def stop(self) -> None:
        """Raise no more; an exception that is under way still comes out of here."""
        with self._raising:
            self._over.set()


class _Preparation:
    """Is unpickled, in a spawned child, by preparing that child."""

    def __init__(self, ends_with_parent: bool) -> None:
        self.ends_with_parent = ends_with_parent

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _prepare, (self.ends_with_parent,)


def _prepare(ends_with_parent: bool) -> _Preparation:
    """Make transformers importable in this process, quickly, and let the kernel end it with its parent; return what its children get.

    vLLM ends its engine when this process ends or is interrupted, but not when it is killed (SIGKILL, out of memory).
    """
    from evalharness.backends.torchvision_cpu import register_missing_operators

    if ends_with_parent:
        _end_with_parent()
    gc.set_threshold(RARELY)  # all of vLLM is imported next, and stays: a tenth of the time of a start
    register_missing_operators()
    return _Preparation(ends_with_parent)


def _end_with_parent() -> None:
    # Linux only. The kernel watches the thread that forked, not its process: never ask for it from a thread that may end.
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _after_fork_in_child() -> None:
    preparation = getattr(_starting_engine, "preparation", None)
    if preparation is not None and preparation.ends_with_parent:
        _end_with_parent()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork_in_child)
