"""Verdicts about runs: gates, statistics, comparisons, baselines, timelines. Knows nothing about how they are shown."""
