from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.gate_grammar import Gate, RegressionGate, parse_gate
from evalharness.analysis.gates import BUILT_IN_METRICS, evaluate_gate, mean_scores
from evalharness.analysis.slice_gates import judge_gate, refuse_unknown_slices
from evalharness.api.errors import ConfigError
from evalharness.report.tables import load_tables
from evalharness.runs.schema import GateVerdict
from tests.report.runs import row as recorded, write_run


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
        ["", "valid", "valid >=", ">= 1", "valid != 1", "valid >= x", "1 >= valid", "valid >= 1 2", "valid >= nan",
         "valid >= inf", "a >= 1 and b >= 2", "low(valid >= 1", "valid) >= 1", "valid[] >= 1",
         "valid[=x] >= 1", "valid[site] >= 1", "valid[a=b][c=d] >= 1", "low(valid)[a=b] >= 1", "low() >= 1", "no_regression[a=b]",
         "valid >= 0,5", "valid >= 95%", "no_regression()", "no_regression(f1",
         "no_regression(f1,)", "no_regression(a b)", None, 3, ["valid >= 1"], b"valid >= 1"],
        ids=repr,
    )  # fmt: skip
    def test_all_else_is_refused_with_the_grammar(self, expression: object) -> None:
        grammar = "write 'metric >= number' with one of: >=, <=, >, <, ==; 'metric[tag=value] >= number' for a slice, with '*' for"
        with pytest.raises(
            ConfigError, match=rf"^gate .* is not understood[;:] (.*; )?{re.escape(grammar)} each value.*'no_regression\(metric, m"
        ):
            parse_gate(expression)

    @pytest.mark.parametrize(
        ("expression", "meant"),
        [
            ("valid => 1", "did you mean '>=' in place of '=>'? write"),
            ("valid[a=b] = 1", "did you mean '==' in place of '='? write"),
            ("low(valid) ≥ 0.9", "did you mean '>=' in place of '≥'? write"),
            ("no_regressions", "did you mean 'no_regression'? write"),
            ("no_regresion(f1)", "did you mean 'no_regression'? write"),
            ("valid[a=b>c and 1,0] => 1", "did you mean '>=' in place of '=>'? write"),
            ("valid >= 90%", "is not understood: write a share, 0.9 in place of 90%; write"),
            ("valid > = 0.9", "write >= and <= without a space"),
            ("0.9 <= valid", "begin with the metric"),
            ("0.5 <= valid <= 0.9", "give two conditions as two gates"),
            ("valid >= 0.9 and f1 >= 1", "give two conditions as two gates"),
            ("valid[*] >= 1", "name a tag: [tag=value], or [tag=*] for each of its values"),
            ("valid[site:a] >= 1", "name a tag: [tag=value]"),
            ("valid[a=b][c=d] >= 1", "a slice is of one tag"),
            ("low(valid)[a=b] >= 1", "write the slice beside the metric: low(metric[tag=value])"),
            ("acc,none >= 0.5", "a comma is no part of a name"),
            ("valid >= 1e400", "its number is too large"),
            ("tokens <= 1,000", "without commas, 1000 or 0.9"),
            ("median(valid) >= 1", "median(…) is not a function of gates; did you mean 'p50'? there are"),
            ("lower(valid) >= 1", "lower(…) is not a function of gates; did you mean 'low'? there are: low, high, p1 … p99, min"),
            ("p100(valid) >= 1", "p100(…) is not a function of gates"),
            ("p0(valid) >= 1", "p0(…) is not a function of gates"),
            ("mean(valid[a=*]) >= 1", "a metric is a mean already; write 'valid[a=*] >= 1'"),
            ("low(low(valid)) >= 1", "low(low(… cannot be combined; low and high take a metric, a drop or a rise"),
            ("drop(low(valid)) >= 1", "cannot be combined"),
            ("low(p95(valid)) >= 1", "cannot be combined"),
            ("drop(p95(valid)) >= 1", "cannot be combined"),
            ("tokens_per_s[site=*] >= 1", "tokens_per_s is one number of an engine for the whole run"),
            ("p95(pass_rate) >= 1", "pass_rate is a share of cases and has no p95"),
            ("drop(error_rate) <= 0", "drop compares cases that both runs judged, which error_rate is not about"),
        ],
    )
    def test_what_was_probably_meant_is_said(self, expression: str, meant: str) -> None:
        with pytest.raises(ConfigError, match=re.escape(meant)):
            parse_gate(expression)

    @pytest.mark.parametrize(
        ("expression", "name", "change", "end", "tag"),
        [
            ("drop(valid) <= 0.02", "drop(valid)", "drop", "", ""),
            (" high ( drop ( valid [ site = * ] ) ) <= .02", "drop(valid)", "drop", "high", "site"),
            ("rise(cer)<0.1", "rise(cer)", "rise", "", ""),
            ("p99.9(completion_tokens) <= 800", "p99.9(completion_tokens)", "", "", ""),
            ("sum(completion_tokens[site=a]) <= 1e6", "sum(completion_tokens)", "", "", "site"),
        ],
    )
    def test_functions(self, expression: str, name: str, change: str, end: str, tag: str) -> None:
        gate = parse_gate(expression)
        assert isinstance(gate, Gate)
        assert (gate.name, gate.change, gate.end, gate.tag) == (name, change, end, tag)
        assert parse_gate("drop <= 1") == Gate("drop <= 1", "drop", "<=", 1.0)

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

    @pytest.mark.parametrize(
        ("expression", "end", "tag", "value"),
        [
            ("low(valid) >= 0.9", "low", "", ""),
            (" high ( valid )<=.1", "high", "", ""),
            ("valid[site=north] >= 0.9", "", "site", "north"),
            ("valid [ site = a, (b)=c ] >= 0.9", "", "site", "a, (b)=c"),
            ("low(valid[任务=*]) >= 0.9", "low", "任务", "*"),
            ("valid[site=] >= 0.9", "", "site", ""),
        ],
    )
    def test_slices_and_ends_of_intervals(self, expression: str, end: str, tag: str, value: str) -> None:
        gate = parse_gate(expression)
        assert isinstance(gate, Gate)
        assert (gate.metric, gate.end, gate.tag, gate.value) == ("valid", end, tag, value)
        assert parse_gate("low >= 1") == Gate("low >= 1", "low", ">=", 1.0)

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
        assert judged("x <= 150", row(x=192))["reason"] == "192, needs ≤ 150"
        assert judged("x <= 150", row(x=150.04))["reason"] == "150.040, needs ≤ 150"
        assert judged("num_x <= 2", row(num_x=3))["reason"] == "3, needs ≤ 2"
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
        assert verdict["reason"] == "only 1 of 3 cases had a verdict; the others were invalid or errors"

    def test_a_rate_of_invalid_cases_says_how_large_it_is_where_it_fails_and_passes_on_no_errors_alone(self) -> None:
        assert judged("invalid_rate <= 0.1", row("invalid"), row("invalid"), row(x=1))["reason"] == "0.667, needs ≤ 0.10"
        assert not judged("invalid_rate <= 0.1", *[row("error")] * 5)["passed"]
        assert not judged("error_rate <= 1", *[row("error")] * 5)["passed"]

    def test_every_rate_is_tested_above(self) -> None:
        assert set(BUILT_IN_METRICS) == {"pass_rate", "invalid_rate", "error_rate", "length_rate", "empty_rate"}


