"""Counts, numbers and scores in words, the same in Markdown and on a terminal."""

from __future__ import annotations

__all__ = ["number_text", "plural", "score_text", "share_text"]


def plural(count: int, noun: str) -> str:
    """Return "1 case", "2 cases", "1,000 cases"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def share_text(part: int, whole: int) -> str:
    """Return "3 of 20"; "all 20" when it is all of several."""
    return f"all {whole:,}" if part == whole and whole > 1 else f"{part:,} of {whole:,}"


def number_text(value: object) -> str:
    """Return a number for people: three decimals, more where three would show nothing, none from 1000 on.

    None is "-"; what is no number is returned as text, not escaped.
    """
    if value is None:
        return "-"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    number = float(value) if abs(value) < 1e300 else float("inf") * (1 if value > 0 else -1)
    if number != number or abs(number) >= 1e15:
        return f"{number:.3g}"
    if abs(number) >= 1000:
        return f"{number:,.0f}"
    rounded = round(number, 3)
    return f"{rounded:.3f}" if rounded else f"{number:.2g}" if number else "0.000"


def score_text(mean: float, low: float, high: float, n: int) -> str:
    """Return a mean with its 95 % interval, where there is one, and n."""
    interval = f" [{number_text(low)} … {number_text(high)}]" if low == low else ""
    return f"{number_text(mean)}{interval} n={n}"
