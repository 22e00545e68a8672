"""reports/index.html: what it says of whole, broken, foreign and running folders, and who may write it."""

from __future__ import annotations

import fcntl
import html
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from evalharness.report.findings import verdict
from evalharness.report.html import index_page
from evalharness.report.html.index_page import CACHE, run_entries, write_index
from evalharness.report.tables import load_tables
from evalharness.runs import progress
from evalharness.runs.files import RunLock
from evalharness.runs.progress import EngineProgress, RunProgress, WorkerProgress, write_progress
from tests.analysis.comparison.runs import ENGINE
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import gate, row, write_run


def run(folder: Path, *, day: int = 1, value: float = 1.0, passed: bool = True, **more: object) -> Path:
    """Write a run that started on some day, with one gate."""
    whole = {
        "engines": [ENGINE],
        "evals": [{"name": "stage_a", "num_cases": 4}],
        "gates": [gate(passed, value=value)],
        "counts": {"pass": 4},
    }
    started = f"2030-01-{day:02}T00:00:00+00:00"
    return write_run(folder, [row()], **{**whole, "started_at": started, "duration_s": 12.0, **more})


def text(report_dir: Path) -> str:
    path = write_index(report_dir)
    assert path is not None
    page = path.read_text("utf-8")
    return page[page.index("<main") : page.index("</main>")]


def test_runs_stand_newest_first_with_verdict_scores_and_links(tmp_path: Path) -> None:
    run(tmp_path / "old", day=1)
    newest = run(tmp_path / "new", day=2, value=0.5, passed=False)
    for name in ("report.html", "compare.html", "timeline.html"):
        (newest / name).touch()
    page = text(tmp_path)
    assert page.index('href="new/report.html"') < page.index(">old<")
    assert "The gate failed" in page
    assert "stage_a: ✗ valid 0.500" in page
    assert re.findall(r'<a href="(new/[^"]+)">(\w+)</a>', page)[1:] == [
        ("new/report.html", "report"), ("new/compare.html", "compare"), ("new/timeline.html", "timeline"),
    ]  # fmt: skip
    run(tmp_path / "one")
    assert text(tmp_path) == text(tmp_path)


def test_skipped_gates_are_named_and_scores_have_a_small_curve_oldest_first(tmp_path: Path) -> None:
    for day, value in ((1, 0.0), (2, 0.5), (3, 1.0)):
        run(tmp_path / f"run-{day}", day=day, value=value)
    (points,) = re.findall(r'<polyline class="curve" points="([^"]+)"', text(tmp_path))
    assert points == "4.0,36.0 80.0,20.0 156.0,4.0"
    run(tmp_path / "run", gates=[{**gate(), "passed": None, "asked": False}])
    assert "1 gate skipped, as no baseline was given" in text(tmp_path)


def test_gates_are_counted_as_in_the_report(tmp_path: Path) -> None:
    skipped = {**gate(), "passed": None, "asked": False}
    folder = run(tmp_path / "run", gates=[gate(), gate(False), gate(False), skipped])
    first, second = verdict(load_tables(folder))[1].split("; ")[:2]
    assert first == "2 of 3 gates failed"
    page = text(tmp_path)
    assert f"> {first}<" in page
    assert f">{second}<" in page


def test_comparisons_are_suggested_of_checkpoints_and_of_runs_of_the_same_evals(tmp_path: Path) -> None:
    reports = tmp_path / "my reports"
    early, final = ({**ENGINE, "id": f"hf:{name}"} for name in ("early", "final"))
    run(reports / "a", day=1)
    assert "Suggested" not in text(reports)
    run(reports / "other", day=2, evals=[{"name": "b", "num_cases": 1}])
    run(reports / "c", day=3, engines=[early, final])
    run(reports / "killed", day=4, finished_at=None)
    page = text(reports)
    commands = re.findall(r"<code>(evalharness[^<]+)</code>", page)
    assert list(map(shlex.split, map(html.unescape, commands))) == [
        ["evalharness", "compare", "my reports/c:hf:early", "my reports/c:hf:final"],
        ["evalharness", "compare", "my reports/a", "my reports/c:hf:final"],
    ]
    assert re.findall(r'type="checkbox" aria-label="Compare (\w+)"', page) == ["killed", "c", "other", "a"]


