"""The functions of evals that are asked when a run is over: `aggregate`, `across`, `tables`, `outputs`; and how they are asked safely."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, TypeAlias

import pytest
from _pytest.pathlib import import_path

from evalharness.api.outputs import OutputTarget
from evalharness.pytest_plugin.eval_module import data_folder
from evalharness.pytest_plugin.session import STATE

__all__ = ["ANY_FAILURE", "EvalFunctions", "Row", "Table", "load_functions", "rows_by_engine"]

Row: TypeAlias = "dict[str, Any]"
Table: TypeAlias = "Sequence[Mapping[str, str | int | float | None]]"

# User code, imported or run when everything is over: whatever it does must not cost the report. Pytest's own outcomes
# and SystemExit are no `Exception`s.
ANY_FAILURE = (Exception, SystemExit, pytest.fail.Exception, pytest.skip.Exception, pytest.exit.Exception)


@dataclass(frozen=True)
class EvalFunctions:
    """What an eval's marker gives for the end of a run; None where it gives none."""

    name: str
    path: str
    data_dir: Path | None
    aggregate: Callable[[Sequence[Row]], Mapping[str, float]] | None
    across: Callable[[Mapping[str, Sequence[Row]], Mapping[str, Mapping[str, Any]]], Mapping[str, Mapping[str, float]]] | None
    tables: Callable[[Sequence[Row]], Mapping[str, Table]] | None
    outputs: Callable[[Sequence[Row], OutputTarget], object] | None


def load_functions(config: pytest.Config, evals: Mapping[str, Mapping[str, Any]], problems: list[str]) -> list[EvalFunctions]:
    """Return the functions of every eval by path; a module that cannot be imported is one of the `problems`.

    Under xdist only the workers have imported the modules, so they are imported here, as they did.
    """
    state = config.stash[STATE]
    loaded = []
    for path, entry in evals.items():
        try:
            given = state.marker(path) or _imported_marker(config, path)
        except ANY_FAILURE as error:
            problems.append(f"{path}: its functions for the end of the run cannot be loaded: {type(error).__name__}: {error}")
            continue
        asked = {name: given.get(name) for name in ("aggregate", "across", "tables", "outputs")}
        loaded.append(EvalFunctions(entry["name"], path, data_folder(given.get("data"), state.run, state.root), **asked))
    return loaded


def rows_by_engine(rows: Iterable[Row], name: str) -> dict[str, list[Row]]:
    """Return the rows of one eval by engine."""
    grouped: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        if row["eval"] == name:
            grouped[row["engine"]].append(row)
    return dict(grouped)


def _imported_marker(config: pytest.Config, path: str) -> Mapping[str, Any]:
    module = import_path(  # imported as the workers did, its own imports work here too
        config.stash[STATE].root / path,
        mode=config.getoption("importmode"),
        root=config.rootpath,
        consider_namespace_packages=config.getini("consider_namespace_packages"),
    )
    return next((mark.kwargs for mark in _marks(module) if mark.name == "eval"), {})


def _marks(module: ModuleType) -> Iterator[pytest.Mark]:
    """Yield the markers of the module itself, then those of its classes and functions."""
    for holder in (module, *(value for value in vars(module).values() if isinstance(value, (type, FunctionType)))):
        marks = getattr(holder, "pytestmark", [])
        for mark in marks if isinstance(marks, (list, tuple)) else [marks]:
            found = getattr(mark, "mark", mark)
            if isinstance(found, pytest.Mark):
                yield found
