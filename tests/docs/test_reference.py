"""The tables of docs/writing_evals.md list what there is, by its name, with its default."""

from __future__ import annotations

import inspect
import re
from dataclasses import MISSING, Field, fields
from typing import Any

import pytest

import evalharness
from evalharness import Case, GenerationOptions, GenerationResult
from evalharness.analysis.gate_grammar import QUANTITIES, RATES, SPEEDS, parse_gate
from evalharness.analysis.gates import BUILT_IN_METRICS
from evalharness.cli.commands.init import STARTERS
from evalharness.pytest_plugin import fixtures
from evalharness.pytest_plugin.eval_module import _KEYWORDS
from tests.docs.pages import PAGES

PAGE = PAGES["docs/writing_evals.md"]


def rows(heading: str, first: str) -> list[list[str]]:
    """Return the cells of the table under a heading whose first column is called `first`."""
    section = PAGE.partition(f"\n### {heading}\n")[2].partition("\n### ")[0]
    table = section.partition(f"\n| {first} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.removeprefix("|").removesuffix("|").split("|")] for line in table.splitlines()[2:]]


def names(heading: str, first: str) -> list[str]:
    """Return the names in the first column."""
    return [name for row in rows(heading, first) for name in re.findall(r"`(\w+)`", row[0])]


def default(field: Field[Any]) -> str:
    if field.default_factory is not MISSING:
        made = field.default_factory()
        return repr(made) if isinstance(made, (dict, tuple)) else f"{type(made).__name__}()"
    return "" if field.default is MISSING else f'"{field.default}"' if isinstance(field.default, str) else repr(field.default)


@pytest.mark.parametrize("kind", [Case, GenerationOptions, GenerationResult])
def test_every_field_is_listed(kind: Any) -> None:
    assert names(kind.__name__, "field") == [field.name for field in fields(kind)]


@pytest.mark.parametrize("kind", [Case, GenerationOptions])
def test_every_default_is_that_of_the_code(kind: Any) -> None:
    assert [row[1].strip("`") for row in rows(kind.__name__, "field")] == [default(field) for field in fields(kind)]


def test_requests_are_listed_with_their_arguments() -> None:
    for call, _ in rows("Requests", "request"):
        name, _, arguments = call.strip("`").partition("(")
        signature = inspect.signature(getattr(evalharness, name))
        assert arguments.removesuffix(")") == ", ".join(
            one.name if one.default is one.empty else f"{one.name}={one.default!r}" for one in signature.parameters.values()
        )
    assert {call.strip("`").partition("(")[0] for call, _ in rows("Requests", "request")} == {
        name for name in evalharness.__all__ if name.endswith("Request")
    }


def test_the_marker_fixtures_and_metrics_are_listed() -> None:
    assert set(names("The marker", "argument")) == set(_KEYWORDS)
    ours = {name for name, value in vars(fixtures).items() if type(value).__name__ == "FixtureFunctionDefinition"}
    assert set(names("Fixtures", "fixture")) == ours
    assert names("Built-in metrics and the grammar of gates", "metric") == list(BUILT_IN_METRICS) == list(RATES)
    assert names("Built-in metrics and the grammar of gates", "metric | what it is, of each answer") == list(QUANTITIES)
    assert names("Built-in metrics and the grammar of gates", "metric | what it is, of an engine for the whole run") == list(SPEEDS)


def test_every_form_of_a_gate_is_understood() -> None:
    forms = [form for row in rows("Built-in metrics and the grammar of gates", "gate") for form in re.findall(r"`\"([^\"]+)\"`", row[0])]
    assert len(forms) >= 3
    for form in forms:
        parse_gate(form.replace("NUMBER", "0.5").replace("METRIC", "correct").replace("TAG", "continent").replace("VALUE", "Asia"))


def test_every_template_of_init_is_listed() -> None:
    table = PAGES["docs/command_line.md"].partition("\n| `--template` |")[2].partition("\n\n")[0]
    assert re.findall(r"^\| `(\w+)`", table, re.MULTILINE) == list(STARTERS)
    assert f"--template {'|'.join(STARTERS)}`" in PAGE
    assert f"--template {'|'.join(STARTERS)}`" in PAGES["README.md"]