def test_gates_on_slices_and_intervals_are_no_scores_of_a_run(tmp_path: Path) -> None:
    run(tmp_path / "run", gates=[gate(value=0.1, tag="site"), gate(value=0.2, end="low"), gate(value=0.5)])
    page = text(tmp_path)
    assert "valid 0.500" in page
    assert "valid 0.1" not in page


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{", "cannot be read"),
        ('{"schema_version": 99}', "cannot be read"),
        ("{}", "killed"),
        ('{"started_at": 3, "engines": 5, "gates": ["x", {}], "evals": {}, "counts": [], "duration_s": "x"}', "killed"),
        ('{"finished_at": "x", "interrupted": "Ctrl-C"}', "interrupted"),
        ('{"finished_at": "x", "rebuilt": true}', "killed"),
    ],
    ids=["torn", "newer", "no end", "wrong types", "interrupted", "rebuilt"],
)
def test_runs_that_are_not_whole_are_listed_as_what_they_are(tmp_path: Path, content: str, words: str) -> None:
    run(tmp_path / "whole")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/run.json").write_text(content)
    page = text(tmp_path)
    assert ">whole<" in page
    assert words in page


def test_a_run_without_an_end_is_running_as_long_as_a_process_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one/journal").mkdir(parents=True)
    (tmp_path / "one/run.json").write_text("{}")
    lock = RunLock(tmp_path / "one")
    assert [entry["state"] for entry in run_entries(tmp_path)] == ["running"]
    lock.close()
    assert [entry["state"] for entry in run_entries(tmp_path)] == ["killed"]
    monkeypatch.setattr(progress, "is_written_now", lambda folder: None)
    assert "running, or killed" in text(tmp_path)


def test_a_running_run_says_how_far_it_is(tmp_path: Path) -> None:
    (tmp_path / "nightly" / "journal").mkdir(parents=True)
    (tmp_path / "nightly" / "run.json").write_text('{"run_id": "nightly", "started_at": "2030-01-01T00:00:00+00:00"}')
    engine = EngineProgress("hf:<final>", num_done=31, num_asked=120, num_in_flight=16, tokens_per_s=38.2)
    worker = WorkerProgress("main", "generating", engine.id, "stage_a")
    write_progress(tmp_path / "nightly", RunProgress(90.0, 240, 60, 3, 187.5, (engine,), (worker,)))
    lock = RunLock(tmp_path / "nightly")
    page = text(tmp_path)
    assert (
        "stage_a on hf:&lt;final&gt;: 31/120 answers, 16 in flight, 38 tokens/s, 60/240 tests, 3 not passed, about 3 min 10 s left" in page
    )
    lock.close()
    assert "31/120" not in text(tmp_path), "it was killed, and goes no further"


