"""What an engine may legally give is legal in a journal: a run must be able to read its own records."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import RecordError
from evalharness.api.options import GenerationOptions
from evalharness.runs.journal import Line
from evalharness.runs.line_types import check_line

LARGEST_SEED = 2**63 - 1


def line(**generation: Any) -> Line:
    values = {"kind": "generation", "engine": "e", "eval": "a", "case_id": "c", "sample": 0, "generation": generation}
    return Line(values, b"", Path("main.jsonl"), 0, 1)


@pytest.mark.parametrize(
    "generation",
    [{"seed": GenerationOptions(temperature=1.0, seed=LARGEST_SEED).seed}, {"token_ids": []}, {"logprobs": [-0.5, None, "-inf", 0]}],
    ids=["the largest seed", "no tokens", "log-probabilities"],
)
def test_what_engines_give_is_read(generation: dict[str, Any]) -> None:
    check_line(line(**generation))


@pytest.mark.parametrize(
    "generation", [{"seed": -1}, {"token_ids": [1, -1]}, {"token_ids": [True]}, {"logprobs": [[]]}, {"token_ids": None}]
)
def test_what_no_engine_gives_is_refused(generation: dict[str, Any]) -> None:
    with pytest.raises(RecordError, match=r"main.jsonl:1 is a generation line with a wrong 'generation'"):
        check_line(line(**generation))


@pytest.mark.parametrize("number", [1e308, -1.0, float("nan"), True, "1"])
def test_work_that_could_not_be_summed_is_refused(number: object) -> None:
    def unit(work: Any) -> Line:
        return Line({"kind": "unit", "engine": "e", "eval": "a", "generation_s": 1.0, "work": work}, b"", Path("main.jsonl"), 0, 1)

    check_line(unit({"num_steps": 7.0, "sum_patch_squares": 1e18}))
    with pytest.raises(RecordError, match="is a unit line with a wrong 'work'"):
        check_line(unit({"num_steps": number}))
