"""Stage-A files scored without model and photos: the numbers of the live eval, but for those about the form."""

from __future__ import annotations

import json
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


@pytest.fixture(scope="module")
def live() -> list[dict[str, Any]]:
    """What a live run of one mission records, with right, partly right and wrong answers."""
    rows = []
    for number, case in enumerate(case for case in stage_a.load_cases(DATA) if case.mission == MISSION):
        assert case.reference is not None
        text = stage_a.render_summary(ANSWERS[number % len(ANSWERS)](case.reference.data), case.domain)
        summary = stage_a.parse_summary(text, case.domain)
        row = {"case_id": case.id, "group": case.group, "tags": dict(case.tags), "outcome": "pass"}
        rows.append({**row, "scores": stage_a.scores(summary, case, 10), "details": stage_a.details(summary, case)})
    return rows


@pytest.fixture
def written(live: list[dict[str, Any]], tmp_path: Path) -> Path:
    """The file that the live run writes for other tools."""
    stage_a.outputs(live, OutputTarget(tmp_path, "hf:x"))
    return tmp_path / f"{MISSION}_stage_a.jsonl"


def test_numbers_are_those_of_the_live_run_but_for_the_form(live: list[dict[str, Any]], written: Path, tmp_path: Path) -> None:
    scored = score_summaries(written, DATA)
    rows = {row["case_id"]: row for row in scored}
    assert len(rows) == len(live) == 32
    for row in live:
        mine = rows[row["case_id"]]
        assert mine["scores"] == {name: value for name, value in row["scores"].items() if name not in ABOUT_FORM}
        assert (mine["group"], mine["tags"]) == (row["group"], row["tags"])
        assert {**mine["details"], "reasons": None} == {**row["details"], "reasons": None}
        assert not any("header" in reason for reason in mine["details"]["reasons"])
    assert stage_a.aggregate(scored) == stage_a.aggregate(live)
    assert stage_a.tables(scored)["by category"] == stage_a.tables(live)["by category"]
    assert (scored[3]["outcome"], "没有这种" in scored[3]["problem"]) == ("miss", True)  # a violation of the schema
    (tmp_path / "again").mkdir()
    stage_a.outputs(scored, OutputTarget(tmp_path / "again", "dump:x"))
    assert (tmp_path / "again" / written.name).read_bytes() == written.read_bytes()


def test_photos_of_left_out_groups_are_counted(written: Path) -> None:
    rows = written.read_text("utf-8").splitlines(keepends=True)
    written.write_text("".join(rows[1:]), "utf-8")
    assert unscored_photos(score_summaries(written, DATA), DATA) == {MISSION: len(json.loads(rows[0])["images"])}


def test_photos_need_not_be_there_and_one_without_reference_has_the_other_scores(written: Path, tmp_path: Path) -> None:
    references = tmp_path / "references"
    references.mkdir()
    rows = (DATA / written.name).read_text("utf-8").splitlines(keepends=True)
    (references / written.name).write_text("".join(rows[1:]), "utf-8")
    scored = score_summaries(written, references)
    assert set(scored[0]["scores"]) <= {"tolerant_valid", "irrelevant", "completeness"}
    assert "categories" not in scored[0]["details"]
    assert scored[-1]["scores"] == score_summaries(written, DATA)[-1]["scores"]


def test_files_that_cannot_be_scored_are_refused(written: Path, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"_stage_a\.jsonl does not exist; give the folder of the reference summaries with --data"):
        score_summaries(written, tmp_path / "elsewhere")
    written.write_text(written.read_text("utf-8").replace(MISSION, "RRU安装"), "utf-8")
    with pytest.raises(RecordError, match="is of mission 'RRU安装'; did you mean 'RRU安装检查'"):
        score_summaries(written, DATA)
    written.write_text("\n")
    with pytest.raises(RecordError, match="holds no summaries"):
        score_summaries(written, DATA)
    written.write_text('{"group_id": 3}\n')
    with pytest.raises(ContractTypeError, match="group_id must be a str"):
        score_summaries(written, DATA)
