"""Whatever stands in a run's files, each reader ends in an error of ours that names the file, or reads the rest."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.analysis.comparison.compare import compare
from evalharness.analysis.comparison.sides import read_side, read_sides
from evalharness.analysis.comparison.timeline import read_tracks, timeline_of
from evalharness.api.errors import EvalHarnessError
from evalharness.pytest_plugin.replay.recorded_execution import RecordedRegistry
from evalharness.pytest_plugin.replay.resume import Resumption
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.report.html.index_page import write_index
from evalharness.report.markdown import ci_summary, markdown_report
from evalharness.report.tables import load_tables
from evalharness.report.writing import rebuild_run
from evalharness.runs.recorded import RecordedRun, outcome_of
from evalharness.runs.run_file import find_latest
from tests.pytest_plugin.project import HEADER, Project

EVAL = (
    HEADER
    + """
pytestmark = pytest.mark.eval(cases=cases, request=ask)

@pytest.mark.gate("x >= 1", "no_regression")
def test_s(case, generation, score, details):
    details(categories={"a": [1, 1, 1]})
    score(x=len(generation.text) > 0)
"""
)
FILES = ("journal/main.jsonl", "run.json", "samples.jsonl")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run, its twin `other`, and a baseline of it."""
    project = Project(tmp_path_factory.mktemp("damaged") / "project").write(test_a=EVAL)
    for name in ("r", "other"):
        assert project.run_inline("--run-id", name).exit_code == 0
    assert project.evalharness("bless", "reports/r", "base")[0] == 0
    shutil.copy(project.root / "baselines" / "base.json", project.root / "reports" / "base.json")
    return project.root / "reports"


def rescored(run_dir: Path) -> None:
    recorded = RecordedRun.read(run_dir)
    config = recorded.config
    registry = RecordedRegistry(RunContext(config, run_dir), recorded)
    for engine, name, case_id in recorded._by_case:
        entry = recorded.find(engine, name, case_id)
        for sample in entry.samples.values() if entry is not None else ():
            outcome_of(sample)
    assert registry.engines is not None


def timeline(run_dir: Path) -> None:
    for track in read_tracks([run_dir], []):
        timeline_of(track)


def compared(base: Path, candidate: Path) -> None:
    compare(read_side(str(base)), read_side(str(candidate)), anyway=True)


def summarised(run_dir: Path) -> None:
    tables = load_tables(run_dir)
    ci_summary(tables)
    list(markdown_report(tables))


def reported(run_dir: Path) -> None:
    rebuild_run(run_dir)
    with contextlib.suppress(OSError):
        (run_dir / "samples.jsonl").unlink()
    rebuild_run(run_dir)


READERS: dict[str, Callable[[Path], object]] = {
    "rescore": rescored,
    "resume": lambda run_dir: Resumption.read(run_dir).options(RecordedRun.read(run_dir.parent / "other").config, run_dir.parent),
    "compare": lambda run_dir: compared(run_dir.parent / "other", run_dir),
    "sides": read_sides,
    "timeline": timeline,
    "summary": summarised,
    "latest": lambda run_dir: find_latest("latest", run_dir.parent),
    "baseline": lambda run_dir: compared(run_dir.parent / "base.json", run_dir.parent / "other"),
    "index": lambda run_dir: write_index(run_dir.parent),
    "report": reported,
}
"""Those that write are the last."""


def nested(depth: int) -> Any:
    value: Any = 1
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


