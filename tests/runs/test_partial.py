"""What a run says of the evals that it holds in part. Run: pytest tests/runs/test_partial.py"""

from __future__ import annotations

from typing import Any, cast

import pytest

from evalharness.runs.partial import part_texts
from evalharness.runs.schema import RunFile


def texts(*parts: Any) -> dict[str, str]:
    return part_texts(cast(RunFile, {"partial": list(parts)}))


def test_a_part_is_said_in_what_it_is_a_part_of() -> None:
    part = {"eval": "a", "what": "cases", "num": 3, "of": 1820}
    assert texts(part, {**part, "eval": "b", "what": "tests"}) == {"a": "3 of 1,820 cases of a", "b": "3 of 1,820 tests of b"}


@pytest.mark.parametrize("number", ["x", None, 1.5, [], {}])
def test_a_damaged_number_breaks_no_report(number: object) -> None:
    assert texts({"eval": "a", "what": "cases", "num": number, "of": 2}, {"eval": 3}, "text") == {
        "a": "? of 2 cases of a",
        "3": "? of ?  of 3",
    }
