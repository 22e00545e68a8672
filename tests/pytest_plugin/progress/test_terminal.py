"""Our line beneath what pytest writes piece by piece: nothing of either is lost, and nothing of ours stays."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.pytest_plugin.progress.terminal import SharedTerminal
from tests.pytest_plugin.progress.screen import Screen


class Shared:
    """A shared terminal whose output is a screen."""

    def __init__(self, *, is_live: bool = True, columns: int = 40, rows: int = 6) -> None:
        self.screen = Screen(columns, rows)
        self._reading, writing = os.pipe()
        self._file = io.TextIOWrapper(os.fdopen(os.dup(writing), "wb"), encoding="utf-8", write_through=True)
        self.reporter: Any = SimpleNamespace(_tw=SimpleNamespace(_file=self._file, _current_line=""), currentfspath=None)
        self.terminal = SharedTerminal(self._file, writing, self.reporter, is_live=is_live)
        self.terminal.columns = lambda: columns  # type: ignore[method-assign]
        os.set_blocking(self._reading, False)

    @property
    def text(self) -> str:
        with suppress(BlockingIOError):
            self.screen.feed(os.read(self._reading, 1 << 20).decode().replace("\n", "\r\n"))
        return self.screen.text

    def close(self) -> None:
        self.terminal.close()
        self._file.close()
        os.close(self._reading)


@pytest.fixture
def shared() -> Iterator[Shared]:
    made = Shared()
    yield made
    made.close()


def test_the_line_stands_beneath_a_line_that_pytest_has_not_ended(shared: Shared) -> None:
    shared.terminal.write("test_a.py ")
    shared.terminal.show("1/3 answers")
    assert shared.text == "test_a.py\n1/3 answers"
    shared.terminal.write(".")
    shared.terminal.show("2/3 answers")
    assert shared.text == "test_a.py .\n2/3 answers"
    shared.terminal.write("m")
    shared.terminal.write("\ntest_b.py ")
    shared.terminal.show("3/3")
    assert shared.text == "test_a.py .m\ntest_b.py\n3/3"
    shared.terminal.close()
    assert shared.text == "test_a.py .m\ntest_b.py"


def test_at_the_end_of_the_screen_it_scrolls_and_nothing_is_overwritten(shared: Shared) -> None:
    for number in range(20):
        shared.terminal.write(f"line {number} ")
        shared.terminal.show(f"after {number}")
        shared.terminal.write("[ 50%]\n")
        shared.terminal.show(f"after {number}!")
    assert shared.text == "\n".join([*(f"line {number} [ 50%]" for number in range(20)), "after 19!"])
    shared.terminal.close()
    assert shared.text == "\n".join(f"line {number} [ 50%]" for number in range(20))


def test_a_line_of_pytests_that_wraps_leaves_nothing_of_ours_behind(shared: Shared) -> None:
    shared.terminal.write("a" * 35)
    shared.terminal.show("ours, which is long enough")
    shared.terminal.write("b" * 20)
    assert shared.text.startswith("a" * 35 + "b" * 5 + "\n" + "b" * 15)
    shared.terminal.close()
    assert shared.text == "a" * 35 + "b" * 5 + "\n" + "b" * 15


def test_in_a_line_that_fills_its_row_nothing_is_drawn(shared: Shared) -> None:
    shared.terminal.write("a" * 40)
    shared.terminal.show("ours")
    assert shared.text == "a" * 40


def test_a_debugger_has_the_terminal_for_itself(shared: Shared) -> None:
    shared.terminal.write("test_a.py ")
    shared.terminal.show("1/3")
    shared.terminal.pause(on=True)
    shared.terminal.show("2/3")
    assert shared.text == "test_a.py"
    shared.terminal.pause(on=False)
    shared.terminal.show("3/3")
    assert shared.text == "test_a.py\n3/3"


def test_a_log_gets_whole_lines_and_pytest_begins_a_new_one_after_each() -> None:
    shared = Shared(is_live=False)
    shared.reporter.currentfspath = "test_a.py"
    shared.terminal.write("test_a.py ..")
    shared.terminal.log("18:30:20: 2/4 answers")
    assert shared.reporter.currentfspath is None, "so it writes the file's name again"
    shared.terminal.write("\n")  # by which pytest ends the line before
    shared.terminal.write("test_a.py .")
    shared.terminal.log("18:30:50: 3/4 answers")
    assert shared.text == "test_a.py ..\n18:30:20: 2/4 answers\ntest_a.py .\n18:30:50: 3/4 answers"
    shared.close()


def test_a_line_of_its_own_takes_the_place_of_the_one_that_is_rewritten(shared: Shared) -> None:
    shared.terminal.write("test_a.py .")
    shared.terminal.show("1/3 answers, and much more")
    shared.terminal.log("interrupted")
    assert shared.text == "test_a.py .\ninterrupted"
    shared.terminal.show("2/3")
    assert shared.text == "test_a.py .\ninterrupted\n2/3"


def test_a_terminal_that_has_gone_ends_no_run() -> None:
    shared = Shared()
    os.close(shared._reading)
    shared.terminal.show("nobody sees it")
    shared._reading = os.open(os.devnull, os.O_RDONLY)
    shared.close()
