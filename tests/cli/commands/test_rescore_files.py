"""`evalharness rescore FILE.jsonl`: a run directory with reports from answers on disk."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from evalharness.cli import main
from evalharness.tasks import dense
from tests.cli.conftest import Command
from tests.processes import python
from tests.pytest_plugin.project import environment, unwanted

DATA = Path(__file__).parents[3] / "fixtures" / "site_photos"
SUMMARIES = DATA / "RRU线缆_stage_a.jsonl"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, without settings."""
    for name in unwanted(os.environ):
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def dump_rows() -> list[dict[str, Any]]:
    """Return pictures with predictions: right, one object missing, one invented, none."""
    rows = []
    for number, line in enumerate((DATA / "gt_vs_pred.jsonl").read_text("utf-8").splitlines()[:12]):
        row = json.loads(line)
        truth = row["gt_norm1000"]
        row["pred"] = [truth, truth[1:], [*truth, {"type": "bbox_2d", "points": [1, 1, 9, 9], "desc": "类别=标签"}], []][number % 4]
        rows.append(row)
    return rows


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "ascii")
    return path


def samples(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "samples.jsonl").read_bytes().splitlines()]


def facts(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "run.json").read_bytes())


def test_a_dense_dump_becomes_a_run_with_the_metrics_of_the_eval(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(here / "gt_vs_pred.jsonl", dump_rows())
    assert main(["rescore", "gt_vs_pred.jsonl", "--run-id", "r"]) == 0
    run_dir = here / "reports" / "r"
    expected = dense.score_dump(path)
    assert [row["scores"] for row in samples(run_dir)] == [row["scores"] for row in expected]
    assert {entry["metric"]: entry["value"] for entry in facts(run_dir)["aggregates"]} == dense.aggregate(expected)
    assert [table["title"] for table in facts(run_dir)["tables"]] == list(dense.tables(expected))
    for name in ("report.md", "report.csv", "samples.csv", *(entry["path"] for entry in facts(run_dir)["outputs"])):
        assert (run_dir / name).stat().st_size
    assert {Path(entry["path"]).name for entry in facts(run_dir)["outputs"]} == {"gt_vs_pred.jsonl", "dense_report.json"}
    printed = capsys.readouterr().out
    assert "\ndense_dump  dump:gt_vs_pred " in printed
    assert "scored from the file gt_vs_pred.jsonl" in printed
    assert printed.splitlines()[-1] == f"report: {run_dir / 'report.md'}"


def test_what_it_wrote_gives_the_same_scores_again(here: Path) -> None:
    write(here / "gt_vs_pred.jsonl", dump_rows())
    assert main(["rescore", "gt_vs_pred.jsonl", "--run-id", "one"]) == 0
    (again,) = (here / "reports" / "one" / "outputs").rglob("gt_vs_pred.jsonl")
    assert main(["rescore", str(again), "--run-id", "two"]) == 0
    scores = [[row["scores"] for row in samples(here / "reports" / name)] for name in ("one", "two")]
    assert scores[0] == scores[1]


def test_summaries_are_scored_against_the_references_of_data(here: Path) -> None:
    assert main(["rescore", str(SUMMARIES), "--data", str(DATA), "--run-id", "r", "--report-dir", "elsewhere"]) == 0
    run_dir = here / "elsewhere" / "r"
    assert {row["scores"]["exact"] for row in samples(run_dir)} == {1.0}
    assert {row["eval"] for row in samples(run_dir)} == {"stage_a"}
    assert facts(run_dir)["rescored"]["dump"] == SUMMARIES.name
    assert "nothing was generated, no test ran and no gate was judged" in (run_dir / "report.md").read_text("utf-8")


def test_photos_without_summary_are_said(here: Path) -> None:
    rows = SUMMARIES.read_text("utf-8").splitlines(keepends=True)
    (here / SUMMARIES.name).write_text("".join(rows[2:]), "utf-8")
    assert main(["rescore", SUMMARIES.name, "--data", str(DATA), "--run-id", "r"]) == 0
    (problem,) = facts(here / "reports" / "r")["problems"]
    assert problem.endswith(f"but without a summary in {SUMMARIES.name}: in no number")


def test_references_come_from_the_settings_too_and_the_report_can_be_made_again(here: Path) -> None:
    (here / "evalharness.toml").write_text(f'data = "{DATA}"\n')
    assert main(["rescore", str(SUMMARIES), "--run-id", "r"]) == 0
    report = (here / "reports" / "r" / "report.md").read_bytes()
    assert main(["report", "reports/r"]) == 0
    assert (here / "reports" / "r" / "report.md").read_bytes() == report


def test_neither_torch_nor_pytest_is_loaded(here: Path) -> None:
    code = f"""
import sys
from evalharness.cli import main
assert main(["rescore", {str(SUMMARIES)!r}, "--data", {str(DATA)!r}]) == 0
print(*[name for name in ("torch", "transformers", "vllm", "pytest") if name in sys.modules])
"""
    exit_code, output = python("-c", code, env=environment())
    assert (exit_code, output.splitlines()[-1]) == (0, ""), output


class TestRefused:
    @pytest.mark.parametrize(
        ("content", "message"),
        [
            pytest.param(b"", "is neither a gt_vs_pred.jsonl of dense dumps nor a <mission>_stage_a.jsonl", id="empty"),
            pytest.param(b"[1]\n", "its first row has no keys", id="list"),
            pytest.param(b'{"a": 1, "b": 2}\n', "its first row has a, b", id="other-keys"),
            pytest.param(b'{"summary": true, "num_samples": 0}\n', "holds no image", id="no-picture"),
            pytest.param(b"nonsense\n", "does not begin with a line of JSON", id="no-json"),
            pytest.param(b"[" * 100_000 + b"\n", "does not begin with a line of JSON", id="deep"),
            pytest.param(b"\xff\xfe\n", "cannot be read", id="no-text"),
            pytest.param(b'{"image_path": "a.jpg", "gt": [], "width": "x"}\n', "gt_vs_pred.jsonl:1", id="broken-dump"),
        ],
    )
    def test_what_is_no_dump(self, here: Path, refused: Command, content: bytes, message: str) -> None:
        (here / "gt_vs_pred.jsonl").write_bytes(content)
        assert message in refused("rescore", "gt_vs_pred.jsonl")
        assert not (here / "reports").exists()

    def test_names_and_options_that_are_wrong(self, here: Path, refused: Command) -> None:
        assert "give the folder of the references with --data" in refused("rescore", SUMMARIES)
        arguments = [str(SUMMARIES), "--data", str(DATA), "--run-id", "r"]
        assert main(["rescore", *arguments]) == 0
        assert "run 'r' already exists in" in refused("rescore", *arguments)
        assert "--tests is for run directories only" in refused("rescore", SUMMARIES, "--tests", "x.py")
        assert "--coordinates is for files of answers only" in refused("rescore", here, "--coordinates", "unit")
        write(here / "gt_vs_pred.jsonl", dump_rows())
        assert "norm1000" in refused("rescore", "gt_vs_pred.jsonl", "--coordinates", "miles")
