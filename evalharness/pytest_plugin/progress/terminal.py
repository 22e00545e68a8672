"""The line of a running session: on a terminal beneath all that pytest has written, in a log a line of its own now and then.

Pytest writes lines piece by piece (a file's name, then a dot per test), so nothing may stand in them. On a terminal our line is drawn one
row further down, the cursor goes back to where pytest left it, and whatever is written next erases it first. Both go through one lock: our
line is drawn by a thread of its own, as the main thread may be loading a model.
"""

from __future__ import annotations

import os
import re
import threading
import time
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from evalharness.pytest_plugin._pytest_internals import begin_new_line, replace_terminal_file, terminal_file

_ERASE = "\x1b[J"  # from the cursor to the end of the screen
_DRAW = "\x1bD\x1b[A\x1b7\x1b[B\r{}\x1b8"  # make room below, keep the place, go down, write, come back
_DRAW_HERE = "{}\r"
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
_AGAIN_S = 0.1  # pytest may write a thousand lines a second
_NO_ESCAPES = ("dumb", "")


class SharedTerminal:
    """Stands for the file that pytest's reporter writes to, from `open` to `close`. `is_live`: it can hold a line beneath pytest's."""

    def __init__(self, file: Any, fd: int, reporter: Any, *, is_live: bool) -> None:
        self._file = file
        self._fd = fd
        self._reporter = reporter
        self.is_live = is_live
        self._lock = threading.RLock()
        self._line = ""
        self._is_shown = False
        self._drawn_at = 0.0
        self._column = 0
        self._is_after_ours = False
        self._is_paused = False

    @classmethod
    def open(cls, config: pytest.Config) -> SharedTerminal | None:
        """Return the terminal or log of this process, taken from pytest's reporter; None where there is none."""
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None:
            return None
        capture: Any = config.pluginmanager.get_plugin("capturemanager")
        # While tests run, what is written to the terminal's descriptor is captured; a copy of it, made outside of that, is not.
        with capture.global_and_fixture_disabled() if capture is not None else nullcontext():
            file = terminal_file(reporter)
            try:
                fd = os.dup(file.fileno())
            except (OSError, ValueError, AttributeError):  # a session within another program's, which has no file
                return None
        # Without capturing, what tests print would get between the two.
        is_live = bool(reporter.isatty) and config.getoption("capture", "fd") != "no" and os.environ.get("TERM", "") not in _NO_ESCAPES
        shared = cls(file, fd, reporter, is_live=is_live)
        replace_terminal_file(reporter, shared)
        return shared

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def write(self, text: str) -> int:
        """Write what pytest writes; our line is taken away first."""
        with self._lock:
            if self._is_after_ours and text == "\n":  # pytest would end the line that it believes to stand in
                self._is_after_ours = False
                return 1
            self._is_after_ours = False
            begins = max(text.rfind("\n"), text.rfind("\r"))
            row = text[begins + 1 :]
            column = len(_COLOUR.sub("", row) if "\x1b" in row else row) + (self._column if begins < 0 else 0)
            is_in_the_way = not self._column or "\n" in text or (self._is_shown and column >= self.columns())
            if is_in_the_way:  # else pytest goes on in its row, above ours
                self._erase()
            written: int = self._file.write(text)
            if self.is_live:  # a log is flushed before our next line, and whenever pytest does
                self._file.flush()
            self._column = column
            if is_in_the_way and self._line and time.monotonic() - self._drawn_at > _AGAIN_S:
                self._draw()
            return written

    def columns(self) -> int:
        """Return how many columns the terminal has now."""
        try:
            return os.get_terminal_size(self._fd).columns or 80
        except OSError:
            return 80

    def show(self, line: str) -> None:
        """Draw the line beneath pytest's; only where `is_live`."""
        with self._lock:
            if line != self._line or not self._is_shown:
                self._line = line
                self._draw()

    def _draw(self) -> None:
        # Behind a line that ends in the last column the cursor stands between two rows, and would come back to the wrong one.
        is_full = self._column > 0 and self._column % self.columns() == 0
        if not (self._is_paused or self._fd < 0 or is_full):
            self._write(_ERASE + (_DRAW if self._column else _DRAW_HERE).format(self._line))
            self._is_shown, self._drawn_at = True, time.monotonic()

    def log(self, line: str) -> None:
        """Write a line of its own, after the one that pytest may stand in."""
        with self._lock:
            if self._is_paused or self._fd < 0:
                return
            self._erase()
            self._erase()
            self._write(("\n" if self._column else "") + line + "\n")
            self._column = 0
            self._is_after_ours = begin_new_line(self._reporter)

    def pause(self, *, on: bool) -> None:
        """Show nothing while somebody else has the terminal, such as a debugger."""
        with self._lock:
            self._erase()
            self._is_paused = on

    def close(self) -> None:
        """Take the line away, and give the file back to pytest's reporter. Idempotent."""
        with self._lock:
            if self._fd >= 0:
                self._erase()
                os.close(self._fd)
                self._fd = -1
                replace_terminal_file(self._reporter, self._file)

    def _erase(self) -> None:
        if self._is_shown:
            self._write(_ERASE)
            self._is_shown = False

    def _write(self, text: str) -> None:
        encoding = getattr(self._file, "encoding", None) or "utf-8"
        data = text.encode(encoding, "backslashreplace")
        with suppress(OSError):  # the terminal is gone; the run is not over for that
            self._file.flush()  # what pytest wrote before comes before
            while data:
                data = data[os.write(self._fd, data) :]
