"""What the shipped evals know about their tasks: cases, requests, parsing, metrics. Pure: no engine, no pytest."""

from __future__ import annotations

__all__ = ["DataWarning"]


class DataWarning(UserWarning):
    """Something in a data folder was left out or does not fit; the rest goes on."""
