"""Samples what every thread of a program does. Python runs this at its start where this folder is on PYTHONPATH; see `sampling.py`.

Each process appends to a file of its own in $EVALHARNESS_SAMPLES: one line of JSON every 50 ms, its time and, by thread, the innermost
frame and the innermost one in vLLM or the harness, or the outermost module that is being imported. Threads that only wait are left out.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from types import FrameType

EVERY_S = 0.05
_WAITING = frozenset({"wait", "select", "poll", "get", "accept", "_recv", "recv", "_wait_for_tstate_lock", "acquire", "join", "_worker"})
_IDLE = ("utils/garbage.py:run", "multiprocessing/resource_tracker.py:main")
_WATCHED = ("/vllm/", "/evalharness/")


def _place(frame: FrameType) -> str:
    parts = frame.f_code.co_filename.split("/")
    return f"{'/'.join(parts[-2:])}:{frame.f_code.co_name}"


def _label(frame: FrameType) -> str:
    inner, watched, imported = _place(frame), "", ""
    step: FrameType | None = frame
    while step is not None:
        if step.f_code.co_name == "_find_and_load":
            imported = str(step.f_locals.get("name"))
        if not watched and any(part in step.f_code.co_filename for part in _WATCHED):
            watched = f"{_place(step)}:{step.f_lineno}"
        step = step.f_back
    if imported:
        return f"import {imported}"
    if not watched or watched.startswith(f"{inner}:"):
        return watched or inner
    return f"{watched} < {inner}"


def _sample(folder: str) -> None:
    me = threading.get_ident()
    with open(os.path.join(folder, f"{os.getpid()}.jsonl"), "a", encoding="utf-8", buffering=1) as file:
        file.write(json.dumps({"command": " ".join(sys.orig_argv)[:200]}) + "\n")
        while True:
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            frames = [(names.get(ident, "?"), frame) for ident, frame in sys._current_frames().items() if ident != me]
            busy = {name: _label(frame) for name, frame in frames if frame.f_code.co_name not in _WAITING and _place(frame) not in _IDLE}
            del frames
            file.write(json.dumps({"t": time.time(), "at": busy}) + "\n")
            time.sleep(EVERY_S)


def _start() -> None:
    folder = os.environ.get("EVALHARNESS_SAMPLES")
    if folder:
        threading.Thread(target=_sample, args=(folder,), name="sampler", daemon=True).start()


_start()
os.register_at_fork(after_in_child=_start)
