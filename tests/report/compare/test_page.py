"""compare.html: what a reader sees at a glance, and the data of its cases."""

from __future__ import annotations

import hashlib
import io
import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from evalharness.analysis.comparison.compare import Comparison, compare
from evalharness.analysis.comparison.sides import read_side, write_baseline
from evalharness.report.compare import cases as compare_cases
from evalharness.report.compare.files import hidden_slices, write_compare_page, write_comparison
from tests.analysis.comparison.runs import cases, run_dir
from tests.report.compare.test_compare import compared
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import generation, row
from tests.report.timeline.test_timeline import block

FORGOTTEN = "地排处接地螺丝"


def written(*comparisons: Comparison) -> str:
    file = io.StringIO()
    write_compare_page(comparisons, file, Path("compare.html"))
    return file.getvalue()


def markup(page: str) -> str:
    return page[page.index("<main") : page.index("</main>")]


def dense_row(number: int, *, says: bool, **changes: Any) -> dict[str, Any]:
    """Return a row of a dense dump of one object; every eighth is of the category that is forgotten."""
    name = FORGOTTEN if number % 8 == 0 else "标签"
    shape = {"type": "bbox_2d", "points": [100, 200, 300, 400], "desc": f"类别={name},文本=F1"}
    details = {
        "truth": [shape],
        "predictions": [shape] if says else [],
        "space": [1000, 1000],
        "categories": {name: [1, 1, 1] if says else [0, 0, 1]},
    }
    return row(f"c{number:03}", scores={"category_f1": float(says)}, details=details, text=f"said {name}" if says else "said", **changes)


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    """160 cases, of which the candidate has lost the 20 of one category: on average it falls from 1.000 to 0.875."""
    base = [dense_row(number, says=True) for number in range(160)]
    candidate = [dense_row(number, says=number % 8 != 0) for number in range(160)]
    return compared(tmp_path_factory.mktemp("runs"), base, candidate)


class TestAtAGlance:
    def test_the_verdict_and_what_the_average_hides_come_first(self, forgetful: Comparison) -> None:
        shown = markup(written(forgetful))
        hidden = shown.index("Losses that the average hides")
        assert shown.index("REGRESSED") < hidden < shown.index(FORGOTTEN, hidden)
        assert shown.index("average hides") < shown.index("160 of 160 cases paired")
        assert re.search(rf"{FORGOTTEN}</th><td>f1 of category<br><span class=\"muted small\">all cases: 1\.000 → 0\.875", shown)
        shown = markup(written(forgetful))
        bar = next(part for part in re.findall(r'<svg class="bar change.*?</svg>', shown, re.DOTALL) if "-0.125" in part)
        low, high = (float(end) for end in re.findall(r'class="interval" x1="([\d.]+)%" x2="([\d.]+)%"', bar)[0])
        (at,) = (float(place) for place in re.findall(r'class="value" cx="([\d.]+)%"', bar))
        assert low < at < high < 50.0
        assert 'class="blind"' in bar
        shown = markup(written(forgetful))
        assert re.search(r"<summary>no difference shown in \d+ metrics</summary>", shown)
        assert "length_rate" in shown

    def test_the_worst_cases_are_of_each_eval_then_of_each_reason(self, tmp_path: Path) -> None:
        def rows(*, right: bool) -> list[dict[str, Any]]:
            problems = {"a": [f"{number} labels, not 9" for number in range(8)] + ["no <b>JSON</b>"], "b": ["late"]}
            return [
                row(f"{name}{number}", eval=name, scores={"f1": float(right)}, outcome="pass" if right else "miss", problem=problem)
                for name, of_eval in problems.items()
                for number, problem in enumerate(of_eval)
            ]

        shown = markup(written(compared(tmp_path, rows(right=True), rows(right=False))))
        worst = shown[shown.index("Worst cases") :]
        assert re.findall(r'href="#case=\d+">(\w+)</a>', worst)[:5] == ["a0", "b0", "a8", "a1", "a2"]
        assert "no &lt;b&gt;JSON&lt;/b&gt;" in worst

    def test_a_slice_that_fell_as_far_as_the_whole_hides_nothing(self, tmp_path: Path) -> None:
        base = [{**one, "tags": {"site": "ab"[n % 2]}} for n, one in enumerate(cases([1.0] * 60))]
        candidate = [{**one, "scores": {"f1": 0.0}} for one in base]
        found = compared(tmp_path, base, candidate)
        assert [change.slice_value for change in found.slices if change.verdict == "regressed"] == ["a", "b"]
        assert hidden_slices(found) == []

    def test_verdicts_of_several_candidates_and_caveats_come_before_the_numbers(self, tmp_path: Path, forgetful: Comparison) -> None:
        other = run_dir(tmp_path / "same", [dense_row(number, says=True) for number in range(160)], {"fingerprint": "f3"})
        good = compare(forgetful.base, read_side(str(other)))
        shown = markup(written(forgetful, good))
        assert "2 candidates" in shown
        assert re.findall(r'<td class="nowrap"><span class="chip is-(\w+)">', shown[: shown.index("</table>")]) == ["fail", "skip"]
        base = run_dir(tmp_path / "base", cases([1.0] * 8))
        other = run_dir(tmp_path / "other", cases([1.0] * 8), {"fingerprint": "f2", "template_sha256": "t2"})
        shown = markup(written(compare(read_side(str(base)), read_side(str(other)))))
        assert shown.index("Caveats") < shown.index("chat template differs") < shown.index("cases paired")