def test_foreign_files_and_folders_are_no_runs(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    (tmp_path / "note.txt").write_text("x")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    assert run_entries(tmp_path) == []
    assert "No run yet" in text(tmp_path)


def test_a_page_that_is_not_ours_or_a_folder_that_is_gone_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("mine")
    assert write_index(tmp_path) is None
    assert (tmp_path / "index.html").read_text() == "mine"
    assert write_index(tmp_path / "gone") is None


def test_what_was_read_once_is_not_read_again_unless_it_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(tmp_path / "one")
    run(tmp_path / "two")
    first = run_entries(tmp_path)
    (tmp_path / "two/run.json").write_text("{")
    read: list[str] = []
    monkeypatch.setattr(index_page, "read_run", lambda folder: read.append(folder.name) or {})
    again = {entry["name"]: entry for entry in run_entries(tmp_path)}
    assert read == ["two"]
    assert again["one"] in first


@pytest.mark.parametrize(
    "cache", ["{", "[]", '{"version": 1, "runs": {"one": [1, 2]}}', '{"version": 1, "runs": {"one": 3}}', '{"version": 0}']
)
def test_a_damaged_cache_is_made_anew(tmp_path: Path, cache: str) -> None:
    run(tmp_path / "one")
    (tmp_path / CACHE).write_text(cache)
    assert [entry["state"] for entry in run_entries(tmp_path)] == ["finished"]
    assert json.loads((tmp_path / CACHE).read_text())["runs"].keys() == {"one"}


def test_a_strangers_cache_names_no_other_folder_and_breaks_nothing(tmp_path: Path) -> None:
    run(tmp_path / "one")
    entries = run_entries(tmp_path)
    cache = json.loads((tmp_path / CACHE).read_text())
    odd: tuple[object, ...] = (5, [], "x", {"a": "b"}, [[]], [["a", "b", "c", "d", "e", {}]])
    for name, value in [("name", "../two"), *((name, value) for name in entries[0] for value in odd)]:
        changed = {**cache["runs"]["one"][2], name: value}
        (tmp_path / CACHE).write_text(json.dumps({**cache, "runs": {"one": [*cache["runs"]["one"][:2], changed]}}))
        assert write_index(tmp_path) is not None
        assert [entry["name"] for entry in run_entries(tmp_path)] == ["one"]
    (tmp_path / CACHE).unlink()
    os.mkfifo(tmp_path / CACHE)
    assert run_entries(tmp_path) == entries


def test_while_another_process_writes_it_is_waited_for_and_in_the_end_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_page, "_LOCK_S", 0.1)
    file = os.open(tmp_path / ".index.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(file, fcntl.LOCK_EX)
    assert write_index(tmp_path) is None
    os.close(file)
    assert write_index(tmp_path) is not None


@pytest.mark.slow
def test_of_runs_that_end_together_all_are_there(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.report.html.test_index_page import run\n"
        "from evalharness.report.html.index_page import write_index\n"
        "for n in range(5): run(Path(sys.argv[1]) / f'{sys.argv[2]}-{n}'); assert write_index(Path(sys.argv[1]))"
    )
    root = Path(__file__).parents[3]
    processes = [subprocess.Popen([sys.executable, "-c", program, str(tmp_path), name], cwd=root) for name in "ab"]
    assert [process.wait(300) for process in processes] == [0, 0]
    page = (tmp_path / "index.html").read_text("utf-8")
    assert all(f">{name}-{n}<" in page for name in "ab" for n in range(5))


def test_hostile_names_stay_text_and_within_the_folder(tmp_path: Path) -> None:
    for number, hostile in enumerate(HOSTILE_TEXTS.values()):
        gates = [gate(False, eval=hostile, expression=hostile, metric=hostile, engine=hostile)]
        run(tmp_path / f"{number}", engines=[{**ENGINE, "id": hostile}], evals=[{"name": hostile}], gates=gates, interrupted=hostile)
    strange = run(tmp_path / '"><script>alert(1)</script>'.replace("/", "_"))
    (strange / "report.html").touch()
    page = text(tmp_path)
    assert "<script" not in page
    assert not [hostile for hostile in HOSTILE_TEXTS.values() if "<" in hostile and hostile in page]
    assert all(not target.startswith(("/", ".")) and ":" not in target for target in re.findall(r'href="([^"]*)"', page))


def test_a_run_whose_gates_were_not_all_judged_has_not_passed_and_says_how_to_go_on(tmp_path: Path) -> None:
    idle = {**gate(False), "judged": False, "reason": "not judged: 3 of 4 cases were not run (Ctrl-C)"}
    write_run(tmp_path / "cut", [row()], gates=[gate(), idle], interrupted="Ctrl-C", exit_code=2)
    write_index(tmp_path)
    assert 'data-verdict="passed"' not in text(tmp_path)
    assert "Ctrl-C; go on with: pytest evals --resume first" in text(tmp_path)


def test_a_run_of_part_of_an_eval_says_of_how_much_and_is_no_side_of_a_suggestion(tmp_path: Path) -> None:
    run(tmp_path / "monday")
    run(tmp_path / "tuesday", day=2, partial=[])
    suggested = re.findall(r"<code>(evalharness[^<]+)</code>", text(tmp_path))
    run(tmp_path / "again", day=3, value=0.25, partial=[{"eval": "stage_a", "what": "cases", "num": 1, "of": 4}])
    page = text(tmp_path)
    assert page.count("part of an eval") == 1
    assert ">stage_a (1 of 4)<" in page
    assert page.count(">stage_a (4)<") == 2
    assert re.findall(r"<code>(evalharness[^<]+)</code>", page) == suggested != []
    assert "before 1.000" in page
    assert 'class="value-text">0.250<' not in page, "a case that was tried again is no trend"


def test_failed_gates_have_their_eval_and_value_and_stand_first_in_the_scores(tmp_path: Path) -> None:
    roof = {"value": "roof <1>", "measured": 0.067, "n": 15}
    slices = gate(
        False, metric="correct", expression="correct[site=*] >= 0.7", value=0.067, threshold=0.7, tag="site", failed_slices=[roof]
    )
    low = gate(False, metric="f1", expression="f1.low >= 0.9", value=0.8, threshold=0.9, end="low")
    run(tmp_path / "run", gates=[gate(), slices, low, gate(metric="chars", eval="other", value=3.0)])
    page = html.unescape(text(tmp_path))
    assert "<li>stage_a: correct[site=*] >= 0.7 on hf:tiny: site=roof <1> 0.067</li>" in page
    assert "<div>stage_a: ✗ correct[site=roof <1>] 0.067, ✗ f1.low 0.800, valid 1.000</div>" in page
    assert "<div>other: chars 3.000</div>" in page
