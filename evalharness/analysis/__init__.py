"""Verdicts about runs: gates, statistics, comparisons, baselines, timelines. Knows nothing of how they are shown."""
