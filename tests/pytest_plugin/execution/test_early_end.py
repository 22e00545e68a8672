"""A test whose first cases all end in one error asks no more of them; nothing else ends it."""

from __future__ import annotations

import pytest

from evalharness.pytest_plugin.execution.early_end import NUM_FIRST
from tests.pytest_plugin.project import HEADER, Project

_MODULE = (
    HEADER.replace("range(4)", "range({num})").replace("    return TextGen", "    {ask}\n    return TextGen")
    + """
pytestmark = pytest.mark.eval(cases=cases, request=ask)

@pytest.mark.gate("pass_rate >= 0.5", "error_rate <= 0.1")
def test_s(case, generation):
    {body}

def test_t(case, generation): pass
"""
)


def module(body: str = "raise ValueError(f'bad {case.id}')", num: int = 40, ask: str = "pass") -> str:
    return _MODULE.replace("{num}", str(num)).replace("{body}", body).replace("{ask}", ask)


def test_the_other_cases_are_not_run_and_no_gate_is_judged(project: Project, mode: str) -> None:
    run = project.write(test_a=module()).run(mode=mode)
    errors = [row for row in run.rows if row["outcome"] == "error"]
    left_out = [row for row in run.rows if row["outcome"] == "skip"]
    assert NUM_FIRST <= len(errors) <= 2 * NUM_FIRST  # a worker's first cases are its own
    assert {row["test"] for row in errors + left_out} == {"test_s"}, "another test of the eval is another matter"
    assert {row["problem"] for row in left_out} == {"not run: the first 16 cases all ended in the same error (--keep-going asks the rest)"}
    assert {row["started_at"] for row in left_out} == {None}
    assert run.exit_code == 10
    assert [(gate["passed"], gate["judged"]) for gate in run.facts["gates"]] == [(False, False)] * 2
    assert f"{len(left_out)} not run" in run.summary()
    assert "go on: " in run.output


@pytest.mark.parametrize(
    ("more", "flags"),
    [
        ({}, ["--keep-going"]),
        ({"num": NUM_FIRST}, []),
        ({"body": "assert False"}, []),
        ({"body": "if case.id != 'c3': raise ValueError('bad')"}, []),
        ({"body": "raise [ValueError, TypeError][case.id == 'c15']('bad')"}, []),
        ({"body": "pytest.skip('no')"}, []),
    ],
    ids=["keep going", "few cases", "failed assertions", "one passes", "two errors", "skipped"],
)
def test_every_case_runs_where_it_is_not_sure(project: Project, more: dict[str, object], flags: list[str]) -> None:
    run = project.write(test_a=module(**more)).run(*flags)
    assert not [row for row in run.rows if (row["problem"] or "").startswith("not run")]


def test_a_failing_request_ends_every_test_and_a_resumed_run_asks_what_is_left(project: Project) -> None:
    broken = "assert not os.path.exists('broken'), 'no'"
    (project.root / "broken").touch()
    run = project.write(test_a=module("pass", ask=broken)).run("--run-id", "r")
    assert run.counts == {"error": 2 * NUM_FIRST, "skip": 2 * (40 - NUM_FIRST)}
    assert run.exit_code == 10
    (project.root / "broken").unlink()
    again = project.run("--resume", "r")
    assert again.counts == {"pass": 80}
    assert again.exit_code == 0
