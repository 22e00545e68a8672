"""Finds gates on what their test never has: from its code, before anything is generated, else at its first case.

The code decides only where it leaves no doubt (`known_names`), and no fixture of the project takes `score`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import pytest

from evalharness.analysis.gate_grammar import EVERYWHERE, PAIRED_RATES, RATES, Gate, RegressionGate, needs_baseline, parse_gate
from evalharness.api.cases import Case
from evalharness.api.checks import first_names
from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.pytest_plugin._pytest_internals import fixture_arguments
from evalharness.pytest_plugin.known_names import names_recorded, names_returned
from evalharness.pytest_plugin.outcomes import ItemRecord

_MAY_RECORD = {"score", "request"}
_BY_CATEGORY = "category"
"""What `no_regression(category)` means: the marks by category that some details have."""
_MOST_NAMED = 40
_CLOSE = 0.85


class _Names:
    """The names of a test's scores and of what its eval's functions add to them, each None where the code does not tell; read on demand."""

    def __init__(self, metafunc: pytest.Metafunc, marker: Mapping[str, Any]) -> None:
        self._metafunc, self._marker = metafunc, marker

    @cached_property
    def scores(self) -> frozenset[str] | None:
        of_fixtures = {name for arguments in fixture_arguments(self._metafunc) for name in arguments}
        if _MAY_RECORD & of_fixtures or "request" in inspect.signature(self._metafunc.function).parameters:
            return None
        return names_recorded(self._metafunc.function)

    @cached_property
    def added(self) -> frozenset[str] | None:
        return _added_names(self._marker)

    @cached_property
    def details(self) -> frozenset[str]:
        return names_recorded(self._metafunc.function, "details") or frozenset()


def _added_names(marker: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the names of what the functions of an eval give at the end of a run."""
    suite = marker.get("suite")
    names = frozenset[str]() if suite is None else frozenset((f"{suite}.*_macro", f"{suite}.*_micro"))
    for key in ("aggregate", "across"):
        if marker.get(key) is not None:
            returned = names_returned(marker[key], nested=key == "across")
            if returned is None:
                return None
            names |= returned
    return names


def _is_among(metric: str, names: Iterable[str]) -> bool:
    """Return whether a metric has one of these names, in which "*" is anything."""
    return any(metric == name or re.fullmatch(".*".join(map(re.escape, name.split("*"))), metric) for name in names)


def refuse_unknown_metrics(
    metafunc: pytest.Metafunc, marker: Mapping[str, Any], gates: Iterable[Gate | RegressionGate], cases: Sequence[Case]
) -> None:
    """Raise `ConfigError` for a gate on something that the test cannot have."""
    names = _Names(metafunc, marker)
    for gate in gates:
        if isinstance(gate, Gate):
            if gate.metric not in _everywhere(gate):
                _check_metric(gate.metric, gate, names, metafunc.definition.nodeid)
        else:
            for metric in gate.metrics:
                if metric not in (*PAIRED_RATES, _BY_CATEGORY) and not any(metric in case.tags for case in cases):
                    _check_metric(metric, gate, names, metafunc.definition.nodeid)


def _everywhere(gate: Gate | RegressionGate) -> tuple[str, ...]:
    """Return the metrics that a gate of this kind may be on in every test."""
    if isinstance(gate, RegressionGate):
        return PAIRED_RATES
    return RATES if gate.change else EVERYWHERE


def _is_on_cases(gate: Gate | RegressionGate) -> bool:
    """Return whether a gate is about what single cases have, which an aggregate is not."""
    return isinstance(gate, RegressionGate) or bool(gate.tag or gate.statistic)


def _check_metric(metric: str, gate: Gate | RegressionGate, names: _Names, nodeid: str) -> None:
    if names.scores is None or _is_among(metric, names.scores):
        return
    added = names.added
    if not _is_on_cases(gate):
        if added is None or _is_among(metric, added):
            return
    elif added is not None and _is_among(metric, added):
        raise ConfigError(f"{nodeid}: the gate {gate.expression!r} is about single cases, and {metric} is one number over all cases")
    known = [*sorted(names.scores), *sorted(() if _is_on_cases(gate) or added is None else added), *_everywhere(gate)]
    known = [name.replace("*", "…") for name in known]
    hint = did_you_mean(metric, known) or "."
    if metric in names.details:
        hint = "; details() has it, but gates are on what score() records."
    what = "a score that the test never records" if _is_on_cases(gate) or not added else "a metric that neither the test nor its eval gives"
    raise ConfigError(f"{nodeid}: the gate {gate.expression!r} is on {what}{hint} It can be on: {first_names(known, _MOST_NAMED)}")


class FirstScores:
    """Compares the gates of each test with what its first judged case recorded."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def notice(self, item: pytest.Item, record: ItemRecord, marker: Mapping[str, Any]) -> str:
        """Return a sentence about the gates whose score the case lacks; "" if there is none, or the test had a case before."""
        if not record.gated or record.outcome not in ("pass", "miss") or (record.eval, record.test) in self._seen:
            return ""
        self._seen.add((record.eval, record.test))
        added, suite = _added_names(marker), marker.get("suite")
        of_suite = [f"{suite}.{name}_{kind}" for name in record.scores for kind in ("macro", "micro") if suite is not None]
        missing = [
            gate
            for gate in gates_of(item)
            if isinstance(gate, Gate) and (_is_missing(gate, record.scores, added) or _is_near_average(gate.metric, suite, record.scores))
        ]
        if not missing:
            return ""
        hint = did_you_mean(missing[0].metric, [*record.scores, *of_suite, *EVERYWHERE]) or ";"
        what = ", ".join(repr(gate.expression) for gate in missing)
        known = ", ".join(record.scores) or "nothing"
        return f"no score yet for the gate {what} of {record.eval}::{record.test}{hint} its first case recorded: {known}"


def _is_missing(gate: Gate, scores: Mapping[str, float], added: frozenset[str] | None) -> bool:
    """Return whether a gate's metric is none of a case's scores, nor likely to come at the end of the run."""
    if gate.metric in scores or gate.metric in _everywhere(gate):
        return False
    if added is None and not _is_on_cases(gate):
        return bool(did_you_mean(gate.metric, scores, cutoff=_CLOSE))
    return _is_on_cases(gate) or not _is_among(gate.metric, added or ())


def _is_near_average(metric: str, suite: object, scores: Mapping[str, float]) -> bool:
    """Return whether a metric nearly is the suite's average of one of a case's scores; other evals of the suite may yet have it."""
    average = re.fullmatch(rf"{re.escape(str(suite))}\.(.+)_m[ai]cro", metric)
    return average is not None and average[1] not in scores and bool(did_you_mean(average[1], scores, cutoff=_CLOSE))


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
