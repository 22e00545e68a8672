"""Units of workers that died go on elsewhere: what was generated is kept, the culprit is found, and the run ends by itself."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import BROKEN
from evalharness.pytest_plugin.distributed.crashes import LastSigns, last_signs
from evalharness.pytest_plugin.execution.takeover import CrashIsolation, InFlight, in_flight_path, note_crash, read_crashes, takeover_of
from evalharness.pytest_plugin.execution.units import UnitKey
from evalharness.runs.journal import Journal
from evalharness.runs.schema import CrashLine
from tests.pytest_plugin.project import HEADER, Project, Run

NUM_CASES = 24

TESTS = (
    HEADER
    + f"""
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=f"c{{i:02}}") for i in range({NUM_CASES})], request=ask)

@pytest.mark.gate("x >= 1")
def test_s(case, generation, score):
    score(x=1)
"""
)

# Each generation leaves a line in a file, whoever makes it; DEADLY then says what happens to it.
CONFTEST = """
import os, pathlib, signal, time
from evalharness.backends.fake import FakeBackend
from evalharness.api.errors import BackendError
here = pathlib.Path(__file__).parent
complete, start = FakeBackend._complete, FakeBackend.__init__
worker = os.environ.get("PYTEST_XDIST_WORKER", "main")

def once(name):
    try:
        (here / name).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True

def deadly(case): pass
def opening(): pass

DEADLY

def logged(self, prompt, plugins, *_):
    case = prompt.text.partition("ask ")[2][:3]
    with open(here / "generated.txt", "a") as file:
        file.write(case + "\\n")
    deadly(case)
    return complete(self, prompt, plugins)

def opened(self, config, preprocess):
    opening()
    start(self, config, preprocess)

FakeBackend._complete, FakeBackend.__init__ = logged, opened
"""


# Takes all prompts before it answers the first, as an engine that batches does.
IN_FLIGHT = """
generate = FakeBackend.generate
FakeBackend.generate = lambda self, prompts, **more: generate(self, list(prompts), **more)

