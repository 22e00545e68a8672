"""The console of commands: plain where nobody looks, safe everywhere."""

from __future__ import annotations

import io

import pytest

from evalharness.report.terminal import open_console, print_fields, print_heading, print_lines, print_text
from tests.report.hostile import HOSTILE_TEXTS

UNSAFE = {chr(code) for code in range(32)} - {"\n"} | {"\x7f", "\x9b", "\u202e", "\u2066", "\x85", "\u2028"}


def printed(text: str) -> str:
    file = io.StringIO()
    console = open_console(file)
    print_heading(console, text, text)
    print_fields(console, {text: text, "none": None})
    print_text(console, text, text)
    return file.getvalue()


@pytest.mark.parametrize("text", [*HOSTILE_TEXTS.values(), "[red]x[/red]", ":smile:", "[/]", "[link=https://evil]x[/link]"])
def test_any_text_is_shown_as_text(text: str) -> None:
    shown = printed(text)
    assert not UNSAFE & set(shown)
    if text.isprintable() and text.strip() == text:
        assert shown.count(text) >= 3


@pytest.mark.parametrize("colour", [True, False], ids=["terminal", "no-color"])
def test_verdicts_have_colours_on_terminals_only(colour: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("NO_COLOR", "" if colour else "1")
    file = io.StringIO()
    print_lines(open_console(file), ["f1  REGRESSED  0.9", "! look", "plain"])
    assert ("\x1b[1;31mREGRESSED\x1b[0m" in file.getvalue()) == colour
    assert file.getvalue().splitlines()[-1] == "plain"


def test_a_long_line_is_neither_cut_nor_broken() -> None:
    file = io.StringIO()
    print_lines(open_console(file), ["x" * 300])
    print_fields(open_console(file), {"name": "y" * 300})
    assert file.getvalue() == "x" * 300 + "\n" + "name  " + "y" * 300 + "\n"
