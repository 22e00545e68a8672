from __future__ import annotations

import csv
import io
import math
import re
import unicodedata

import pandas as pd
import pytest
from hypothesis import given, strategies as st
from markdown_it import MarkdownIt

from evalharness.report.text import (
    CSV_CELL_CHARS,
    code_block,
    csv_cell,
    figure_text,
    markdown_cell,
    one_line,
    printable,
    score_text,
    terminal_text,
)
from tests.report.hostile import HOSTILE_TEXTS, hostile_text

hostile = pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
BIDI = set("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
PARSER = MarkdownIt("commonmark").enable("table").enable("strikethrough")


def inline_types(markdown: str) -> list[set[str]]:
    """Return the kinds of inline tokens of each table cell."""
    return [{child.type for child in token.children or ()} for token in PARSER.parse(markdown) if token.type == "inline"]


def inline_texts(markdown: str) -> list[str]:
    """Return what each table cell shows."""
    return ["".join(child.content for child in token.children or ()) for token in PARSER.parse(markdown) if token.type == "inline"]


def table_of(cells: list[str]) -> str:
    bar = "| " + " | ".join("h" for _ in cells) + " |\n|" + "---|" * len(cells)
    return f"{bar}\n| {' | '.join(cells)} |\n"


@given(hostile_text)
def test_printable_text_always_encodes(text: str) -> None:
    printable(text).encode("utf-8")


def test_only_lone_surrogates_are_escaped_for_printing() -> None:
    assert printable("统计 é 👩‍👧 \x1b") == "统计 é 👩‍👧 \x1b"
    assert printable("a\ud83d b\udc80") == "a\\ud83d b\\udc80"


@given(hostile_text, st.integers(1, 50))
def test_terminal_text_holds_nothing_that_steers_a_terminal(text: str, max_chars: int) -> None:
    for shown in (terminal_text(text, max_chars), one_line(text, max_chars)):
        assert not [char for char in shown if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or char in BIDI]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\x1b[31m", r"\x1b[31m"),
        ("\x9b2J", r"\x9b2J"),
        ("\u202egnp", r"\u202egnp"),
        ("\\n", r"\n"),
        ("类别", "类别"),
    ],
    ids=["line breaks", "ansi", "c1", "bidi", "backslash as it is", "chinese as it is"],
)
def test_terminal_text_shows_controls_escaped(text: str, shown: str) -> None:
    assert terminal_text(text) == shown


def test_a_cut_says_how_many_characters_are_missing() -> None:
    assert terminal_text("x" * 1_000_000, 10) == "xxxxxxxxxx… (999,990 more characters)"
    assert markdown_cell("x" * 1_000_000, 10) == "xxxxxxxxxx… (999,990 more characters)"
    assert one_line("x" * 1_000_000, 10) == "xxxxxxxxxx… (999,990 more characters)"
    assert terminal_text("x" * 10, 10) == "x" * 10
    assert one_line("  assert x\n   +  where x = f()\n") == "assert x + where x = f()"


@given(st.lists(hostile_text, min_size=1, max_size=4))
def test_a_markdown_row_keeps_its_number_of_cells(texts: list[str]) -> None:
    cells = [markdown_cell(text) for text in texts]
    row = "| " + " | ".join(cells) + " |"
    assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", row)) == len(cells) + 1
    assert len(inline_types(table_of(cells))) == 2 * len(cells)


@given(hostile_text)
def test_a_markdown_cell_parses_to_nothing_but_text(text: str) -> None:
    for types in inline_types(table_of([markdown_cell(text)])):
        assert types <= {"text", "text_special"}


@given(hostile_text)
def test_text_in_a_markdown_list_opens_no_block(text: str) -> None:
    kinds = {token.type.removesuffix("_open").removesuffix("_close") for token in PARSER.parse(f"- {markdown_cell(text)}")}
    assert kinds <= {"bullet_list", "list_item", "paragraph", "inline"}


@hostile
def test_a_markdown_cell_shows_the_text_as_written(text: str) -> None:
    assert inline_texts(table_of([markdown_cell(text)]))[1].replace("\u200b", "") == terminal_text(text).strip().replace("\u200b", "")


REFERENCES = ["@team", "ask @org/team now", "类@team", "(@team)", "a@b.com", "octo@0123456789abcdef", "#1", "owner/repo#12", "GH-3", "!7"]
ACTIVE = ["https://evil", "HTTP://evil", "ftp://evil", "www.evil.com", "<img src=x>", "<@team>", "<!-- a -->", "`@team"]


@pytest.mark.parametrize("text", [*REFERENCES, *ACTIVE])
def test_no_mention_reference_address_or_html_is_active_in_markdown(text: str) -> None:
    cell = markdown_cell(f"{text} and {text}")
    github = r"(?<![A-Za-z0-9_`])@[A-Za-z0-9]|[\w.+-]+@[\w-]+\.\w|\w@[0-9a-f]{7}|#\d|GH-\d|!\d"
    shown = inline_texts(table_of([cell]))[1]  # references are looked for in the rendered text, not in Markdown
    assert not re.search(github, shown, re.ASCII | re.IGNORECASE)
    assert not re.search(r"(?<!\\)://|www\.|(?<!\\)<", cell, re.IGNORECASE)
    assert shown.replace("\u200b", "") == f"{text} and {text}"


@pytest.mark.parametrize("name", ["pass@5", "maj@8", "C#", "a # b", "wow!"])
def test_names_of_metrics_stay_as_they_are_in_markdown(name: str) -> None:
    assert markdown_cell(name) == name


def test_names_and_numbers_stay_readable_in_markdown() -> None:
    assert markdown_cell("category_f1") == "category_f1"
    assert markdown_cell("_private_") == r"\_private\_"
    assert markdown_cell("-0.5") == "-0.5"


@given(st.lists(hostile_text, max_size=4))
def test_no_line_leaves_a_code_block(lines: list[str]) -> None:
    tokens = PARSER.parse(code_block(lines))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content.split("\n")[:-1] == [terminal_text(line, len(line)) for line in lines]


@given(st.lists(hostile_text, min_size=2, max_size=5))
def test_csv_cells_come_back_from_both_readers(texts: list[str]) -> None:
    cells = [csv_cell(text) for text in texts]
    file = io.StringIO(newline="")
    csv.writer(file, lineterminator="\n").writerows([[f"h{number}" for number in range(len(cells))], cells])
    written = file.getvalue()
    written.encode("utf-8")
    assert list(csv.reader(io.StringIO(written, newline="")))[1] == cells
    frame = pd.read_csv(io.BytesIO(written.encode("utf-8")), dtype=object, keep_default_na=False, skip_blank_lines=False)
    assert list(frame.iloc[0]) == cells


@given(hostile_text)
def test_no_csv_text_begins_like_a_formula(text: str) -> None:
    cell = csv_cell(text)
    visible = cell.lstrip("".join(char for char in cell if char.isspace() or unicodedata.category(char) == "Cf"))
    assert not cell.startswith(("\t", "\r", "\n"))
    assert unicodedata.normalize("NFKC", visible[:1]) not in ("=", "+", "-", "@") or visible[:1] in "⁺⁼₊₌⁻₋﬩"


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", " =1", "\u00a0=1", "\u200b=1", "\ufeff=1", "＝1", "＋1", "－1", "＠A", "\n", "−1"],
    ids=ascii,
)
def test_what_a_spreadsheet_may_run_gets_an_apostrophe(text: str) -> None:
    assert csv_cell(text).startswith("'")


