"""evals/test_dense_dump.py as it is shipped, on four photos and scripted answers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from evalharness.tasks import dense
from tests.pytest_plugin.project import Project, Run

ROOT = Path(__file__).parents[2]
EVAL = ROOT / "evals" / "test_dense_dump.py"
SITE_PHOTOS = ROOT / "fixtures" / "site_photos"
CASES = [case for case in dense.load_cases(SITE_PHOTOS) if case.domain == "bbu" and len(case.reference) > 1][:4]


def answer(objects: Sequence[dense.DenseObject]) -> str:
    return dense.render_dump(objects, "bbu")


@pytest.fixture
def dense_project(project: Project) -> Project:
    """The eval beside four photos of one size with one and the same truth, that of the first."""
    shutil.copy(EVAL, project.root / "test_dense_dump.py")
    folder = project.root / "photos"
    folder.mkdir()
    width, height = CASES[0].size
    truth = [{**one.to_json(), "points": list(points)} for one, points in zip(CASES[0].reference, CASES[0].pixels, strict=True)]
    rows = []
    for place, case in enumerate(CASES):
        shutil.copy(case.image, folder / f"{place}.jpg")
        rows.append({"image_path": f"{place}.jpg", "gt": truth, "pred": [], "width": width, "height": height, "domain": "bbu"})
    (folder / "gt_vs_pred.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    project.script({"text": answer(CASES[0].reference)})
    return project


def aggregates(run: Run) -> dict[tuple[str, str], float]:
    return {(entry["engine"], entry["metric"]): entry["value"] for entry in run.facts["aggregates"]}


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_eval_gives_scores_tables_files_and_pictures_in_three_modes(dense_project: Project, mode: str) -> None:
    run = dense_project.run("--data", "photos", "--model", "answers.jsonl", "--spot", "2", mode=mode)
    assert (run.exit_code, run.facts["problems"]) == (0, [])
    assert aggregates(run)["fake:answers", "category_micro_f1"] == 1.0
    assert {"Objects by category", "Objects by domain", "Counts and form"} <= {entry["title"] for entry in run.facts["tables"]}
    files = sorted(Path(entry["path"]).name for entry in run.facts["outputs"])
    assert files == ["dense_report.json", "gt_vs_pred.jsonl", "index.md", "vis_00000.jpg", "vis_00001.jpg"]
    (path,) = (run.run_dir / "outputs").glob("*/gt_vs_pred.jsonl")
    assert [row["image_path"] for row in lines(path)[:-1]] == [f"{place}.jpg" for place in range(4)]
    assert dense.aggregate(dense.score_dump(path))["category_micro_f1"] == 1.0


@pytest.mark.slow
def test_each_checkpoint_is_read_in_the_space_that_is_declared_for_it(dense_project: Project) -> None:
    in_pixels = [dense.DenseObject(one.type, points, one.desc) for one, points in zip(CASES[0].reference, CASES[0].pixels, strict=True)]
    (dense_project.root / "base.jsonl").write_text(json.dumps({"text": answer(in_pixels)}), encoding="utf-8")
    arguments = ("--data", "photos", "--model", "answers.jsonl,base.jsonl")
    found = aggregates(dense_project.run_inline(*arguments, "--coordinates", "ba*=pixels", "--run-id", "declared"))
    assert found["fake:answers", "loc_mean_f1"] == found["fake:base", "loc_mean_f1"] == 1.0
    found = aggregates(dense_project.run_inline(*arguments, "--run-id", "undeclared"))
    assert found["fake:answers", "loc_mean_f1"] > found["fake:base", "loc_mean_f1"]


def test_one_lost_category_misses_a_gate_that_all_objects_together_would_pass(dense_project: Project) -> None:
    dense_project.script({"text": answer(CASES[0].reference[1:])})
    run = dense_project.run_inline("--data", "photos", "--model", "answers.jsonl")
    gates = {gate["metric"]: gate["passed"] for gate in run.facts["gates"]}
    assert gates["valid"]
    assert not gates["category_min_f1"]


def test_an_answer_that_cannot_be_read_is_a_miss_and_flagged_in_the_dump(dense_project: Project) -> None:
    dense_project.script({"text": "没有"})
    run = dense_project.run_inline("--data", "photos", "--model", "answers.jsonl")
    assert {row["outcome"] for row in run.rows} == {"miss"}
    (path,) = (run.run_dir / "outputs").glob("*/gt_vs_pred.jsonl")
    assert all(row["parse_failed"] for row in lines(path)[:-1])
