"""What was asked of the project as a whole: packages, folders, the command as typed, lint, docs. Run: pytest tests/docs/test_project.py"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import evalharness
from evalharness import training
from tests.processes import python

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))


def named(lines: list[str]) -> dict[str, Requirement]:
    return {one.name: one for one in map(Requirement, lines)}


def test_the_packages_that_were_named_are_depended_on() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    assert {"pytest", "pytest-xdist", "pillow", "pandas", "tabulate"} <= named(project["dependencies"]).keys()
    assert {"torch", "transformers"} <= named(extras["hf"]).keys()
    assert {"evalharness", "vllm"} == named(extras["vllm"]).keys()
    assert not {"vllm", "torch"} & named(project["dependencies"]).keys()
    wanted = named(extras["vllm"])["vllm"].specifier
    assert (wanted.contains("0.32.0"), wanted.contains("0.11.0")) == (True, False)


def test_the_top_level_has_the_folders_that_were_named() -> None:
    assert {"evalharness", "evals", "fixtures", "tests", "conftest.py", "pyproject.toml"} <= {path.name for path in ROOT.iterdir()}
    assert "/reports/" in (ROOT / ".gitignore").read_text("utf-8").split(), "the folder that runs make"


@pytest.mark.slow
def test_the_command_that_was_named_selects_stage_a() -> None:
    code, output = python("-m", "pytest", "evals", "-k", "stage_a", "--backend", "vllm", "--collect-only", "-q", cwd=ROOT)
    found = re.findall(r"^evals/(\w+)\.py::(.*)$", output, re.MULTILINE)
    assert code == 0, output
    assert {module for module, _ in found} == {"test_stage_a"}
    assert all(re.match(r"test_\w+\[vllm:final-", test) for _, test in found)


def test_lint_runs_a_linter_and_a_strict_type_checker() -> None:
    lint = (ROOT / "Makefile").read_text("utf-8").partition("\nlint: ")[2].partition("\n\n")[0]
    assert all(command in lint for command in ("/ruff check .", "/mypy"))
    assert PROJECT["tool"]["mypy"]["strict"] is True
    assert {"evalharness", "evals", "tests"} <= set(PROJECT["tool"]["mypy"]["files"])
    assert (Path(evalharness.__file__).parent / "py.typed").is_file()


def test_every_shipped_eval_is_documented() -> None:
    table = re.findall(r"^\| `(test_\w+\.py)` \| \S", (ROOT / "docs" / "shipped_evals.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(table) == sorted(path.name for path in (ROOT / "evals").rglob("test_*.py"))


def public(place: Any) -> dict[str, Any]:
    """Return the public classes and functions of a package, and the methods that each class defines itself."""
    values = {name: getattr(place, name) for name in dir(place) if name[0] != "_"}
    found = {name: value for name, value in values.items() if inspect.isfunction(value) or inspect.isclass(value)}
    for name, value in list(found.items()):
        if inspect.isclass(value):
            found |= {f"{name}.{one}": method for one, method in vars(value).items() if inspect.isfunction(method) and one[0] != "_"}
    return found


@pytest.mark.parametrize("place", [evalharness, training], ids=["evalharness", "training"])
def test_every_public_name_has_a_docstring(place: Any) -> None:
    assert [name for name, value in public(place).items() if not inspect.getdoc(value)] == []
