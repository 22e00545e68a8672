"""An eval whose cases cannot be loaded: one test stands for it, and is an error of collection unless it is deselected.

`pytest evals --data photos -k stage_a` needs the data of that eval alone, but pytest selects by `-k`, `-m` and `--deselect` among tests
that are made already. So the error waits until it is known whether anybody asked for the eval; what is then shown, and that nothing
runs, is as for any other error of collection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pytest

from evalharness.api.errors import EvalHarnessError
from evalharness.pytest_plugin.eval_module import as_collection_error, is_named, takes

__all__ = ["report_unloaded", "stand_in"]


@dataclass(frozen=True)
class _Unloaded:
    """Stands where a test has its case and its engine."""

    error: Exception


class _Cases(pytest.Collector):
    """What collects nothing but the error, under the name of the module."""

    error: Exception

    def collect(self) -> Iterable[pytest.Item]:
        raise as_collection_error(self.error) if isinstance(self.error, EvalHarnessError) else self.error


def stand_in(metafunc: pytest.Metafunc, error: Exception) -> None:
    """Give a test one parameter that stands for its eval; raises the error where it cannot wait.

    A test that is named with its case, or was selected because it failed before, would not be found, and nobody would hear why.
    """
    if metafunc.config.getoption("lf", False) or is_named(metafunc, with_case=True):
        raise error
    names = [name for name in ("engine", "case") if takes(metafunc, name)]
    standing = pytest.param(*[_Unloaded(error)] * len(names), id="no-cases")
    metafunc.parametrize(names, [standing], indirect=[name for name in names if name == "engine"])


def report_unloaded(session: pytest.Session) -> None:
    """Make an error of collection for each module that still has such a test, and take these tests out of the session."""
    standing: dict[pytest.Item, Exception] = {}
    for item in session.items:
        if (error := _error_of(item)) is not None:
            standing[item] = error
    if not standing:
        return
    session.items[:] = [item for item in session.items if item not in standing]
    for module, error in {item.getparent(pytest.Module): error for item, error in standing.items()}.items():
        assert module is not None
        cases: Any = _Cases.from_parent(module, name=module.name, nodeid=module.nodeid)
        cases.error = error
        report = cases.ihook.pytest_make_collect_report(collector=cases)
        vars(report).pop("call", None)  # as pytest does itself: workers could not send it
        cases.ihook.pytest_collectreport(report=report)


def _error_of(item: pytest.Item) -> Exception | None:
    params = getattr(getattr(item, "callspec", None), "params", {})
    return next((value.error for value in params.values() if isinstance(value, _Unloaded)), None)
