"""What earlier runs tell of how long cases take."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from evalharness.runs.workers import CaseSeconds


def write(folder: Path, name: str, content: Any, *, age_s: float = 0) -> None:
    path = folder / name / "run.json"
    path.parent.mkdir(parents=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    os.utime(path, (1e9 - age_s, 1e9 - age_s))


def entry(engine: str, evaluation: str, num: int, seconds: float) -> dict[str, Any]:
    return {"engine": engine, "eval": evaluation, "num_outcomes": num, "generation_s": seconds}


@pytest.fixture
def known(tmp_path: Path) -> CaseSeconds:
    write(tmp_path, "one", {"durations": [entry("hf:x", "a", 10, 20.0), entry("hf:y", "a", 10, 40.0), entry("vllm:x", "b", 10, 5.0)]})
    return CaseSeconds(tmp_path)


@pytest.mark.parametrize(
    ("engine", "evaluation", "expected"),
    [
        pytest.param("hf:x", "a", 2.0, id="the-same"),
        pytest.param("hf:new", "a", 3.0, id="another-checkpoint"),
        pytest.param("hf:x", "new", 3.0, id="another-eval"),
        pytest.param("vllm:new", "a", 0.5, id="the-backends-own"),
        pytest.param("fake:x", "a", (2 + 4 + 0.5) / 3, id="another-backend"),
    ],
)
def test_what_is_new_is_taken_to_be_like_what_is_known(known: CaseSeconds, engine: str, evaluation: str, expected: float) -> None:
    assert known.expected(engine, evaluation) == pytest.approx(expected)


def test_only_the_latest_ten_runs_count(tmp_path: Path) -> None:
    for age in range(12):
        write(tmp_path, f"r{age}", {"durations": [entry("hf:x", "a", 1, 1.0 if age < 10 else 1000.0)]}, age_s=age)
    assert CaseSeconds(tmp_path).expected("hf:x", "a") == 1.0


def test_what_cannot_be_read_tells_nothing(tmp_path: Path) -> None:
    write(tmp_path, "torn", '{"durations": [')
    write(tmp_path, "list", [])
    write(tmp_path, "old", {"throughput": []})
    write(tmp_path, "odd", {"durations": [{}, None, entry("hf:x", "a", 0, 1.0), entry("hf:x", "a", 1, 7.0)]})
    assert CaseSeconds(tmp_path).expected("hf:x", "a") == 7.0


def test_without_any_run_every_case_counts_the_same(tmp_path: Path) -> None:
    assert CaseSeconds(tmp_path / "absent").expected("hf:x", "a") == 1.0
