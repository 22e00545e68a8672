"""Several samples of each case: pass@k, pass^k, majority vote, and the standard error of a mean over cases."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from evalharness.analysis.statistics.intervals import cluster_sums, cluster_variance, group_codes


def sample_scores(
    correct: Sequence[bool], answers: Sequence[Hashable | None] | None = None, *, ks: Sequence[int] | None = None
) -> dict[str, float]:
    """Return the scores of a case with several samples: `{"pass@1": …, "pass@2": …, "pass^2": …, "majority": …}`, all within 0…1.

    `correct` has one verdict per sample, `answers` what each sample said in a form that can be compared (None: no answer).
    With answers there is `majority`: whether the one given most often, of equally frequent ones the first, is correct.
    `ks` are 1, 2, 4, … and the number of samples unless given; pass^1 is pass@1 and not repeated. Raises `ValueError` for no
    samples, another number of answers, or a `k` beyond the number of samples.
    """
    num_samples, num_correct = len(correct), sum(map(bool, correct))
    if not num_samples:
        raise ValueError("needs at least one sample, got none")
    if answers is not None and len(answers) != num_samples:
        raise ValueError(f"needs one answer per sample, got {len(answers)} answers for {num_samples} samples")
    chosen = sorted({*(2**power for power in range(num_samples.bit_length())), num_samples} if ks is None else set(ks))
    for k in chosen:
        if not 1 <= k <= num_samples:
            raise ValueError(f"needs 1 <= k <= num_samples, got k={k!r}, num_samples={num_samples}")
    # Shares of all choices of k samples: unbiased estimates (Chen et al. 2021, Yao et al. 2024).
    scores = {f"pass@{k}": 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k) for k in chosen}
    scores |= {f"pass^{k}": math.comb(num_correct, k) / math.comb(num_samples, k) for k in chosen if k > 1}
    if answers is not None:
        votes = Counter(answer for answer in answers if answer is not None).most_common(1)
        scores["majority"] = float(any(bool(correct[list(answers).index(winner)]) for winner, _ in votes))
    return scores


def repeated_standard_error(values: Any, groups: Sequence[str | None] | None = None) -> float:
    """Return the standard error of the mean of `values` `(cases, repeats)`, for new cases with as many repeats.

    Repeats of a case are not new cases: the error is that of the cases' own means, which already contain the spread of the repeats; cases
    of one group are taken together. NaN for fewer than two groups.
    """
    means = np.nanmean(np.asarray(values, dtype=np.float64), axis=1, keepdims=True)
    return float(np.sqrt(cluster_variance(cluster_sums(means, group_codes(groups, len(means))))[0]))
