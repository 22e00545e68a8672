"""docs/features.md says what is true. Run: pytest tests/test_docs_features.py"""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

TESTS = Path(__file__).parent
PAGE = (TESTS.parent / "docs" / "features.md").read_text("utf-8")
NAMED = re.compile(r"`([^`\s]+\.py)::(test_\w+)`")


def _rows(num_cells: int) -> list[list[str]]:
    """Return the cells of the rows of all tables with so many columns, without headings."""
    lines = [line for line in PAGE.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    rules = [position for position, row in enumerate(rows) if set("".join(row)) == {"-"}]
    return [row for position, row in enumerate(rows) if len(row) == num_cells and position not in rules and position + 1 not in rules]


FEATURES = _rows(4)
BEHAVIOURS = {int(row[0]): row for row in _rows(3)}
ROWS = [*FEATURES, *BEHAVIOURS.values()]


@cache
def _tests_of(path: Path) -> frozenset[str]:
    """Return the names that pytest collects from a file: test functions, in classes too."""
    tree = ast.parse(path.read_text("utf-8"))
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name.startswith("Test"))]
    return frozenset(node.name for body in bodies for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def test_every_behaviour_has_one_row() -> None:
    assert [int(row[0]) for row in _rows(3)] == list(range(1, 31))


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_a_row_is_whole_and_its_tests_exist(row: list[str]) -> None:
    assert all(row), row
    named = NAMED.findall(row[-1])
    for path, name in named:
        assert name in _tests_of(TESTS / path), (path, name)
    assert named, f"no test is named in the last cell: {row[-1]}"
    assert not any(cell == "open" or "open: " in cell for cell in row), f"not built: {row[0]}"


def test_every_test_with_a_number_is_in_its_row() -> None:
    missing = []
    for path in sorted(TESTS.rglob("test_*.py")):
        for name in sorted(_tests_of(path)):
            number = re.match(r"test_(\d\d?)_", name)
            if number and int(number[1]) in BEHAVIOURS:  # higher numbers are the tasks'
                named = f"`{path.relative_to(TESTS).as_posix()}::{name}`"
                if named not in BEHAVIOURS[int(number[1])][-1]:
                    missing.append(f"row {number[1]} of docs/features.md lacks {named}")
    assert missing == []
