"""Averages for the marker's `aggregate`: over the values of a tag, and several functions together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

Aggregating: TypeAlias = "Callable[[Sequence[Mapping[str, Any]]], dict[str, float]]"
"""What the marker's `aggregate` takes: rows of judged cases to metrics."""
_Function = TypeVar("_Function", bound=Callable[..., Any])

DrawsFunction: TypeAlias = "Callable[[Sequence[Mapping[str, Any]], Any], Mapping[str, Sequence[float | None]]]"


def with_draws(of_draws: DrawsFunction) -> Callable[[_Function], _Function]:
    """Return a decorator for an `aggregate` with a faster way than to be called for each of the marker's `draws`.

    `of_draws(rows, times)` gets how often each row is drawn, whole numbers `(rows, draws)`, and returns for each metric a value per draw,
    None where there is none.
    """

    def decorate(aggregate: _Function) -> _Function:
        vars(aggregate)["of_draws"] = of_draws
        return aggregate

    return decorate


def macro_over(tag: str, *names: str) -> Aggregating:
    """Return an `aggregate` that gives `NAME_macro` of each score: the mean of its means over the tag's values, all counted alike.

    The score's own mean counts every case alike (micro). Cases without the tag, or without the score, are in no mean.
    """

    def aggregate(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        metrics = {}
        for name in names:
            by_value: dict[str, list[float]] = {}
            for row in rows:
                if tag in row["tags"] and name in row["scores"]:
                    by_value.setdefault(row["tags"][tag], []).append(row["scores"][name])
            if by_value:
                metrics[f"{name}_macro"] = sum(sum(values) / len(values) for values in by_value.values()) / len(by_value)
        return metrics

    return aggregate


def all_of(*functions: Aggregating) -> Aggregating:
    """Return an `aggregate` that gives the metrics of all functions."""

    def aggregate(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        return {name: value for function in functions for name, value in function(rows).items()}

    return aggregate
