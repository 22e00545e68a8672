"""The record of a running run's progress: what is written is read, and what is none is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from evalharness.runs.files import RunLock
from evalharness.runs.progress import (
    PROGRESS,
    EngineProgress,
    RunProgress,
    WorkerProgress,
    read_progress,
    remove_progress,
    seconds_since_written,
    state_without_end,
    write_progress,
)

WHOLE = RunProgress(
    90.0, 240, 60, 3, 187.5, (EngineProgress("hf:final", 31, 120, 16, 4120, 38.2),), (WorkerProgress("main", "loading", "x"),)
)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_progress(tmp_path, WHOLE)
    assert read_progress(tmp_path) == WHOLE
    assert (seconds_since_written(tmp_path) or 0) < 60
    remove_progress(tmp_path)
    assert read_progress(tmp_path) is None
    assert seconds_since_written(tmp_path) is None
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", '{"engines": 7}', '{"left_s": NaN}', '{"a": 1e999}', "[" * 100_000, "\x00"])
def test_anything_else_is_none_or_a_blank_one(tmp_path: Path, content: str) -> None:
    (tmp_path / PROGRESS).write_text(content)
    assert read_progress(tmp_path) in (None, RunProgress())


@pytest.mark.parametrize("value", ["x", None, [], {}, True, 10**400 // 10**385, 1.5e300])
def test_a_value_of_another_type_is_left_out(tmp_path: Path, value: object) -> None:
    engine = {"id": value, "num_done": value, "tokens_per_s": value, "is_told": value}
    (tmp_path / PROGRESS).write_text(json.dumps({"num_tests": value, "left_s": value, "engines": [engine, value], "workers": value}))
    read = read_progress(tmp_path)
    assert read is not None
    assert isinstance(read.num_tests, int)
    assert all(isinstance(each.id, str) and each.num_done < 10**15 for each in read.engines)


def test_a_run_goes_on_while_its_lock_is_held(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    write_progress(tmp_path, WHOLE)
    assert state_without_end(tmp_path) == "killed"
    lock = RunLock(tmp_path)
    assert state_without_end(tmp_path) == "running"
    lock.close()
    assert state_without_end(tmp_path) == "killed"
