"""What a journal says of the evals, so that who reports can judge without importing them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pytest

from evalharness.pytest_plugin.eval_module import EvalModule, gates_of, plugin_names

__all__ = ["eval_lines"]


def eval_lines(items: Iterable[tuple[pytest.Item, str, str]], modules: Mapping[str, EvalModule]) -> Iterator[dict[str, Any]]:
    """Yield, for each eval that the tests (with path and name) belong to, its cases, decoding, plugins, and its tests with their gates."""
    tests: dict[str, dict[str, list[str]]] = {}
    for item, path, test in items:
        known = tests.setdefault(path, {})
        if test not in known:
            known[test] = [gate.expression for gate in gates_of(item)]
    for path, gates in tests.items():
        module = modules[path]
        facts: dict[str, Any] = {
            "name": module.name,
            "path": path,
            "num_cases": len(module.cases),
            "plugins": plugin_names(module.plugins),
            "options": [options.to_json() for options in module.variants],
        }
        if module.notices:
            facts["notices"] = list(module.notices)
        if module.directions:
            facts["directions"] = dict(module.directions)
        yield {**facts, "tests": gates, "cases": {case.id: {"group": case.group, "tags": dict(case.tags)} for case in module.cases}}
