from __future__ import annotations

import io
import unicodedata
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from rich.cells import cell_len

from evalharness.report.columns import fit
from evalharness.report.tables import load_tables
from evalharness.report.terminal import (
    DEFAULT_COLUMNS,
    fit_apart,
    open_console,
    print_fields,
    print_heading,
    print_lines,
    print_text,
    terminal_lines,
    terminal_width,
)
from evalharness.report.what_broke import NUM_PASSED_GATES
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import gate, invalid, row, rows, write_run


def lines_of(tmp_path: Path, samples: list[dict[str, Any]], columns: int = 100, **run: Any) -> list[str]:
    return list(terminal_lines(load_tables(write_run(tmp_path, samples, **run)), columns))


def test_scores_gates_remarks_and_verdict_in_few_lines(tmp_path: Path) -> None:
    samples = [*rows(3), row("z", outcome="miss", problem="no JSON", scores={"valid": 0.0}), invalid("y")]
    assert lines_of(tmp_path, samples, gates=[gate(False, reason="0.750, needs ≥ 0.95")], exit_code=1) == [
        "eval     engine   cases  malformed  cut  invalid  errors  miss",
        "stage_a  hf:tiny      5          1    0        1       0     1  valid 0.750 (n=4)",
        "malformed: not of the form that the eval asks for (score valid is 0); invalid: the case could not be",
        "  asked; miss: an assertion failed in a test whose gates decide",
        "GATE FAILED: valid >= 0.95 (stage_a::test_summary on hf:tiny): 0.750 [0.301 … 0.954], needs ≥ 0.95",
        "1 invalid: image.jpg is empty (stage_a on hf:tiny: y)",
        "1 miss: no JSON (stage_a on hf:tiny: z)",
        "! 1 of 4 answers of stage_a::test_summary on hf:tiny is malformed (valid is 0)",
        "! 1 of 5 cases of stage_a::test_summary on hf:tiny could not be run (invalid): not counted in any",
        "  mean",
        "! stage_a has only 5 cases: scores may differ by chance alone",
        "FAILED: the gate failed; 1 sample could not be run",
        f"worst case: evalharness show {tmp_path} z",
    ]


def test_scores_go_below_or_into_sentences_where_they_do_not_fit(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, rows(12, scores={"valid": 1.0, "category_f1": 0.5, "exact": 0.25}), 60)
    assert lines[1:3] == ["stage_a  hf:tiny     12          0    0        0       0", "  valid 1.000, category_f1 0.500, exact 0.250"]
    assert lines_of(tmp_path, rows(12), 40)[:3] == [
        "stage_a on hf:tiny: 12 cases, 0",
        "  malformed, 0 cut, 0 invalid, 0 errors",
        "  valid 1.000",
    ]


def test_the_test_is_named_where_an_eval_has_several(tmp_path: Path) -> None:
    one_each = [row("a"), row("a", eval="dense", test="test_boxes")]
    assert [line.split()[0] for line in lines_of(tmp_path / "one", one_each)[1:3]] == ["stage_a", "dense"]
    two = [*one_each, row("a", test="test_form")]
    names = ["stage_a::test_summary", "dense::test_boxes", "stage_a::test_form"]
    assert sorted(line.split()[0] for line in lines_of(tmp_path / "two", two)[1:4]) == sorted(names)


@pytest.mark.parametrize(
    ("text", "columns"),
    [*((text, 40) for text in HOSTILE_TEXTS.values()), *((" ".join(HOSTILE_TEXTS.values()), columns) for columns in (0, 60, 80, 120, 300))],
)
def test_hostile_names_steer_nothing_and_fit(tmp_path: Path, text: str, columns: int) -> None:
    samples = [row(text, eval=text, test=text, engine=text, scores={text: 0.5}, problem=text, outcome=text)]
    lines = lines_of(tmp_path, samples, columns, gates=[dict.fromkeys(gate(), text)], interrupted=text)
    assert not [char for line in lines for char in line if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]
    assert max(map(cell_len, lines)) <= max(columns, 40)


def test_wide_characters_keep_columns_aligned(tmp_path: Path) -> None:
    head, line, *_ = lines_of(tmp_path, rows(12, eval="站点"), 120)
    assert cell_len(line[: line.index("hf:tiny")]) == head.index("engine")


def test_gates_come_failed_ones_first_and_many_passed_ones_are_counted(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, rows(12), gates=[*[gate()] * 7, gate(False)])
    found = [line for line in lines if "gate" in line.lower()]
    assert found == [
        "GATE FAILED: valid >= 0.95 (stage_a::test_summary on hf:tiny): 0.500 [0.758 … 1.000], needs ≥ 0.95",
        *["gate passed: valid >= 0.95 (stage_a::test_summary on hf:tiny): 1.000"] * NUM_PASSED_GATES,
        "2 more gates passed",
        "FAILED: 1 of 8 gates failed",
    ]
    assert "1 more gate passed" in lines_of(tmp_path, rows(12), gates=[gate()] * (NUM_PASSED_GATES + 1))