class TestEndsOfIntervals:
    def test_the_end_of_the_interval_is_compared(self) -> None:
        rows = [row(x=1)] * 20
        verdict = judged("low(x) >= 0.9", *rows)
        assert (verdict["passed"], verdict["end"], verdict["n"]) == (False, "low", 20)
        assert verdict["reason"] == "low end of the interval 0.839, needs ≥ 0.90; the mean is 1.000"
        assert judged("low(x) >= 0.8", *rows)["passed"]
        assert judged("high(x) >= 1", *rows)["value"] == 1.0
        assert judged("low(pass_rate) >= 0.8", *rows)["value"] == judged("low(x) >= 0.8", *rows)["value"]

    def test_it_is_that_of_the_report(self, tmp_path: Path) -> None:
        values = [number / 40 for number in range(40)]
        rows = [recorded(f"case-{n}", group=f"g{n % 7}", scores={"x": value, "y": 1.0}) for n, value in enumerate(values)]
        rows += [recorded("case-40", scores={"y": 1.0}), recorded("case-41", outcome="error", scores={"x": 0.0})]
        summary = load_tables(write_run(tmp_path, rows)).scores["stage_a", "test_summary", "hf:tiny", "x"]
        low, high = (judged(f"{end}(x) >= 0", *rows)["value"] for end in ("low", "high"))
        assert (low, high) == (summary.low, summary.high)

    def test_a_metric_without_an_interval_does_not_pass(self) -> None:
        verdict = judged("low(x) >= 0.1", row(x=0.5), row(x=0.5))
        assert (verdict["passed"], verdict["value"]) == (False, None)
        assert verdict["reason"] == "x is 0.500, but has no interval: 2 cases without any difference say nothing of it"
        assert judged("low(extra) >= 0", row(), aggregates={"extra": 0.5})["reason"].endswith(
            "an aggregate, which has one where the eval's marker gives draws=400 and cases vary"
        )
        assert judged("low(x) >= 0", row(x=1), incomplete="cut")["reason"] == "not judged: cut"


