"""The values of an eval test's fixtures, put in place before pytest looks for them.

Pytest's fixture machinery costs more per test than everything else that happens to a cheap case, but takes what it finds
in `funcargs`: here what is known before setup, then what needs the engine. An engine is a fixture of pytest's all the same:
opened, kept and closed by it. Fixtures of an eval's own that build on these go the ordinary way.
"""

from __future__ import annotations

from typing import Any

import pytest

from evalharness.pytest_plugin.eval_module import is_ours
from evalharness.pytest_plugin.fixtures import steps_of, wait_for_generations
from evalharness.pytest_plugin.outcomes import ItemRecord
from evalharness.pytest_plugin.recording import Details, Score

__all__ = ["Filling"]

_GENERATED = ("generation", "generations", "steps")
_FILLED = ("engine", "score", "details", *_GENERATED)


class Filling:
    """Puts values in place, but not over an eval's own fixtures of these names. Which are ours is looked up once per test function."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, frozenset[str]]] = {}

    def _ours(self, item: pytest.Function) -> frozenset[str]:
        info = item._fixtureinfo
        known = self._known.get(id(info))
        if known is None:  # holding the info keeps its id from being given to others
            known = info, frozenset(name for name in _FILLED if is_ours(info.name2fixturedefs.get(name)))
            self._known[id(info)] = known
        return known[1]

    def before_setup(self, item: pytest.Function, record: ItemRecord) -> None:
        """Put `case`, `request`, `score`, `details` and an engine that is open in place, and places for the generations."""
        ours, values = self._ours(item), item.funcargs
        values["case"] = record.case
        values["request"] = item._request  # what pytest would put there, by way of a fixture made anew for each test
        if "score" in ours:
            values["score"] = Score(record)
        if "details" in ours:
            values["details"] = Details(record)
        for name in _GENERATED:
            if name in ours:
                values[name] = None
        if "engine" in ours:
            kept = item._fixtureinfo.name2fixturedefs["engine"][-1].cached_result
            if kept is not None and kept[2] is None and kept[1] == record.engine.id:
                values["engine"] = kept[0]

    def after_setup(self, item: pytest.Function, record: ItemRecord) -> None:
        """Put the generations in place, now that the engine is there."""
        values = item.funcargs
        wanted = [name for name in _GENERATED if name in values and values[name] is None]
        if not wanted:
            return
        engine: Any = values["engine"]
        results = wait_for_generations(item.session, record, engine)
        if "generations" in wanted:
            values["generations"] = results
        if "generation" in wanted:
            values["generation"] = results[0]
        if "steps" in wanted:
            values["steps"] = steps_of(item.session, record, engine)
