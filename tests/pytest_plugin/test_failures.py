"""What a failed test says: its message alone, short reprs, and no frame of this package."""

from __future__ import annotations

import re
from dataclasses import dataclass

import pytest

from evalharness.api.cases import Case
from evalharness.api.requests import GenerationResult
from tests.pytest_plugin.project import MARK, Project

_TEST = """
class Judged:
    valid = False

def holds(text): return 0

{gate}
def test_s(case, generation):
    {body}
"""
_SAID = {
    "assert Judged().valid, 'no verdict'": "no verdict",
    "assert Judged().valid, 'two' + chr(10) + 'assert lines'": "two\nassert lines",
    "assert Judged().valid": "assert Judged().valid, which is False",
    "assert not generation.text": "assert not generation.text, which is 'ask c0'",
    "assert holds(generation.text)": "assert holds(generation.text), which is 0",
    "assert generation.text == 'x'": "assert 'ask c0' == 'x'",
    "assert 'x' in generation.text": "assert 'x' in 'ask c0'",
    "assert len(generation.text) < 3, f'{len(generation.text)} characters'": "6 characters",
    "assert [1] == [2], ''": "assert [1] == [2]",
    "raise AssertionError('a' + chr(10) + 'assert b')": "a\nassert b",
    "pytest.fail('a' + chr(10) + 'assert b')": "a\nassert b",
    "raise ValueError('bad')": "ValueError: bad",
}


@pytest.mark.parametrize("gated", [True, False], ids=["gated", "no gate"])
def test_a_failed_assertion_says_its_message_or_its_comparison_and_nothing_more(project: Project, gated: bool) -> None:
    modules = {
        f"test_{number:02}": MARK + _TEST.format(body=body, gate="@pytest.mark.gate('pass_rate >= 0')" if gated else "")
        for number, body in enumerate(_SAID)
    }
    run = project.write(**modules).run("-k", "c0", "--junitxml=j.xml")
    assert [row["problem"] for row in run.rows] == list(_SAID.values())
    assert "where False = " not in (project.root / "j.xml").read_text().replace(" = &lt;", "")


@dataclass(frozen=True, kw_only=True)
class PromptCase(Case):
    messages: str


def test_own_types_are_short() -> None:
    assert repr(Case(id="Peru", tags={"a": "b"}, reference="x" * 1000)) == "Case('Peru')"
    assert repr(PromptCase(id="p", messages="x" * 1000)) == "PromptCase('p')"
    assert repr(GenerationResult("I do not know <b", "…", "stop")) == "Generation('I do not know <b')"
    assert len(repr(GenerationResult("x" * 1000, "…", "stop"))) < 80


def test_a_traceback_ends_in_the_tests_code_unless_all_of_it_is_asked_for(project: Project) -> None:
    project.write(test_a=MARK + "def test_s(case, generation, score):\n    score(x='yes')\n")
    short = project.run("-k", "c0").output
    assert "score(x='yes')" in short
    assert re.search(r"test_a.py:\d+: ScoreError", short)
    assert "outcomes.py" not in short
    assert "outcomes.py" in project.run("-k", "c0", "--full-trace").output
