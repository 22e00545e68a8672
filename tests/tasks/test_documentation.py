"""docs/task_behaviours.md says what is true. Run: pytest tests/tasks/test_documentation.py"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROWS = [
    (int(number), cell)
    for number, cell in re.findall(r"^\| (\d+) \| .* \| (.*) \|$", (ROOT / "docs" / "task_behaviours.md").read_text("utf-8"), re.MULTILINE)
]


def test_every_behaviour_has_a_row_with_tests_that_exist() -> None:
    assert [number for number, _ in ROWS] == list(range(36, 76))
    for number, cell in ROWS:
        tests = re.findall(r"`([^`\s]+\.py)::(test_\w+)`", cell)
        assert tests, number
        for path, name in tests:
            assert f"def {name}(" in (ROOT / "tests" / path).read_text("utf-8"), (number, path, name)


def test_every_test_with_a_number_is_in_its_row() -> None:
    cells = dict(ROWS)
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name, number in re.findall(r"^ *def (test_b?(\d\d)_\w+)", path.read_text("utf-8"), re.MULTILINE):
            if int(number) in cells:  # lower numbers are the engine's
                assert name in cells[int(number)], name
