"""Gates on a number in a run that left cases out: judged only where every mean within the limits gives one verdict."""

from __future__ import annotations

from typing import Any

import pytest

from evalharness.analysis.comparison.sheets import CaseLine, Sheet, Side
from evalharness.analysis.gate_grammar import Gate, parse_gate
from evalharness.analysis.judge_certain import judged_by_limits
from evalharness.runs.partial import NOT_ASKED

NUM, KNOWN = 200, 150


def rows() -> list[Any]:
    shared = {"eval": "e", "test": "t", "engine": "fake:a", "group": None}
    asked: list[dict[str, Any]] = [
        {**shared, "case_id": f"c{n}", "outcome": "pass", "scores": {"right": float(n % 2)}} for n in range(KNOWN)
    ]
    asked[0]["stratum"] = 7  # a stranger's
    left = {**shared, "outcome": "skip", "problem": f"{NOT_ASKED}decided", "scores": {}}
    return [*asked, *({**left, "case_id": f"c{n}"} for n in range(KNOWN, NUM))]


@pytest.mark.parametrize(
    ("expression", "passed"),
    [
        ("right >= 0.2", True),
        ("right >= 0.8", False),
        ("right >= 0.5", None),
        ("right == 0.5", None),
        ("right == 0.9", False),
        ("drop(right) <= 0.9", None),
        ("p95(right) >= 0", None),
        ("completion_tokens >= 0", None),
    ],
)
def test_a_gate_is_judged_where_all_limits_agree(expression: str, passed: bool | None) -> None:
    cases = {f"c{n}": CaseLine("pass", {"right": float(n % 2)}, {}, None, None) for n in range(NUM)}
    base: Any = Side.__new__(Side)
    base.sheets, base.directions = {("e", "t"): Sheet("e", "t", cases=cases)}, {}
    gate = parse_gate(expression)
    assert isinstance(gate, Gate)
    verdict = judged_by_limits(gate, base, {}, rows())
    assert verdict["passed"] is passed
