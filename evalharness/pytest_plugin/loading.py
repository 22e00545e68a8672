"""Loads and checks the cases of an eval, all of them or those that --limit and --limit-first take."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from evalharness.api.cases import Case
from evalharness.api.checks import shown
from evalharness.api.errors import ConfigError
from evalharness.api.garbage import collector
from evalharness.config import RunConfig
from evalharness.runs.repeats import split_repeat

_SHOWN_IDS = 5
Loader = Callable[[Path | None], Iterable[Case]]


class CasesNotLoaded(Exception):
    """An eval's cases cannot be loaded; `error` was raised: a `ConfigError`, or any error of the eval's own function."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class Loaded(NamedTuple):
    """The checked cases that run, in the order of the eval; how many it has in all; what its loader warned of."""

    cases: Sequence[Case]
    num_cases: int
    notices: tuple[str, ...]


def load_cases(load: Loader, data_dir: Path | None, path: str, run: RunConfig) -> Loaded:
    """Return the cases that a run takes, checked with all others; raises the first error found."""
    where = f"{path}: {getattr(load, '__qualname__', load)}({data_dir})"
    try:
        inspect.signature(load).bind(data_dir)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}; `cases` is called with one argument, the data folder or None") from None
    except ValueError:
        pass  # some builtins have no signature
    with _noting_warnings() as warned, collector(on=True):  # while tests are made it is off, but this may read gigabytes
        try:
            cases, num_cases = _taken(load, data_dir, where, run)
        except SystemExit as error:  # would end pytest at once, maybe with a green exit code
            raise ConfigError(f"{where} called sys.exit({error.code!r}); raise an error instead") from error
    if not num_cases:
        raise ConfigError(f"{where} found no cases; give a folder that holds some with --data")
    return Loaded(cases, num_cases, tuple(dict.fromkeys(warned)))


def _taken(load: Loader, data_dir: Path | None, where: str, run: RunConfig) -> tuple[Sequence[Case], int]:
    """Return the cases that run, and how many there are in all."""

    def loaded() -> Iterable[Case]:
        cases = load(data_dir)
        if not isinstance(cases, Iterable):
            raise ConfigError(f"{where} returned {shown(cases)}; it must return a list of evalharness.Case")
        return cases

    if run.limit is not None or run.limit_first is not None:
        return _part(loaded, where, run)
    cases = list(map(partial(_checked, where), loaded()))
    ids = Counter(case.id for case in cases)
    _refuse_repeated([case_id for case_id, count in ids.items() if count > 1], where)
    return cases, len(cases)


def _part(loaded: Callable[[], Iterable[Case]], where: str, run: RunConfig) -> tuple[Sequence[Case], int]:
    """Return a part of the cases, and how many there are. A generator is called again for a sample: its cases are never all in memory."""
    from evalharness.analysis.statistics.spread import SpreadSample  # imports sqlite3, and few runs take a part

    cases = loaded()
    kept = None if isinstance(cases, Iterator) else list(cases)

    def at(positions: Sequence[int]) -> list[Case]:
        if kept is not None:
            return [kept[position] for position in positions]
        wanted = set(positions)
        return [case for position, case in enumerate(islice(loaded(), max(wanted, default=-1) + 1)) if position in wanted]

    with SpreadSample(run.seed) as sample:
        first: list[Case] = []
        for case in cases if kept is None else kept:
            sample.add(_checked(where, case))
            if len(first) < (run.limit_first or 0):
                first.append(case)
        if repeated := sample.repeated(_SHOWN_IDS):
            _refuse_repeated([case.id for case in at(repeated)], where)
        if run.limit is None:
            return first, len(sample)
        positions = sample.draw(run.limit)
        taken = at(positions)
        if not sample.has(taken, positions):
            raise ConfigError(f"{where} yields other cases each time, and --limit needs the same; give its random numbers a fixed seed")
        return taken, len(sample)


def _refuse_repeated(ids: Sequence[str], where: str) -> None:
    if ids:
        shown_ids = ", ".join(map(repr, list(dict.fromkeys(ids))[:_SHOWN_IDS]))
        problem = f"{where} returned case ids more than once: {shown_ids}"
        raise ConfigError(f"{problem}; ids must be unique within an eval; an id may join several columns")


def _checked(where: str, case: object) -> Case:
    if not isinstance(case, Case):
        raise ConfigError(f"{where} returned {shown(case)}; every case must be an evalharness.Case")
    if case.group is not None and not isinstance(case.group, str):
        raise ConfigError(f"{where} returned case {case.id!r} with group {shown(case.group)}; a group must be text or None")
    if case.invalid is not None and not isinstance(case.invalid, str):
        raise ConfigError(f"{where} returned case {case.id!r} with invalid {shown(case.invalid)}; it must be a text that says why, or None")
    if not isinstance(case.tags, Mapping) or not all(isinstance(text, str) for tag in case.tags.items() for text in tag):
        raise ConfigError(f"{where} returned case {case.id!r} with tags {shown(case.tags)}; tags must map names to texts")
    if not isinstance(case.id, str) or not case.id.strip() or not case.id.isprintable() or "::" in case.id:
        raise ConfigError(f"{where} returned a case with id {shown(case.id)}; ids must be printable text without '::'")
    if split_repeat(case.id)[1]:
        raise ConfigError(f"{where} returned a case with id {shown(case.id)}; such an end names a repeat (--noise)")
    return case


@contextmanager
def _noting_warnings() -> Iterator[list[str]]:
    """Collect the user warnings raised in the block, such as data left out; they are still shown afterwards."""
    noted: list[str] = []
    with warnings.catch_warnings(record=True) as caught:  # the filters stay: warnings set to errors are raised
        yield noted
    for warning in caught:
        if issubclass(warning.category, UserWarning):
            noted.append(str(warning.message))
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
