"""Metrics that are no means: intervals by drawing groups anew, paired over runs, and averages over the evals of a suite."""

from __future__ import annotations

import random

import pytest

from evalharness.analysis.eval_functions import EvalFunctions, aggregate_rows
from evalharness.analysis.statistics.aggregates import differences, draws_of, interval_of
from evalharness.analysis.statistics.intervals import mean_intervals
from evalharness.analysis.suites import suite_aggregates
from evalharness.scores import all_of, macro_over, with_draws


def rows_of(values, groups=None, eval_name="a", **more):
    return [
        {
            "eval": eval_name, "test": "test_s", "engine": "fake:x", "outcome": "pass", "case_id": f"c{number}", "tags": {},
            "group": None if groups is None else groups[number], "scores": {"s": value}, **more,
        }
        for number, value in enumerate(values)
    ]  # fmt: skip


def mean(rows):
    return {"mean": sum(row["scores"]["s"] for row in rows) / len(rows)}


def functions(name="a", **more):
    return EvalFunctions(name, f"test_{name}.py", None, more.pop("aggregate", mean), None, None, None, **more)


def test_an_interval_of_a_mean_is_about_that_of_means():
    size = 3
    draw = random.Random(0)
    values = [level + draw.gauss(0, 0.2) for level in (draw.gauss(0.5, 1) for _ in range(60)) for _ in range(size)]
    groups = [f"g{number // size}" for number in range(len(values))]
    import numpy as np

    known = mean_intervals(np.array(values)[:, None], groups, is_rate=[False], is_bounded=[False])[0]
    [entry] = aggregate_rows([functions(draws=300)], rows_of(values, groups), problems := [])
    assert not problems
    assert entry["num_groups"] == 60
    width = known.high - known.low
    assert abs(entry["low"] - known.low) < 0.15 * width
    assert abs(entry["high"] - known.high) < 0.15 * width


def test_two_runs_draw_the_same_cases():
    values = [random.Random(number).random() for number in range(40)]
    before, after = rows_of(values), rows_of([value + 0.1 for value in values])[::-1]
    draws = [draws_of(rows, mean, 100)["mean"] for rows in (before, after)]
    apart = differences(*draws)
    assert apart == pytest.approx([0.1] * 100)
    assert interval_of(0.1, draws[0], 40) is not None
    assert interval_of(0.1, [round(value, 9) for value in apart], 40) is None  # certain: nothing varies
    assert interval_of(0.1, draws[0], 1) is None
    assert interval_of(0.1, [None] * 20 + draws[0][:80], 40) is None  # too few numbers


def test_what_is_drawn_twice_has_a_name_of_its_own():
    def distinct(rows):
        assert len({row["case_id"] for row in rows}) == len(rows)
        groups = {row["group"] for row in rows}
        assert all(sum(row["group"] == group for row in rows) == 2 for group in groups)
        return {"num": float(len(groups))}

    draws = draws_of(rows_of(range(20), [f"g{number // 2}" for number in range(20)]), distinct, 100)["num"]
    assert 8 < sum(draws) / 100 < 12
    assert len(set(draws)) > 3


def test_an_aggregate_may_compute_all_its_draws_at_once():
    @with_draws(lambda rows, times: {"mean": times.T @ [row["scores"]["s"] for row in rows] / times.sum(axis=0)})
    def at_once(rows):
        return mean(rows)

    rows = rows_of([number % 7 for number in range(40)], [f"g{number // 2}" for number in range(40)])
    [one], [other] = (aggregate_rows([functions(aggregate=each, draws=100)], rows, []) for each in (mean, at_once))
    assert one["draws"] == other["draws"]
    assert (one["low"], one["high"]) == (other["low"], other["high"])
    short = with_draws(lambda rows, times: {"mean": [0.0]})(lambda rows: mean(rows))
    [entry] = aggregate_rows([functions(aggregate=short, draws=100)], rows, problems := [])
    assert "low" not in entry
    assert "of_draws must give a value for each of 100 draws, got 1 of 'mean'" in problems[0]


def test_a_metric_that_draws_bias_keeps_its_value_within():
    draws = [0.3 + random.Random(number).gauss(0, 0.02) for number in range(200)]
    low, high = interval_of(0.2, draws, 50) or (0, 0)
    assert low == pytest.approx(0.2 - (high - 0.2))
    assert 0.15 < low < 0.17


def test_a_function_that_breaks_in_a_draw_costs_the_intervals_alone():
    def brittle(rows):
        if any("(" in row["case_id"] for row in rows):
            raise ValueError("twice")
        return {"mean": 1.0, "none": None}

    [entry] = aggregate_rows([functions(aggregate=brittle, draws=100)], rows_of([1, 2]), problems := [])
    assert entry["value"] == 1
    assert "low" not in entry
    assert problems == ["test_a.py: aggregate for test_s on fake:x failed: ValueError: twice"]


def test_suites_count_tests_or_cases_alike():
    rows = [*rows_of([1, 1, 0, 0]), *rows_of([1] * 12, eval_name="b"), *rows_of([0], eval_name="other")]
    evals = [functions("a", suite="all"), functions("b", suite="all"), functions("other")]
    found = {entry["metric"]: entry for entry in suite_aggregates(evals, rows)}
    assert (found["s_macro"]["value"], found["s_micro"]["value"]) == (0.75, 14 / 16)
    assert found["s_macro"]["members"] == ["a", "b"]
    assert 0.4 < found["s_macro"]["low"] < 0.75 < found["s_macro"]["high"]
    assert found["s_micro"]["num_groups"] == 16


def test_macro_over_a_tag_and_functions_together():
    rows = [*rows_of([1, 1, 1], tags={"k": "x"}), *rows_of([0], tags={"k": "y"}), *rows_of([5])]
    assert all_of(macro_over("k", "s", "gone"), mean)(rows) == {"s_macro": 0.5, "mean": 8 / 5}
