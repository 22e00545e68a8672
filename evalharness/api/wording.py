"""How counts and numbers are written wherever people read them: messages, verdicts of gates, reports."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Return "1 case", "2 cases", "1,000 cases"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def part_of(part: int, whole: int, noun: str) -> str:
    """Return "3 of 20 cases", "1 of 1 case"."""
    return f"{part:,} of {plural(whole, noun)}"


def number_text(value: object) -> str:
    """Return a number for people: three decimals, more where three would show nothing, one from 100 on, none from 1000 on.

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
    if abs(number) >= 100:
        return f"{number:.1f}".removesuffix(".0")
    rounded = round(number, 3)
    return f"{rounded:.3f}" if rounded else f"{number:.2g}" if number else "0.000"


def figure_text(value: float | None, name: str = "") -> str:
    """Return a score for people: a count (`num_…`) as a whole number where it is one, else to a tenth; others as `number_text`."""
    return number_text(value) if value is None or not name.startswith("num_") else f"{value:,.1f}".removesuffix(".0")
