from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import RecordError
from evalharness.runs.run_file import environment_facts, find_latest, is_latest, read_run, read_samples, write_run_file
from evalharness.runs.schema import SCHEMA_VERSION
from tests.analysis.comparison.runs import cases, run_dir
from tests.report.runs import row, rows, write_run


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout.strip()


class TestFacts:
    def test_they_are_plain_json_and_name_what_runs(self, tmp_path: Path) -> None:
        facts = json.loads(json.dumps(environment_facts(tmp_path), allow_nan=False))
        assert facts["hardware"]["num_cpus"] >= 1
        assert {"evalharness", "pytest", "torch"} <= set(facts["versions"])
        assert facts["python"].startswith("3.")

    def test_the_commit_is_named_and_whether_files_differ_from_it(self, tmp_path: Path) -> None:
        git(tmp_path, "init", "-q")
        assert environment_facts(tmp_path)["git"] is None, "there is no commit"
        (tmp_path / "a").write_text("1")
        git(tmp_path, "add", "a")
        git(tmp_path, "commit", "-q", "-m", "a")
        commit = git(tmp_path, "rev-parse", "HEAD")
        assert environment_facts(tmp_path)["git"] == {"commit": commit, "dirty": False}
        (tmp_path / "a").write_text("2")
        assert environment_facts(tmp_path)["git"] == {"commit": commit, "dirty": True}

    def test_a_machine_without_git_and_gpus_is_fine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        facts = environment_facts(tmp_path)
        assert (facts["git"], facts["hardware"]["gpus"]) == (None, [])

    @pytest.mark.parametrize("script", ["echo 'NVIDIA H100, 81559 MiB, 550.1'", "exit 9", "echo; echo x >&2"])
    def test_gpus_are_what_nvidia_smi_lists(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
        tool = tmp_path / "nvidia-smi"
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        assert environment_facts(tmp_path)["hardware"]["gpus"] == (["NVIDIA H100, 81559 MiB, 550.1"] if "H100" in script else [])


class TestWriting:
    def test_it_carries_the_schema_version_and_any_text_and_makes_the_folder(self, tmp_path: Path) -> None:
        text = "\ud800 \x00 \u2028 \x1b[31m <script>"
        write_run_file(tmp_path / "reports" / "r", {"command": [text]})
        assert json.loads((tmp_path / "reports" / "r" / "run.json").read_bytes()) == {"schema_version": SCHEMA_VERSION, "command": [text]}

    def test_it_is_written_whole_or_not_at_all(self, tmp_path: Path) -> None:
        write_run_file(tmp_path, {"run_id": "r"})
        with pytest.raises(ValueError, match="Out of range float values are not JSON compliant"):
            write_run_file(tmp_path, {"run_id": float("nan")})  # type: ignore[typeddict-item]
        assert json.loads((tmp_path / "run.json").read_bytes())["run_id"] == "r"
        assert [path.name for path in tmp_path.iterdir()] == ["run.json"]

    def test_a_folder_that_cannot_be_made_is_said_with_what_to_do(self, tmp_path: Path) -> None:
        (tmp_path / "reports").write_text("in the way")
        with pytest.raises(RecordError, match=r"run\.json cannot be written: Not a directory; choose another folder with --report-dir"):
            write_run_file(tmp_path / "reports" / "r", {})


def test_run_and_rows_come_back_in_their_order_with_unknown_keys(tmp_path: Path) -> None:
    write_run(tmp_path, [row("b", novelty=1), row("a", text="\ud83d")], novelty={"a": 1})
    path = tmp_path / "samples.jsonl"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\n  \n", 1).rstrip(b"\n"))  # an empty line, and a last one without its newline
    notes: list[str] = []
    found = list(read_samples(tmp_path, notes))
    assert [(sample["case_id"], dict(sample).get("novelty")) for sample in found] == [("b", 1), ("a", None)]
    assert (found[1]["generation"]["text"], notes) == ("\ud83d", [])
    assert read_run(tmp_path)["novelty"] == {"a": 1}  # type: ignore[typeddict-item]


@pytest.mark.parametrize("torn", [b'{"run_id": "first", "te', '{"text": "标'.encode()[:-1], b"{"], ids=["key", "half a character", "brace"])
def test_a_torn_last_line_is_left_out_and_noted(tmp_path: Path, torn: bytes) -> None:
    write_run(tmp_path, rows(2))
    with (tmp_path / "samples.jsonl").open("ab") as file:
        file.write(torn)
    notes: list[str] = []
    assert len(list(read_samples(tmp_path, notes))) == 2
    assert notes == ["line 3 of samples.jsonl, the last, is torn and left out: the writer was interrupted"]


NOT_JSON = r"line 1, is not JSON .*move the file away: then evalharness report makes it again"
NO_OBJECT = "line 1, must be a JSON object"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        *((line, NOT_JSON) for line in (b"{", b"\xff\xfe", b"[" * 100_000, b"9" * 5000)),
        *((line, NO_OBJECT) for line in (b"[]", b"1", b'"text"', b"null")),
    ],
    ids=["torn", "not utf-8", "too deep", "too long a number", "list", "number", "string", "null"],
)
def test_a_broken_line_in_the_middle_is_an_error_with_its_number(tmp_path: Path, line: bytes, problem: str) -> None:
    write_run(tmp_path, rows(1))
    path = tmp_path / "samples.jsonl"
    path.write_bytes(line + b"\n" + path.read_bytes())
    with pytest.raises(RecordError, match=problem):
        list(read_samples(tmp_path))


