"""What a run is judged against is part of it: other references or another scorer never pass as another model."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable
from enum import IntEnum
from functools import cache

import numpy as np
import pytest

from evalharness.api.cases import Case
from evalharness.pytest_plugin.eval_code import _hash
from evalharness.pytest_plugin.outcomes import reference_of
from evalharness.runs.judging import reference_sha256, row_reference
from tests.pytest_plugin.project import HEADER, Project, Run

NUM_CASES = 12
EVAL = (
    HEADER
    + """
from dataclasses import dataclass
from pathlib import Path
from helper_scorer import is_right

@dataclass(frozen=True)
class Truth:
    word: str

def cases(data_dir):  # each reference is what the fake backend answers
    texts = (Path(__file__).parent / "truth.txt").read_text().splitlines()
    return [Case(id=f"c{i:02}", reference=TRUTH(text)) for i, text in enumerate(texts)]

TRUTH = str
pytestmark = pytest.mark.eval(cases=cases, request=ask)

@pytest.mark.gate("no_regression")
def test_s(case, generation, score):
    score(x=is_right(generation.text, case.reference))
"""
)
SCORER = "def is_right(text, reference):\n    '''Judge.'''\n    return normal(text) == normal(reference)\n"
NORMAL = "def normal(text): return getattr(text, 'word', text).strip()\n"
OF_OWN_TYPE = EVAL.replace("TRUTH = str", "TRUTH = Truth")


def truth(right: int = NUM_CASES) -> str:
    return "".join(f"ask c{i:02}\n" if i < right else "dog\n" for i in range(NUM_CASES))


def write(project: Project, module: str = EVAL, scorer: str = SCORER + NORMAL, references: str = truth()) -> Project:
    (project.root / "truth.txt").write_text(references)
    return project.write(test_a=module, helper_scorer=scorer)


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Project]:
    """Give the project in which a module of tests has run as r and is blessed as base."""

    @cache
    def ran(module: str) -> Project:
        project = write(Project(tmp_path_factory.mktemp("made")), module)
        assert project.run_inline("--run-id", "r").exit_code == 0
        assert project.evalharness("bless", "reports/r", "base")[0] == 0
        return project

    return ran


@pytest.fixture
def made(project: Project, ran: Callable[[str], Project]) -> Callable[..., Run]:
    """Put that into `project`; give the run."""
    return lambda module=EVAL: Run(0, "", 0, project.take(ran(module)).root, "r")


CHANGES = {
    "references": ({"references": truth(3)}, "9 cases: the reference differs, first c03: 'dog' now, 'ask c03' in the run"),
    "an imported scorer": (
        {"scorer": SCORER + NORMAL.replace(".strip()", ".strip('dog')")},
        f"{NUM_CASES} cases: the eval's code differs, helper_scorer.py::normal",
    ),
    "the test": ({"module": EVAL.replace("score(x=", "score(x=1 - ")}, f"{NUM_CASES} cases: the eval's code differs, test_a.py::test_s"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_resumed_run_keeps_its_scores_unless_told_otherwise(project: Project, made: Callable[..., Run], what: str) -> None:
    changes, text = CHANGES[what]
    live = made()
    rows = (live.run_dir / "samples.jsonl").read_bytes()
    write(project, **changes)
    refused = project.run_inline("--resume", "r")
    assert refused.exit_code != 0
    assert text in " ".join(refused.output.split())
    assert "--accept-changes" in refused.output
    assert (live.run_dir / "samples.jsonl").read_bytes() == rows
    accepted = project.run_inline("--resume", "r", "--accept-changes")
    assert accepted.facts["evals"][0]["notices"] == [f"judged differently than before this run was resumed: {text}"]


@pytest.mark.parametrize("what", CHANGES)
def test_rescoring_takes_what_is_new_and_says_so_by_case(project: Project, made: Callable[..., Run], what: str) -> None:
    changes, text = CHANGES[what]
    made()
    write(project, **changes)
    code, output = project.evalharness("rescore", "reports/r", "--run-id", "again")
    number, _, difference = text.partition(": ")
    what_differs, _, detail = difference.partition(", ")
    assert f"a: since run r, {number}: {what_differs} ({detail})" in " ".join(output.split())
    assert f"{what_differs} ({detail})" in (project.root / "reports" / "again" / "report.md").read_text()
    assert code == 0


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("module", [EVAL, OF_OWN_TYPE], ids=["plain references", "references of a type of their own"])
def test_a_baseline_that_was_judged_otherwise_is_no_regression(project: Project, made: Callable[..., Run], what: str, module: str) -> None:
    made(module)
    changes = {"module": module, **CHANGES[what][0]}
    write(
        project,
        **{**changes, "module": changes["module"].replace("TRUTH = str", next(line for line in module.split("\n") if "TRUTH =" in line))},
    )
    run = project.run_inline("--baseline", "base", "--run-id", "now")
    gate = run.gate("no_regression")
    assert gate["passed"] is False
    assert "base and candidate were not judged the same: " in gate["reason"]
    assert ("the references differ" if what == "references" else "the eval's code differs") in gate["reason"]
    assert "--accept-changes" in gate["reason"]
    told = project.run_inline("--baseline", "base", "--run-id", "told", "--accept-changes").gate("no_regression")
    assert "not judged the same" not in told["reason"]
    assert any("differ" in note for note in told["notes"])


def test_comments_docstrings_and_layout_are_no_change(project: Project, made: Callable[..., Run]) -> None:
    made()
    project.write(
        test_a=EVAL.replace("def test_s", "# a comment\n\n\ndef test_s"), helper_scorer=NORMAL + SCORER.replace("Judge.", "Look.")
    )
    assert project.run_inline("--resume", "r").exit_code == 0


def test_gates_and_what_shows_results_are_no_change(project: Project, made: Callable[..., Run]) -> None:
    gate = '@pytest.mark.gate("no_regression")\n'
    made(EVAL.replace(gate, ""))
    showing = "request=ask, tables=lambda rows: {'t': [{'n': len(rows)}]})"
    module = EVAL.replace("request=ask)", showing).replace(gate, 'LIMIT = "x >= 0.5"\n@pytest.mark.gate("no_regression", LIMIT)\n')
    run = write(project, module).run_inline("--baseline", "base", "--run-id", "now")
    assert run.gate("no_regression")["passed"] is True
    assert run.gate("no_regression")["notes"] == []


class Number(IntEnum):
    ONE = 1


REFERENCES = [
    "a",
    (1, 2),
    {"a": [None, 1.5, True]},
    {1: "a"},
    {"a": (Number.ONE,)},
    Number.ONE,
    np.float32(0.1),
    [np.int64(3)],
    float("nan"),
    1 << 70,
]


@pytest.mark.parametrize("reference", REFERENCES, ids=repr)
def test_a_reference_and_its_row_are_one(reference: object) -> None:
    written = json.loads(json.dumps(reference_of(Case(id="c", reference=reference))))
    assert row_reference(written) == reference_sha256(reference)


ODD_SYNTAX = """
class Scorer(dict):
    '''Docstring.'''
    def by(self, a, /, b: int = 1, *rest, key=None, **more) -> str:
        return f"{a!r:>{b}} {{}} {b=} {key:%H:%M}" "x" f"{rest}" + str({**more, "": [None, "", ..., 1e-9, b"x"]})
