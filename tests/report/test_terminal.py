from __future__ import annotations

import unicodedata
from pathlib import Path
from typing import Any

import pytest

from evalharness.report.tables import load_tables
from evalharness.report.terminal import DEFAULT_COLUMNS, NUM_PASSED_GATES, terminal_lines, terminal_width
from evalharness.report.text import display_width
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import gate, invalid, row, rows, write_run


def lines_of(tmp_path: Path, samples: list[dict[str, Any]], columns: int = 100, **run: Any) -> list[str]:
    return list(terminal_lines(load_tables(write_run(tmp_path, samples, **run)), columns))


def test_scores_gates_remarks_and_verdict_in_few_lines(tmp_path: Path) -> None:
    samples = [*rows(3), row("z", outcome="miss", problem="no JSON", scores={"valid": 0.0}), invalid("y")]
    assert lines_of(tmp_path, samples, gates=[gate(False, reason="0.750, needs ≥ 0.95")], exit_code=1) == [
        "eval                   engine   cases  malformed  cut  invalid  errors  miss",
        "stage_a::test_summary  hf:tiny      5          1    0        1       0     1  valid 0.750 (n=4)",
        "GATE FAILED: valid >= 0.95 (stage_a::test_summary on hf:tiny): 0.750, needs ≥ 0.95",
        "! 1 of 4 answers of stage_a::test_summary on hf:tiny is malformed (valid is 0)",
        "! 1 of 5 cases of stage_a::test_summary on hf:tiny could not be run (invalid): not counted in any",
        "  mean",
        "! stage_a has only 5 cases: scores may differ by chance alone",
        "FAILED: the gate failed; 1 sample could not be run",
    ]


def test_scores_that_do_not_fit_go_below(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, rows(12, scores={"valid": 1.0, "category_f1": 0.5, "exact": 0.25}), 80)
    assert lines[1:3] == [
        "stage_a::test_summary  hf:tiny     12          0    0        0       0",
        "  valid 1.000, category_f1 0.500, exact 0.250",
    ]


def test_a_narrow_terminal_gets_sentences_and_loses_no_count(tmp_path: Path) -> None:
    assert lines_of(tmp_path, rows(12), 40)[:3] == [
        "stage_a::test_summary on hf:tiny: 12",
        "  cases, 0 malformed, 0 cut, 0 invalid,",
        "  0 errors",
    ]


@pytest.mark.parametrize(
    ("text", "columns"),
    [*((text, 40) for text in HOSTILE_TEXTS.values()), *((" ".join(HOSTILE_TEXTS.values()), columns) for columns in (0, 60, 80, 120, 300))],
)
def test_hostile_names_steer_nothing_and_fit(tmp_path: Path, text: str, columns: int) -> None:
    samples = [row(text, eval=text, test=text, engine=text, scores={text: 0.5}, problem=text, outcome=text)]
    lines = lines_of(tmp_path, samples, columns, gates=[dict.fromkeys(gate(), text)], interrupted=text)
    assert not [char for line in lines for char in line if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp")]
    assert max(map(display_width, lines)) <= max(columns, 40)


def test_wide_characters_keep_columns_aligned(tmp_path: Path) -> None:
    head, line, *_ = lines_of(tmp_path, rows(12, eval="站点"), 120)
    assert display_width(line[: line.index("hf:tiny")]) == head.index("engine")


def test_gates_come_failed_ones_first_and_many_passed_ones_are_counted(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, rows(12), gates=[*[gate()] * 7, gate(False)])
    found = [line for line in lines if "gate" in line.lower()]
    assert found == [
        "GATE FAILED: valid >= 0.95 (stage_a::test_summary on hf:tiny): 0.500, needs ≥ 0.95",
        *["gate passed: valid >= 0.95 (stage_a::test_summary on hf:tiny): 1.000"] * NUM_PASSED_GATES,
        "2 more gates passed",
        "FAILED: 1 of 8 gates failed",
    ]


def test_one_more_is_one(tmp_path: Path) -> None:
    assert "1 more gate passed" in lines_of(tmp_path, rows(12), gates=[gate()] * (NUM_PASSED_GATES + 1))


def test_scores_that_gates_ask_for_come_first_and_many_are_counted(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, rows(12, scores={f"s{number}": 0.5 for number in range(9)}), gates=[gate(metric="s8")])
    assert lines[2] == "  s8 0.500, s0 0.500, s1 0.500, s2 0.500, s3 0.500, s4 0.500, 3 more in report.md"


def test_many_lines_are_cut_and_say_so(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, [row("a", eval=f"eval-{number}") for number in range(50)])
    assert "10 more lines in report.md" in lines
    assert "! 26 more caveats in report.md" in lines


def test_a_run_without_rows_still_gets_its_verdict(tmp_path: Path) -> None:
    assert lines_of(tmp_path, []) == ["EMPTY: no case was recorded; no gates were set"]


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
    assert all(display_width(line) <= columns for line in shown)