"""


def run_with(project: Project, deadly: str, *arguments: str, tests: str = TESTS) -> Run:
    project.write(conftest=CONFTEST.replace("DEADLY", deadly), test_a=tests)
    return project.run(*arguments, mode="n2")


def generated(run: Run) -> Counter[str]:
    """Return how often each case was generated."""
    return Counter((run.root / "generated.txt").read_text().split())


def errors(run: Run) -> list[str]:
    """Return the tests that are errors; all others passed."""
    assert set(run.counts) <= {"pass", "error"}
    return [test for test, outcome in run.outcomes.items() if outcome == "error"]


@pytest.mark.slow
def test_a_worker_killed_while_it_generates_costs_only_the_generation_in_flight(project: Project) -> None:
    run = run_with(project, "def deadly(case):\n    if case == 'c04' and once('killed'): os.kill(os.getpid(), signal.SIGKILL)")
    assert run.counts == {"pass": NUM_CASES}
    assert all(row["generation"]["text"] == f"ask {row['case_id']}" for row in run.rows)
    assert run.gate("x >= 1")["passed"]
    assert generated(run) == Counter({f"c{i:02}": 1 + (i == 4) for i in range(NUM_CASES)})
    (problem,) = run.facts["problems"]
    assert problem.endswith("case c04 of test_a.py was generated with fake:echo; it is tried again")
    assert run.exit_code == BROKEN
    (entry,) = run.facts["throughput"]
    assert entry["num_generations"] + entry["num_untimed_generations"] == NUM_CASES, "what was taken over counts once"
    assert {line["kind"] for line in run.journal if line.get("copied")} <= {"generation"}


@pytest.mark.slow
class TestCulprits:
    def test_a_request_function_that_kills_is_found_as_well(self, project: Project) -> None:
        tests = TESTS.replace("def test_s", "def asks(case):\n    if case.id == 'c15': os._exit(1)\n    return ask(case)\n\ndef test_s")
        run = run_with(project, "", tests=tests.replace("request=ask", "request=lambda case: asks(case)"))
        assert errors(run) == ["test_s/c15"]
        assert len(run.facts["problems"]) == 2

    def test_all_tests_of_a_case_that_kills_are_the_only_errors_for_two_deaths(self, project: Project) -> None:
        tests = TESTS + "\ndef test_t(case, generation): pass\n"
        run = run_with(project, "def deadly(case):\n    if case == 'c15': os._exit(139)", tests=tests)
        assert errors(run) == ["test_s/c15", "test_t/c15"]
        assert "case c15 of test_a.py was generated with fake:echo, and another one had before" in run.row("c15", "test_s")["problem"]
        assert generated(run) == Counter({f"c{i:02}": 1 + (i == 15) for i in range(NUM_CASES)}), "one retry, and the others were kept"
        assert [problem.partition("; ")[2] for problem in run.facts["problems"]] == ["it is tried again", "its case is an error"]

    def test_one_of_many_in_flight_is_found_with_the_third_death(self, project: Project) -> None:
        tests = TESTS.replace(f"range({NUM_CASES})", "range(60)")
        deadly = IN_FLIGHT + "def deadly(case):\n    if case == 'c15': os._exit(139)"
        project.write(conftest=CONFTEST.replace("DEADLY", deadly), test_a=tests)
        run = project.run("-p", "xdist", "-n1", apart=True)
        assert errors(run) == ["test_s/c15"]
        found = [re.sub("worker gw. died while (test_a.py.* ran and )?", "", problem) for problem in run.facts["problems"]]
        assert found == [
            "45 cases of test_a.py were generated with fake:echo; it is tried again",
            "7 cases of test_a.py were generated with fake:echo; it is tried again",
            "case c15 of test_a.py was generated with fake:echo; its case is an error",
        ]

    @pytest.mark.parametrize(
        ("end", "problem"),
        [("os._exit(139)", "died while "), ("raise BackendError('the device failed')", "ended itself (the device failed) while ")],
        ids=["killed", "broken"],
    )
    def test_it_is_found_by_one_worker_alone_too(self, project: Project, end: str, problem: str) -> None:
        project.write(conftest=CONFTEST.replace("DEADLY", f"def deadly(case):\n    if case == 'c15': {end}"), test_a=TESTS)
        run = project.run("-p", "xdist", "-n1", apart=True)
        assert errors(run) == ["test_s/c15"]
        assert problem in run.row("c15")["problem"]

    @pytest.mark.parametrize(
        "deadly",
        [
            "def deadly(case):\n    if case == 'c15' and once('broke'): raise BackendError('the device failed')",
            "def opening():\n    if once('opened'): os._exit(9)",
        ],
        ids=["broke", "killed who opened it"],
    )
    def test_an_engine_that_failed_once_costs_nothing(self, project: Project, deadly: str) -> None:
        run = run_with(project, deadly)
        assert run.counts == {"pass": NUM_CASES}
        assert run.exit_code == BROKEN

    @pytest.mark.parametrize(
        ("deadly", "problem"),
        [
            ("def deadly(case):\n    raise BackendError('no device at all')", "no device at all"),
            ("def opening(): os._exit(9)", "engine fake:echo cannot be opened: 2 workers died while they opened it"),
        ],
        ids=["breaks", "kills who opens it"],
    )
    def test_an_engine_that_always_fails_ends_in_errors_not_in_a_cut_run(self, project: Project, deadly: str, problem: str) -> None:
        run = run_with(project, deadly)
        assert run.counts == {"error": NUM_CASES}
        assert problem in run.rows[0]["problem"]
        assert run.facts["interrupted"] is None


@pytest.mark.slow
class TestSteps:
    TESTS = (
        HEADER
        + f"""
def ask(case):
    def user(text): return TextGenerationRequest([{{"role": "user", "content": f"ask {{case.id}} {{text}}"}}])
    first = yield [user("a"), user("b")], GenerationOptions()
    (second,) = yield [user(first[1].text)], GenerationOptions()
    return user(second.text)

pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=f"c{{i:02}}") for i in range({NUM_CASES})], request=ask)

def test_s(case, generation, steps):
    assert [len(step) for step in steps] == [2, 1]
    assert generation.text == f"ask {{case.id}} ask {{case.id}} ask {{case.id}} b"
