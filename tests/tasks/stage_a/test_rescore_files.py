"""Stage-A files scored without model and photos: the numbers of the live eval, but for those about the form."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.cases import OutputTarget
from evalharness.api.errors import ContractTypeError, RecordError
from evalharness.tasks import stage_a
from evalharness.tasks.stage_a import score_summaries, unscored_photos

DATA = Path(__file__).parents[3] / "fixtures" / "site_photos"
MISSION = "RRU安装检查"
ABOUT_FORM = {"valid", "header_match", "runaway"}
ANSWERS = (
    lambda reference: reference,
    lambda reference: {"统计": reference["统计"][:1]} if reference else None,
    lambda reference: None,
    lambda reference: {"统计": [{"类别": "紧固件", "安装状态": {"合格": 3}}, {"类别": "没有这种"}]},
)


def live_rows() -> list[dict[str, Any]]:
    """Return what a live run of one mission records, with right, partly right and wrong answers."""
    rows = []
    for number, case in enumerate(case for case in stage_a.load_cases(DATA) if case.mission == MISSION):
        assert case.reference is not None
        text = stage_a.render_summary(ANSWERS[number % len(ANSWERS)](case.reference.data), case.domain)
        summary = stage_a.parse_summary(text, case.domain)
        row = {"case_id": case.id, "group": case.group, "tags": dict(case.tags), "outcome": "pass"}
        rows.append({**row, "scores": stage_a.scores(summary, case, 10), "details": stage_a.details(summary, case)})
    return rows


@pytest.fixture(scope="module")
def live() -> list[dict[str, Any]]:
    return live_rows()


@pytest.fixture
def written(live: list[dict[str, Any]], tmp_path: Path) -> Path:
    """The file that the live run writes for other tools."""
    stage_a.outputs(live, OutputTarget(tmp_path, "hf:x"))
    return tmp_path / f"{MISSION}_stage_a.jsonl"


def about_content(scores: dict[str, float]) -> dict[str, float]:
    return {name: float(value) for name, value in scores.items() if name not in ABOUT_FORM}


def test_scores_are_those_of_the_live_run_photo_by_photo(live: list[dict[str, Any]], written: Path) -> None:
    rows = {row["case_id"]: row for row in score_summaries(written, DATA)}
    assert len(rows) == len(live) == 32
    for row in live:
        mine = rows[row["case_id"]]
        assert mine["scores"] == about_content(row["scores"])
        assert (mine["group"], mine["tags"]) == (row["group"], row["tags"])
        assert {**mine["details"], "reasons": None} == {**row["details"], "reasons": None}


def test_aggregates_and_category_tables_are_those_of_the_live_run(live: list[dict[str, Any]], written: Path) -> None:
    rows = score_summaries(written, DATA)
    assert stage_a.aggregate(rows) == stage_a.aggregate(live)
    assert stage_a.tables(rows)["by category"] == stage_a.tables(live)["by category"]


def test_scored_rows_can_be_written_again(written: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    stage_a.outputs(score_summaries(written, DATA), OutputTarget(tmp_path / "again", "dump:x"))
    assert (tmp_path / "again" / written.name).read_bytes() == written.read_bytes()


def test_there_are_no_scores_about_the_form(written: Path) -> None:
    for row in score_summaries(written, DATA):
        assert not ABOUT_FORM & set(row["scores"])
        assert not any("header" in reason for reason in row["details"]["reasons"])


def test_schema_violations_are_misses_with_their_reason(written: Path) -> None:
    row = score_summaries(written, DATA)[3]
    assert row["outcome"] == "miss"
    assert "没有这种" in row["problem"]


def test_photos_need_not_be_there(written: Path, tmp_path: Path) -> None:
    shutil.copy(DATA / written.name, tmp_path / "x")
    references = tmp_path / "references"
    references.mkdir()
    shutil.copy(DATA / written.name, references)
    assert [row["scores"] for row in score_summaries(written, references)] == [row["scores"] for row in score_summaries(written, DATA)]


def test_photos_of_left_out_groups_are_counted(written: Path) -> None:
    rows = written.read_text("utf-8").splitlines(keepends=True)
    num_photos = len(json.loads(rows[0])["images"])
    written.write_text("".join(rows[1:]), "utf-8")
    assert unscored_photos(score_summaries(written, DATA), DATA) == {MISSION: num_photos}


def test_a_photo_without_reference_has_the_other_scores(written: Path, tmp_path: Path) -> None:
    references = tmp_path / "references"
    references.mkdir()
    rows = (DATA / written.name).read_text("utf-8").splitlines(keepends=True)
    (references / written.name).write_text("".join(rows[1:]), "utf-8")
    first = score_summaries(written, references)[0]
    assert set(first["scores"]) <= {"tolerant_valid", "irrelevant", "completeness"}
    assert "categories" not in first["details"]


class TestRefused:
    def test_a_mission_without_references(self, written: Path, tmp_path: Path) -> None:
        with pytest.raises(RecordError, match=r"_stage_a\.jsonl does not exist; give the folder of the reference summaries with --data"):
            score_summaries(written, tmp_path / "elsewhere")

    def test_a_mission_that_nobody_knows(self, written: Path) -> None:
        written.write_text(written.read_text("utf-8").replace(MISSION, "RRU安装"), "utf-8")
        with pytest.raises(RecordError, match="is of mission 'RRU安装'; did you mean 'RRU安装检查'"):
            score_summaries(written, DATA)

    def test_an_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "x.jsonl").write_text("\n")
        with pytest.raises(RecordError, match="holds no summaries"):
            score_summaries(tmp_path / "x.jsonl", DATA)

    def test_a_file_with_other_keys(self, written: Path) -> None:
        written.write_text('{"group_id": 3}\n')
        with pytest.raises(ContractTypeError, match="group_id must be a str"):
            score_summaries(written, DATA)
