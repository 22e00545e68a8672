"""A run's outcomes read back case by case: which worker's, which sample, which step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import RecordError
from evalharness.api.requests import GenerationFailure, GenerationResult
from evalharness.runs.journal import Journal
from evalharness.runs.recorded import RecordedRun, outcome_of
from evalharness.runs.records import Recorded
from evalharness.runs.run_file import write_run_file

CASE = {"engine": "fake:x", "eval": "a", "case_id": "c"}


def made(text: str) -> dict[str, Any]:
    return GenerationResult(text, text, "stop", token_ids=(1, 2), logprobs=(-0.5, -1.0)).to_json()


def generation(text: str, sample: int = 0, **more: Any) -> tuple[str, dict[str, Any]]:
    return "generation", {**CASE, "sample": sample, **more, "generation": made(text)}


def row(nodeid: str) -> tuple[str, dict[str, Any]]:
    return "row", {**CASE, "nodeid": nodeid, "num_samples": 1, "outcome": "pass"}


def run_of(run_dir: Path, facts: dict[str, Any] | None = None, **journals: list[tuple[str, dict[str, Any]]]) -> RecordedRun:
    write_run_file(run_dir, {"run_id": "r", "finished_at": "now", **(facts or {})})  # type: ignore[typeddict-item]
    for worker, lines in journals.items():
        journal = Journal(run_dir, worker)
        journal.write("collected", {"engines": [], "nodeids": []})
        for kind, values in lines:
            journal.write(kind, values)
        journal.close()
    return RecordedRun.read(run_dir)


def texts(run: RecordedRun, nodeid: str | None = None) -> list[str]:
    found = run.find("fake:x", "a", "c", nodeid)
    assert found is not None
    return [sample.whole()["text"] if isinstance(sample, Recorded) else sample.problem for sample in found.samples.values()]


def test_an_outcome_comes_back_as_the_engine_gave_it(tmp_path: Path) -> None:
    failed = ("failure", {**CASE, "sample": 1, "failure": "invalid", "problem": "too long"})
    found = run_of(tmp_path, main=[generation("é\ud800"), failed]).find("fake:x", "a", "c")
    assert found is not None
    assert outcome_of(found.samples[0]) == GenerationResult.from_json(made("é\ud800"))
    assert outcome_of(found.samples[1]) == GenerationFailure("invalid", "too long")


def test_a_test_gets_what_its_own_worker_had(tmp_path: Path) -> None:
    run = run_of(tmp_path, gw0=[generation("first"), row("n0")], gw1=[generation("second"), row("n1")])
    assert (texts(run, "n0"), texts(run, "n1")) == (["first"], ["second"])


def test_any_other_test_gets_the_worker_with_most_samples_the_last_of_equals(tmp_path: Path) -> None:
    few, many = [generation("few")], [generation("many"), generation("more", 1)]
    assert texts(run_of(tmp_path / "a", gw0=many, gw1=few)) == ["many", "more"]
    assert texts(run_of(tmp_path / "b", gw0=few, gw1=[generation("last")]), "unknown") == ["last"]


def test_failures_count_for_less_than_generations(tmp_path: Path) -> None:
    failed = ("failure", {**CASE, "sample": 0, "failure": "error", "problem": "out of memory"})
    assert texts(run_of(tmp_path, gw0=[generation("made")], gw1=[failed])) == ["made"]


def test_the_last_outcome_of_a_sample_stands(tmp_path: Path) -> None:
    failed = ("failure", {**CASE, "sample": 0, "failure": "error", "problem": "broken"})
    assert texts(run_of(tmp_path, main=[generation("before"), failed])) == ["broken"]


def test_steps_of_an_earlier_time_are_not_those_of_the_last_answer(tmp_path: Path) -> None:
    def step(text: str, step: int, request: int) -> tuple[str, dict[str, Any]]:
        return "step", {**CASE, "step": step, "request": request, "generation": made(text)}

    earlier = [step("old", 0, 0), step("old", 0, 1), step("old", 1, 0)]
    found = run_of(tmp_path, main=[*earlier, step("new", 0, 0), generation("answer", steps=[1])]).find("fake:x", "a", "c")
    assert found is not None
    steps = found.steps()
    assert steps is not None
    assert [[one and one["text"] for one in step] for step in steps] == [["new"]]


def test_requests_of_steps_can_be_had_before_the_case_has_come_to_its_end(tmp_path: Path) -> None:
    line = ("step", {**CASE, "step": 0, "request": 1, "generation": made("half")})
    found = run_of(tmp_path, main=[line]).find("fake:x", "a", "c")
    assert found is not None
    assert (found.samples, found.steps(), list(found.in_steps)) == ({}, None, [(0, 1)])


def test_what_was_never_asked_is_none(tmp_path: Path) -> None:
    assert run_of(tmp_path, main=[generation("x")]).find("fake:x", "a", "other") is None


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


def test_a_run_without_any_case_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no record of any case: its run ended before the first, .*remove the folder and run again"):
        run_of(tmp_path, main=[])


def test_what_was_made_leaves_failures_out(tmp_path: Path) -> None:
    failed = ("failure", {**CASE, "sample": 1, "failure": "error", "problem": "no device"})
    run = run_of(tmp_path, main=[generation("made"), failed])
    found = run.find_made("fake:x", "a", "c")
    assert found is not None
    assert set(found.samples) == {0}
    assert run.num_generations == 1
    assert run.find_made("fake:x", "a", "other") is None


def test_of_two_workers_that_made_steps_only_the_one_with_more_counts(tmp_path: Path) -> None:
    def step(number: int) -> tuple[str, dict[str, Any]]:
        return "step", {**CASE, "step": number, "request": 0, "generation": made(f"s{number}")}

    found = run_of(tmp_path, gw0=[step(0), step(1)], gw1=[step(0)]).find("fake:x", "a", "c")
    assert found is not None
    assert set(found.in_steps) == {(0, 0), (1, 0)}


def test_a_run_that_generated_nothing_may_be_read_where_that_is_enough(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="holds no record of any case"):
        run_of(tmp_path, main=[("collected", {"engines": [], "nodeids": ["a"]})])
    assert RecordedRun.read(tmp_path, may_be_empty=True).num_generations == 0
