from __future__ import annotations

from pathlib import Path

import pytest

from evalharness.api.errors import RecordError
from evalharness.runs.run_file import read_run, read_samples
from tests.report.runs import row, rows, write_run


def test_rows_come_back_in_their_order_with_unknown_keys(tmp_path: Path) -> None:
    write_run(tmp_path, [row("b", novelty=1), row("a")])
    assert [(sample["case_id"], dict(sample).get("novelty")) for sample in read_samples(tmp_path)] == [("b", 1), ("a", None)]


def test_a_lone_surrogate_survives_reading(tmp_path: Path) -> None:
    write_run(tmp_path, [row(text="\ud83d")])
    assert next(read_samples(tmp_path))["generation"]["text"] == "\ud83d"


@pytest.mark.parametrize("torn", [b'{"run_id": "first", "te', '{"text": "标'.encode()[:-1], b"{"], ids=["key", "half a character", "brace"])
def test_a_torn_last_line_is_left_out_and_noted(tmp_path: Path, torn: bytes) -> None:
    write_run(tmp_path, rows(2))
    with (tmp_path / "samples.jsonl").open("ab") as file:
        file.write(torn)
    notes: list[str] = []
    assert len(list(read_samples(tmp_path, notes))) == 2
    assert notes == ["line 3 of samples.jsonl, the last, is torn and left out: the writer was interrupted"]


def test_a_last_line_that_lacks_only_its_newline_is_kept(tmp_path: Path) -> None:
    write_run(tmp_path, rows(2))
    path = tmp_path / "samples.jsonl"
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    notes: list[str] = []
    assert len(list(read_samples(tmp_path, notes))) == 2
    assert notes == []


@pytest.mark.parametrize(
    "line", [b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 5000], ids=["torn", "not utf-8", "too deep", "too long a number"]
)
def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path, line: bytes) -> None:
    write_run(tmp_path, rows(1))
    path = tmp_path / "samples.jsonl"
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(RecordError, match=r"line 1, is not JSON .*move the file away: then evalharness report makes it again"):
        list(read_samples(tmp_path))


@pytest.mark.parametrize("line", [b"[]", b"1", b'"text"', b"null"], ids=["list", "number", "string", "null"])
def test_a_line_that_is_no_object_is_an_error(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "samples.jsonl").write_bytes(line + b"\n")
    with pytest.raises(RecordError, match="line 1, must be a JSON object"):
        list(read_samples(tmp_path))


def test_missing_samples_are_noted(tmp_path: Path) -> None:
    notes: list[str] = []
    assert list(read_samples(tmp_path, notes)) == []
    assert notes == ["samples.jsonl is missing: no sample of this run can be shown"]


def test_samples_that_are_a_folder_are_an_error(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").mkdir()
    with pytest.raises(RecordError, match=r"samples\.jsonl cannot be read: Is a directory"):
        list(read_samples(tmp_path))


def test_empty_lines_are_no_rows(tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_bytes(b"\n  \n")
    assert list(read_samples(tmp_path)) == []


def test_run_json_comes_back_with_unknown_keys(tmp_path: Path) -> None:
    write_run(tmp_path, [], novelty={"a": 1})
    assert read_run(tmp_path)["novelty"] == {"a": 1}  # type: ignore[typeddict-item]


def test_a_missing_run_json_beside_samples_is_noted(tmp_path: Path) -> None:
    write_run(tmp_path, rows(1))
    (tmp_path / "run.json").unlink()
    notes: list[str] = []
    assert read_run(tmp_path, notes) == {}
    assert notes == ["run.json is missing: gates, settings and throughput of this run are unknown"]


def test_a_folder_with_neither_file_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="is not a run directory: it holds neither"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "must hold a JSON object, got list"),
        ('{"schema_version": 2}', "schema_version 2; this evalharness reads up to 1: update evalharness"),
        ('{"schema_version": "x"}', "schema_version 'x'"),
    ],
    ids=["torn", "list", "newer", "no number"],
)
def test_a_run_json_that_cannot_be_understood_is_an_error(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RecordError, match=message):
        read_run(tmp_path)
