"""Tasks of the shipped evals: cases, requests, parsing, metrics. Knows neither engines nor pytest."""

from __future__ import annotations


class DataWarning(UserWarning):
    """A part of a data folder was left out or does not fit; the rest is loaded."""
