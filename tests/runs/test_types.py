"""mypy refuses misspelt fields of the records and misspelt options: they are typed, and the tests' plugin makes `get` strict."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow  # without mypy's cache it reads half the package
pytest.importorskip("mypy")

ROOT = Path(__file__).parents[2]
WRONG = {
    "row": 'row["outcom"]',
    "row-get": 'row.get("outcom")',
    "row-get-with-default": 'row.get("detials", {})',
    "generation-of-row": '(row.get("generation") or {}).get("txet")',
    "run": 'run["enginse"]',
    "run-get": 'run.get("finishd_at")',
    "engine-of-run": 'run["engines"][0].get("chekpoint")',
    "gate": 'run["gates"][0]["pased"]',
    "gate-get": 'run["gates"][0].get("expresion", "")',
    "new-gate": 'GateVerdict(eval="e", test="t", engin="x")',
    "journal-row": 'journal.write("row", {"nodeid": "n", "outcom": "pass"})',
    "journal-outcome": 'journal.write("failure", {"engine": "e", "eval": "a", "case": "c"})',
    "journal-engine": 'journal.write("engine", {"id": "e", "load": 1.0})',
    "journal-unit": 'journal.write("unit", {"engine": "e", "generation": 1.0})',
    "journal-kind": 'journal.write("rwo", {"nodeid": "n"})',
    "option": "config.sed",
    "new-option": "RunConfig(sed=3)",
}
RIGHT = {
    "row": 'row.get("details", {}).get("anything")',
    "gate": 'run["gates"][0].get("expression", "")',
    "journal": 'journal.write("unit", {"engine": "e", "eval": "a", "generation_s": 1.0})',
    "option": "config.seed",
}
HEAD = """
from evalharness.config import RunConfig
from evalharness.runs.journal import Journal
from evalharness.runs.schema import GateVerdict, Row, RunFile

def read(row: Row, run: RunFile, journal: Journal, config: RunConfig) -> None:
"""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """What mypy says by line of a module with all expressions, `WRONG` before `RIGHT`, one a line from line 0."""
    module = tmp_path_factory.mktemp("typed") / "module.py"
    module.write_text(HEAD + "".join(f"    {expression}\n" for expression in (*WRONG.values(), *RIGHT.values())))
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", "--follow-imports=silent", str(module)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, cwd=ROOT)
    assert done.returncode == 1, done.stdout + done.stderr
    lines = [line.split(":", 3) for line in done.stdout.splitlines() if ": error: " in line]
    return {int(number) - HEAD.count("\n") - 1: message for _, number, _, message in lines}


@pytest.mark.parametrize("number", range(len(WRONG)), ids=WRONG)
def test_a_misspelt_name_fails_mypy(errors: dict[int, str], number: int) -> None:
    assert number in errors


def test_names_that_exist_pass(errors: dict[int, str]) -> None:
    assert not [number for number in errors if number >= len(WRONG)]
