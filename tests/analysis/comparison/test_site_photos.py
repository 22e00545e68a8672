"""The story that a comparison must tell: a checkpoint that has forgotten one category, on the real benchmark."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.comparison.compare import REGRESSED, Comparison, compare
from evalharness.analysis.comparison.sides import read_side
from evalharness.report.compare.files import write_comparison
from evalharness.report.compare.text import comparison_lines
from evalharness.tasks import stage_a
from tests.analysis.comparison.runs import ENGINE, run_dir
from tests.report.runs import row

SITE_PHOTOS = Path(__file__).parents[3] / "fixtures" / "site_photos"
FORGOTTEN = "地排处接地螺丝"


def judged(case: stage_a.StageACase, *, forget: str | None) -> dict[str, Any]:
    """Return the row of an answer that is the reference itself, but for one category."""
    assert case.reference is not None
    data = case.reference.data
    if data is not None and forget is not None:
        kept = [item for item in data["统计"] if item["类别"] != forget]
        data = {**data, "统计": kept} if kept else data
    text = stage_a.render_summary(data, case.domain)
    summary = stage_a.parse_summary(text, domain=case.domain)
    details = json.loads(json.dumps(stage_a.details(summary, case)))
    return row(case.id, group=case.group, tags=dict(case.tags), text=text, scores=stage_a.scores(summary, case, 10), details=details)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on all site photos: `final` is right everywhere, `regressed` never says one category."""
    cases = [case for case in stage_a.load_cases(SITE_PHOTOS) if case.reference is not None]
    folder = tmp_path_factory.mktemp("runs")
    for number, forget in enumerate((None, FORGOTTEN)):
        name = "regressed" if forget else "final"
        engine = {**ENGINE, "checkpoint": name, "fingerprint": str(number)}
        run_dir(folder / name, [judged(case, forget=forget) for case in cases], engine)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> Comparison:
    return compare(read_side(str(folder / "final")), read_side(str(folder / "regressed")))


def test_a_forgotten_category_is_named_though_the_averages_look_fine(found: Comparison) -> None:
    overall = {change.metric: change for change in found.metrics}
    assert overall["valid"].change.candidate == 1.0
    assert overall["category_f1"].change.candidate > 0.95
    assert overall["category_f1"].verdict == REGRESSED
    lost = [change.slice_value for change in found.slices if change.slice_key == "category" and change.verdict == REGRESSED]
    assert lost == [FORGOTTEN]
    assert all(change.direction == "worse" for change in found.cases)


def test_the_other_way_round_it_is_an_improvement(folder: Path, found: Comparison) -> None:
    back = compare(read_side(str(folder / "regressed")), read_side(str(folder / "final")))
    assert back.verdict == "improved"
    assert {change.metric: change.change.difference for change in back.metrics} == pytest.approx(
        {change.metric: -change.change.difference for change in found.metrics}
    )
    assert [change.p_corrected for change in back.metrics] == pytest.approx([change.p_corrected for change in found.metrics])


def test_all_four_forms_tell_the_same_story(found: Comparison, tmp_path: Path) -> None:
    page, markdown, table, _ = (path.read_text("utf-8") for path in write_comparison([found], tmp_path))
    terminal = "\n".join(comparison_lines([found], 140))
    (line,) = [line for line in csv.DictReader(io.StringIO(table)) if (line["slice_key"], line["slice_value"]) == ("category", FORGOTTEN)]
    assert line["verdict"] == "regressed"
    assert float(line["candidate_value"]) == pytest.approx(1 / 23)
    assert f"REGRESSED category {FORGOTTEN}: f1 of category 1.000 → 0.043" in terminal
    assert re.search(rf"\| category +\| {FORGOTTEN} +\| f1 of category +\| \*\*REGRESSED\*\* .* 1\.000 \| +0\.043 ", markdown)
    first = page[page.index("Losses that the average hides") :]
    assert re.search(
        rf"</span> {FORGOTTEN}</th><td>f1 of category.*?REGRESSED</span></td><td class=\"num\">1\.000</td><td class=\"num\">0\.043<",
        first,
        re.DOTALL,
    )
