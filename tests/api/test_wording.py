"""Counts and numbers as people read them."""

from __future__ import annotations

import pytest

from evalharness.analysis.gate_grammar import parse_gate
from evalharness.analysis.gates import evaluate_gate
from evalharness.api.wording import figure_text, number_text, part_of, plural


def test_one_is_singular_everything_else_plural() -> None:
    assert [plural(count, "case") for count in (0, 1, 2, 1000)] == ["0 cases", "1 case", "2 cases", "1,000 cases"]
    assert (part_of(1, 1, "gate"), part_of(1, 3, "gate")) == ("1 of 1 gate", "1 of 3 gates")


@pytest.mark.parametrize(
    ("value", "name", "text"),
    [(0.85, "f1", "0.850"), (0.00004, "f1", "4e-05"), (192.0, "num_chars", "192"), (1234.5, "loss", "1,234"), (1.25, "num_words", "1.2")],
)
def test_a_gate_shows_the_number_that_reports_show(value: float, name: str, text: str) -> None:
    gate = parse_gate(f"{name} > {value + 1}")
    row = {"outcome": "pass", "scores": {name: value}, "started_at": "now"}
    reason = evaluate_gate(gate, [row], {}, incomplete=None)["reason"]  # type: ignore[arg-type, list-item]
    assert figure_text(value, name) == text
    assert reason.startswith(f"{text}, needs > ")
    assert number_text(0.8500) == "0.850"
