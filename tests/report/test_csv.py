from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest

from evalharness.report.csv import REPORT_COLUMNS, write_report_csv
from evalharness.report.tables import load_tables
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import gate, row, rows, write_run


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def report_lines(tmp_path: Path, samples: list[dict[str, Any]], **run: Any) -> list[dict[str, str]]:
    file = io.StringIO(newline="")
    write_report_csv(load_tables(write_run(tmp_path, samples, **run)), file)
    return lines_of(file.getvalue())


def test_report_csv_is_tidy(tmp_path: Path) -> None:
    lines = report_lines(tmp_path, [row("a", tags={"domain": "RRU"}), row("b", tags={"domain": "BBU"}, scores={"valid": 0.0})])
    assert list(lines[0]) == REPORT_COLUMNS
    scores = [
        (line["group_key"], line["group_value"], line["metric"], line["value"], line["n"]) for line in lines if line["kind"] == "score"
    ]
    assert scores == [("", "", "valid", "0.5", "2"), ("domain", "RRU", "valid", "1.0", "1"), ("domain", "BBU", "valid", "0.0", "1")]
    counts = {line["metric"]: line["value"] for line in lines if line["kind"] == "count" and not line["group_key"]}
    assert (counts["cases"], counts["malformed"], counts["error"]) == ("2", "1", "0")


@pytest.mark.parametrize("test", ["test_summary", None], ids=["by-test", "written-before-tests-were-noted"])
def test_an_aggregate_is_that_of_its_test(tmp_path: Path, test: str | None) -> None:
    entry = {"eval": "stage_a", "engine": "hf:tiny", "metric": "macro", "value": 0.5} | ({"test": test} if test else {})
    (line,) = [line for line in report_lines(tmp_path, rows(2), aggregates=[entry]) if line["kind"] == "aggregate"]
    assert (line["test"], line["engine"], line["value"]) == (test or "", "hf:tiny", "0.5")


def test_report_csv_carries_gates_aggregates_and_throughput(tmp_path: Path) -> None:
    aggregate = {"eval": "stage_a", "engine": "hf:tiny", "metric": "macro", "value": -0.5}
    speed = {"engine": "hf:tiny", "generation_s": 2.5}
    lines = report_lines(tmp_path, rows(2), gates=[gate(False)], aggregates=[aggregate], throughput=[speed])
    found = [(line["kind"], line["metric"], line["value"]) for line in lines if line["kind"] not in ("score", "count")]
    assert found == [
        ("aggregate", "macro", "-0.5"),
        ("gate", "valid >= 0.95", "0.5"),
        ("gate_passed", "valid >= 0.95", "0"),
        ("throughput", "generation_s", "2.5"),
    ]


def test_a_score_named_like_a_count_stays_a_score(tmp_path: Path) -> None:
    lines = report_lines(tmp_path, rows(2, scores={"cases": 0.25}))
    assert [(line["kind"], line["value"]) for line in lines if line["metric"] == "cases"] == [("score", "0.25"), ("count", "2")]


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_hostile_names_are_defused_in_report_csv(tmp_path: Path, text: str) -> None:
    lines = report_lines(tmp_path, [row(text, eval=text, scores={text: 0.5}, tags={text: text})])
    cells = [cell for line in lines for cell in line.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert all(len(line) == len(REPORT_COLUMNS) for line in lines)
