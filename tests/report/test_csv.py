from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any, cast

import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st

from evalharness.report.csv import REPORT_COLUMNS, SampleNames, write_report_csv, write_samples_csv
from evalharness.report.tables import load_tables
from evalharness.report.writing import report_rows, write_reports
from evalharness.runs.journal import Journal
from evalharness.runs.records import read_records
from evalharness.runs.run_file import read_samples
from evalharness.runs.samples import merge_rows, write_samples
from evalharness.runs.schema import Row
from tests.report.hostile import HOSTILE_TEXTS, hostile_text
from tests.report.runs import gate, generation, invalid, row, rows, write_run


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
    lines = report_lines(tmp_path, rows(2, scores={"cases": 0.25}))
    assert [(line["kind"], line["value"]) for line in lines if line["metric"] == "cases"] == [("score", "0.25"), ("count", "2")]


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_hostile_names_are_defused_in_report_csv(tmp_path: Path, text: str) -> None:
    lines = report_lines(tmp_path, [row(text, eval=text, scores={text: 0.5}, tags={text: text})])
    cells = [cell for line in lines for cell in line.values()]
    assert not [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert all(len(line) == len(REPORT_COLUMNS) for line in lines)


def samples_csv(tmp_path: Path, samples: list[dict[str, Any]]) -> str:
    file = io.StringIO(newline="")
    run_dir = write_run(tmp_path, samples)
    write_samples_csv(file, read_samples(run_dir), SampleNames.of(read_samples(run_dir)))
    return file.getvalue()


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
    several = [generation(text="one", ignored_options=["top_k", "min_p"]), generation(text="two")]
    (line,) = lines_of(samples_csv(tmp_path, [row("a", generation=several[0], generations=several)]))
    assert (line["text"], line["num_generations"], line["ignored_options"]) == ("one", "2", "top_k, min_p")
    (line,) = lines_of(samples_csv(tmp_path, [row("a", text="x" * 100_000)]))
    assert line["text"].endswith("… (67,297 more characters)")
    assert line["text_chars"] == "100000"
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


@pytest.mark.parametrize(
    ("text", "raw_text"),
    [
        ("yes", "yes<|im_end|>"),
        ("yes", "  yes\n<|im_end|>"),
        ("yes", "<think>" + "x" * 100 + "</think>yes"),
        ("YES", "yes"),
        ("", ""),
        ("", "<|im_end|>"),
        ("", None),
        *((text, f" {text}<|im_end|>") for text in map(HOSTILE_TEXTS.get, ("newlines", "controls", "surrogates", "spaces", "chinese"))),
    ],
)
def test_rows_in_memory_give_the_bytes_that_the_run_directory_gives(tmp_path: Path, text: str, raw_text: str | None) -> None:
    made = generation(text=text, raw_text=raw_text, seed=7, weight_version="w1", token_ids=[1])
    sample = row("a", scores={"b": 1.0, "a": 0.5}, tags={"z": "1"})
    (tmp_path / "journal").mkdir(parents=True)
    write_run(tmp_path, [])
    journal = Journal(tmp_path, "main")
    place = {"engine": sample["engine"], "eval": sample["eval"], "case_id": sample["case_id"]}
    journal.write("generation", {**place, "sample": 0, "generation": made})
    journal.write("row", {name: value for name, value in sample.items() if name != "generation"})
    journal.close()
    rows = merge_rows(read_records(tmp_path), [sample["nodeid"]], lambda nodeid: cast("Row", sample))
    write_samples(tmp_path, rows)
    assert json.loads((tmp_path / "samples.jsonl").read_bytes())["generation"] == made
    report_rows(tmp_path, rows)
    files = {name: (tmp_path / name).read_bytes() for name in ("samples.csv", "report.csv", "report.md")}
    write_reports(tmp_path)
    assert {name: (tmp_path / name).read_bytes() for name in files} == files
    assert rows == []
