"""timeline.html in a real browser."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalharness.analysis.comparison.timeline import read_tracks, timeline_of
from evalharness.report.timeline.page import write_timeline_page
from tests.analysis.comparison.runs import engine, run_dir
from tests.browser.conftest import DESKTOP, HOSTILE, PHONE
from tests.report.compare.test_page import FORGOTTEN
from tests.report.runs import gate, row


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints on 40 cases; the last has forgotten one category."""
    rows = []
    for step, mark in ((10, 0.0), (20, 1.0), (300, 1.0)):
        for n in range(40):
            score = 0.0 if step == 300 and n % 4 == 0 else mark
            details = {"categories": {FORGOTTEN if n % 4 == 0 else "标签": score}}
            name = f"hf:checkpoint-{step}"
            rows.append(
                row(f"c{n:02}", engine=name, scores={"f1": score}, details=details, text=f"{n} at {step}", tags={"site": "ab"[n % 2]})
            )
    engines = [engine(f"checkpoint-{step}", step=step) for step in (10, 20, 300)]
    gates = [gate(engine="hf:checkpoint-300", value=0.75, metric="f1")]
    evals = [{"name": "stage_a", "num_cases": 40}]
    more = {"gates": gates, "evals": evals, "started_at": "2030-01-01T10:00:00"}
    return run_dir(tmp_path_factory.mktemp("reports") / "sft-1", rows, engines=engines, **more)


@pytest.fixture(scope="module")
def timeline(run: Path) -> Path:
    return write_timeline_page([timeline_of(track) for track in read_tracks([run], [])], [], run / "timeline.html")


def test_what_fell_comes_first_and_the_largest_loss_among_categories(opened, timeline):
    page = opened(timeline)
    first = page.locator(".falls tbody tr").first
    assert first.inner_text().split()[0] == FORGOTTEN
    assert first.bounding_box()["y"] < DESKTOP["height"]
    page = opened(timeline)
    assert page.locator(".slices figcaption").first.inner_text().startswith(FORGOTTEN)
    page.locator(".slices select").first.select_option("site")
    assert page.locator(".slices figure").count() == 2


def test_curves_say_their_numbers_and_move_with_the_axis(opened, timeline):
    page = opened(timeline)
    chart = page.locator("figure.chart", has_text="f1").first
    assert "checkpoint-300: 0.750" in chart.locator("svg").get_attribute("aria-label")
    assert chart.locator(".chip").inner_text() == "fell 0.250"
    even = float(chart.locator("circle.dot").nth(1).get_attribute("cx"))
    page.select_option("#spacing", "step")
    assert float(chart.locator("circle.dot").nth(1).get_attribute("cx")) < even
    chart.locator("svg").hover(position={"x": 5, "y": 40})
    assert chart.locator(".note").inner_text().startswith("checkpoint-10: 0.000")


def test_the_grid_shows_when_a_case_flipped_and_what_was_said(opened, timeline):
    page = opened(timeline)
    count = page.locator("#case-count")
    count.get_by_text("40 of 40 cases").wait_for()
    page.select_option("#case-filter", "lost")
    count.get_by_text("10 of 40 cases").wait_for()
    line = page.locator("#case-grid tbody tr").first
    assert [cell.split()[0] for cell in line.locator("td").all_inner_texts()] == ["✗", "✓", "✗"]
    assert line.locator("td.is-flip").count() == 2
    page.locator("body").press("j")
    page.locator("body").press("Enter")
    assert page.locator(".said pre").all_inner_texts() == ["0 at 10", "0 at 20", "0 at 300"]
    page.fill("#case-search", "c04")
    count.get_by_text("1 of 40 cases").wait_for()


def test_two_checkpoints_are_one_table_not_a_chart_each(opened, tmp_path):
    folders = []
    for name in "ab":
        rows = [row(f"c{n}", engine=f"hf:{name}", scores={"f1": float(n < 4 or name == "b")}) for n in range(20)]
        folders.append(run_dir(tmp_path / f"run {name}", rows, engines=[engine(name)]))
        (folders[-1] / "report.html").touch()
    page = opened(write_timeline_page([timeline_of(track) for track in read_tracks(folders, [])], [], tmp_path / "timeline.html"))
    line = page.get_by_role("row", name="f1")
    assert " ".join(line.inner_text().split()) == "f1 0.200 0.081–0.416 1.000 0.839–1.000 +0.800 ▲ better"
    assert page.locator("figure.chart").count() == 0
    assert not page.locator("#best").is_visible()
    assert page.locator(".hero code").inner_text() == f"evalharness compare '{tmp_path.name}/run a:hf:a' '{tmp_path.name}/run b:hf:b'"
    assert page.get_by_role("link", name="b", exact=True).first.get_attribute("href") == "run%20b/report.html"
    page.set_viewport_size(PHONE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    wide = "[...document.querySelectorAll('table')].filter((table) => table.getBoundingClientRect().right > innerWidth).length"
    assert page.evaluate(wide) == 0


def test_a_link_to_a_part_shows_that_part(opened, timeline):
    page = opened(timeline, "#speed")
    page.locator("#case-grid tbody tr").first.wait_for()
    page.wait_for_function("document.querySelector('#speed').getBoundingClientRect().top < innerHeight")


@pytest.mark.parametrize("options", [{"viewport": PHONE}, {"color_scheme": "dark"}], ids=["phone", "dark"])
def test_it_fits_a_phone_and_the_dark(opened, timeline, options):
    page = opened(timeline, **options)
    page.locator("#case-grid tbody tr").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_hostile_names_stay_text(opened, tmp_path):
    rows, engines = [], []
    for number, text in enumerate(value[:2000] for value in HOSTILE.values()):
        name = f"{number}{text}"
        engines.append({**engine(name, step=number), "checkpoint_path": f"/t/{number}"})
        for n in range(2):
            rows.append(
                row(f"{text}{n}", engine=f"hf:{name}", scores={text: float(n), "f1": (n + number) % 2}, tags={text: str(n)}, text=text)
            )
    folder = run_dir(tmp_path / "run", rows, engines=engines)
    page = opened(
        write_timeline_page([timeline_of(track) for track in read_tracks([folder], [])], list(HOSTILE.values()), folder / "t.html")
    )
    page.select_option("#case-filter", "all")
    page.locator("#case-grid tbody tr").first.wait_for()
    assert page.evaluate("document.querySelectorAll('script:not([type])').length") == 1
    assert page.locator("main img, main iframe, main form").count() == 0