def answer(*num_tokens: int, **values: Any) -> dict[str, Any]:
    made = [{"text": "a", "finish_reason": "stop", "num_completion_tokens": num, "num_prompt_tokens": 7, **values} for num in num_tokens]
    return {**row(generation=made[0]), "nodeid": str(num_tokens), **({"generations": made} if len(made) > 1 else {})}


class TestQuantities:
    def test_a_percentile_is_met_by_as_many_answers(self) -> None:
        rows = [answer(num) for num in range(1, 101)]
        assert [judged(f"p{percent}(completion_tokens) <= 95", *rows)["value"] for percent in (1, 50, 95, 99)] == [1, 50, 95, 99]
        assert judged("p95(completion_tokens) <= 95", *rows)["passed"]
        verdict = judged("p95(completion_tokens) <= 94", *rows)
        assert (verdict["metric"], verdict["measure"], verdict["n"]) == ("p95(completion_tokens)", "p95", 100)
        assert verdict["reason"] == "95, needs ≤ 94"

    def test_each_answer_of_a_case_counts(self) -> None:
        rows = [answer(10, 20), answer(600)]
        assert judged("completion_tokens <= 210", *rows)["value"] == 210
        assert [judged(f"{name}(total_tokens) <= 1", *rows)["value"] for name in ("min", "max", "sum")] == [17, 607, 651]
        assert judged("p95(completion_tokens) <= 1", row("error"), answer(5, finish_reason="scored"))["reason"] == (
            "no answer has completion_tokens"
        )
        assert judged("thinking_tokens <= 9", answer(5, thinking={"num_tokens": 3}), answer(5))["value"] == 3

    def test_a_score_of_that_name_comes_first(self) -> None:
        assert judged("completion_tokens <= 1", {**answer(5), "scores": {"completion_tokens": 1.0}})["value"] == 1
        assert judged("p50(x) >= 0.5", row(x=0.2), row(x=0.7), row(x=0.9))["value"] == 0.7
        assert judged("p50(macro) >= 0.5", row(x=1), aggregates={"macro": 1.0})["reason"] == (
            "macro is an aggregate over all cases, which has no p50"
        )

    def test_a_mean_of_tokens_has_an_interval_over_cases(self) -> None:
        rows = [answer(num, num + 1) for num in (100, 110, 120, 130)]
        low, high = (judged(f"{end}(completion_tokens) >= 0", *rows)["value"] for end in ("low", "high"))
        assert low is not None
        assert high is not None
        assert 70 < low < 115.5 < high < 160


def of_slices(expression: str, aggregates: dict[str, float] | None = None, **values: list[float]) -> GateVerdict:
    rows = [{**row(x=value), "tags": {"site": site}} for site, scores in values.items() for value in scores]
    return judge_gate(parse_gate(expression), [*rows, row(x=0)], aggregates or {}, incomplete=None, test_rows=())