VALUES = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        10**30,
        10**400,
        1.5,
        1e308,
        "",
        "x",
        "\ud800",
        [],
        {},
        [None],
        [[]],
        {"a": None},
        {"": {}},
        nested(60),
        nested(500),
    ]
)


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value inside plain data."""
    yield at
    for key, child in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(child, (*at, key))


def changed(value: Any, at: tuple[Any, ...], new: Any, is_dropped: bool) -> Any:
    if not at:
        return new
    value = copy.deepcopy(value)
    holder = value
    for key in at[:-1]:
        holder = holder[key]
    if is_dropped:
        del holder[at[-1]]
    else:
        holder[at[-1]] = new
    return value


def read(name: str, run_dir: Path) -> None:
    try:
        READERS[name](run_dir)
    except EvalHarnessError:
        pass
    except Exception as error:
        raise AssertionError(f"{name}: {type(error).__name__}: {error}") from error


def read_all(reports: Path) -> None:
    for name in READERS:
        read(name, reports / "r")


@pytest.mark.parametrize("file", [*FILES, "../base.json"])
@given(data=st.data())
def test_any_value_may_be_any_other(whole: Path, tmp_path_factory: pytest.TempPathFactory, file: str, data: st.DataObject) -> None:
    reports = tmp_path_factory.mktemp("mutated") / "reports"
    shutil.copytree(whole, reports)
    path = reports / "r" / file
    lines = path.read_text().splitlines() if file.endswith(".jsonl") else [path.read_text()]
    number = data.draw(st.integers(0, len(lines) - 1), label="line")
    value = json.loads(lines[number])
    at = data.draw(st.sampled_from(list(places(value))), label="place")
    lines[number] = json.dumps(changed(value, at, data.draw(VALUES, label="value"), data.draw(st.booleans(), label="dropped")))
    path.write_text("".join(f"{line}\n" for line in lines))
    try:
        read_all(reports)
    finally:
        shutil.rmtree(reports.parent)


TEXTS = {
    "empty": lambda text: b"",
    "null": lambda text: b"null\n",
    "list": lambda text: b"[]\n",
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "BOM": lambda text: b"\xef\xbb\xbf" + text,
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "torn": lambda text: text[:-20],
    "torn in the middle": lambda text: text[: len(text) // 2] + text[len(text) // 2 + 9 :],
    "no JSON": lambda text: b"\xff\xfe\x00",
    "deep": lambda text: text + b"[" * 100_000 + b"\n",
    "blank lines": lambda text: b"\n\n" + text,
    "twice": lambda text: text + text,
    "NaN": lambda text: text.replace(b"1.0", b"NaN"),
    "huge numbers": lambda text: text.replace(b"1.0", b"1e999").replace(b":0", b":" + b"9" * 5000),
    "null bytes": lambda text: text + b"\0" * 100 + b"\n",
    "spaces": lambda text: text.replace(b",", b" , ").replace(b":", b" : "),
}  # fmt: skip


@pytest.mark.parametrize("file", [*FILES, "../base.json"])
@pytest.mark.parametrize("how", TEXTS)
def test_any_text_may_stand_in_a_file(whole: Path, tmp_path: Path, file: str, how: str) -> None:
    reports = tmp_path / "reports"
    shutil.copytree(whole, reports)
    path = reports / "r" / file
    path.write_bytes(TEXTS[how](path.read_bytes()))
    read_all(reports)


THINGS: dict[str, Callable[[Path], object]] = {
    "nothing": lambda path: None,
    "folder": lambda path: path.mkdir(),
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path),
    "nowhere": lambda path: path.symlink_to("/nowhere/at/all"),
}


@pytest.mark.parametrize("file", [*FILES, "journal", "../base.json"])
@pytest.mark.parametrize("thing", THINGS)
def test_anything_may_stand_in_place_of_a_file(whole: Path, tmp_path: Path, file: str, thing: str) -> None:
    reports = tmp_path / "reports"
    shutil.copytree(whole, reports)
    path = reports / "r" / file
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    THINGS[thing](path)
    read_all(reports)


def test_the_error_names_file_and_line(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "r", tmp_path / "r")
    journal = tmp_path / "r" / "journal" / "main.jsonl"
    journal.write_bytes(journal.read_bytes() + b"null\n")
    number = len(journal.read_bytes().splitlines())
    with pytest.raises(EvalHarnessError, match=rf"journal/main\.jsonl:{number} is not a line of a journal"):
        RecordedRun.read(tmp_path / "r")
