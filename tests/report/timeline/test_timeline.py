"""timeline.html, timeline.csv, timeline_flips.csv and timeline.svg, and what a terminal shows."""

from __future__ import annotations

import base64
import csv
import json
import re
import shutil
import xml.etree.ElementTree as ET
import zlib
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.comparison.timeline import Timeline, read_tracks, timeline_of
from evalharness.cli import main
from evalharness.report.timeline.files import timeline_lines, write_picture, write_run_timeline, write_timelines
from evalharness.report.timeline.page import falls, write_timeline_page
from evalharness.report.writing import write_reports
from tests.analysis.comparison.runs import engine, measured, run_dir
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import row

FILES = ["timeline.html", "timeline.csv", "timeline_flips.csv", "timeline.svg"]
FORGOTTEN = "地排处接地螺丝"


def made(*folders: Path) -> list[Timeline]:
    return [timeline_of(track) for track in read_tracks(folders, [])]


@pytest.fixture(scope="module")
def forgetful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three checkpoints on 40 cases: the second is right everywhere, the third has forgotten one of four categories."""
    rows = []
    for step, mark in ((10, 0.0), (20, 1.0), (30, 1.0)):
        for n in range(40):
            lost = step == 30 and n % 4 == 0
            name = FORGOTTEN if n % 4 == 0 else f"kind {n % 4}"
            details = {"categories": {name: 0.0 if lost else mark}}
            scores = {"f1": 0.0 if lost else mark, "valid": 1.0}
            rows.append(
                row(f"c{n:02}", engine=f"hf:checkpoint-{step}", group=f"g{n // 2}", scores=scores, details=details, text=f"{step} {lost}")
            )
    facts = [
        {"engine": f"hf:checkpoint-{step}", "generation_s": 2.0, "num_generations": 40, "num_completion_tokens": 240}
        for step in (10, 20, 30)
    ]
    engines = [engine(f"checkpoint-{step}", step=step) for step in (10, 20, 30)]
    gates = [{"eval": "stage_a", "test": "test_summary", "engine": "hf:checkpoint-10", "metric": "valid"}]
    return run_dir(tmp_path_factory.mktemp("runs") / "forgetful", rows, engines=engines, throughput=facts, gates=gates)


def block(page: str, name: str) -> Any:
    """Return what a data block of a page holds."""
    (found,) = re.findall(rf'<script type="([^"]+)" id="{name}">(.*?)</script>', page)
    return json.loads(found[1] if found[0] == "application/json" else zlib.decompress(base64.b64decode(found[1])))


class TestFalls:
    def test_a_forgotten_category_comes_first_with_where_it_fell(self, forgetful: Path) -> None:
        (timeline,) = made(forgetful)
        found = [(one.slice_value, one.metric, value.place, value.mean) for one, _, value in falls(timeline)]
        assert found == [(FORGOTTEN, "f1 of category", 2, 0.0), ("", "f1", 2, 0.75)]

    def test_of_a_test_without_scores_the_share_that_passes_tells(self, tmp_path: Path) -> None:
        rows = [
            row(f"c{n}", engine=f"hf:checkpoint-{step}", scores={}, outcome=outcome)
            for step, outcome in ((1, "pass"), (2, "fail"))
            for n in range(20)
        ]
        (timeline,) = made(run_dir(tmp_path / "run", rows, engines=[engine("checkpoint-1"), engine("checkpoint-2")]))
        assert [(curve.metric, value.mean) for curve, _, value in falls(timeline)] == [("pass_rate", 0.0)]

    def test_the_terminal_says_it(self, forgetful: Path) -> None:
        shown = "\n".join(timeline_lines(made(forgetful), ["a note"], 120))
        assert f"category {FORGOTTEN}, f1 of category of stage_a: 1.000 at checkpoint-20, 0.000 at checkpoint-30" in shown
        assert "! a note" in shown
        assert re.search(r"f1 +checkpoint-20 +1\.000 .* 0\.750  significantly better than all others", shown)


@pytest.fixture(scope="module")
def page(forgetful: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_timeline_page(made(forgetful), ["remark <b>"], tmp_path_factory.mktemp("out") / "timeline.html").read_text("utf-8")


class TestPage:
    def test_it_has_falls_curves_cases_and_speed(self, page: str) -> None:
        assert page.index(FORGOTTEN) < page.index("Best checkpoint of each metric")
        assert "remark &lt;b&gt;" in page
        (track,) = block(page, "timeline")
        assert [point["step"] for point in track["points"]] == [10, 20, 30]
        (f1,) = [one for one in track["curves"] if one["metric"] == "f1" and not one["key"]]
        assert ([value[1] for value in f1["points"]], f1["best"], f1["alike"]) == ([0.0, 1.0, 0.75], 1, [])
        cases = block(page, "cases-0-0")
        assert cases["num"] == 40
        assert cases["scores"]["f1"][cases["ids"].index("c00")] == [0.0, 1.0, 0.0]
        assert cases["texts"]["c00"] == ["10 False", "20 False", "30 True"]
        assert re.search(r"checkpoint-10</th>.*?>40<.*?>240<.*?>120<", page, re.DOTALL)


class TestCsv:
    def lines(self, path: Path) -> list[dict[str, str]]:
        with path.open(encoding="utf-8", newline="") as file:
            return list(csv.DictReader(file))

    def test_every_number_and_every_change_has_a_line(self, forgetful: Path, tmp_path: Path) -> None:
        paths = {path.name: path for path in write_timelines(made(forgetful), [], tmp_path)}
        assert list(paths) == FILES
        lines = self.lines(paths["timeline.csv"])
        best = [line for line in lines if line["metric"] == "f1" and line["kind"] == "metric" and line["is_best"] == "1"]
        assert [(line["step"], line["value"], line["n"], line["interval"]) for line in best] == [("20.0", "1.0", "40", "wilson")]
        assert {line["metric"] for line in lines if line["kind"] == "throughput"} == {
            "generation_s",
            "num_generations",
            "num_completion_tokens",
        }
        flips = [line for line in self.lines(paths["timeline_flips.csv"]) if line["case_id"] == "c00"]
        assert [(line["metric"], line["from_step"], line["to_step"], line["after"]) for line in flips] == [
            ("f1", "10.0", "20.0", "1.0"),
            ("f1", "20.0", "30.0", "0.0"),
        ]


def test_the_picture_has_a_chart_per_metric_and_refers_to_nothing_outside(forgetful: Path, tmp_path: Path) -> None:
    (timeline,) = made(forgetful)
    text = write_picture(timeline, tmp_path / "timeline.svg").read_text("utf-8")
    charts = ET.fromstring(text).findall("{http://www.w3.org/2000/svg}g")
    titles = [chart[0].text for chart in charts]
    assert titles[0] == "valid"  # of a gate
    assert FORGOTTEN in titles
    assert [len(chart.findall("{http://www.w3.org/2000/svg}polyline")) for chart in charts] == [1] * len(charts)
    assert not re.search("href|<script|nan|None", text)
    assert text == write_picture(timeline, tmp_path / "again.svg").read_text("utf-8")


def hostile_run(folder: Path) -> Path:
    """Write a run in which everything that can be named is named by hostile texts."""
    rows, engines = [], []
    for number, text in enumerate(HOSTILE_TEXTS.values()):
        name = f"{number}{text}"
        engines.append({**engine(name, step=number), "checkpoint_path": f"/t\x1b/{name}"})
        for n in range(2):
            scores = {text: float(n), "f1": 0.5}
            rows.append(row(f"{text}{n}", engine=f"hf:{name}", checkpoint=name, scores=scores, tags={text: text + str(n)}, text=text))
    return run_dir(folder, rows, engines=engines)


def test_hostile_names_break_no_file(tmp_path: Path) -> None:
    timelines = made(hostile_run(tmp_path / "run"))
    paths = {path.name: path for path in write_timelines(timelines, list(HOSTILE_TEXTS.values()), tmp_path / "out")}
    page = paths["timeline.html"].read_text("utf-8")
    assert page.count("<script") == page.count("</script>")
    assert not [text for text in HOSTILE_TEXTS.values() if "<" in text and text in page]
    ET.parse(paths["timeline.svg"])
    for line in timeline_lines(timelines, list(HOSTILE_TEXTS.values()), 100):
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", line)


def test_a_run_with_several_checkpoints_writes_its_own_and_one_with_one_does_not(forgetful: Path, tmp_path: Path) -> None:
    assert [path.name for path in write_run_timeline(forgetful)] == FILES
    one = measured(tmp_path / "one", {"checkpoint-1": [1.0]})
    assert write_run_timeline(one) == []
    assert not set(FILES) & set(write_reports(one))


def test_scripts_of_the_fake_backend_are_no_checkpoints(forgetful: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(forgetful, tmp_path / "run")
    assert set(FILES) <= set(write_reports(folder))
    run = json.loads((folder / "run.json").read_bytes())
    for script in run["engines"]:
        script["fingerprint"] = None
    (folder / "run.json").write_text(json.dumps(run), "ascii")
    assert not set(FILES) & set(write_reports(folder))


def test_a_timeline_that_cannot_be_made_is_a_problem_of_the_run_and_costs_no_other_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = measured(tmp_path / "run", {"checkpoint-1": [1.0], "checkpoint-2": [1.0]})

    def broken(timeline: Timeline, path: Path) -> Path:
        raise ValueError("no ink")

    monkeypatch.setattr("evalharness.report.timeline.files.write_picture", broken)
    assert "report.html" in write_reports(run)
    assert json.loads((run / "run.json").read_text())["problems"] == ["timeline.html could not be made: ValueError: no ink"]
    monkeypatch.undo()
    assert set(FILES) <= set(write_reports(run))
    assert json.loads((run / "run.json").read_text())["problems"] == []


class TestCommand:
    def test_it_writes_beside_the_runs_and_says_where(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        for step in (1, 2):
            measured(tmp_path / f"reports/{step}", {f"checkpoint-{step}": [1.0] * 4})
        assert main(["timeline", f"{tmp_path}/reports/*"]) == 0
        assert capsys.readouterr().out.splitlines()[-4:] == [str(tmp_path / "reports" / name) for name in FILES]
        assert main(["timeline", str(tmp_path / "absent")]) == 2
        assert "not a run directory; give reports/RUN_ID" in capsys.readouterr().err
