"""docs/features.md is what docs/features.csv says: every requirement once, with tests that exist. Run: pytest tests/docs"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from docs.make_features import COLUMNS, DOCUMENTS, PAGE, TABLE, page, read_rows

ROOT = Path(__file__).parents[2]
ROWS = read_rows()


def test_the_page_is_what_the_table_gives() -> None:
    text = PAGE.read_text("utf-8")
    assert text == page(text, ROWS), "run: python docs/make_features.py"


def test_every_requirement_has_one_line() -> None:
    assert TABLE.read_text("utf-8").partition("\n")[0].split(",") == list(COLUMNS)
    assert [int(row["number"]) for row in ROWS] == list(range(1, 315))
    assert len({row["id"] for row in ROWS}) == len(ROWS)
    assert {row["document"] for row in ROWS} == set(DOCUMENTS)


def test_a_line_says_how_it_is_had_and_which_tests_show_it_or_why_it_is_not() -> None:
    assert [row["number"] for row in ROWS if not row["requirement"] or not (row["here"] or row["differs"])] == []
    assert [row["number"] for row in ROWS if row["here"] and not row["tests"]] == [], "what is had here has a test that shows it"
    assert [(row["number"], test) for row in ROWS for test in row["tests"].split() if not exists(test)] == [], "these tests do not exist"


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def exists(test: str) -> bool:
    """Return whether a file defines this test, also in a class or in what that class inherits."""
    path, *classes, name = test.split("::")
    file = ROOT / path
    if not file.is_file():
        return False
    return name in (methods_of(file, classes[0]) if classes else functions_in(tree_of(file)))


def functions_in(node: ast.AST) -> set[str]:
    return {child.name for child in ast.iter_child_nodes(node) if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))}


def methods_of(file: Path, name: str) -> set[str]:
    """Return the methods of a test class and of its bases that other files of ours define."""
    classes = {node.name: node for node in tree_of(file).body if isinstance(node, ast.ClassDef)}
    if name not in classes:
        return set()
    homes = {alias.name: node.module for node in tree_of(file).body if isinstance(node, ast.ImportFrom) for alias in node.names}
    found = functions_in(classes[name])
    for base in map(ast.unparse, classes[name].bases):
        found |= methods_of(ROOT / f"{(homes[base] or '').replace('.', '/')}.py", base)
    return found


@pytest.mark.parametrize(
    ("test", "is_there"),
    [
        ("tests/docs/test_features.py::test_a_made_up_name_is_noticed", True),
        ("tests/docs/test_features.py::test_nothing", False),
        ("tests/docs/test_nowhere.py::test_nothing", False),
        ("tests/contract/test_contract.py::TestBackend::test_the_length_cap_is_exact", True),
        ("tests/contract/test_contract.py::TestBackend::test_nothing", False),
        ("tests/contract/test_contract.py::TestNothing::test_the_length_cap_is_exact", False),
        ("tests/contract/test_contract.py::test_the_length_cap_is_exact", False),
    ],
)
def test_a_made_up_name_is_noticed(test: str, is_there: bool) -> None:
    assert exists(test) is is_there
