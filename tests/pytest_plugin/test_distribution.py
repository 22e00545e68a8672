"""Pytest's and xdist's own options mean with workers what users know them to mean."""

from __future__ import annotations

import pytest

from tests.pytest_plugin.project import Project, eval_module

pytestmark = pytest.mark.slow

NUM_CASES = 24
EVAL = eval_module(f"""
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=f"c{{i:02}}") for i in range({NUM_CASES})], request=ask)
def test_s(case, generation):
    assert os.path.exists("fixed") or case.id not in ("c03", "c04", "c05", "c15", "c16", "c17")
def test_t(case, generation): pass
""")


@pytest.fixture
def wrong(project: Project) -> Project:
    """An eval of which six tests without gates fail."""
    return project.write(test_a=EVAL)


def test_maxfail_stops_all_workers_and_the_rest_are_rows_that_were_not_run(wrong: Project) -> None:
    run = wrong.run("--maxfail", "2", mode="n2")
    assert len(run.rows) == 2 * NUM_CASES
    assert 2 <= run.counts["fail"] <= 4, "a worker that is told to stop ends the test that it is in"
    assert run.counts["skip"] >= 1
    assert run.facts["interrupted"].startswith("stopping after")


WAITING = eval_module(f"""
import time
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=f"c{{i:02}}") for i in range({NUM_CASES})], request=ask)
def test_s(case, generation, request):
    if case.id == "c00": ENDS
    until = time.monotonic() + 60
    while not request.session.shouldstop and time.monotonic() < until:
        time.sleep(0.02)
    assert request.session.shouldstop
""")


@pytest.mark.parametrize(
    ("ends", "outcomes", "reason"),
    [
        ("pytest.fail('x')", {"fail": 1, "pass": 1, "skip": NUM_CASES - 2}, "stopping after 1 failures"),
        ("pytest.exit('x')", {"pass": 1, "skip": NUM_CASES - 1}, "received keyboard-interrupt"),
    ],
    ids=["fails", "exits"],
)
def test_what_ends_the_run_ends_other_workers_after_the_test_that_they_are_in(
    project: Project, ends: str, outcomes: dict[str, int], reason: str
) -> None:
    run = project.write(test_a=WAITING.replace("ENDS", ends)).run("-x", mode="n2")
    assert run.counts == outcomes
    assert reason in run.facts["interrupted"]


def test_lf_runs_with_workers_what_failed_with_workers(wrong: Project) -> None:
    wrong.run("--run-id", "first", mode="n2")
    (wrong.root / "fixed").touch()
    again = wrong.run("--run-id", "second", "--lf", mode="n2")
    assert sorted(row["case_id"] for row in again.rows) == ["c03", "c04", "c05", "c15", "c16", "c17"]
    assert again.counts == {"pass": 6}


def test_dist_no_keeps_everything_in_one_process(wrong: Project) -> None:
    run = wrong.run("-p", "xdist", "--tx", "2*popen", "--dist", "no", apart=True)
    assert run.facts["num_workers"] == 0
    assert {row["worker"] for row in run.rows} == {"main"}


def test_one_worker_is_a_worker_too(wrong: Project) -> None:
    run = wrong.run("-p", "xdist", "-n1", apart=True)
    assert {row["worker"] for row in run.rows} == {"gw0"}
    assert run.counts == {"pass": 2 * NUM_CASES - 6, "fail": 6}
