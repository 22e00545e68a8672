from __future__ import annotations

import re
from typing import Any

import pytest

from evalharness.analysis.gates import BUILT_IN_METRICS, Gate, RegressionGate, evaluate_gate, mean_scores, parse_gate
from evalharness.api.errors import ConfigError
from evalharness.runs.schema import GateVerdict


def row(outcome: str = "pass", generation: dict[str, Any] | None = None, **scores: float) -> dict[str, Any]:
    return {"outcome": outcome, "scores": scores, "generation": generation}


def judged(
    expression: str, *rows: dict[str, Any], aggregates: dict[str, float] | None = None, incomplete: str | None = None
) -> GateVerdict:
    return evaluate_gate(parse_gate(expression), rows, aggregates or {}, incomplete=incomplete)


class TestParsing:
    @pytest.mark.parametrize(
        ("expression", "metric", "comparison", "threshold"),
        [
            ("valid >= 0.95", "valid", ">=", 0.95),
            ("valid>=.5", "valid", ">=", 0.5),
            ("  x <= 1. ", "x", "<=", 1.0),
            ("a.b/c@3 < -1e-3", "a.b/c@3", "<", -0.001),
            ("_x-y > +2", "_x-y", ">", 2.0),
            ("n == 4", "n", "==", 4.0),
            ("größe >= 1", "größe", ">=", 1.0),
        ],
    )
    def test_an_expression_is_metric_comparison_number(self, expression: str, metric: str, comparison: str, threshold: float) -> None:
        gate = parse_gate(expression)
        assert (gate.metric, gate.comparison, gate.threshold) == (metric, comparison, threshold)

    @pytest.mark.parametrize(
        "expression",
        ["", "valid", "valid >=", ">= 1", "valid => 1", "valid != 1", "valid >= x", "1 >= valid", "valid >= 1 2", "valid >= nan",
         "valid >= inf", "a >= 1 and b >= 2", "valid >= 0,5", "valid >= 95%", "no_regression()", "no_regression(f1",
         "no_regression(f1,)", "no_regression(a b)", "no_regressions", None, 3, ["valid >= 1"], b"valid >= 1"],
        ids=repr,
    )  # fmt: skip
    def test_all_else_is_refused_with_the_grammar(self, expression: object) -> None:
        grammar = "write 'metric >= number' with one of: >=, <=, >, <, ==; or 'no_regression' or 'no_regression(metric, metric)'"
        with pytest.raises(ConfigError, match=rf"^gate .* is not understood; {re.escape(grammar)}$"):
            parse_gate(expression)

    @pytest.mark.parametrize(
        ("expression", "metrics"),
        [
            ("no_regression", ()),
            (" no_regression ", ()),
            ("no_regression(f1)", ("f1",)),
            ("no_regression( category_f1 ,valid )", ("category_f1", "valid")),
        ],
    )
    def test_no_regression_may_name_metrics(self, expression: str, metrics: tuple[str, ...]) -> None:
        gate = parse_gate(expression)
        assert gate == RegressionGate(expression.strip(), metrics)
        assert gate.metric == "no_regression"

    def test_a_score_of_that_name_can_still_be_compared_with_a_number(self) -> None:
        assert isinstance(parse_gate("no_regression >= 1"), Gate)


