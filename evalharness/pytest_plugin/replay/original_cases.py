"""The cases of the evals of a recorded run, as their loaders give them today: for tests that look at more than a run records.

A run keeps id, group and tags of a case. References, images and all else are in the data; they are read from there, and only
once a test asks for them: most tests of stored generations look at the answers alone.
"""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from evalharness.api.cases import Case
from evalharness.api.errors import RecordError
from evalharness.config import RunConfig
from evalharness.pytest_plugin.case_loading import CasesNotLoaded
from evalharness.pytest_plugin.eval_module import read_eval
from evalharness.runs.recorded import RecordedRun

__all__ = ["OriginalCases", "likely_roots"]


def likely_roots(recorded: RecordedRun) -> Iterator[Path]:
    """Yield the folders that the paths of a run may be relative to, the likeliest first."""
    here = Path.cwd()
    yield from (here, *here.parents)
    yield from recorded.run_dir.absolute().parents


class OriginalCases:
    """Loads each eval of a run at most once."""

    def __init__(self, recorded: RecordedRun, run: RunConfig) -> None:
        self._recorded = recorded
        self._run = run
        self._by_eval: dict[str, Mapping[str, Case] | str] = {}

    def find(self, eval_name: str, case_id: str) -> Case:
        """Return the case that the eval's loader gives under this id; `RecordError` says why there is none."""
        if eval_name not in self._by_eval:
            self._by_eval[eval_name] = self._load(eval_name)
        cases = self._by_eval[eval_name]
        if isinstance(cases, str):
            raise RecordError(f"a run records id, group and tags of case {case_id!r}; for more its eval is needed: {cases}")
        if case_id not in cases:
            raise RecordError(f"eval {eval_name!r} has no case {case_id!r} any more, so nothing is known of it but id, group and tags")
        return cases[case_id]

    def _load(self, eval_name: str) -> Mapping[str, Case] | str:
        """Return the cases by id, or why they cannot be loaded."""
        path = next((path for path, entry in self._recorded.records.evals.items() if entry["name"] == eval_name), None)
        root = next((root for root in likely_roots(self._recorded) if path is not None and (root / path).is_file()), None)
        if path is None or root is None:
            return f"{path or eval_name} is not here; run this in the project that it belongs to"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # what is wrong with the data was said when it was asked
                module = _imported(root / path)
                return {case.id: case for case in read_eval(_eval_marker(module), path, self._run, root).cases}
        except (Exception, SystemExit) as raised:  # whatever a user's module or data may raise
            error = raised.error if isinstance(raised, CasesNotLoaded) else raised
            return f"{path} cannot be loaded: {type(error).__name__}: {error}"


def _imported(path: Path) -> ModuleType:
    """Return the module of a file, under a name of its own; what lies beside it can be imported meanwhile."""
    spec = importlib.util.spec_from_file_location(f"_evalharness_original_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(path.parent))
    return module


def _eval_marker(module: ModuleType) -> pytest.Mark:
    """Return the eval marker of a module; `RecordError` where it has none any more."""
    given: Any = getattr(module, "pytestmark", ())
    for mark in given if isinstance(given, (list, tuple)) else (given,):
        found = getattr(mark, "mark", mark)
        if getattr(found, "name", None) == "eval" and isinstance(found, pytest.Mark):
            return found
    raise RecordError("it has no pytestmark = pytest.mark.eval(...)")
