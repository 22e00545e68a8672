"""SQL over runs: what is selected, and what is closed to it."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import ConfigError
from evalharness.cli import main
from evalharness.interop.sql import _files, query
from evalharness.interop.sql_process import TABLES, Limits, answer
from tests.report.runs import gate, row, write_run

pytest.importorskip("duckdb")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("reports")
    first = [row(f"c{number}", scores={"f1": number / 4}, tags={"site": "ab"[number % 2]}) for number in range(4)]
    second = [row("c0", scores={"cer": 0.5, "f1": 1}, details={"deep": [1]}), row("c1", outcome="error", scores={}, generation=None)]
    paths = [write_run(folder / "one", first, gates=[gate(False)]), write_run(folder / "it's two", second)]
    torn = write_run(folder / "torn", [row("c0", scores={"f1": 0.25})])
    with (torn / "samples.jsonl").open("a") as file:
        file.write('{"run_id": "first", "sco')
    (folder / "running").mkdir()
    (folder / "running" / "run.json").write_text('{"run_id": "running"}')
    (folder / "broken").mkdir()
    (folder / "broken" / "run.json").write_text("{")
    return [*paths, torn, folder / "running", folder / "broken"]


def asked(sql: str, runs: list[Path]) -> list[tuple[Any, ...]]:
    """Return the rows, asked in this process."""
    return [tuple(json.loads(row)) for row in told(sql, runs)["rows"]]


def told(sql: str, runs: list[Path]) -> dict[str, Any]:
    with _files(runs, []) as (samples, facts):
        return answer(sql, list(map(str, samples)), list(map(str, facts)), Limits())


def test_scores_of_all_runs_stand_in_one_table(runs: list[Path]) -> None:
    means = asked("SELECT run, metric, avg(value) FROM scores GROUP BY ALL ORDER BY ALL", runs)
    assert means == [("it's two", "cer", 0.5), ("it's two", "f1", 1.0), ("one", "f1", 0.375), ("torn", "f1", 0.25)]
    assert asked("SELECT case_id, scores['cer'] FROM samples WHERE tags['site'] = 'b'", runs) == [("c1", None), ("c3", None)]
    assert asked("SELECT run, expression, value FROM gates WHERE NOT passed", runs) == [("one", "valid >= 0.95", 0.5)]
    assert asked("SELECT details FROM samples WHERE scores['cer'] > 0", runs) == [({"deep": [1]},)]
    assert asked("SELECT count(*) FROM samples WHERE text IS NULL", runs) == [(1,)]


def test_every_table_has_its_columns_even_without_a_run(runs: list[Path]) -> None:
    columns = "SELECT table_name, column_name, data_type FROM information_schema.columns"
    assert set(asked(columns, runs)) == set(asked(columns, []))
    counts = ", ".join(f"(SELECT count(*) FROM {name})" for name in TABLES)
    assert asked(f"SELECT {counts}", []) == [(0,) * len(TABLES)]


def test_runs_that_are_not_whole_are_named(runs: list[Path]) -> None:
    notes: list[str] = []
    query("SELECT 1", runs, notes)
    assert [note.partition(":")[0] for note in notes] == ["running has no samples.jsonl", "left out", "torn"]


def test_a_broken_line_leaves_its_run_out(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, [row("c0", scores={"f1": 0.5})]) for name in ("one", "two")]
    with (paths[0] / "samples.jsonl").open("a") as file:
        file.write('{"run_id": \n')
    notes: list[str] = []
    assert query("SELECT run, count(*) FROM samples GROUP BY ALL", paths, notes).rows == [("two", 1)]
    assert len(notes) == 1
    assert "one/samples.jsonl" in notes[0]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hosts.csv'",
        "SELECT * FROM read_csv('http://localhost/x.csv')",
        "SELECT * FROM read_json('{run}/run.json/../secret.json')",
        "SELECT getenv('HOME')",
        "COPY (SELECT 1) TO '{run}/samples.jsonl'",
        "EXPLAIN ANALYZE COPY (SELECT 1) TO '{run}/samples.jsonl'",
        "SELECT 1; SELECT 2",
        "SET enable_external_access = true",
        "",
    ],
)
def test_all_else_is_closed_to_a_query(runs: list[Path], sql: str) -> None:
    (runs[0] / "secret.json").write_text('{"a": 1}')
    before = (runs[0] / "samples.jsonl").read_bytes()
    assert told(sql.replace("{run}", str(runs[0])), runs)["problem"]
    assert (runs[0] / "samples.jsonl").read_bytes() == before


def test_ctrl_c_stops_a_query_that_would_never_end(runs: list[Path]) -> None:
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        query("SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c", runs, [])


@pytest.mark.parametrize(
    ("sql", "limits", "problem"),
    [
        ("SELECT length(repeat('x', 4000000000))", {"timeout_s": 0.7}, "took more than 0.7 s and was ended; narrow it"),
        ("SELECT length(repeat('x', 4000000000))", {"memory_gib": 0.5}, "takes more memory than it may have; narrow it .*--memory"),
    ],
    ids=["time, in a call that no interrupt ends", "memory, which DuckDB does not count"],
)
def test_a_query_has_limits_of_time_and_memory(runs: list[Path], sql: str, limits: dict[str, float], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        query(sql, runs, [], **limits)


def test_a_long_line_is_read_and_too_large_an_answer_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [write_run(tmp_path / "long", [row("c0", text="x" * 17_000_000)])]
    assert asked("SELECT length(text) FROM samples", runs) == [(17_000_000,)]
    monkeypatch.setattr("evalharness.interop.sql_process.MAX_ANSWER_BYTES", 1 << 20)
    assert "the answer has more than 1 MiB" in told("SELECT repeat('x', 100000) FROM range(100)", runs)["problem"]
    assert "takes more memory" in answer("SELECT list(range) FROM range(10000000)", [], [], Limits(1 << 25))["problem"]


def test_a_link_out_of_a_run_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret.jsonl").write_text('{"run_id": "secret"}\n')
    run = write_run(tmp_path / "run", [row("c0")])
    (run / "samples.jsonl").unlink()
    (run / "samples.jsonl").symlink_to(tmp_path / "secret.jsonl")
    notes: list[str] = []
    assert query("SELECT run_id FROM samples", [run], notes).rows == []
    assert notes[0].startswith("left out: ")


def test_the_command_prints_tables_csv_and_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = "\x1b[2J=1+1\nx"
    write_run(tmp_path / "one", [row("c0", text=text, scores={"f1": 0.5})])
    ask = ["sql", "SELECT case_id, text, scores FROM samples", "--report-dir", str(tmp_path)]
    shown = []
    for kind in ("table", "csv", "jsonl"):
        assert main([*ask, "--format", kind]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0].splitlines()[1].split()[0] == "c0"
    assert "\x1b" not in shown[0] + shown[1]
    assert json.loads(shown[2]) == {"case_id": "c0", "text": text, "scores": {"f1": 0.5}}
    assert main(["sql", "SELECT txt FROM samples", "--report-dir", str(tmp_path)]) == 2
    assert 'Candidate bindings: "text"' in capsys.readouterr().err
