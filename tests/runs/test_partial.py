"""What a run says of the evals that it holds in part. Run: pytest tests/runs/test_partial.py"""

from __future__ import annotations

from typing import Any, cast

import pytest

from evalharness.runs.partial import NOT_ASKED, how_drawn, part_texts, parts_of_evals, stopped_evals
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


def row(case_id: str, engine: str = "fake:a", problem: str | None = None) -> Any:
    return {"eval": "e", "case_id": case_id, "engine": engine, "outcome": "skip" if problem else "pass", "problem": problem}


LINE: Any = {"name": "e", "num_all_cases": 4, "num_all_tests": 4}


def test_what_was_left_out_is_not_in_a_run_and_the_engine_that_stopped_first_counts() -> None:
    left = f"{NOT_ASKED}decided"
    rows = [row("a"), row("b"), row("c", problem=left), row("d", problem=left)]
    rows += [row(name, "fake:b") for name in "abc"] + [row("d", "fake:b", left)]
    (part,) = parts_of_evals([LINE], rows)
    assert part == {"eval": "e", "what": "cases", "num": 2, "of": 4, "until_certain": True}
    assert part_texts({"partial": [part]}) == {"e": "2 of 4 cases of e"}
    assert stopped_evals({"partial": [part]}) == ["e"]


def test_of_an_eval_may_be_nothing_left_but_what_was_left_out() -> None:
    (part,) = parts_of_evals([LINE], [row("a", problem=f"{NOT_ASKED}decided")])
    assert part["num"] == 0


def test_cases_that_were_selected_before_are_what_was_drawn_from() -> None:
    (part,) = parts_of_evals([LINE | {"num_all_cases": 9}], [row("a"), row("b", problem=f"{NOT_ASKED}decided")])
    assert part == {"eval": "e", "what": "cases", "num": 1, "of": 9, "until_certain": True, "drawn_from": 2}
    assert how_drawn({"partial": [part]}) == {"e": "drawn at random from 2 that were selected"}


def test_a_test_that_skips_itself_is_in_the_run() -> None:
    assert parts_of_evals([LINE], [row(name, problem="no photo") for name in "abcd"]) == []
    assert stopped_evals({"partial": [{"eval": "e", "what": "cases", "num": 1, "of": 4}]}) == []
