"""Stage-A cases and requests. Run: pytest tests/tasks/stage_a/test_stage_a.py"""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st
from PIL import Image

from evalharness.api.errors import ConfigError, RecordError
from evalharness.api.images import image_size, load_image
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationFailure
from evalharness.backends.fake import FakeBackend
from evalharness.engine.engine import Engine
from evalharness.tasks import DataWarning, stage_a
from tests.tasks.stage_a_examples import CLAMP, line, rru

TINY = Path(__file__).parents[3] / "fixtures" / "tiny_photos"
RRU, BBU = "RRU安装检查", "BBU接地线检查"
PASS, FAIL = "审核通过", "审核不通过"
ID = "QC-DEMO-20300101-0000001"


def photo(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (32, 32), "red").save(path)
    return path


def order(root: Path, *numbers: int, mission: str = RRU, label: str = FAIL, folder: str = "g") -> None:
    """Make a work order's folder with these photos."""
    for number in numbers:
        photo(root / mission / label / folder / f"{ID}_{number}.jpg")


def references(root: Path, mission: str, *rows: dict[str, Any]) -> None:
    (root / f"{mission}_stage_a.jsonl").write_text("".join(f"{line(row)}\n" for row in rows), "utf-8")


def row(images: list[str], *said: str, label: str = "fail", group_id: str = ID, mission: str = RRU) -> dict[str, Any]:
    per_image = {f"image_{number}": text for number, text in enumerate(said, start=1)}
    return {"group_id": group_id, "mission": mission, "label": label, "images": images, "per_image": per_image}


def test_photos_come_in_natural_order(tmp_path: Path) -> None:
    order(tmp_path, 10, 2, 1)
    cases = stage_a.load_cases(tmp_path)
    assert [case.image.name for case in cases] == [f"{ID}_{number}.jpg" for number in (1, 2, 10)]
    assert [case.id for case in cases] == [f"rru-install/fail/{ID}/image_{number}" for number in (1, 2, 3)]


def test_a_case_has_its_group_mission_and_label(tmp_path: Path) -> None:
    order(tmp_path, 1, mission=BBU, label=PASS)
    (case,) = stage_a.load_cases(tmp_path)
    assert (case.group, case.group_id, case.mission) == (ID, ID, BBU)
    assert (case.domain, case.label, case.image_index) == ("bbu", "pass", 1)
    assert case.tags == {"mission": BBU, "domain": "bbu", "label": "pass"}
    assert (case.reference, case.invalid) == (None, None)


def test_fail_comes_before_pass_and_folders_by_name(tmp_path: Path) -> None:
    for label, folder in ((PASS, "a"), (PASS, "b"), (FAIL, "c")):
        photo(tmp_path / RRU / label / folder / "1.jpg")
    assert [case.group for case in stage_a.load_cases(tmp_path)] == ["c", "a", "b"]


@pytest.mark.parametrize(
    ("stem", "group_id"),
    [(f"{ID}_3", ID), ("QC-DEMO-20300101-7x", "QC-DEMO-20300101-7"), ("QC-20240101-0001_1", "folder"), ("IMG_1", "folder")],
    ids=["whole", "prefix", "no-letters", "other"],
)
def test_the_group_id_is_the_prefix_of_the_first_name_or_the_folder(tmp_path: Path, stem: str, group_id: str) -> None:
    photo(tmp_path / RRU / PASS / "folder" / f"{stem}.jpg")
    assert stage_a.load_cases(tmp_path)[0].group_id == group_id


def test_an_order_under_both_labels_is_two_records_and_two_folders_of_one_are_kept_apart(tmp_path: Path) -> None:
    order(tmp_path, 1, label=FAIL)
    for folder in ("a", "b"):
        order(tmp_path, 1, label=PASS, folder=folder)
    with pytest.warns(DataWarning, match=f"several folders hold group {ID}::pass"):
        cases = stage_a.load_cases(tmp_path)
    assert [(case.group, case.label) for case in cases] == [(ID, "fail"), (ID, "pass"), (ID, "pass")]
    places = [f"fail/{ID}/image_1", f"pass/{ID}/image_1", f"pass/{ID}~2/image_1"]
    assert [case.id for case in cases] == [f"rru-install/{place}" for place in places]