"""
    )

    def test_steps_that_were_made_are_kept_too(self, project: Project) -> None:
        deadly = "def deadly(case):\n    if case == 'c04' and once('first'): return\n    if case == 'c04' and once('killed'): os._exit(1)"
        run = run_with(project, deadly, tests=self.TESTS)
        assert run.counts == {"pass": NUM_CASES}
        assert generated(run) == Counter({f"c{i:02}": 4 + (i == 4) for i in range(NUM_CASES)})
        assert [len(step) for step in run.row("c04")["steps"]] == [2, 1]


class TestNotes:
    UNIT = UnitKey("fake:echo", "test_a.py", 1)
    ISOLATION = CrashIsolation(("x", "y"), ("y",), {"z": "why"})
    NOTE: CrashLine = {  # noqa: RUF012
        "worker": "gw0",
        "engine": "fake:echo",
        "path": "test_a.py",
        "shard": 1,
        "nodeids": ["a", "b"],
        "gave_up": True,
        "isolation": json.loads(json.dumps(asdict(ISOLATION))),
    }

    def test_notes_are_read_as_they_were_written(self, tmp_path: Path) -> None:
        assert read_crashes(tmp_path) == []
        assert takeover_of(tmp_path, self.UNIT, "a") is None
        for _ in range(2):
            note_crash(tmp_path, self.NOTE)
        with (tmp_path / "journal" / "crashes.jsonl").open("a") as file:
            file.write('{"kind":"crash","wor')
        assert read_crashes(tmp_path) == [self.NOTE, self.NOTE]
        assert takeover_of(tmp_path, UnitKey("fake:echo", "test_a.py", 2), "a") is None, "nobody began it"

    def test_a_unit_goes_on_with_what_any_worker_recorded(self, tmp_path: Path) -> None:
        note_crash(tmp_path, self.NOTE)
        journal = Journal(tmp_path, "gw0")
        journal.write("failure", {"engine": "fake:echo", "eval": "a", "case_id": "x", "sample": 0, "failure": "invalid", "problem": "no"})
        journal.close()
        takeover = takeover_of(tmp_path, self.UNIT, "a")
        assert takeover is not None
        assert (takeover.nodeids, takeover.isolation) == (frozenset({"a", "b"}), self.ISOLATION)
        assert takeover.recorded("x").samples[0].problem == "no"
        assert takeover.recorded("y") is None


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ([], LastSigns(None, None)),
        (["engine_start"], LastSigns("x", None)),
        (["engine_start", "engine"], LastSigns(None, None)),
        (["engine_start", "engine", "unit_start", "unit", "engine", "engine_start"], LastSigns("x", None)),
        (["unit_start", "last_words"], LastSigns(None, "p")),
    ],
    ids=["none", "opening", "opened", "opening-the-next", "words"],
)
def test_a_journal_says_how_its_worker_ended(tmp_path: Path, kinds: list[str], expected: LastSigns) -> None:
    path = tmp_path / "gw0.jsonl"
    if kinds:
        lines = [json.dumps({"kind": kind, "id": "x", "problem": "p"}, separators=(",", ":")) for kind in kinds]
        path.write_text("\n".join([*lines, '{"kind":"engine_st']))
    assert last_signs(path) == expected


def test_what_was_asked_lies_beside_the_journal_and_is_read_once(tmp_path: Path) -> None:
    unit = UnitKey("fake:echo", "test_a.py", 0)
    InFlight(in_flight_path(tmp_path / "gw0.jsonl", 1), unit, ["a", "b"]).begin("b")
    assert last_signs(tmp_path / "gw0.jsonl") == LastSigns(None, None, {unit: ("b",)})
    assert last_signs(tmp_path / "gw0.jsonl") == LastSigns(None, None)


CASES = tuple(f"c{number:03}" for number in range(400))


class TestIsolation:
    """Which cases are asked together after deaths, and which one is confirmed."""

    def test_one_that_was_asked_alone_twice_is_confirmed(self) -> None:
        first = CrashIsolation().after(["c007"], "one")
        assert first.groups(CASES)[0] == ("c007",)
        assert not CrashIsolation().confirms(["c007"])
        assert first.confirms(["c007"])
        assert not first.confirms(["c008"]), "another one at the second death"
        assert first.after(["c007"], "two").confirmed == {"c007": "two"}

    def test_a_few_are_asked_alone_and_the_rest_together(self) -> None:
        groups = CrashIsolation().after(CASES[:3], "").groups(CASES)
        assert groups == [("c000",), ("c001",), ("c002",), CASES[3:]]

    @given(num_in_flight=st.integers(1, 400), culprit=st.integers(0, 399))
    def test_a_culprit_is_found_with_the_third_death_and_no_one_else(self, num_in_flight: int, culprit: int) -> None:
        """An engine that has so many cases at work at once dies whenever the culprit is one of them."""
        isolation, deaths, left = CrashIsolation(), 0, list(CASES)
        groups: list[tuple[str, ...]] = [CASES]
        while CASES[culprit] not in isolation.confirmed:
            for group in groups:
                windows = [group[start : start + num_in_flight] for start in range(0, len(group), num_in_flight)]
                deadly = next((window for window in windows if CASES[culprit] in window), None)
                if deadly is not None:
                    deaths += 1
                    isolation = isolation.after(deadly, "")
                    break
            groups = isolation.groups([case_id for case_id in left if case_id not in isolation.confirmed])
        assert list(isolation.confirmed) == [CASES[culprit]]
        assert deaths <= (2 if num_in_flight <= 16 else 3)

    @given(st.lists(st.sampled_from(CASES), unique=True, max_size=100), st.lists(st.sampled_from(CASES), unique=True, max_size=100))
    def test_each_case_is_in_one_group(self, first: list[str], second: list[str]) -> None:
        groups = CrashIsolation().after(first, "").after(second, "").groups(CASES)
        assert sorted(case_id for group in groups for case_id in group) == list(CASES)
