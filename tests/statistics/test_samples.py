from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.statistics.samples import majority_vote, pass_at_k, pass_hat_k, repeated_standard_error


@given(st.integers(1, 8), st.data())
def test_pass_at_k_and_pass_hat_k_are_shares_of_all_choices_of_k(num_samples: int, data: st.DataObject) -> None:
    num_correct, k = data.draw(st.integers(0, num_samples)), data.draw(st.integers(1, num_samples))
    choices = list(combinations([True] * num_correct + [False] * (num_samples - num_correct), k))
    assert pass_at_k(num_samples, num_correct, k) == pytest.approx(sum(map(any, choices)) / len(choices))
    assert pass_hat_k(num_samples, num_correct, k) == pytest.approx(sum(map(all, choices)) / len(choices))


@pytest.mark.parametrize(("num_samples", "num_correct", "k"), [(2, 1, 3), (2, 3, 1), (2, -1, 1), (2, 1, 0)])
@pytest.mark.parametrize("function", [pass_at_k, pass_hat_k])
def test_counts_that_cannot_be_are_refused(function, num_samples: int, num_correct: int, k: int) -> None:
    with pytest.raises(ValueError, match="needs 1 <= k <= num_samples"):
        function(num_samples, num_correct, k)


@pytest.mark.parametrize(
    ("answers", "winner"),
    [([], None), ([None, None], None), (["a", "b", "b"], "b"), (["b", "a", "a", "b"], "b"), ([None, None, "a"], "a")],
    ids=["nobody", "no answers", "most", "tie: the first", "no answer has no vote"],
)
def test_the_majority_wins(answers: list[str | None], winner: str | None) -> None:
    assert majority_vote(answers) == winner


def test_repeats_of_a_case_are_no_new_cases() -> None:
    values = np.array([[0.0, 1.0], [1.0, 1.0], [0.0, 0.0], [1.0, 0.0]])
    expected = np.std(values.mean(axis=1), ddof=1) / 2
    assert repeated_standard_error(values) == pytest.approx(expected)
    assert repeated_standard_error(np.hstack([values] * 10)) == pytest.approx(expected)


def test_the_error_of_repeats_is_that_of_drawing_cases_anew() -> None:
    # 2,000 runs of 40 cases × 3 repeats; the spread's own relative error is 1.6 %, so 8 % is five of them.
    generator = np.random.default_rng(0)
    runs = generator.normal(0, 1, (2000, 40, 1)) + generator.normal(0, 2, (2000, 40, 3))
    estimates = [repeated_standard_error(run) for run in runs]
    assert np.mean(estimates) == pytest.approx(runs.mean(axis=(1, 2)).std(), rel=0.08)


def test_one_group_has_no_standard_error() -> None:
    assert np.isnan(repeated_standard_error([[1.0], [0.0]], ["a", "a"]))