def test_suffixes_count_in_any_case_and_other_files_do_not(tmp_path: Path) -> None:
    folder = tmp_path / RRU / PASS / "g"
    for name in ("1.JPG", "2.jpeg", "3.PnG"):
        photo(folder / name)
    for name in ("4.txt", "._1.jpg", "Thumbs.db"):
        (folder / name).write_text("x")
    assert [case.image.name for case in stage_a.load_cases(tmp_path)] == ["1.JPG", "2.jpeg", "3.PnG"]


@pytest.mark.parametrize("name", ["工单 7", "a b", "ü"])
def test_an_id_is_typeable_whatever_the_folder_is_called(tmp_path: Path, name: str) -> None:
    for folder in (name, f"{name}!"):
        photo(tmp_path / RRU / PASS / folder / "1.jpg")
    ids = [case.id for case in stage_a.load_cases(tmp_path)]
    assert len(set(ids)) == 2
    assert all(case_id.isascii() and " " not in case_id for case_id in ids)
    assert ids == [case.id for case in stage_a.load_cases(tmp_path)]


@pytest.mark.parametrize(
    ("extra", "warning"),
    [
        ("备份/审核通过/g/1.jpg", "not missions, left out: 备份; known: BBU安装方式检查"),
        (f"{RRU}/待审/g/1.jpg", "not labels, left out: 待审; known: 审核不通过, 审核通过"),
        (f"{RRU}/{PASS}/empty/note.png/", "empty: no photos, group left out"),
    ],
    ids=["mission", "label", "group"],
)
def test_unknown_folders_and_empty_groups_are_a_warning(tmp_path: Path, extra: str, warning: str) -> None:
    photo(tmp_path / RRU / FAIL / "g" / "1.jpg")
    if extra.endswith("/"):
        (tmp_path / extra).mkdir(parents=True)
    else:
        photo(tmp_path / extra)
    with pytest.warns(DataWarning, match=warning):
        assert len(stage_a.load_cases(tmp_path)) == 1


def test_one_missions_folder_may_be_given_instead_of_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for mission in (RRU, BBU):
        order(tmp_path, 1, mission=mission)
    references(tmp_path, RRU, row([f"{ID}_1.jpg"], line(rru(CLAMP))))
    (case,) = stage_a.load_cases(tmp_path / RRU)
    monkeypatch.chdir(tmp_path / RRU)
    (same,) = stage_a.load_cases(".")
    assert case.id == same.id == f"rru-install/fail/{ID}/image_1"
    assert case.reference is not None
    assert case.reference.data == rru(CLAMP)


def test_a_folder_without_photos_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no data folder was given; give one with --data"):
        stage_a.load_cases(None)
    with pytest.raises(ConfigError, match="gone does not exist"):
        stage_a.load_cases(tmp_path / "gone")
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigError, match="x is not a folder"):
        stage_a.load_cases(tmp_path / "x")
    for _ in range(2):
        with pytest.raises(ConfigError, match=r"no Stage-A photos in .*expected <root>"):
            stage_a.load_cases(tmp_path)
        (tmp_path / RRU / PASS).mkdir(parents=True, exist_ok=True)


def test_an_unreadable_photo_is_an_invalid_case_and_the_others_go_on(tmp_path: Path) -> None:
    folder = photo(tmp_path / RRU / PASS / "a" / "1.jpg").parent
    (folder / "2.jpg").write_bytes(b"")
    (folder / "3.jpg").write_text("<html>")
    (folder / "4.jpg").symlink_to("gone.jpg")
    first, *invalid = [case.invalid or "" for case in stage_a.load_cases(tmp_path)]
    wanted = ["2.jpg is empty", "3.jpg is not an image", "4.jpg does not exist"]
    assert (first, [part in text for part, text in zip(wanted, invalid, strict=True)]) == ("", [True] * 3)


def test_a_turned_photo_is_upright_and_a_clear_one_white(tmp_path: Path) -> None:
    folder = tmp_path / RRU / PASS / "a"
    folder.mkdir(parents=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (64, 32), "red").save(folder / "1.jpg", exif=exif)
    Image.new("RGBA", (32, 32), (255, 0, 0, 0)).save(folder / "2.png")
    turned, clear = (load_image(stage_a.request(case).messages[1]["content"][0]["image"]) for case in stage_a.load_cases(tmp_path))
    assert (turned.size, turned.mode) == ((32, 64), "RGB")
    assert (clear.mode, clear.getpixel((5, 5))) == ("RGB", (255, 255, 255))