class TestSlices:
    def test_the_cases_of_one_value_are_judged(self) -> None:
        verdict = of_slices("x[site=north] >= 0.9", north=[1, 0.7], south=[0])
        assert (verdict["passed"], verdict["value"], verdict["n"], verdict["tag"]) == (False, 0.85, 2, "site")
        assert verdict["reason"] == "0.850, needs ≥ 0.90"
        assert verdict["failed_slices"] == [{"value": "north", "measured": 0.85, "n": 2}]
        passed = of_slices("x[site=north] >= 0.9", north=[1], south=[0])
        assert (passed["passed"], passed["failed_slices"]) == (True, [])

    def test_of_each_value_the_worst_decides_and_all_that_failed_are_named(self) -> None:
        verdict = of_slices("x[site=*] >= 0.9", north=[1], south=[0.5, 0.6], east=[0.1])
        assert (verdict["passed"], verdict["value"], verdict["n"]) == (False, 0.1, 1)
        assert verdict["reason"] == "2 of 3 values of site: east 0.100, needs ≥ 0.90 (n=1); south 0.550, needs ≥ 0.90 (n=2)"
        assert of_slices("x[site=*] <= 0.5", north=[0.4], south=[0.6])["value"] == 0.6
        assert of_slices("x[site=*] >= 0.1", north=[0.4], south=[0.6])["value"] == 0.4
        assert of_slices("pass_rate[site=*] >= 1", north=[0.4])["passed"]

    def test_each_row_is_looked_at_a_few_times_however_many_slices_there_are(self) -> None:
        class Row(dict[str, Any]):
            num_looks = 0

            def __getitem__(self, key: str) -> Any:
                Row.num_looks += 1
                return super().__getitem__(key)

        rows: list[Any] = [Row(row(x=number % 7 / 7), tags={"site": f"s{number % 60}"}) for number in range(300)]
        assert judge_gate(parse_gate("low(x[site=*]) >= 0.9"), rows, {}, incomplete=None, test_rows=rows)["value"] is not None
        assert Row.num_looks < 60 * len(rows)

    def test_what_a_slice_cannot_say_does_not_pass(self) -> None:
        assert of_slices("x[site=west] >= 0", north=[1])["reason"] == "no case of this run has site=west"
        assert of_slices("x[mission=*] >= 0", north=[1])["reason"] == "no case of this run has mission"
        assert not of_slices("x[mission=*] <= 1", north=[1])["passed"]
        aggregate = of_slices("macro[site=north] >= 0", {"macro": 1.0}, north=[1])
        assert aggregate["reason"] == "macro is an aggregate over all cases, which slices have none of"

    def test_many_slices_are_counted(self) -> None:
        verdict = of_slices("x[site=*] >= 1", **{f"s{number:03}": [number / 1000] for number in range(300)})
        assert len(verdict["failed_slices"]) == 300
        assert verdict["reason"].endswith("; and 295 more")

    def test_of_many_slices_none_fails_by_chance_where_only_what_is_shown_fails(self) -> None:
        chances = random.Random(0)
        rows = [{**row(x=float(chances.random() < 0.8)), "tags": {"site": str(number % 400)}} for number in range(12_000)]
        verdicts = {gate: judge_gate(parse_gate(gate), rows, {}, incomplete=None, test_rows=rows) for gate in (
            "high(x[site=*]) >= 0.8", "low(x[site=*]) >= 0.8", "x[site=*] >= 0.8",
        )}  # fmt: skip
        assert [verdict["passed"] for verdict in verdicts.values()] == [True, False, False]
        rows += [{**row(x=0.0), "tags": {"site": "7"}}] * 90
        verdict = judge_gate(parse_gate("high(x[site=*]) >= 0.8"), rows, {}, incomplete=None, test_rows=rows)
        assert (verdict["passed"], [part["value"] for part in verdict["failed_slices"]]) == (False, ["7"])
        assert "7 high end of the interval (of 400 slices) 0." in verdict["reason"]

    def test_unknown_tags_and_values_are_refused_at_collection(self) -> None:
        tags = [{"site": "north"}, {"site": "south"}]

        def check(expression: str) -> None:
            refuse_unknown_slices([parse_gate(expression), parse_gate("no_regression")], tags)

        with pytest.raises(ConfigError, match="no case has the tag 'sites'; did you mean 'site'. tags here are: site"):
            check("x[sites=north] >= 1")
        with pytest.raises(ConfigError, match="no case has site=nort; did you mean 'north'. its values here are: north, south"):
            check("x[site=nort] >= 1")
        with pytest.raises(ConfigError, match="slices are those of one tag, give cases a tag that joins two; its values here are: north"):
            check("x[site=north,label=a] >= 1")
        check("x[site=*] >= 1")
        with pytest.raises(ConfigError, match="no case has any"):
            refuse_unknown_slices([parse_gate("x[a=b] >= 1")], [])
        refuse_unknown_slices([parse_gate("x[mission=b] >= 1"), parse_gate("x[site=west] >= 1")], tags, are_all=False)
        with pytest.raises(ConfigError, match="no case has the tag 'sites'; did you mean 'site'"):
            refuse_unknown_slices([parse_gate("x[sites=*] >= 1")], tags, are_all=False)
        refuse_unknown_slices([parse_gate("x[mission=b] >= 1")], tags, are_all=False, declared=("site", "mission"))
        with pytest.raises(ConfigError, match="no case has the tag 'kind'; tags here are: site, mission"):
            refuse_unknown_slices([parse_gate("x[kind=*] >= 1")], tags, are_all=False, declared=("site", "mission"))


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