def test_missing_samples_are_noted_and_a_folder_in_their_place_is_an_error(tmp_path: Path) -> None:
    notes: list[str] = []
    assert list(read_samples(tmp_path, notes)) == []
    assert notes == ["samples.jsonl is missing: no sample of this run can be shown"]
    (tmp_path / "samples.jsonl").mkdir()
    with pytest.raises(RecordError, match=r"samples\.jsonl cannot be read: a folder, device or pipe is not a regular file"):
        list(read_samples(tmp_path))


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


def write(folder: Path, day: int, **run: Any) -> Path:
    """Write a run that ended, if it ended, on that day of 2030's first month."""
    return run_dir(folder, cases([1.0]), **{"finished_at": f"2030-01-{day:02}T00:00:00.000+00:00", **run})


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    """Three complete runs, whose names are in another order than their ends, and four that are none."""
    for day, name in enumerate(("b", "c", "a"), 1):
        write(tmp_path / name, day)
    write(tmp_path / "cut", 4, interrupted="Ctrl-C")
    write(tmp_path / "killed", 5, rebuilt=True)
    write(tmp_path / "live", 6, finished_at=None)
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.json").write_text("{")
    return tmp_path


@pytest.mark.parametrize(("word", "name"), [("latest", "a"), ("latest~1", "c"), ("latest~2", "b")])
def test_complete_runs_are_counted_back_from_the_one_that_ended_last(reports: Path, word: str, name: str) -> None:
    assert find_latest(word, reports) == reports / name


def test_a_link_to_a_run_is_no_second_run(reports: Path) -> None:
    (reports / "0-newest").symlink_to(reports / "a")
    assert [find_latest(word, reports).name for word in ("latest", "latest~1")] == ["a", "c"]


def test_a_run_that_a_link_leads_to_counts(reports: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    (reports / "archived").symlink_to(write(tmp_path_factory.mktemp("elsewhere") / "old", 7))
    assert find_latest("latest", reports) == reports / "archived"


UNFINISHED = "4 unfinished (cut: interrupted, killed: killed, live: running or killed, torn: cannot be read)"


@pytest.mark.parametrize(
    ("word", "left", "message"),
    [
        ("latest~3", "abc", f"3 complete runs and {UNFINISHED}; count back to latest~2 at most, or give a run directory"),
        ("latest~999999", "abc", f"3 complete runs and {UNFINISHED}; count back to latest~2 at most, or give a run directory"),
        ("latest~1", "b", f"1 complete run and {UNFINISHED}; count back to latest at most, or give a run directory"),
        ("latest", "", f"0 complete runs and {UNFINISHED}; let a run finish, or give a run directory"),
    ],
)
def test_too_far_back_says_what_is_there(reports: Path, word: str, left: str, message: str) -> None:
    for name in set("abc") - set(left):
        (reports / name / "run.json").unlink()
    with pytest.raises(RecordError, match=f"^there is no run {word}: {re.escape(f'{reports} holds {message}')}$"):
        find_latest(word, reports)
    with pytest.raises(RecordError, match="holds 0 complete runs; let a run finish, or give a run directory$"):
        find_latest("latest", reports / "absent")


def test_of_many_broken_runs_the_first_are_named(tmp_path: Path) -> None:
    for number in range(7):
        write(tmp_path / f"r{number}", 1, finished_at=None)
    with pytest.raises(RecordError, match=r"and 7 unfinished \(r0: .*, r4: running or killed, and 2 more\);"):
        find_latest("latest", tmp_path)


@pytest.mark.parametrize(
    "word", ["latest~", "latest~0", "latest~-1", "latest~x", "latest~01", "latest~1.5", "latest~1\n", "latest~1000000"]
)
def test_what_counts_nothing_back_is_refused(reports: Path, word: str) -> None:
    assert is_latest(word)
    with pytest.raises(RecordError, match="does not count runs back; legal are latest, latest~1"):
        find_latest(word, reports)


@pytest.mark.parametrize("word", ["late", "latest1", "latest-1", "Latest", "./latest", "reports/latest", "latest:hf", ""])
def test_other_words_are_not_meant(word: str) -> None:
    assert not is_latest(word)


def test_partial_runs_do_not_count_where_whole_ones_are_meant(reports: Path) -> None:
    write(reports / "part", 8, partial=[{"eval": "e", "what": "cases", "num": 1, "of": 4}])
    notes: list[str] = []
    assert find_latest("latest", reports) == reports / "part"
    assert find_latest("latest", reports, whole=True, notes=notes) == reports / "a"
    assert notes == ["partial runs do not count here: part; name a run to take it"]
    with pytest.raises(RecordError, match="holds 3 complete runs, 1 partial and 4 unfinished"):
        find_latest("latest~3", reports, whole=True)


def test_where_all_runs_are_partial_they_count(tmp_path: Path) -> None:
    write(tmp_path / "part", 8, partial=[{"eval": "e", "what": "cases", "num": 1, "of": 4}])
    assert find_latest("latest", tmp_path, whole=True) == tmp_path / "part"
