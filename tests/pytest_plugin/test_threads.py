"""Tests run in one thread while another one generates: what both touch must bear that they take turns at any moment."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.pytest_plugin.project import HEADER, MODES, Project

pytestmark = pytest.mark.slow

NUM_CASES = 250
SWITCHING = """
import sys
sys.setswitchinterval(1e-6)  # a busy machine's bad luck in seconds: threads take turns all the time
"""
CASES = f"""
def many(data_dir): return [Case(id=f"c{{i:04}}") for i in range({NUM_CASES})]
"""
TESTS = """
def test_s(case, generation, score, monkeypatch):
    monkeypatch.setenv("SOME_TOKEN", "q7w9-alpha")
    assert case.id in generation.text
    score(n=len(generation.text))
"""
PLAIN = HEADER + CASES + "pytestmark = pytest.mark.eval(cases=many, request=ask)\n" + TESTS
STEPPED = (
    HEADER
    + CASES
    + """
def asks(case):
    options = GenerationOptions(max_new_tokens=64)
    [first] = yield [ask(case)], options
    yield [TextGenerationRequest([{"role": "user", "content": first.text}]), ask(case)], options
    return ask(case)

pytestmark = pytest.mark.eval(cases=many, request=asks)
"""
    + TESTS
)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_is_lost_where_threads_take_turns_all_the_time(tmp_path: Path, mode: str) -> None:
    project = Project(tmp_path / "project").write(conftest=SWITCHING, test_plain=PLAIN, test_stepped=STEPPED)
    found = project.run(mode=mode, apart=True)
    assert found.counts == {"pass": 2 * NUM_CASES}, found.output
    kinds = Counter(line["kind"] for line in found.journal)
    assert (kinds["generation"], kinds["step"]) == (2 * NUM_CASES, 3 * NUM_CASES)