class TestCases:
    def test_both_texts_scores_and_shapes_are_there(self, forgetful: Comparison, tmp_path: Path) -> None:
        page = written(forgetful)
        data = block(page, "comparisons")
        assert len(data["cases"]) == 20
        assert (data["cases"][0]["way"], data["cases"][0]["categories"]) == ("worse", [FORGOTTEN])
        detail = block(page, "details-0")[0]
        assert [side["text"] for side in detail["sides"]] == [f"said {FORGOTTEN}", "said"]
        assert [len(side["shapes"]) for side in detail["sides"]] == [1, 0]
        assert detail["truth"] == [{"kind": "bbox_2d", "points": [0.1, 0.2, 0.3, 0.4], "label": FORGOTTEN}]
        found = compared(tmp_path, [row("a", scores={"f1": 1.0}, text="x" * 50_000)], [row("a", scores={"f1": 0.0})])
        assert block(written(found), "details-0")[0]["sides"][0]["cut"] == 30_000

    def test_a_photo_is_shown_once_for_both_sides_and_only_as_it_was(self, tmp_path: Path) -> None:
        photo = tmp_path / "photo.jpg"
        Image.new("RGB", (40, 30), "red").save(photo)
        sha256 = hashlib.sha256(photo.read_bytes()).hexdigest()

        def rows(score: float, sha: str, path: Path = photo) -> list[dict[str, Any]]:
            image = {"width": 40, "height": 30, "sha256": sha, "path": str(path)}
            return [row("a", scores={"f1": score}, generation=generation(text=str(score), images=[image]))]

        page = written(compared(tmp_path, rows(1.0, sha256), rows(0.0, sha256)))
        assert block(page, "comparisons")["cases"][0]["pictures"] == [0]
        assert page.count('id="picture-') == 1
        for number, paths in enumerate(((photo, tmp_path / "moved.jpg"), (tmp_path / "moved.jpg", photo))):
            page = written(compared(tmp_path / str(number), *(rows(score, sha256, path) for score, path in enumerate(paths))))
            assert page.count('id="picture-') == 1
        other = written(compared(tmp_path / "other", rows(1.0, "0" * 64), rows(0.0, "0" * 64)))
        assert 'id="picture-' not in other

    def test_a_baseline_has_scores_but_no_texts(self, tmp_path: Path, forgetful: Comparison) -> None:
        write_baseline(forgetful.base, tmp_path / "b.json")
        page = written(compare(read_side(str(tmp_path / "b.json")), forgetful.candidate))
        assert [side["text"] for side in block(page, "details-0")[0]["sides"]] == [None, "said"]

    def test_of_very_many_the_worst_are_shown_and_the_rest_counted(self, monkeypatch: pytest.MonkeyPatch, forgetful: Comparison) -> None:
        monkeypatch.setattr(compare_cases, "NUM_CASES", 5)
        page = written(forgetful)
        assert len(block(page, "comparisons")["cases"]) == 5
        assert "The worst 5 of 20 are here" in markup(page)

        assert written(forgetful) == page

    def test_a_case_leads_to_both_reports_by_links_that_move_with_the_folder(self, tmp_path: Path) -> None:
        found = compared(tmp_path, [row("a b", scores={"f1": 1.0})], [row("a b", scores={"f1": 0.0})])
        (tmp_path / "cand/report.html").touch()
        path = write_comparison([found], tmp_path / "out")[0]
        links = block(path.read_text("utf-8"), "details-0")[0]["links"]
        assert links == [None, "../cand/report.html#case=stage_a%3A%3Atest_summary%5Bhf%3Atiny-a%20b%5D"]


def test_hostile_texts_stay_text(tmp_path: Path) -> None:
    base, candidate = [], []
    for text in HOSTILE_TEXTS.values():
        for number in range(8):
            one = row(f"{text}{number}", scores={text: 1.0}, tags={text: text, "kind": text}, text=text, nodeid=text, group=text or None)
            shapes = {"predictions": [{"type": text, "points": [1, 2, 3, 4], "desc": text}], "space": [10, 10], "categories": {text: 0}}
            base.append({**one, "details": {**shapes, "categories": {text: 1}}})
            candidate.append(
                {**one, "scores": {text: 0.0}, "outcome": "miss", "problem": text, "details": shapes, "reference": {text: text}}
            )
    page = written(compared(tmp_path, base, candidate))
    assert page.count("<script") == page.count("</script>")
    assert not [text for text in HOSTILE_TEXTS.values() if "<" in text and text in page]


def test_strange_details_are_left_out_not_fatal(tmp_path: Path) -> None:
    strange: list[Any] = [
        3, {"predictions": 5, "space": [1, 1]}, {"predictions": ["x", {"points": "y"}, {"points": [1, "a", 2, 3]}], "space": [1, 1]},
        {"predictions": [{"points": [1, 2, 3, 4]}], "space": [0, 1]}, {"predictions": [{"points": [1, 2, 3, 4]}], "space": "x"},
    ]  # fmt: skip
    base = [row(f"c{number}", scores={"f1": 1.0}, details=one) for number, one in enumerate(strange)]
    found = compared(tmp_path, base, [{**one, "scores": {"f1": 0.0}} for one in base])
    assert all(side["shapes"] == [] for detail in block(written(found), "details-0") for side in detail["sides"])