def test_control_characters_are_shown_in_csv_but_newlines_and_tabs_stay() -> None:
    assert [csv_cell("\r=1"), csv_cell("\x00=1")] == [r"\r=1", r"\x00=1"]
    assert csv_cell("a\n\tb") == "a\n\tb"


@pytest.mark.parametrize("text", ["a=1", "1-2", "'=1", "", "类别=标签", "{=", '"='], ids=ascii)
def test_harmless_text_is_left_as_it_is_in_csv(text: str) -> None:
    assert csv_cell(text) == text


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        (-0.5, "-0.5"),
        (3, "3"),
        (-7, "-7"),
        (1e-9, "1e-09"),
        (True, "True"),
        (None, ""),
        (float("nan"), ""),
        (["=1"], "['=1']"),
        (0.1, "0.1"),
    ],
    ids=repr,
)
def test_numbers_stay_numbers_in_csv(value: object, cell: str) -> None:
    assert csv_cell(value) == cell


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("f1", 1.0, "1.000"),
        ("f1", 0.0004, "0.0004"),
        ("loss", 12.3456, "12.346"),
        ("chars", 192.0, "192"),
        ("chars", 192.04, "192"),
        ("chars", -192.35, "-192.3"),
        ("chars", 1234.5, "1,234"),
        ("num_words", 2.0, "2"),
        ("num_words", 2.25, "2.2"),
        ("num_words", 123456.0, "123,456"),
        ("num_words", None, "-"),
    ],
)
def test_scores_have_as_many_digits_as_they_need(name: str, value: float | None, shown: str) -> None:
    assert figure_text(value, name) == shown


def test_a_score_says_its_interval_and_in_how_many_groups_its_cases_are() -> None:
    assert score_text("f1", 1.0, 0.832, 1.0, 60, 23) == "1.000 [0.832 … 1.000] n=60 in 23 groups"
    assert score_text("num_words", 4.0, 3.5, 5.0, 60, 60) == "4 [3.5 … 5] n=60"
    assert score_text("f1", 0.5, math.nan, math.nan, 1, 1) == "0.500 n=1"


def test_numpy_numbers_stay_numbers_in_csv() -> None:
    numbers = pd.DataFrame({"float": [-0.5], "int": [-3]})
    assert [csv_cell(numbers.at[0, name]) for name in numbers] == ["-0.5", "-3"]


@pytest.mark.parametrize(
    "text", ["x" * 40_000, "\x00" * 40_000, "\ud800" * 40_000, "=" * 32_766, "x\n" * 16_384], ids=["x", "nul", "half", "=", "lines"]
)
def test_a_csv_cell_fits_into_a_spreadsheet_cell(text: str) -> None:
    cell = csv_cell(text)
    assert len(cell) <= CSV_CELL_CHARS
    kept = int(re.search(r"… \(([\d,]+) more characters\)$", cell)[1].replace(",", "")) if "more characters" in cell else 0  # type: ignore[index]
    assert kept or len(text) < CSV_CELL_CHARS
