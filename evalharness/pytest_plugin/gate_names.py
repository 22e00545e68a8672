"""Finds gates on scores that their test never records: from its code, before anything is generated, else at its first case.

The code decides only where it leaves no doubt: every use of `score` is a call that names its scores, no fixture of the project takes it,
and no function of the eval adds metrics at the end.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from evalharness.analysis.gate_grammar import EVERYWHERE, RATES, Gate, RegressionGate, needs_baseline, parse_gate
from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.pytest_plugin._pytest_internals import fixture_arguments
from evalharness.pytest_plugin.outcomes import ItemRecord

_ADDS_METRICS = ("aggregate", "across", "suite")
_MAY_RECORD = {"score", "request"}


def refuse_unknown_metrics(metafunc: pytest.Metafunc, marker: Mapping[str, Any], gates: Iterable[Gate | RegressionGate]) -> None:
    """Raise `ConfigError` for a gate on a score that the test cannot record."""
    wanted = _on_scores(marker, gates)
    if not wanted:
        return
    recorded = _recorded_names(metafunc)
    for gate in wanted if recorded is not None else ():
        if recorded is not None and gate.metric not in recorded:
            names = [*recorded, *(RATES if gate.change else EVERYWHERE)]
            hint = did_you_mean(gate.metric, names) or "."
            raise ConfigError(
                f"{metafunc.definition.nodeid}: the gate {gate.expression!r} is on a score that the test never records{hint} "
                f"It can be on: {', '.join(names)}"
            )


def _on_scores(marker: Mapping[str, Any], gates: Iterable[Gate | RegressionGate]) -> list[Gate]:
    """Return the gates on scores; where a function of the eval may add metrics, those on slices and single values."""
    adds = any(marker.get(key) is not None for key in _ADDS_METRICS)
    on_scores = [gate for gate in gates if isinstance(gate, Gate) and gate.metric not in (RATES if gate.change else EVERYWHERE)]
    return [gate for gate in on_scores if not adds or gate.tag or gate.statistic]


class FirstScores:
    """Compares the gates of each test with what its first judged case recorded."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def notice(self, item: pytest.Item, record: ItemRecord, marker: Mapping[str, Any]) -> str:
        """Return a sentence about the gates whose score the case lacks; "" if there is none, or the test had a case before."""
        if not record.gated or record.outcome not in ("pass", "miss") or (record.eval, record.test) in self._seen:
            return ""
        self._seen.add((record.eval, record.test))
        missing = [gate for gate in _on_scores(marker, gates_of(item)) if gate.metric not in record.scores]
        if not missing:
            return ""
        hint = did_you_mean(missing[0].metric, [*record.scores, *EVERYWHERE]) or ";"
        what = ", ".join(repr(gate.expression) for gate in missing)
        known = ", ".join(record.scores) or "nothing"
        return f"no score yet for the gate {what} of {record.eval}::{record.test}{hint} its first case recorded: {known}"


def gates_of(node: pytest.Item | Any) -> tuple[Gate | RegressionGate, ...]:
    """Return the gates of a test, its module's gates last; `ConfigError` for an expression that is not a gate."""
    markers = list(node.iter_markers("gate"))
    for marker in markers:
        if marker.kwargs or not marker.args:
            raise ConfigError(f"{node.nodeid}: the gate marker takes expressions such as 'valid >= 0.95', got {marker.kwargs or 'none'}")
    return tuple(parse_gate(expression) for marker in markers for expression in marker.args)


def any_comparing_gate(items: Iterable[pytest.Item]) -> bool:
    """Return whether a test has a gate that compares with a baseline; tests of one function are looked at once."""
    functions = {getattr(item, "function", item): item for item in items}
    return any(needs_baseline(gate.expression) for item in functions.values() for gate in gates_of(item))


def _recorded_names(metafunc: pytest.Metafunc) -> list[str] | None:
    """Return the names that a test gives to `score`; None where its code does not tell."""
    own = set(inspect.signature(metafunc.function).parameters)
    if "request" in own or any(_MAY_RECORD & set(arguments) for arguments in fixture_arguments(metafunc)):
        return None
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(metafunc.function)))
    except (OSError, SyntaxError, TypeError, ValueError, RecursionError):
        return None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "score"]
    names = [keyword.arg for call in calls for keyword in call.keywords]
    num_uses = sum(isinstance(node, ast.Name) and node.id == "score" for node in ast.walk(tree))
    if num_uses != len(calls) or any(name is None for name in names):
        return None
    return list(dict.fromkeys(name for name in names if name is not None))