async def judge(x): return [y async for y in x if (z := y)] or (lambda: await_)()
"""


def test_every_python_gives_the_same_hashes() -> None:
    """They were made with 3.10, 3.11, 3.12 and 3.13."""
    tree = ast.parse(ODD_SYNTAX)
    assert [_hash(statement) for statement in tree.body] == ["c705fc10", "219f5699"]


def test_a_fixture_and_code_of_another_test(project: Project) -> None:
    fixture = "import pytest\n@pytest.fixture\ndef limit(): return {}\n"
    module = EVAL.replace("def test_s(case,", "def test_s(limit, case,") + "\ndef test_t(case, generation): pass\n"
    project.write(conftest=fixture.format(1))
    write(project, module).run_inline("--run-id", "r")
    project.write(test_a=module + "\n    assert True\n")
    assert "test_a.py::test_t in" not in project.run_inline("--resume", "r").output
    project.write(test_a=module, conftest=fixture.format(2))
    assert "conftest.py::limit" in project.run_inline("--resume", "r").output


def test_a_baseline_of_an_older_version_is_taken_with_a_note(project: Project, made: Callable[..., Run]) -> None:
    made()
    path = project.root / "baselines" / "base.json"
    baseline = json.loads(path.read_text())
    for test in baseline["tests"]:
        del test["code"], test["columns"]["reference"]
    path.write_text(json.dumps(baseline))
    gate = project.run_inline("--baseline", "base", "--run-id", "now").gate("no_regression")
    assert any("the base does not say what it was judged against" in note for note in gate["notes"])
    assert "not judged the same" not in gate["reason"]


def test_every_row_says_what_it_was_judged_against(project: Project, made: Callable[..., Run]) -> None:
    assert [row["reference"] for row in made().rows][:2] == ["ask c00", "ask c01"]
    rows = write(project, OF_OWN_TYPE).run_inline("--run-id", "own").rows
    assert len({row["reference_sha256"] for row in rows}) == NUM_CASES


def test_a_merged_run_says_what_its_parts_were_judged_against(project: Project) -> None:
    write(project)
    for part in (1, 2):
        project.run_inline("--run-id", f"p{part}", "--shard", f"{part}/2")
        project.write(helper_scorer=SCORER + NORMAL.replace(".strip()", ".strip('!')"))
    _, output = project.evalharness("merge", "reports/p1", "reports/p2", "--run-id", "whole")
    assert f"{NUM_CASES} cases: the eval's code differs (helper_scorer.py::normal)" in " ".join(output.split())