def test_a_photo_that_a_reference_names_and_that_is_missing_keeps_its_number(tmp_path: Path) -> None:
    names = [f"{ID}_{number}.jpg" for number in (1, 2, 10)]
    order(tmp_path, 2, 10)
    references(tmp_path, RRU, row(names, *[line(rru(CLAMP))] * 3))
    first, second, third = stage_a.load_cases(tmp_path)
    assert [case.id.rpartition("/")[2] for case in (first, second, third)] == ["image_1", "image_2", "image_3"]
    assert "_1.jpg does not exist" in (first.invalid or "")
    assert (second.image.name, second.invalid, second.group_images) == (names[1], None, tuple(names))


def test_of_two_folders_of_one_order_the_one_with_more_of_its_photos_gets_the_missing_one(tmp_path: Path) -> None:
    order(tmp_path, 7, folder="a")
    order(tmp_path, 2, 3, folder="b")
    references(tmp_path, RRU, row([f"{ID}_{number}.jpg" for number in (1, 2, 3)], *["无关图片"] * 3))
    with pytest.warns(DataWarning):
        cases = stage_a.load_cases(tmp_path)
    assert [(case.image.parent.name, case.image.name) for case in cases if case.invalid] == [("b", f"{ID}_1.jpg")]


def test_references_without_photos_and_photos_without_references_are_warnings(tmp_path: Path) -> None:
    order(tmp_path, 1, 2)
    gone = row(["QC-DEMO-20300101-9_1.jpg"], "无关图片", group_id="QC-DEMO-20300101-9")
    references(tmp_path, RRU, row([f"{ID}_1.jpg"], "无关图片"), gone)
    with (
        pytest.warns(DataWarning, match="1 group without photos here: QC-DEMO-20300101-9::fail"),
        pytest.warns(DataWarning, match=r"_stage_a\.jsonl: no reference summary for 1 photo: .*_2\.jpg"),
    ):
        assert [case.reference is None for case in stage_a.load_cases(tmp_path)] == [False, True]


def test_a_domains_budget_shrinks_larger_photos_only(tmp_path: Path) -> None:
    for mission in (RRU, BBU):
        (tmp_path / mission / PASS / "a").mkdir(parents=True)
        Image.new("RGB", (640, 480), "red").save(tmp_path / mission / PASS / "a" / "1.jpg")
    cases = stage_a.load_cases(tmp_path, max_pixels={"rru": 100_000})
    sources = {case.domain: stage_a.request(case).messages[1]["content"][0]["image"] for case in cases}
    assert sources["bbu"] == str(cases[0].image)
    assert image_size(sources["rru"]) == (352, 256)


def test_a_photo_that_the_machine_cannot_read_is_asked_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photo(tmp_path / RRU / PASS / "a" / "1.jpg")

    def fail(path: Path, mode: str = "r") -> None:
        raise OSError(errno.EIO, "Input/output error", str(path))

    monkeypatch.setattr(Path, "open", fail)
    (case,) = stage_a.load_cases(tmp_path)
    assert case.invalid is None
    asked = Engine(FakeBackend.from_answers(["unread"])).stream([stage_a.request(case)], GenerationOptions())
    ((_, failed),) = asked
    assert isinstance(failed, GenerationFailure)
    assert (failed.kind, "Input/output error" in failed.problem) == ("error", True)


def test_references_are_found_by_order_label_and_name(tmp_path: Path) -> None:
    for label in (FAIL, PASS):
        order(tmp_path, 1, 2, label=label)
    references(
        tmp_path,
        RRU,
        row([f"{ID}_2.jpg", f"{ID}_1.jpg"], "无关图片", line(rru(CLAMP))),
        row([f"{ID}_1.jpg", f"{ID}_2.jpg"], line(rru()), "无关图片", label="pass"),
    )
    cases = stage_a.load_cases(tmp_path)
    assert [case.reference.data for case in cases] == [rru(CLAMP), None, rru(), None]
    assert [case.tags["photo"] for case in cases] == ["site", "irrelevant", "site", "irrelevant"]


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        ([row([f"{ID}_1.jpg"], "{cut")], ConfigError, "the reference summary of .* cannot be read"),
        ([row([f"{ID}_1.jpg"], "无关图片")] * 2, ConfigError, "a second summary"),
        ([{"group_id": ID}], RecordError, r"_stage_a\.jsonl:1\.mission is missing"),
    ],
    ids=["unreadable", "twice", "row"],
)
def test_a_broken_reference_file_is_an_error(tmp_path: Path, rows: list[dict[str, Any]], error: type[Exception], message: str) -> None:
    order(tmp_path, 1)
    references(tmp_path, RRU, *rows)
    with pytest.raises(error, match=message):
        stage_a.load_cases(tmp_path)


