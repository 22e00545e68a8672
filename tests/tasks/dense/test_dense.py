"""Dense dumps from cases to numbers and files. Run: pytest tests/tasks/dense/test_dense.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from evalharness import GenerationResult
from evalharness.api.cases import OutputTarget
from evalharness.api.errors import ConfigError
from evalharness.tasks import dense
from evalharness.tasks.dense.spot_check import draw_row, pick_rows
from tests.tasks.dense_examples import LABEL, SCREW, WIRE, box, dumped, one_box

SITE_PHOTOS = Path(__file__).parents[3] / "fixtures" / "site_photos"


@pytest.fixture(scope="module")
def cases() -> list[dense.DenseCase]:
    return dense.load_cases(SITE_PHOTOS)


def answered(text: str, finish_reason: Any = "stop", **facts: Any) -> GenerationResult:
    return GenerationResult(text, text, finish_reason, images=(facts,) if facts else ())


def judged_row(case: dense.DenseCase, text: str, finish_reason: str = "stop") -> dict[str, Any]:
    judged = dense.judge(dense.read(answered(text), case), case, finish_reason)
    generation = {"text": text, "raw_text": text, "finish_reason": finish_reason}
    row = {"case_id": case.id, "tags": dict(case.tags), "outcome": "pass", "problem": None, "generation": generation}
    return {**row, "scores": dict(judged.scores), "details": dict(judged.details)}


def test_every_photo_of_the_benchmark_is_a_case(cases: list[dense.DenseCase]) -> None:
    assert len(cases) == len({case.id for case in cases}) == 182
    assert all(case.invalid is None and case.image.is_file() for case in cases)
    first = cases[0]
    assert first.id == "bbu-install/fail/QC-BBUINSTALL-20300101-0000001/image_1"
    assert first.tags == {"mission": "BBU安装方式检查（正装）", "label": "fail", "domain": "bbu"}
    assert first.group == "QC-BBUINSTALL-20300101-0000001"
    assert first.size == (288, 352)
    assert {case.domain for case in cases} == {"bbu", "rru"}


def load(folder: Path, *paths: str, **changes: Any) -> list[dense.DenseCase]:
    row = {"gt": [], "gt_norm1000": [], "pred": [], "width": 9, "height": 9, **changes}
    (folder / "gt_vs_pred.jsonl").write_text("\n".join(json.dumps({**row, "image_path": path}) for path in paths), encoding="utf-8")
    return dense.load_cases(folder)


@pytest.mark.parametrize(
    ("folder", "problem"), [(None, "no data folder was given"), ("nowhere", "nowhere/gt_vs_pred.jsonl does not exist")]
)
def test_a_folder_without_true_objects_is_refused(folder: str | None, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        dense.load_cases(folder)


def test_a_photo_of_unknown_domain_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match='the domain of a.jpg cannot be told; add "domain": "bbu" or "rru" to its row'):
        load(tmp_path, "a.jpg")


def test_other_paths_make_typeable_ids_that_stay_apart_and_missing_photos_invalid_cases(tmp_path: Path) -> None:
    cases = load(tmp_path, "images/a.jpg", "图/一.jpg", "图/二.jpg", domain="bbu")
    ids = [case.id for case in cases]
    assert (ids[0], len(set(ids)), all(case_id.isascii() for case_id in ids)) == ("images/a.jpg", 3, True)
    assert {case.group for case in cases} == {None}  # one folder is no group
    assert all("does not exist" in (case.invalid or "") for case in cases)


def test_ids_of_work_orders_can_be_typed_whatever_their_folders_are_called(tmp_path: Path) -> None:
    names = [f"RRU线缆/审核通过/{name}.jpg" for name in ("甲 组/甲 组_2", "乙/照片", "乙/图", "乙/乙_２")]
    ids = [case.id for case in load(tmp_path, *names, gt=[{"type": "bbox_2d", "points": [1, 2, 3, 4], "desc": "类别=尾纤"}])]
    assert all(case_id.isascii() and " " not in case_id and case_id.startswith("rru-cable/pass/") for case_id in ids)
    assert (ids[0].endswith("/image_2"), len(set(ids))) == (True, 4)


def test_the_request_shows_the_photo_and_asks_in_the_trained_words(cases: list[dense.DenseCase]) -> None:
    asked = dense.request(cases[0])
    image, text = asked.messages[1]["content"]
    assert image == {"type": "image", "image": str(cases[0].image)}
    assert text["text"].startswith("<DOMAIN=BBU>, <TASK=DETECTION> ")
    assert "坐标为0到1000的整数" in text["text"]
    assert asked.verify  # only a verified request tells the patch grid


@pytest.mark.parametrize(("coordinates", "words"), [("unit", "0到1的小数"), ("pixels", "图片的像素"), ("processed:14", "图片的像素")])
def test_another_space_is_asked_for_in_its_own_words(coordinates: str, words: str) -> None:
    asked = dense.request(dense.load_cases(SITE_PHOTOS, coordinates=coordinates)[0])
    assert words in asked.messages[1]["content"][1]["text"]
    with pytest.raises(ConfigError, match="coordinates must be norm1000"):  # before anything is asked
        dense.load_cases(SITE_PHOTOS, coordinates="inches")


def test_a_model_may_answer_in_another_space_than_was_asked_for(cases: list[dense.DenseCase]) -> None:
    text = dumped(object_1=one_box(144, 176, 288, 352))  # of a photo of 288 × 352
    assert dense.read(answered(text), cases[0], "pixels").objects[0].points == (500, 500, 1000, 1000)


def test_processed_pixels_are_read_with_the_patch_grid_of_the_generation() -> None:
    case = dense.load_cases(SITE_PHOTOS, coordinates="processed:14")[0]
    text = dumped(object_1=one_box(14, 28, 140, 280))
    dump = dense.read(answered(text, grid=[1, 20, 10]), case)  # 10 patches across, 20 down: 140 × 280 pixels
    assert dump.objects[0].points == (100, 100, 1000, 1000)


def test_a_perfect_answer_scores_one(cases: list[dense.DenseCase]) -> None:
    rows = [judged_row(case, dense.render_dump(case.reference, case.domain)) for case in cases[:40]]
    found = dense.aggregate(rows)
    assert found["loc_mean_f1"] == found["category_mean_f1"] == found["attribute_micro_recall"] == 1.0
    assert all(row["scores"]["valid"] == 1 for row in rows)


def test_details_are_plain_json_and_the_token_cap_is_a_score(cases: list[dense.DenseCase]) -> None:
    rows = [judged_row(cases[0], dumped(object_1=one_box(1, 2, 3, 4), object_2=one_box(1)), reason) for reason in ("length", "stop")]
    assert [row["scores"]["cap_hit"] for row in rows] == [1.0, 0.0]
    details = rows[0]["details"]
    assert json.loads(json.dumps(details, allow_nan=False)) == details
    assert details["image"]["path"] == cases[0].image_path
    assert details["truth"][0]["pixels"] == list(cases[0].pixels[0])


def test_output_files_score_the_same_without_the_model(cases: list[dense.DenseCase], tmp_path: Path) -> None:
    rows = [judged_row(case, dense.render_dump([*case.reference[:2], box(1, 2, 3, 4)], case.domain)) for case in cases[:20]]
    dense.outputs([*rows, {"case_id": "broken", "scores": {}, "outcome": "error"}], OutputTarget(tmp_path, "hf:x"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dense_report.json", "gt_vs_pred.jsonl"]
    again = dense.score_dump(tmp_path / "gt_vs_pred.jsonl")
    assert [row["scores"] for row in again] == [row["scores"] for row in rows]
    assert [row["details"] for row in again] == [row["details"] for row in rows]
    assert [(row["case_id"], row["tags"]) for row in again] == [(row["case_id"], row["tags"]) for row in rows]
    assert dense.tables(again) == dense.tables(rows)
    assert json.loads((tmp_path / "dense_report.json").read_text("utf-8")) == dense.offline_report(rows, "gt_vs_pred.jsonl")


def test_a_second_test_of_the_same_photos_adds_no_pictures(cases: list[dense.DenseCase], tmp_path: Path) -> None:
    rows = [judged_row(case, dense.render_dump(case.reference, case.domain)) | {"test": "test_objects"} for case in cases[:3]]
    dense.outputs([*({**row, "test": "test_own", "details": {"own": 1}} for row in rows), *rows], OutputTarget(tmp_path, "hf:x"))
    assert len(dense.score_dump(tmp_path / "gt_vs_pred.jsonl")) == 3


def test_a_run_without_any_answer_writes_nothing(tmp_path: Path) -> None:
    dense.outputs([{"case_id": "a", "scores": {}, "outcome": "invalid"}], OutputTarget(tmp_path, "hf:x", SITE_PHOTOS, spot=3))
    assert list(tmp_path.iterdir()) == []


def spot_row(name: str, *descs: str) -> dict[str, Any]:
    judged = dense.judge_objects([], [box(0, 0, 9, 9, desc=desc) for desc in descs])
    return {"case_id": name, "details": judged.details}


def test_a_spot_check_gives_each_category_its_turn() -> None:
    rows = [
        *(spot_row(f"common {number}", LABEL) for number in range(50)),
        spot_row("rare", SCREW),
        spot_row("line", WIRE),
        spot_row("none"),
    ]
    for seed in range(5):
        picked = {row["case_id"] for row in pick_rows(rows, 4, seed)}
        assert {"rare", "line", "none"} < picked
        assert len(picked) == 4


def test_a_spot_check_is_the_same_for_the_same_seed_whatever_the_order_of_rows() -> None:
    rows = [spot_row(str(number), LABEL if number % 3 else SCREW) for number in range(30)]
    first = [row["case_id"] for row in pick_rows(rows, 6, 1)]
    assert [row["case_id"] for row in pick_rows(rows[::-1], 6, 1)] == first
    assert [row["case_id"] for row in pick_rows(rows, 6, 2)] != first
    assert len(pick_rows(rows, 99, 1)) == 30


def test_spot_pictures_are_written_with_an_index(cases: list[dense.DenseCase], tmp_path: Path) -> None:
    rows = [judged_row(case, "读不出" if place else dense.render_dump(case.reference, case.domain)) for place, case in enumerate(cases[:2])]
    dense.outputs(rows, OutputTarget(tmp_path, "hf:x", SITE_PHOTOS, spot=2))
    assert sorted(path.name for path in (tmp_path / "spot").iterdir()) == ["index.md", "vis_00000.jpg", "vis_00001.jpg"]
    index = (tmp_path / "spot" / "index.md").read_text("utf-8")
    assert all(case.id in index for case in cases[:2])
    assert "parse failed" in index
    assert "| 光纤 | 1 | 1 |" in index


def test_pictures_without_photos_are_refused_after_the_other_files_are_written(cases: list[dense.DenseCase], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--spot 1 needs the photos; give their folder with --data"):
        dense.outputs([judged_row(cases[0], "")], OutputTarget(tmp_path, "hf:x", None, spot=1))
    assert (tmp_path / "gt_vs_pred.jsonl").is_file()


def test_the_drawing_of_a_missing_photo_says_so_and_a_claim_of_a_huge_one_costs_no_memory(
    cases: list[dense.DenseCase], tmp_path: Path
) -> None:
    row = judged_row(cases[0], dense.render_dump(cases[0].reference, cases[0].domain))
    dense.outputs([row], OutputTarget(tmp_path, "hf:x", tmp_path, spot=1))
    assert (tmp_path / "spot" / "vis_00000.jpg").is_file()
    assert "photo not shown" in (tmp_path / "spot" / "index.md").read_text("utf-8")
    row["details"]["image"] |= {"width": 10**9, "height": 10**6}
    assert draw_row(row, tmp_path).width < 2000


def test_objects_are_drawn_where_they_are_on_a_photo_of_another_size(tmp_path: Path) -> None:
    Image.new("RGB", (100, 100)).save(tmp_path / "a.png")
    Image.new("RGB", (200, 200)).save(tmp_path / "b.png")
    judged = dense.judge_objects([box(0, 0, 500, 500)], [box(0, 0, 500, 500)])
    pictures = []
    for name in ("a.png", "b.png"):
        truth = [{**one, "pixels": [0, 0, 50, 50]} for one in judged.details["truth"]]
        image = {"path": name, "width": 100, "height": 100}
        pictures.append(draw_row({"case_id": "x", "details": {**judged.details, "truth": truth, "image": image}}, tmp_path))
    assert pictures[0].tobytes() == pictures[1].tobytes()
