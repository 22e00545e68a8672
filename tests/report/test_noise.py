"""The noise of a run, and the floor of a comparison, in every output."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.comparison.compare import compare
from evalharness.analysis.comparison.sides import read_side
from evalharness.analysis.comparison.timeline import read_tracks, timeline_of
from evalharness.report.compare.files import write_comparison
from evalharness.report.compare.text import comparison_lines, conclusion
from evalharness.report.html.report_page import write_report_pages
from evalharness.report.markdown import markdown_report
from evalharness.report.noise import noise_lines, noise_summary
from evalharness.report.tables import load_tables
from evalharness.report.terminal import terminal_lines
from evalharness.report.text import markdown_cell
from evalharness.report.timeline.files import timeline_lines, write_timelines
from tests.analysis.comparison.runs import cases, measured, run_dir
from tests.analysis.test_noise import entry, facts
from tests.report.runs import gate

WORDS = "0.795 is 0.005 below the threshold, within noise: runs of one checkpoint vary by up to 0.014"


def noisy(folder: Path, **more: Any) -> Path:
    found = facts(
        entry(0.0, "answer", flip_rate=0.25, flips={"a|b": 0.5, "<i>": 1.0}),
        entry(0.01, floor=0.02, flips={"c1": 0.5}),
        entry(0.0, "still"),
    )
    return run_dir(folder, cases([1.0] * 300), noise={**found, "num_lost": 3}, **more)


def test_a_run_says_how_often_what_flips(tmp_path: Path) -> None:
    passed = gate(expression="f1 >= 0.8", metric="f1", value=0.795, passed=True, reason="", within_noise=[WORDS])
    passed |= {"flip_rate": 0.25, "flip_interval": [0.1, 0.375]}
    tables = load_tables(noisy(tmp_path / "run", gates=[passed], finished_at="2030-01-01T00:00:00+00:00"))
    rates, known = "up to 25.0% of answers and up to 10.0% of scores flip", "192 judged repeats, 50% by another worker; 3 without a verdict"
    summary = f"{rates} from run to run ({known})"
    assert noise_summary(tables.run) == summary
    assert [line[3] for line in noise_lines(tables.run)] == ["answer", "f1"]
    shown = "\n".join(terminal_lines(tables, 300))
    assert f"noise: {summary}" in shown
    assert f"gate passed: f1 >= 0.8 (stage_a::test_summary on hf:tiny): {WORDS}" in shown
    page = "\n".join(markdown_report(tables))
    assert "## Noise\n" in page
    assert "would be judged otherwise in 25.0% (10.0% … 37.5%) of runs" in page
    assert "±0.020" in page
    assert markdown_cell("a|b, <i>") in page
    assert WORDS in page
    (path,) = write_report_pages(tables).values()
    html = path.read_text()
    assert 'id="noise"' in html
    assert "&lt;i&gt;" in html
    assert "<i>" not in html.partition('id="noise"')[2].partition("</section>")[0]


def test_a_run_without_it_says_nothing(tmp_path: Path) -> None:
    tables = load_tables(run_dir(tmp_path / "run", cases([1.0] * 30)))
    (path,) = write_report_pages(tables).values()
    texts = "\n".join([*terminal_lines(tables, 200), *markdown_report(tables)])
    assert (noise_summary(tables.run), "oise" in texts, 'id="noise"' in path.read_text()) == ("", False, False)


@pytest.mark.parametrize(
    "damaged", [[], 3, "x", {}, {"measured": {}}, {"measured": [1, None, {}, {"metric": ["a"], "flips": [1], "flip_rate": "x"}]}]
)
def test_a_damaged_record_breaks_no_report(tmp_path: Path, damaged: Any) -> None:
    tables = load_tables(run_dir(tmp_path / "run", cases([1.0] * 30), noise=damaged))
    assert "no " in noise_summary(tables.run)
    write_report_pages(tables)
    assert "".join(markdown_report(tables))


def test_a_comparison_says_within_noise(tmp_path: Path) -> None:
    base = noisy(tmp_path / "base")
    candidate = run_dir(tmp_path / "cand", cases([1.0] * 296 + [0.0] * 4), {"fingerprint": "f2"})
    found = compare(read_side(str(base)), read_side(str(candidate)))
    assert "within noise in 1 metric" in conclusion(found)
    lines = "\n".join(comparison_lines([found], 200))
    assert "! two runs of one checkpoint differ by up to f1 ±0.0" in lines
    html, text, table, _ = write_comparison([found], tmp_path / "out")
    assert "noise ±0.0" in html.read_text()
    assert "noise floor" in text.read_text()
    floors = {line["metric"]: line["noise_floor"] for line in csv.DictReader(table.read_text().splitlines()) if line["kind"] == "metric"}
    assert float(floors["f1"]) > 0
    assert floors["pass_rate"] == ""


def test_a_timeline_names_the_floor(tmp_path: Path) -> None:
    scores = {"checkpoint-1": [1.0] * 290 + [0.0] * 10, "checkpoint-2": [1.0] * 300}
    run = measured(tmp_path / "run", scores, noise=facts(*(entry(0.1, engine=f"hf:{name}") for name in scores)))
    timelines = [timeline_of(track) for track in read_tracks([run], [])]
    assert any("no significant difference (noise ±0.0" in line for line in timeline_lines(timelines, [], 200))
    _, table, *_ = write_timelines(timelines, [], tmp_path / "out")
    floors = {line["metric"]: line["noise_floor"] for line in csv.DictReader(table.read_text().splitlines()) if line["kind"] == "metric"}
    assert float(floors["f1"]) > 0