def sampled(root: Path, **caps: Any) -> list[str]:
    return [f"{case.group}::{case.label}" for case in stage_a.load_cases(root, **caps)]


def test_caps_draw_seeded_groups_and_keep_their_order(tmp_path: Path) -> None:
    for label in (FAIL, PASS):
        for number in range(10, 30):
            photo(tmp_path / RRU / label / f"g{number}" / "1.jpg")
    everything = sampled(tmp_path)
    some = sampled(tmp_path, max_pass=3, max_fail=4)
    assert (len(everything), len(some)) == (40, 7)
    assert some == [group for group in everything if group in some] == sampled(tmp_path, max_pass=3, max_fail=4)
    assert some != sampled(tmp_path, max_pass=3, max_fail=4, seed=1)
    assert sampled(tmp_path, max_pass=0) == everything[:20]
    with pytest.raises(ConfigError, match="no group of .* was drawn with max_pass=0, max_fail=0"):
        stage_a.load_cases(tmp_path, max_pass=0, max_fail=0)
    with pytest.raises(ConfigError, match="max_fail must be at least 0, or None for all, got -1"):
        stage_a.load_cases(tmp_path, max_fail=-1)
    assert sampled(tmp_path, max_fail=99) == everything
    drawn = [sampled(tmp_path, max_pass=5, max_fail=0, seed=1), sampled(tmp_path, max_pass=0, max_fail=5, seed=0)]
    assert [group.removesuffix("::pass") for group in drawn[0]] == [group.removesuffix("::fail") for group in drawn[1]]  # Random(seed + 1)


def test_the_request_holds_contract_rule_header_mission_and_photo(tmp_path: Path) -> None:
    order(tmp_path, 1)
    (case,) = stage_a.load_cases(tmp_path)
    system, user = stage_a.request(case).messages
    assert (system["role"], user["role"]) == ("system", "user")
    assert "无关图片" in system["content"]
    image, text = user["content"]
    assert image == {"type": "image", "image": str(case.image)}
    assert text["text"] == f"<DOMAIN=RRU>, <TASK=SUMMARY> {RRU}"
    assert case.label not in json.dumps([system, text])


def test_a_detailed_question_spells_out_form_and_categories() -> None:
    system, user = stage_a.messages(BBU, "x.jpg", rules="只看接地线。", scenario="夜间拍摄。", detailed=True)
    assert user["content"][1]["text"].endswith("\n夜间拍摄。")
    assert system["content"].endswith("只看接地线。")
    text = user["content"][1]["text"]
    assert "弯曲半径、保护措施或套管保护或保护" in text
    assert "<DOMAIN=BBU>, <TASK=SUMMARY>；" in text


def test_the_tiny_photos_load_with_references_that_keep_the_rules() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cases = stage_a.load_cases(TINY)
    assert len(cases) == 8
    assert {case.label for case in cases} == {"pass", "fail"}
    assert [case.tags["photo"] for case in cases].count("irrelevant") == 1
    for case in cases:
        again = stage_a.parse_summary(stage_a.render_summary(case.reference.data, case.domain), case.domain)
        assert (case.invalid, again.problem) == (None, "")
        assert image_size(case.image) == load_image(case.image).size == (192, 160)


def test_the_tiny_photos_are_what_their_script_draws(tmp_path: Path) -> None:
    shutil.copy(TINY / "make.py", tmp_path)
    run = subprocess.run([sys.executable, str(TINY / "make.py"), str(tmp_path)], capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    for mission in ("BBU安装方式检查（正装）", RRU):
        name = f"{mission}_stage_a.jsonl"
        assert (tmp_path / name).read_bytes() == (TINY / name).read_bytes()
    drawn = {path.relative_to(tmp_path) for path in tmp_path.glob("*/*/*/*")}
    assert drawn == {path.relative_to(TINY) for path in TINY.glob("*/*/*/*")}


@given(st.text(st.characters(exclude_categories=()), min_size=1, max_size=8))
def test_any_group_id_has_a_name_that_can_be_typed(group_id: str) -> None:
    name = stage_a.typeable(group_id)
    assert name
    assert name.isascii()
    assert name == group_id or name != stage_a.typeable(f"{group_id}x")
