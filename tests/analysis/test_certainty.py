"""What is proved of a test against its baseline, and the order of its cases."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import pytest

from evalharness.analysis.certainty import EDGE_RATE, PairedTest, Place, changed_cases, drawn_cases
from evalharness.analysis.comparison.sheets import CaseLine, Sheet


def sheet(**scores: list[float | None]) -> Sheet:
    """Return a baseline of cases c0, c1… with these scores."""
    num = len(next(iter(scores.values())))
    lines = [{name: value for name, values in scores.items() if (value := values[place]) is not None} for place in range(num)]
    return Sheet("e", "t", cases={f"c{place}": CaseLine("pass", line, {}, None, None) for place, line in enumerate(lines)})


def singles(num: int) -> list[Place]:
    return [Place(f"c{place}", None, 0) for place in range(num)]


def paired(base: Sheet, places: list[Place] | None = None, margin: float = 0.05, only: tuple[str, ...] = (), **ways: str) -> PairedTest:
    return PairedTest(places or singles(len(base.cases)), base, ways, only, margin)


class TestProof:
    def test_equal_scores_are_harmless_before_all_are_known(self) -> None:
        test = paired(sheet(right=[1.0] * 100))
        for place in range(100):
            test.note(f"c{place}", {"right": 1.0})
            if test.proof().claim:
                break
        assert test.proof().claim == "harmless"
        assert 30 < test.proof().num_cases < 80

    def test_a_loss_of_half_is_a_regression_soon(self) -> None:
        test = paired(sheet(right=[1.0] * 100))
        for place in range(30):
            test.note(f"c{place}", {"right": float(place % 2)})
        proof = test.proof()
        assert (proof.claim, proof.num_cases) == ("regressed", 30)
        (limits,) = test.limits()
        assert limits.is_regressed
        assert (limits.base, limits.difference) == (1.0, -0.5)
        assert limits.low < -0.5 < limits.high < 0

    def test_only_cases_without_a_gap_before_them_count(self) -> None:
        test = paired(sheet(right=[1.0] * 6))
        for place in (5, 4, 2, 3, 1):
            test.note(f"c{place}", {"right": 1.0})
        assert test.num_known == 0
        test.note("c0", {"right": 1.0})
        assert (test.num_known, test.proof().num_groups) == (6, 6)

    def test_cases_of_one_group_are_one_piece_of_evidence_of_a_regression(self) -> None:
        base = sheet(right=[1.0] * 100)
        apart, together = paired(base), paired(base, [Place(f"c{place}", f"g{place // 20}", 0) for place in range(100)])
        for test in (apart, together):
            for place in range(40):
                test.note(f"c{place}", {"right": 0.0})
        assert (apart.proof().claim, together.proof().claim) == ("regressed", "")
        assert together.proof().num_groups == 2

    def test_what_the_set_holds_does_not_depend_on_its_groups(self) -> None:
        test = paired(sheet(right=[1.0] * 100), [Place(f"c{place}", "one", 0) for place in range(100)])
        for place in range(80):
            test.note(f"c{place}", {"right": 1.0})
        assert test.proof().claim == "harmless"

    def test_what_broke_counts_against_either_claim(self) -> None:
        for scores in ({"right": 1.0}, {"right": 0.0}):
            test = paired(sheet(right=[1.0] * 100))
            for place in range(60):
                test.note(f"c{place}", scores if place % 2 else None)
            assert test.proof().claim == ("" if scores["right"] else "regressed")
        best = paired(sheet(right=[0.0] * 100))
        for place in range(60):
            best.note(f"c{place}", {"right": 0.0} if place % 2 else None)
        assert best.proof().claim == "harmless"  # at the worst they are wrong, as they were

    def test_every_metric_must_be_harmless_and_one_is_enough_to_regress(self) -> None:
        base = sheet(right=[1.0] * 200, form=[1.0] * 200)
        test = paired(base)
        for place in range(60):
            test.note(f"c{place}", {"right": 1.0, "form": float(place % 4 > 0)})
        assert test.proof().claim == "regressed"
        assert [limits.metric for limits in test.limits() if limits.is_regressed] == ["form"]
        named = paired(base, only=("right",))
        for place in range(100):
            named.note(f"c{place}", {"right": 1.0, "form": 0.0})
        assert named.proof().claim == "harmless"

    def test_lower_may_be_better_or_neither(self) -> None:
        base = sheet(slow=[0.0] * 100, length_rate=[0.0] * 100, taste=[1.0] * 100)
        test = paired(base, slow="lower", taste="none")
        for place in range(40):
            test.note(f"c{place}", {"slow": 1.0, "length_rate": 0.0, "taste": 0.0})
        assert test.proof().claim == "regressed"
        worst = next(limits for limits in test.limits() if limits.metric == "slow")
        assert (worst.difference, worst.is_regressed, worst.low > 0) == (1.0, True, True)
        assert [limits.metric for limits in test.limits()] == ["slow", "length_rate"]

    def test_what_is_not_within_0_and_1_or_not_in_the_baseline_cannot_be_proved(self) -> None:
        base = sheet(loss=[2.5] * 10, right=[1.0] * 10, num_words=[7.0] * 10)
        assert (paired(base).can_prove, paired(base).not_compared) == (True, ["loss"])
        assert not paired(base, only=("loss",)).can_prove
        assert not paired(base, only=("other",)).can_prove
        assert not paired(base, [*singles(10), *(Place(f"new{place}", None, 0) for place in range(11))]).can_prove

    def test_what_few_cases_have_is_compared_only_where_a_gate_names_it(self) -> None:
        base = sheet(right=[1.0] * 10, rare=[1.0] * 4 + [None] * 6)
        assert paired(base).not_compared == ["rare"]
        assert paired(base, only=("rare",)).not_compared == []

    def test_the_mean_of_all_has_limits(self) -> None:
        test = paired(sheet(right=[1.0] * 90 + [0.0] * 10))
        order = np.random.default_rng(3).permutation(100)
        test = paired(sheet(right=[1.0] * 90 + [0.0] * 10), [Place(f"c{place}", None, 0) for place in order])
        for place in order[:70]:
            test.note(f"c{place}", {"right": float(place < 90)})
        limits = test.mean_limits("right")
        assert limits is not None
        about, low, high = limits
        assert 0.83 < low < 0.9 < high < 0.97
        assert about == 0.9  # the baseline's mean and the difference, not the middle of the limits
        assert test.mean_limits("other") is None

    def test_limits_are_numbers_where_no_case_of_the_edge_or_none_with_a_score_is_known(self) -> None:
        places = [Place(f"c{place}", None, int(place >= 97)) for place in range(100)]
        test = paired(sheet(rare=[None] * 60 + [1.0] * 40, right=[1.0] * 100), places, only=("rare", "right"))
        for place in range(60):
            test.note(f"c{place}", {"right": 0.0})
        assert test.proof().claim == "regressed"
        limits = {each.metric: each for each in test.limits()}
        assert limits["right"].difference == -1.0
        assert limits["rare"].low <= limits["rare"].difference <= limits["rare"].high


class TestOrder:
    CASES: ClassVar = [(f"c{place}", f"g{place // 2}") for place in range(1200)]

    def test_the_order_is_drawn_by_the_seed_and_the_name(self) -> None:
        places = drawn_cases(self.CASES, (), 0, "e")
        assert sorted((place.case_id, place.group) for place in places) == sorted(self.CASES)
        assert places == drawn_cases(self.CASES, (), 0, "e")
        assert places[:20] != drawn_cases(self.CASES, (), 1, "e")[:20]
        assert places[:20] != drawn_cases(self.CASES, (), 0, "other")[:20]

    def test_the_edge_comes_first_more_often(self) -> None:
        """240 of 1,200 cases are on the edge: a third of the first 120, where at random a fifth would be; false alarms one in 10^4."""
        edges = {f"c{place}" for place in range(240)}
        shares = [sum(place.stratum for place in drawn_cases(self.CASES, edges, seed, "e")[:120]) / 120 for seed in range(30)]
        expected = EDGE_RATE * 240 / (960 + EDGE_RATE * 240)
        assert np.mean(shares) == pytest.approx(expected, abs=0.04)

    def test_an_edge_of_most_cases_is_none(self) -> None:
        assert not any(place.stratum for place in drawn_cases(self.CASES, {f"c{place}" for place in range(600)}, 0, "e"))

    def test_in_a_small_set_nothing_comes_first(self) -> None:
        assert not any(place.stratum for place in drawn_cases(self.CASES[:900], {"c0"}, 0, "e"))

    def test_the_edge_is_what_changed_before(self) -> None:
        before, base = sheet(f1=[0.5, 1.0, 0.0, None], num_words=[0.0] * 4), sheet(f1=[0.5, 0.9, 0.0, 1.0, 1.0], num_words=[1.0] * 5)
        assert changed_cases(before, base) == {"c1", "c3"}
