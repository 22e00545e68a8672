"""`evalharness list` and `open`."""

from __future__ import annotations

import csv
import io
import json
import os
import webbrowser
from pathlib import Path
from typing import Any

import pytest

from evalharness.cli import main
from evalharness.report.findings import verdict
from evalharness.report.html.index_page import run_entries
from evalharness.report.tables import load_tables
from tests.analysis.comparison.runs import cases, run_dir
from tests.cli.conftest import Command
from tests.report.runs import gate, row

PART = [{"eval": "stage_a", "what": "cases", "num": 1, "of": 4}]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with runs of every state and verdict; it is the current folder."""
    monkeypatch.delenv("EVALHARNESS_REPORT_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").touch()
    made: dict[str, dict[str, Any]] = {
        "good": {"gates": [gate(), gate()], "exit_code": 0},
        "bad": {"gates": [gate(), gate(False)], "exit_code": 1, "checkpoint": "other"},
        "ungated": {"gates": [], "exit_code": 0},
        "lf": {"gates": [gate()], "exit_code": 0, "partial": PART},
        "broke": {"gates": [gate()], "exit_code": 10},
        "cut": {"gates": [gate()], "exit_code": 2, "interrupted": "Ctrl-C"},
        "live": {"finished_at": None},
    }
    for day, (name, run) in enumerate(made.items(), 1):
        checkpoint = run.pop("checkpoint", "tiny")
        engine = {"id": f"hf:{checkpoint}", "checkpoint": checkpoint}
        rows = [{**case, "engine": engine["id"]} for case in cases([1.0] * 3)]
        run.setdefault("finished_at", f"2030-01-0{day}T10:00:00.000+00:00")
        times = {"started_at": f"2030-01-0{day}T09:00:00.000+00:00", "evals": [{"name": "stage_a", "num_cases": 3, "tests": {}}]}
        run_dir(tmp_path / "reports" / name, rows, engine, **{**times, **run})
    (tmp_path / "reports" / "torn").mkdir()
    (tmp_path / "reports" / "torn" / "run.json").write_text("{")
    return tmp_path


def listed(printed: Command, *arguments: str) -> list[dict[str, Any]]:
    return json.loads(printed("list", "--format", "json", *arguments))


def test_all_runs_are_listed_newest_first_with_state_verdict_and_gates(root: Path, printed: Command) -> None:
    runs = listed(printed)
    assert [(run["run"], run["state"], run["verdict"]) for run in runs[:-1]] == [
        ("live", "killed", "none"),
        ("cut", "interrupted", "passed"),
        ("broke", "finished", "broken"),
        ("lf", "partial", "passed"),
        ("ungated", "finished", "none"),
        ("bad", "finished", "failed"),
        ("good", "finished", "passed"),
    ]
    assert (runs[-1]["run"], runs[-1]["state"]) == ("torn", "broken")
    bad = runs[5]
    assert bad["gates"] == {"passed": 1, "failed": 1, "skipped": 0}
    assert (bad["checkpoints"], bad["num_cases"], bad["path"]) == (["hf:other"], {"stage_a": 3}, str(root / "reports" / "bad"))


def test_a_verdict_is_that_of_the_report(root: Path, printed: Command) -> None:
    words = {"passed": "PASSED", "failed": "FAILED", "broken": "BROKEN", "none": "FINISHED"}
    for run in listed(printed):
        if run["state"] in ("finished", "partial"):
            assert verdict(load_tables(Path(run["path"])))[0] == words[run["verdict"]]


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        pytest.param(["--checkpoint", "other"], ["bad"], id="checkpoint"),
        pytest.param(["--checkpoint", "hf:tiny", "--since", "2030-01-05"], ["live", "cut", "broke"], id="since"),
        pytest.param(["--until", "2030-01-02"], ["bad", "good", "torn"], id="until"),
        pytest.param(["--since", "2030-01-02T08:59", "--until", "2030-01-02T09:00"], ["bad"], id="minutes"),
        pytest.param(["--verdict", "failed"], ["bad"], id="verdict"),
        pytest.param(["--verdict", "none", "--eval", "stage_a"], ["live", "ungated"], id="no-verdict"),
        pytest.param(["--most", "2"], ["live", "cut"], id="most"),
    ],
)
def test_filters(root: Path, printed: Command, arguments: list[str], names: list[str]) -> None:
    assert [run["run"] for run in listed(printed, *arguments)] == names


def test_a_name_that_no_run_has_is_refused_with_what_there_is(root: Path, refused: Command, printed: Command) -> None:
    assert "--eval 'stage_b' has no run; did you mean 'stage_a'? Known: stage_a." in refused("list", "--eval", "stage_b")
    assert "'yesterday' is not a date; write 2030-01-31" in refused("list", "--since", "yesterday")
    assert "nowhere cannot be listed" in refused("list", "--report-dir", "nowhere")
    assert listed(printed, "--since", "2040") == []


def test_the_table_fits_the_terminal_and_csv_is_for_spreadsheets(root: Path, printed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns, title in ((120, "run      state        verdict  began (UTC)       gates"), (60, "run      state        verdict  checkpo")):
        monkeypatch.setenv("COLUMNS", str(columns))
        lines = printed("list").splitlines()
        assert lines[0].startswith(title)
        assert max(map(len, lines)) <= columns
    rows = list(csv.DictReader(io.StringIO(printed("list", "--format", "csv"))))
    assert (rows[5]["run"], rows[5]["gates_failed"], rows[5]["checkpoints"]) == ("bad", "1", "hf:other")


def test_a_name_cannot_steer_the_terminal(root: Path, printed: Command) -> None:
    run_dir(root / "reports" / "\x1b[31mred", [row("a")])
    assert "\x1b" not in printed("list") + printed("list", "--format", "csv") + printed("list", "--format", "json")


def test_where_no_run_was_made_the_first_one_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert main(["list"]) == 0
    message = f"evalharness: no run in {tmp_path / 'reports'} yet; start one: pytest evals --model PATH\n"
    assert capsys.readouterr() == ("", message)


def test_a_run_whose_verdict_changes_is_read_anew(root: Path, printed: Command) -> None:
    assert run_entries(root / "reports")
    path = root / "reports" / "good" / "run.json"
    facts = json.loads(path.read_bytes())
    path.write_text(json.dumps({**facts, "partial": PART}))
    os.utime(path, ns=(1, 1))
    assert [run["state"] for run in listed(printed) if run["run"] == "good"] == ["partial"]


class TestOpen:
    @pytest.fixture
    def opened(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        addresses: list[str] = []
        monkeypatch.setattr(webbrowser, "open", lambda address: bool(addresses.append(address)) or True)
        return addresses

    def test_the_latest_run_or_the_one_named_is_opened(self, root: Path, opened: list[str], printed: Command) -> None:
        for name in ("broke", "bad"):
            (root / "reports" / name / "report.html").touch()
        assert printed("open") == f"{root / 'reports/broke/report.html'}\n"
        assert printed("open", "bad") == f"{root / 'reports/bad/report.html'}\n"
        assert opened == [(root / f"reports/{name}/report.html").as_uri() for name in ("broke", "bad")]

    def test_without_a_page_the_command_that_makes_it_is_named(self, root: Path, opened: list[str], refused: Command) -> None:
        assert refused("open", "live").endswith(f"try: evalharness report {root / 'reports/live'}\n")
        assert refused("open", "--all").endswith("try: pytest evals\n")
        assert opened == []

    def test_without_a_browser_the_path_is_printed(
        self, root: Path, printed: Command, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(webbrowser, "open", lambda address: False)
        page = root / "reports" / "index.html"
        page.touch()
        assert printed("open", "--all") == f"{page}\n"
