"""Statistics for scores of cases: intervals, paired tests, correction, several samples a case. Pure: knows neither runs nor reports.

    intervals.py    an interval for a rate (Wilson) or a mean (bootstrap), cases of one group taken together
    paired.py       two engines on the same cases: difference, interval, p value (Holm), detectable difference; means of a series
    overlap.py      precision, recall and F1 of counts
    samples.py      several samples a case: pass@k, pass^k, majority vote as scores, standard error

docs/comparing.md says which formula is used where, and why. Nothing is imported here: numpy and scipy load with the modules.
"""
