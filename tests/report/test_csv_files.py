from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalharness.report.csv_files import REPORT_COLUMNS, write_report_csv, write_samples_csv
from evalharness.report.tables import load_tables
from tests.report.hostile import HOSTILE_TEXTS, hostile_text
from tests.report.runs import gate, generation, invalid, row, rows, write_run


def samples_csv(tmp_path: Path, samples: list[dict[str, Any]]) -> str:
    file = io.StringIO(newline="")
    write_samples_csv(load_tables(write_run(tmp_path, samples)), file)
    return file.getvalue()


def lines_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text, newline=""), strict=True))


def report_lines(tmp_path: Path, samples: list[dict[str, Any]], **run: Any) -> list[dict[str, str]]:
    file = io.StringIO(newline="")
    write_report_csv(load_tables(write_run(tmp_path, samples, **run)), file)
    return lines_of(file.getvalue())


def test_samples_csv_has_one_line_per_row_with_flat_columns(tmp_path: Path) -> None:
    samples = [
        row("a", tags={"domain": "RRU"}, scores={"valid": 1.0, "f1": 0.25}, group="g1"),
        invalid("b", "photo.jpg is empty", tags={"mission": "x"}),
    ]
    first, second = lines_of(samples_csv(tmp_path, samples))
    names = ("case_id", "group", "score.valid", "score.f1", "tag.domain", "tag.mission", "finish_reason")
    assert [first[name] for name in names] == ["a", "g1", "1.0", "0.25", "RRU", "", "stop"]
    assert (first["text"], first["text_chars"], first["num_generations"]) == ('{"case": "a"}', "13", "1")
    assert (second["outcome"], second["problem"], second["text"], second["text_chars"]) == ("invalid", "photo.jpg is empty", "", "")


def test_samples_csv_shows_the_first_of_several_generations_and_their_number(tmp_path: Path) -> None:
    several = [generation(text="one", ignored_options=["top_k", "min_p"]), generation(text="two")]
    (line,) = lines_of(samples_csv(tmp_path, [row("a", generation=several[0], generations=several)]))
    assert (line["text"], line["num_generations"], line["ignored_options"]) == ("one", "2", "top_k, min_p")


def test_a_text_too_long_for_a_spreadsheet_cell_says_so(tmp_path: Path) -> None:
    (line,) = lines_of(samples_csv(tmp_path, [row("a", text="x" * 100_000)]))
    assert line["text"].endswith("… (67,297 characters cut)")
    assert line["text_chars"] == "100000"


def test_scores_of_broken_rows_stay_visible_in_samples_csv(tmp_path: Path) -> None:
    (line,) = lines_of(samples_csv(tmp_path, [row("a", outcome="error", scores={"valid": 0.0, "odd": float("nan")})]))
    assert (line["score.valid"], line["score.odd"]) == ("0.0", "")


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_hostile_samples_keep_every_line_and_column(tmp_path: Path, text: str) -> None:
    sample = row(text, scores={text: 1.0}, tags={text: text}, text=text, problem=text, nodeid=text)
    written = samples_csv(tmp_path, [sample, row("plain")])
    table = list(csv.reader(io.StringIO(written, newline=""), strict=True))
    assert [len(line) for line in table] == [len(table[0])] * 3
    assert not [cell for line in table for cell in line if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    frame = pd.read_csv(io.BytesIO(written.encode("utf-8")), dtype=object, keep_default_na=False)
    assert frame.to_numpy().tolist() == table[1:]


@settings(max_examples=40)
@given(st.lists(hostile_text, min_size=1, max_size=3), hostile_text)
def test_any_text_comes_back_from_samples_csv(tmp_path_factory: pytest.TempPathFactory, texts: list[str], name: str) -> None:
    samples = [row(f"case-{number}", text=text, scores={name: 0.5}) for number, text in enumerate(texts)]
    lines = lines_of(samples_csv(tmp_path_factory.mktemp("run"), samples))
    assert [line["case_id"] for line in lines] == [sample["case_id"] for sample in samples]
    assert [int(line["text_chars"]) for line in lines] == [len(text) for text in texts]


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