class TestJudging:
    @pytest.mark.parametrize(
        ("expression", "passed"),
        [("x >= 0.5", True), ("x > 0.5", False), ("x <= 0.5", True), ("x < 0.5", False), ("x == 0.5", True), ("x == 0.4", False)],
    )
    def test_the_mean_of_a_score_is_compared(self, expression: str, passed: bool) -> None:
        verdict = judged(expression, row(x=0), row(x=1))
        assert (verdict["passed"], verdict["value"], verdict["n"]) == (passed, 0.5, 2)

    def test_a_verdict_says_why_it_failed(self) -> None:
        assert judged("x >= 0.75", row(x=0), row(x=1))["reason"] == "0.500, needs ≥ 0.75"
        verdict = judged("f1 <= 5", row(x=1, y=2))
        assert (verdict["passed"], verdict["value"], verdict["reason"]) == (False, None, "no case recorded 'f1'; recorded: x, y")
        assert judged("f1 >= 0", row())["reason"] == "no case recorded 'f1'; recorded: nothing"
        assert judged("corect >= 0", row(correct=1))["reason"] == "no case recorded 'corect'; did you mean 'correct'? recorded: correct"
        assert judged("fail_rate <= 0", row(f1=1))["reason"] == "no case recorded 'fail_rate'; did you mean 'pass_rate'? recorded: f1"
        reason = judged("f1 >= 0", row("error"), row("error"), row("invalid"))["reason"]
        assert reason == "no case was judged: 2 ended in an error, 1 could not be run"
        assert judged("f1 >= 0", row("error"), row("error"))["reason"] == "no case was judged: all 2 cases ended in an error"
        assert not judged("pass_rate <= 1")["passed"]

    @pytest.mark.parametrize("expression", ["x >= 0", "pass_rate >= 0", "extra >= 0"])
    def test_an_incomplete_run_never_passes(self, expression: str) -> None:
        verdict = judged(expression, row(x=1), aggregates={"extra": 1.0}, incomplete="3 of 4 cases were not run")
        assert (verdict["passed"], verdict["reason"]) == (False, "not judged: 3 of 4 cases were not run")

    def test_half_of_the_cases_and_skipped_ones_are_enough(self) -> None:
        assert judged("x >= 0.5", row(x=1), row("invalid"), row("skip"), row("skip"))["passed"]

    def test_an_aggregate_wins_over_a_score_of_its_name_and_neither_over_a_rate(self) -> None:
        assert judged("x >= 9", row(x=1), aggregates={"x": 9.0})["value"] == 9.0
        assert judged("pass_rate >= 1", row("miss", pass_rate=1), aggregates={"pass_rate": 1.0})["value"] == 0

    @pytest.mark.parametrize(
        ("metric", "value", "n"),
        [("pass_rate", 1 / 3, 3), ("invalid_rate", 0.2, 5), ("error_rate", 0.2, 5), ("length_rate", 0.5, 4), ("empty_rate", 0.25, 4)],
    )
    def test_rates_are_shares_of_the_rows_that_they_are_about(self, metric: str, value: float, n: int) -> None:
        rows = (
            row("pass", {"finish_reason": "stop", "text": "a"}),
            row("miss", {"finish_reason": "length", "text": " "}),
            row("fail", {"finish_reason": "length", "text": "b"}),
            row("error", {"finish_reason": "stop", "text": "c"}),
            row("invalid"),
            row("skip"),
        )
        verdict = judged(f"{metric} >= 0", *rows)
        assert (verdict["value"], verdict["n"]) == (pytest.approx(value), n)  # type: ignore[comparison-overlap]

    @pytest.mark.parametrize("metric", ["length_rate", "empty_rate"])
    def test_of_several_samples_one_is_enough_for_a_rate(self, metric: str) -> None:
        good, bad = {"finish_reason": "stop", "text": "a"}, {"finish_reason": "length", "text": ""}
        rows = ({**row("pass", good), "generations": [good, bad, None]}, {**row("pass", good), "generations": [good, good]})
        assert judged(f"{metric} >= 0", *rows)["value"] == 0.5

    @pytest.mark.parametrize("outcome", ["error", "invalid", "skip"])
    @pytest.mark.parametrize("expression", ["pass_rate >= 0", "pass_rate <= 1", "length_rate <= 0.1", "empty_rate == 0"])
    def test_a_rate_of_nothing_never_passes(self, outcome: str, expression: str) -> None:
        verdict = judged(expression, row(outcome), row(outcome))
        assert (verdict["passed"], verdict["value"]) == (False, None)
        assert verdict["reason"] == f"no case was {'judged' if 'pass' in expression else 'generated'}"
        for rate in ("invalid_rate == 0", "error_rate <= 1"):
            assert judged(rate, row("skip"))["reason"] == "no case was run"

    @pytest.mark.parametrize(
        "expression", ["pass_rate >= 0.5", "length_rate <= 1", "empty_rate <= 1", "x >= 0", "extra >= 0", "invalid_rate <= 0.9"]
    )
    def test_nothing_passes_on_a_minority(self, expression: str) -> None:
        generation = {"finish_reason": "stop", "text": "a"}
        verdict = judged(expression, row("pass", generation, x=1), row("error"), row("invalid"), aggregates={"extra": 1.0})
        assert verdict["reason"] == "not judged: only 1 of 3 cases have a verdict; the others are invalid or errors"

    def test_a_rate_of_invalid_cases_says_how_large_it_is_where_it_fails_and_passes_on_no_errors_alone(self) -> None:
        assert judged("invalid_rate <= 0.1", row("invalid"), row("invalid"), row(x=1))["reason"] == "0.667, needs ≤ 0.10"
        assert not judged("invalid_rate <= 0.1", *[row("error")] * 5)["passed"]
        assert not judged("error_rate <= 1", *[row("error")] * 5)["passed"]

    def test_every_rate_is_tested_above(self) -> None:
        assert set(BUILT_IN_METRICS) == {"pass_rate", "invalid_rate", "error_rate", "length_rate", "empty_rate"}


class TestMeans:
    def test_rows_without_the_score_count_for_nothing(self) -> None:
        assert mean_scores([row(x=1, y=4), row(x=2), row("miss"), row("invalid")]) == {"x": 1.5, "y": 4}

    @pytest.mark.parametrize("outcome", ["error", "invalid", "skip"])
    def test_what_a_test_scored_before_it_broke_counts_for_nothing(self, outcome: str) -> None:
        assert mean_scores([row(x=1), row(outcome, x=0)]) == {"x": 1.0}
        assert judged("x >= 1", row(x=1), row(outcome, x=0))["n"] == 1

    def test_misses_and_failures_count(self) -> None:
        assert mean_scores([row("pass", x=1), row("miss", x=0), row("fail", x=0.5)]) == {"x": 0.5}
        assert mean_scores([]) == {}
