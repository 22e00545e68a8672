"""A terminal that shows what a program has written to it: the few things that pytest and our line use."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios
import time
from collections.abc import Sequence
from pathlib import Path

_SEQUENCE = re.compile(r"\x1b(?:\[([0-9;?]*)([A-Za-z])|([D78]))|([\r\n\b])|([^\x1b\r\n\b]+)")

_HALF = re.compile(r"\x1b(\[[0-9;?]*)?$")


class Screen:
    """Rows of text and a cursor; rows that have scrolled out are kept in `history`."""

    def __init__(self, columns: int, rows: int = 24) -> None:
        self.columns, self.rows = columns, rows
        self.history: list[str] = []
        self._lines = [""] * rows
        self._row = self._column = 0
        self._saved = (0, 0)

    def feed(self, text: str) -> None:
        """Take what was written; a sequence that it does not know is an error."""
        for found in _SEQUENCE.finditer(text):
            numbers, letter, single, control, plain = found.groups()
            if plain:
                for char in plain:
                    self._put(char)
            elif control:
                self._column = self._column if control == "\n" else max(0, self._column - 1) if control == "\b" else 0
                if control == "\n":  # the terminal's driver has put \r before it
                    self._down()
            elif single == "D":
                self._down()
            elif single:
                self._saved, (self._row, self._column) = ((self._row, self._column),) * 2 if single == "7" else (self._saved, self._saved)
            elif letter == "J":
                self._lines[self._row] = self._lines[self._row][: self._column]
                self._lines[self._row + 1 :] = [""] * (self.rows - self._row - 1)
            elif letter in "AB":
                self._row = max(0, min(self.rows - 1, self._row + (1 if letter == "B" else -1)))
            elif letter == "K":
                self._lines[self._row] = self._lines[self._row][: self._column]
            else:
                assert letter in "mhl", f"unknown: {numbers}{letter}"

    def _put(self, char: str) -> None:
        if self._column == self.columns:
            self._column = 0
            self._down()
        line = self._lines[self._row].ljust(self._column)
        self._lines[self._row] = line[: self._column] + char + line[self._column + 1 :]
        self._column += 1

    def _down(self) -> None:
        if self._row == self.rows - 1:
            self.history.append(self._lines.pop(0))
            self._lines.append("")
        else:
            self._row += 1

    @property
    def text(self) -> str:
        """All that has been seen and is still there, row by row."""
        return "\n".join(line.rstrip() for line in [*self.history, *self._lines]).rstrip()


def seen_on_terminal(command: Sequence[str], folder: Path, env: dict[str, str], columns: int, timeout_s: float) -> tuple[str, list[str]]:
    """Run a program on a terminal; return what it shows at the end, and each last row that it showed meanwhile."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(command, cwd=folder, env={**env, "TERM": "xterm"}, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    screen, rows = Screen(columns), dict[str, None]()
    deadline = time.monotonic() + timeout_s
    rest = b""
    while time.monotonic() < deadline:
        try:
            rest += os.read(ours, 65536)
        except OSError:  # the other end was closed: the process has ended
            break
        text = rest.decode("utf-8", "ignore")
        if _HALF.search(text):
            continue
        screen.feed(text)
        rest = b""
        rows[screen.text.rpartition("\n")[2]] = None
    process.kill()
    process.wait()
    os.close(ours)
    screen.feed(rest.decode("utf-8", "ignore"))
    return screen.text, list(rows)
