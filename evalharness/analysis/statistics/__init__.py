"""Statistics for scores of cases: intervals, paired tests, correction, several samples a case. Pure: knows no run and no report.

    intervals.py    an interval for a rate (Wilson) or a mean (bootstrap), cases of one group taken together
    paired.py       two engines on the same cases: difference, interval, p value, what could have been shown
    correction.py   p values of many tests at once (Holm)
    overlap.py      precision, recall and F1 of counts
    series.py       one set of scores measured checkpoint after checkpoint
    samples.py      several samples a case: pass@k, pass^k, majority vote as scores, standard error
    clusters.py     sums by group and resampling, used by the first two

docs/comparing.md says which formula is used where, and why. Nothing is imported here: numpy and scipy load with the modules.
"""