def test_many_scores_and_lines_are_cut_and_say_so(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, rows(12, scores={f"s{number}": 0.5 for number in range(9)}), gates=[gate(metric="s8")])
    assert lines[2] == "  s8 0.500, s0 0.500, s1 0.500, s2 0.500, s3 0.500, s4 0.500, 3 more in report.md"
    lines = lines_of(tmp_path, [row("a", eval=f"eval-{number}") for number in range(50)])
    assert "10 more lines in report.md" in lines
    assert "! 26 more caveats in report.md" in lines
    assert lines_of(tmp_path, []) == ["EMPTY: no case was recorded; no gates were set"]


def test_aggregates_follow_scores_but_for_those_of_gates_and_suites_have_a_line(tmp_path: Path) -> None:
    place = {"eval": "stage_a", "test": "test_summary", "engine": "hf:tiny"}
    values = {"ece": 0.1, "f1_macro": 0.4, "mcc": 0.3, "odd": "no number"}
    entries = [{**place, "metric": name, "value": value} for name, value in values.items()]
    entries += [
        {**place, "eval": "all", "test": "", "metric": f"f1_{kind}", "value": 0.25, "members": ["stage_a"]} for kind in ("macro", "micro")
    ]
    lines = lines_of(tmp_path, rows(12, scores={"f1": 0.5}), aggregates=entries, gates=[gate(metric="mcc")], columns=160)
    assert lines[1].endswith("  mcc 0.300, f1 0.500, f1_macro 0.400, ece 0.100")
    assert lines[2] == "suite all on hf:tiny: f1_macro 0.250, f1_micro 0.250"


@pytest.mark.parametrize(
    ("value", "width"), [("120", 120), ("", DEFAULT_COLUMNS), ("wide", DEFAULT_COLUMNS), ("²", DEFAULT_COLUMNS)], ids=ascii
)
def test_the_width_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch, value: str, width: int) -> None:
    monkeypatch.setenv("COLUMNS", value)
    assert terminal_width() == width


@pytest.mark.parametrize("columns", [60, 70, 80])
def test_engines_whose_names_are_cut_stay_apart(tmp_path: Path, columns: int) -> None:
    names = ["hf:middle+lora-helps", "hf:middle+lora-hurts", "hf:" + "very-long-checkpoint-name" * 2]
    shown = [line for line in lines_of(tmp_path, [row("a", engine=name) for name in names], columns) if line.startswith("stage_a")]
    assert len({tuple(line.split()[:2]) for line in shown}) == len(names)
    assert all(cell_len(line) <= columns for line in shown)


@pytest.mark.parametrize(
    ("texts", "width", "shown"),
    [
        (["abc", "abd"], 8, ["abc", "abd"]),
        (["hf:early-checkpoint", "vllm:early"], 8, ["hf:earl~", "vllm:ea~"]),
        (["hf:middle+lora-helps", "hf:middle+lora-hurts"], 10, ["hf:m~helps", "hf:m~hurts"]),
        (["a" * 20 + "1" + "b" * 20, "a" * 20 + "2" + "b" * 20], 8, ["aaaaaa~1", "aaaaaa~2"]),
        (["\u26a0\ufe0f" * 8], 8, ["\u26a0\ufe0f" * 3 + "\u26a0~"]),  # the second character makes the first one wide
    ],
    ids=["short", "told-apart-by-the-start", "by-the-end", "by-numbers", "emoji"],
)
def test_texts_are_cut_so_that_they_can_be_told_apart(texts: list[str], width: int, shown: list[str]) -> None:
    assert list(fit_apart(texts, width).values()) == shown


@given(st.lists(st.text(max_size=30), max_size=6, unique=True), st.integers(min_value=6, max_value=20))
def test_no_text_is_wider_than_asked(texts: list[str], width: int) -> None:
    for text, shown in fit_apart(texts, width).items():
        assert cell_len(shown) <= width
        assert cell_len(text) > width or len(texts) > 1 or shown == fit(text, width)


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


def test_a_name_that_is_cut_stands_in_full_below(tmp_path: Path) -> None:
    name = "test_summary_of_the_whole_photo[" + "统计信息与符合性" + "]"
    lines = lines_of(tmp_path, [row("a", test=name, scores={"f1": 0.5}), row("a")], 80)
    assert "~" in lines[1]
    assert f"stage_a::{name}: f1 0.500".replace(" ", "") in "".join(lines[2:5]).replace(" ", "")


def test_what_tune_has_chosen_is_said(tmp_path: Path) -> None:
    lengths = "prompts up to 256 tokens, answers up to 128"
    chosen = {"rows": 256, "default": 1024, "how": "measured", "tokens_per_s": {"1024": 19539, "256": 22487}}
    open_ = {"rows": 1024, "default": 1024, "how": "measuring", "tokens_per_s": {}}
    for choice, said in (
        (chosen, f"rows at once on vllm:a: 256 (measured; 1,024: 19,539 tok/s, 256: 22,487 tok/s), for {lengths}"),
        (open_, f"rows at once on vllm:a: 1,024 (too few answers to measure it; vLLM's own number stays), for {lengths}"),
    ):
        engines = [{"id": "vllm:a", "settings": {"rows_at_once": {lengths: choice}}}]
        assert said in lines_of(tmp_path, rows(12), 200, engines=engines)
    assert lines_of(tmp_path, rows(12), 200, engines=[{"id": "vllm:a", "settings": {"rows_at_once": {lengths: 5, "x": {"rows": "\x1b"}}}}])
