"""Output files of a Stage-A run. Run: pytest tests/tasks/stage_a/test_files.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.cases import OutputTarget
from evalharness.api.errors import RecordError
from evalharness.tasks import stage_a
from evalharness.tasks.stage_a.files import LEFT_OUT_FILE
from tests.growth import assert_linear

RRU, BBU = "RRU安装检查", "BBU接地线检查"


def row(group: str, number: int, num_images: int = 2, mission: str = RRU, **changes: Any) -> dict[str, Any]:
    """Return the row of a judged photo."""
    images = [f"{group}_{place}.jpg" for place in range(1, num_images + 1)]
    photo = {"mission": mission, "group_id": group, "label": "fail", "image_index": number, "images": images}
    whole = {
        "case_id": f"slug/fail/{group}/image_{number}",
        "group": group,
        "tags": {"mission": mission, "label": "fail"},
        "outcome": "pass",
        "problem": None,
        "details": {"photo": photo, "summary": f"{group}{number}"},
    }
    return {**whole, **changes}


def broken(group: str, number: int, outcome: str = "invalid", problem: str = "2.jpg is empty", **changes: Any) -> dict[str, Any]:
    """Return the row of a photo without an answer: nothing of its test ran."""
    without = {name: value for name, value in row(group, number, **changes).items() if name != "details"}
    return {**without, "outcome": outcome, "problem": problem}


def written(tmp_path: Path, *rows: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return what is in the output folder by file name."""
    stage_a.outputs(rows, OutputTarget(tmp_path, "hf:x"))
    return {path.name: [json.loads(text) for text in path.read_text("utf-8").splitlines()] for path in sorted(tmp_path.iterdir())}


def test_each_mission_has_a_file_in_the_five_key_form_and_reads_back(tmp_path: Path) -> None:
    files = written(tmp_path, row("A", 1), row("A", 2, outcome="miss"), row("B", 1, 1, BBU))
    assert set(files) == {f"{RRU}_stage_a.jsonl", f"{BBU}_stage_a.jsonl"}
    summaries = {"images": ["A_1.jpg", "A_2.jpg"], "per_image": {"image_1": "A1", "image_2": "A2"}}
    assert files[f"{RRU}_stage_a.jsonl"] == [{"group_id": "A", "mission": RRU, "label": "fail", **summaries}]
    assert stage_a.read_rows(tmp_path / f"{RRU}_stage_a.jsonl") == files[f"{RRU}_stage_a.jsonl"]
    assert stage_a.read_summaries(tmp_path / f"{RRU}_stage_a.jsonl") == {("A", "fail", "A_1.jpg"): "A1", ("A", "fail", "A_2.jpg"): "A2"}


def test_a_group_with_a_broken_photo_is_left_out_and_listed_and_the_others_are_written(tmp_path: Path) -> None:
    files = written(tmp_path, row("A", 1), broken("A", 2), row("B", 1), row("B", 2))
    assert [entry["group_id"] for entry in files[f"{RRU}_stage_a.jsonl"]] == ["B"]
    assert files[LEFT_OUT_FILE] == [{"mission": RRU, "group": "A::fail", "problem": "image_2 failed: 2.jpg is empty"}]


def test_where_no_group_is_complete_the_run_fails(tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match="no group is complete, so no Stage-A file was written; the first of 2: image_2 failed: 2.jpg is empty"
    ):
        written(tmp_path, row("A", 1), broken("A", 2), broken("B", 1), broken("B", 2))
    assert [path.name for path in tmp_path.iterdir()] == [LEFT_OUT_FILE]


def test_what_was_not_asked_whole_or_cut_short_is_listed_and_no_failure(tmp_path: Path) -> None:
    skipped = broken("C", 2, "skip", "not run: interrupted by the user"), broken("D", 1, "skip", "not run")
    files = written(tmp_path, row("A", 1), row("B", 2, 3, outcome="miss"), row("C", 1), *skipped)
    assert [(entry["group"], entry["problem"]) for entry in files[LEFT_OUT_FILE]] == [
        ("A::fail", "image_2 not in this run"),
        ("B::fail", "image_1, image_3 not in this run"),
        ("C::fail", "image_2 failed: not run: interrupted by the user"),
        ("D::fail", "image_1 failed: not run"),
    ]
    assert list(files) == [LEFT_OUT_FILE]


@pytest.mark.parametrize(
    ("last", "problem"),
    [
        (row("A", 2, outcome="error", problem="KeyError: 'x'"), "image_2 failed: KeyError: 'x'"),
        (row("A", 2, details={**row("A", 2)["details"], "summary": " "}), "image_2 failed: blank summary"),
    ],
    ids=["error", "blank"],
)
def test_a_photo_without_a_summary_leaves_its_group_out(tmp_path: Path, last: dict[str, Any], problem: str) -> None:
    assert written(tmp_path, row("A", 1), last, row("B", 1), row("B", 2))[LEFT_OUT_FILE][0]["problem"] == problem


def test_of_several_tests_of_a_photo_the_one_with_a_summary_counts_and_two_folders_of_an_order_are_two_rows(tmp_path: Path) -> None:
    copies = [{**row("A", number), "case_id": f"slug/fail/A~2/image_{number}"} for number in (1, 2)]
    files = written(tmp_path, broken("A", 1, "pass", ""), row("A", 1), row("A", 2), broken("A", 2, "fail", "x"), *copies)
    assert [entry["per_image"] for entry in files[f"{RRU}_stage_a.jsonl"]] == [{"image_1": "A1", "image_2": "A2"}] * 2


@pytest.mark.slow
def test_ten_thousand_groups_take_time_by_their_number(tmp_path: Path) -> None:
    rows: list[Any] = [row(f"G{number}", place) for number in range(10_000) for place in (1, 2)]
    assert_linear(lambda some: stage_a.outputs(some, OutputTarget(tmp_path, "hf:x")), rows)


def test_rows_of_other_evals_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="'capital' is not a case of Stage-A"):
        written(tmp_path, {**row("A", 1), "case_id": "capital"})
