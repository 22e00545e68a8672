"""A run's outcomes read back case by case: which worker's, which sample, which step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import RecordError
from evalharness.api.requests import GenerationFailure, GenerationResult
from evalharness.runs.recorded import RecordedRun, outcome_of
from evalharness.runs.records import CaseRecords, Recorded, read_case
from evalharness.runs.run_file import write_run_file
from tests.runs.test_journal import write

CASE = {"engine": "fake:x", "eval": "a", "case_id": "c"}


def made(text: str) -> dict[str, Any]:
    return GenerationResult(text, text, "stop", token_ids=(1, 2), logprobs=(-0.5, -1.0)).to_json()


def generation(text: str, sample: int = 0, **more: Any) -> tuple[str, dict[str, Any]]:
    return "generation", {**CASE, "sample": sample, **more, "generation": made(text)}


def row(nodeid: str) -> tuple[str, dict[str, Any]]:
    return "row", {**CASE, "nodeid": nodeid, "num_samples": 1, "outcome": "pass"}


def step(text: str, step: int, request: int) -> tuple[str, dict[str, Any]]:
    return "step", {**CASE, "step": step, "request": request, "generation": made(text)}


def failed(problem: str, sample: int = 0, kind: str = "error") -> tuple[str, dict[str, Any]]:
    return "failure", {**CASE, "sample": sample, "failure": kind, "problem": problem}


def run_of(run_dir: Path, facts: dict[str, Any] | None = None, **journals: list[tuple[str, dict[str, Any]]]) -> RecordedRun:
    write_run_file(run_dir, {"run_id": "r", "finished_at": "now", **(facts or {})})  # type: ignore[typeddict-item]
    for worker, lines in journals.items():
        write(run_dir, worker, ("collected", {"engines": [], "nodeids": []}), *lines)
    return RecordedRun.read(run_dir)


def case_of(run_dir: Path, **journals: list[tuple[str, dict[str, Any]]]) -> CaseRecords:
    found = run_of(run_dir, **journals).find("fake:x", "a", "c")
    assert found is not None
    return found


def texts(run: RecordedRun, nodeid: str | None = None) -> list[str]:
    found = run.find("fake:x", "a", "c", nodeid)
    assert found is not None
    return [sample.whole()["text"] if isinstance(sample, Recorded) else sample.problem for sample in found.samples.values()]


def test_an_outcome_comes_back_as_the_engine_gave_it(tmp_path: Path) -> None:
    found = case_of(tmp_path, main=[generation("é\ud800"), failed("too long", 1, "invalid")])
    assert outcome_of(found.samples[0]) == GenerationResult.from_json(made("é\ud800"))
    assert outcome_of(found.samples[1]) == GenerationFailure("invalid", "too long")
    again = read_case(tmp_path / "journal" / "main.jsonl", "fake:x", "a", "c")
    assert [outcome_of(outcome) for outcome in again.samples.values()] == [outcome_of(outcome) for outcome in found.samples.values()]
    assert read_case(tmp_path / "journal" / "main.jsonl", "fake:x", "a", "other").samples == {}


def test_a_test_gets_what_its_own_worker_had(tmp_path: Path) -> None:
    run = run_of(tmp_path, gw0=[generation("first"), row("n0")], gw1=[generation("second"), row("n1")])
    assert (texts(run, "n0"), texts(run, "n1")) == (["first"], ["second"])


FEW, MANY, LAST = [generation("few")], [generation("many"), generation("more", 1)], [generation("last")]


@pytest.mark.parametrize(
    ("journals", "expected"),
    [
        pytest.param({"gw0": MANY, "gw1": FEW}, ["many", "more"], id="most samples"),
        pytest.param({"gw0": FEW, "gw1": LAST}, ["last"], id="the last of equals"),
        pytest.param({"gw0": FEW, "gw1": [failed("out of memory")]}, ["few"], id="no failures"),
        pytest.param({"main": [*FEW, failed("broken")]}, ["broken"], id="the last outcome of a sample"),
    ],
)
def test_of_several_outcomes_any_other_test_gets(tmp_path: Path, journals: dict[str, Any], expected: list[str]) -> None:
    assert texts(run_of(tmp_path, **journals), "unknown") == expected


def test_steps_of_an_earlier_time_are_not_those_of_the_last_answer(tmp_path: Path) -> None:
    earlier = [step("old", 0, 0), step("old", 0, 1), step("old", 1, 0)]
    found = case_of(tmp_path, main=[*earlier, step("new", 0, 0), generation("answer", steps=[1])])
    assert [[one and one["text"] for one in step] for step in found.steps() or ()] == [["new"]]


def test_requests_of_steps_can_be_had_before_the_case_has_come_to_its_end(tmp_path: Path) -> None:
    found = case_of(tmp_path, main=[step("half", 0, 1)])
    assert (found.samples, found.steps(), list(found.in_steps)) == ({}, None, [(0, 1)])


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"finished_at": None}, "run r was killed before it, or is still running"),
        ({"interrupted": "stopping after 1 failures"}, "run r ended before it (stopping after 1 failures)"),
        ({}, "run r ended before it (its session was over)"),
    ],
    ids=["killed", "interrupted", "ended"],
)
def test_why_something_is_missing_is_known(tmp_path: Path, facts: dict[str, Any], reason: str) -> None:
    assert run_of(tmp_path, facts, main=[generation("x")]).why_incomplete == reason


def test_what_was_made_leaves_failures_out(tmp_path: Path) -> None:
    run = run_of(tmp_path, main=[generation("made"), failed("no device", 1)])
    found = run.find_made("fake:x", "a", "c")
    assert found is not None
    assert set(found.samples) == {0}
    assert run.num_generations == 1
    assert run.find_made("fake:x", "a", "other") is None


def test_of_two_workers_that_made_steps_only_the_one_with_more_counts(tmp_path: Path) -> None:
    found = case_of(tmp_path, gw0=[step("s", 0, 0), step("s", 1, 0)], gw1=[step("s", 0, 0)])
    assert set(found.in_steps) == {(0, 0), (1, 0)}


def test_a_run_that_generated_nothing_may_be_read_where_that_is_enough(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no record of any case: its run ended before the first, .*remove the folder and run again"):
        run_of(tmp_path, main=[("collected", {"engines": [], "nodeids": ["a"]})])
    assert RecordedRun.read(tmp_path, may_be_empty=True).num_generations == 0
