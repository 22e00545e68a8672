"""What the exit codes of `evalharness` and of runs say: a verdict is told from a wrong command line, and that from a broken machine."""

from __future__ import annotations

__all__ = ["BROKEN", "DONE", "INTERRUPTED", "MEANINGS", "NOT_PASSED", "REFUSED"]

DONE, NOT_PASSED, REFUSED, BROKEN, INTERRUPTED = 0, 1, 2, 10, 130

MEANINGS = {
    DONE: "done, and what was judged passed",
    NOT_PASSED: "done, and something did not pass: a gate, a comparison, an answer, a check",
    REFUSED: "nothing was done: the command line or what it names is wrong; the message says what to do",
    BROKEN: "machine, network or code broke: no verdict",
    INTERRUPTED: "stopped by Ctrl-C",
}
