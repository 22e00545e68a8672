"""Several samples of each case: pass@k, pass^k, majority vote, and the standard error of a mean over cases."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from evalharness.analysis.statistics.intervals import cluster_sums, cluster_variance, group_codes

Answer = TypeVar("Answer", bound=Hashable)


def _check_counts(num_samples: int, num_correct: int, k: int) -> None:
    if not (1 <= k <= num_samples and 0 <= num_correct <= num_samples):
        raise ValueError(
            f"needs 1 <= k <= num_samples and 0 <= num_correct <= num_samples, got num_samples={num_samples!r}, "
            f"num_correct={num_correct!r}, k={k!r}"
        )


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return the unbiased estimate of the chance that at least one of `k` samples of a case is correct (Chen et al. 2021).

    Raises `ValueError` where fewer than `k` samples were taken.
    """
    _check_counts(num_samples, num_correct, k)
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def pass_hat_k(num_samples: int, num_correct: int, k: int) -> float:
    """Return pass^k, the unbiased estimate of the chance that all of `k` samples of a case are correct (Yao et al. 2024)."""
    _check_counts(num_samples, num_correct, k)
    return math.comb(num_correct, k) / math.comb(num_samples, k)


def majority_vote(answers: Iterable[Answer | None]) -> Answer | None:
    """Return the most frequent answer; among equally frequent ones the first. None (no answer) has no vote."""
    votes = Counter(answer for answer in answers if answer is not None)
    return votes.most_common(1)[0][0] if votes else None


def sample_scores(
    correct: Sequence[bool], answers: Sequence[Hashable | None] | None = None, *, ks: Sequence[int] | None = None
) -> dict[str, float]:
    """Return the scores of a case with several samples: `{"pass@1": …, "pass@2": …, "pass^2": …, "majority": …}`, all within 0…1.

    `correct` has one verdict per sample, `answers` what each sample said in a form that can be compared (None: no answer).
    With answers there is `majority`: whether the one given most often is correct. `ks` are 1, 2, 4, … and the number of samples
    unless given; pass^1 is pass@1 and not repeated. Raises `ValueError` for no samples, another number of answers, or a `k`
    beyond the number of samples.
    """
    num_samples, num_correct = len(correct), sum(map(bool, correct))
    if not num_samples:
        raise ValueError("needs at least one sample, got none")
    if answers is not None and len(answers) != num_samples:
        raise ValueError(f"needs one answer per sample, got {len(answers)} answers for {num_samples} samples")
    chosen = sorted({*(2**power for power in range(num_samples.bit_length())), num_samples} if ks is None else set(ks))
    scores = {f"pass@{k}": pass_at_k(num_samples, num_correct, k) for k in chosen}
    scores |= {f"pass^{k}": pass_hat_k(num_samples, num_correct, k) for k in chosen if k > 1}
    if answers is not None:
        winner = majority_vote(answers)
        scores["majority"] = float(winner is not None and bool(correct[list(answers).index(winner)]))
    return scores


def repeated_standard_error(values: Any, groups: Sequence[str | None] | None = None) -> float:
    """Return the standard error of the mean of `values` `(cases, repeats)`, for new cases with as many repeats.

    Repeats of a case are not new cases: the error is that of the cases' own means, which already contain the spread of the repeats; cases
    of one group are taken together. NaN for fewer than two groups.
    """
    means = np.nanmean(np.asarray(values, dtype=np.float64), axis=1, keepdims=True)
    return float(np.sqrt(cluster_variance(cluster_sums(means, group_codes(groups, len(means))))[0]))
