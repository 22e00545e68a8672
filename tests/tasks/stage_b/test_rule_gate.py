"""The gate on changed rules. Run: pytest tests/tasks/stage_b/test_rule_gate.py"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from evalharness.api.errors import ContractValueError, RecordError
from evalharness.tasks.stage_b.rule_gate import GateLimits, GateResult, Judged, read_judged, relative_error_reduction, rule_gate

LOOSE = GateLimits(max_changed_fraction=1.0)


def judged(*pairs: str) -> dict[str, Judged]:
    """Return tickets by key from `label prediction` in letters: `pp` is a pass order judged pass, `f-` a fail order without verdict."""
    words: Any = {"p": "pass", "f": "fail", "-": None}
    return {f"t{number}": Judged(words[pair[0]], words[pair[1]]) for number, pair in enumerate(pairs)}


@pytest.mark.parametrize(
    "before, after, rer", [(10, 5, 0.5), (10, 0, 1.0), (10, 10, 0.0), (4, 5, -0.25), (1, 30, -1.0), (0, 0, 0.0), (0, 3, -1.0)], ids=str
)
def test_the_share_of_errors_that_are_gone(before: int, after: int, rer: float) -> None:
    assert relative_error_reduction(before, after) == rer


def test_with_a_perfect_base_the_reduction_is_at_most_zero_and_bounded() -> None:
    base = judged("pp", "ff", "pp")
    worse, same = rule_gate(base, judged("pf", "fp", "pf")), rule_gate(base, base)
    assert (worse.rer, same.rer) == (-1.0, 0.0)
    assert not worse.passed
    assert not same.passed


def test_a_clear_gain_passes_and_only_common_tickets_count() -> None:
    base = judged(*["pf"] * 20, *["pp"] * 40, *["ff"] * 40)
    result = rule_gate(base, judged(*["pp"] * 60, *["ff"] * 40, "fp"), limits=LOOSE)
    assert (result.passed, result.rer, result.changed_fraction, result.probability, result.num_tickets) == (True, 1.0, 0.2, 1.0, 100)
    result = rule_gate({}, judged("pp"))
    assert (result.passed, result.reasons) == (False, ("no ticket was judged under both rule sets",))


def test_each_condition_that_is_not_met_is_named() -> None:
    base = judged(*["pf"] * 2, *["pp"] * 8)
    result = rule_gate(base, judged(*["pp"] * 2, *["pf"] * 2, *["pp"] * 6))
    assert result.reasons[0] == "RER 0.0000 is below 0.1"
    assert result.reasons[1] == "0.4000 of the verdicts changed, more than 0.05"
    assert result.reasons[2].startswith("P(RER >= 0.1) is 0.")


def test_a_gain_that_rests_on_few_tickets_is_not_sure_enough() -> None:
    base = judged("pf", "pf", *["pp"] * 60)
    result = rule_gate(base, judged("pp", "pf", *["pp"] * 60), limits=LOOSE)
    assert result.rer == 0.5
    assert result.probability < 0.8
    assert result.reasons == (f"P(RER >= 0.1) is {result.probability:.4f}, below 0.8",)


@pytest.mark.parametrize("op", ["upsert", "update", "merge", "remove"])
def test_changing_a_rule_must_also_release_fewer_bad_orders(op: str) -> None:
    base = judged(*["pf"] * 20, *["pp"] * 40, *["ff"] * 40)
    result = rule_gate(base, judged(*["pp"] * 60, *["ff"] * 40), op=op, limits=LOOSE)
    told = [reason.partition(",")[0] for reason in result.reasons]
    assert told == ([] if op == "upsert" else [f"{op} must lower fp_rate"])


def test_changing_a_rule_must_raise_accuracy_and_not_release_more() -> None:
    base = judged("fp", *["ff"] * 9)
    result = rule_gate(base, judged("fp", "fp", *["ff"] * 8), op="merge", limits=LOOSE)
    assert any(reason.startswith("merge must raise accuracy, it is 0.8000 after 0.9000") for reason in result.reasons)
    assert "fp_rate rose by 0.1000, more than 0.01" in result.reasons
    base = judged(*["fp"] * 20, *["pp"] * 40, *["ff"] * 40)
    assert rule_gate(base, judged(*["ff"] * 20, *["pp"] * 40, *["ff"] * 40), op="remove", limits=LOOSE).passed


def test_the_same_seed_gives_the_same_probability() -> None:
    base, candidate = judged("pf", "pf", *["pp"] * 30), judged("pp", "pf", *["pp"] * 30)
    first = rule_gate(base, candidate).probability
    assert rule_gate(base, candidate).probability == first
    assert {rule_gate(base, candidate, limits=GateLimits(seed=seed)).probability for seed in range(4)} != {first}


def test_the_row_of_a_candidate_has_the_deciding_numbers() -> None:
    row = rule_gate(judged("pp", "ff"), judged("pf", "fp")).to_json()
    assert json.loads(json.dumps(row, allow_nan=False)) == row
    assert (row["decision"], row["rer"], row["base_acc"], row["cand_acc"]) == ("rejected", -1.0, 1.0, 0.0)
    assert (row["base_false_release"], row["cand_false_block"]) == (0.0, 1.0)


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ContractValueError, match="op must be one of upsert, update, merge, remove, got 'delete'"):
        rule_gate({}, {}, op="delete")
    with pytest.raises(ContractValueError, match="ticket t0 is pass in one and fail in the other"):
        rule_gate(judged("pp"), judged("fp"))
    with pytest.raises(ContractValueError, match="num_draws must be at least 1, got 0"):
        GateLimits(num_draws=0)


def test_ticket_stats_are_read_for_the_gate(tmp_path: Path) -> None:
    path = tmp_path / "baseline_ticket_stats.jsonl"
    rows = [{"ticket_key": f"{number}::pass", "gt_label": "pass", "majority_pred": said} for number, said in enumerate(["fail", None])]
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    assert read_judged(path) == {"0::pass": Judged("pass", "fail"), "1::pass": Judged("pass", None)}
    with pytest.raises(RecordError, match="cannot be read"):
        read_judged(tmp_path / "absent.jsonl")


BAD_STATS = {
    "no JSON": ("{", ":2 is not JSON"),
    "list": ("[]", "is not a row of ticket_key"),
    "no label": ('{"ticket_key": "a", "majority_pred": null}', "is not a row of ticket_key"),
    "label": ('{"ticket_key": "a", "gt_label": "x", "majority_pred": null}', "got 'x' and None"),
    "prediction": ('{"ticket_key": "a", "gt_label": "pass", "majority_pred": "maybe"}', "got 'pass' and 'maybe'"),
    "twice": ('{"ticket_key": "first", "gt_label": "pass", "majority_pred": "pass"}', "ticket first was there already"),
}


@pytest.mark.parametrize("line, problem", BAD_STATS.values(), ids=BAD_STATS.keys())
def test_the_error_names_the_line_that_is_not_a_ticket(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "stats.jsonl"
    path.write_text(f'{{"ticket_key": "first", "gt_label": "fail", "majority_pred": "fail"}}\n{line}\n')
    with pytest.raises(RecordError, match=problem) as caught:
        read_judged(path)
    assert str(caught.value).startswith(f"{path}:2")


PAIRS = st.lists(st.sampled_from(["pp", "pf", "p-", "fp", "ff", "f-"]), min_size=1, max_size=12)


@settings(max_examples=30)
@given(PAIRS, st.randoms())
def test_the_order_of_tickets_changes_nothing_and_all_is_bounded(pairs: list[str], order: Any) -> None:
    candidate = {key: Judged(one.label, order.choice(["pass", "fail", None])) for key, one in judged(*pairs).items()}
    limits = GateLimits(num_draws=20)

    def gate(keys: list[str]) -> GateResult:
        base = judged(*pairs)
        return rule_gate({key: base[key] for key in keys}, {key: candidate[key] for key in keys}, limits=limits)

    result = gate(sorted(candidate))
    assert gate(order.sample(sorted(candidate), len(candidate))) == result
    assert -1 <= result.rer <= 1
    assert 0 <= result.probability <= 1
