"""Finds gates on scores that their test never records, from the test's code alone: before anything is generated.

Only where the code leaves no doubt: every use of `score` is a call that names its scores, no fixture of the project takes it, and no
function of the eval adds metrics at the end.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from evalharness.analysis.gates import BUILT_IN_METRICS, Gate, RegressionGate
from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.pytest_plugin._pytest_internals import fixture_arguments

_ADDS_METRICS = ("aggregate", "across")
_MAY_RECORD = {"score", "request"}


def refuse_unknown_metrics(metafunc: pytest.Metafunc, marker: Mapping[str, Any], gates: Iterable[Gate | RegressionGate]) -> None:
    """Raise `ConfigError` for a gate on a score that the test cannot record."""
    wanted = [gate for gate in gates if isinstance(gate, Gate) and gate.metric not in BUILT_IN_METRICS]
    if not wanted or any(marker.get(key) is not None for key in _ADDS_METRICS):
        return
    recorded = _recorded_names(metafunc)
    for gate in wanted if recorded is not None else ():
        if recorded is not None and gate.metric not in recorded:
            known = ", ".join([*recorded, *BUILT_IN_METRICS])
            hint = did_you_mean(gate.metric, [*recorded, *BUILT_IN_METRICS]) or "."
            raise ConfigError(
                f"{metafunc.definition.nodeid}: the gate {gate.expression!r} is on a score that the test never records{hint} "
                f"It can be on: {known}"
            )


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
