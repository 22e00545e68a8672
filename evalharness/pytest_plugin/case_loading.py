"""From an eval's `cases` function to its cases: called, checked, and what it warned of noted."""

from __future__ import annotations

import inspect
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError

__all__ = ["CasesNotLoaded", "load_cases"]


class CasesNotLoaded(Exception):
    """An eval's cases cannot be loaded; `error` is what was raised: a `ConfigError`, or whatever the eval's own function raises."""

    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


def load_cases(
    load: Callable[[Path | None], Sequence[Case]], data_dir: Path | None, path: str, limit: int | None
) -> tuple[Sequence[Case], tuple[str, ...]]:
    """Return the checked cases, and what the function warned of; `CasesNotLoaded` says what is wrong with them."""
    try:
        return _load_cases(load, data_dir, path, limit)
    except Exception as error:
        raise CasesNotLoaded(error) from error


def _load_cases(
    load: Callable[[Path | None], Sequence[Case]], data_dir: Path | None, path: str, limit: int | None
) -> tuple[Sequence[Case], tuple[str, ...]]:
    where = f"{path}: {getattr(load, '__qualname__', load)}({data_dir})"
    try:
        inspect.signature(load).bind(data_dir)
    except TypeError as error:
        raise ConfigError(f"{where}: {error}; `cases` is called with one argument, the data folder or None") from None
    except ValueError:
        pass  # some builtins have no signature
    with _noting_warnings() as warned:
        try:
            loaded = load(data_dir)
        except SystemExit as error:  # would end pytest at once, maybe with a green exit code
            raise ConfigError(f"{where} called sys.exit({error.code!r}); raise an error instead") from error
        if not isinstance(loaded, Iterable):
            raise ConfigError(f"{where} gave {loaded!r}; it must give a list of evalharness.Case")
        cases = list(loaded)
    if not cases:
        raise ConfigError(f"{where} found no cases; give a folder that holds some with --data")
    for case in cases:
        _check(case, where)
    twice = [case_id for case_id, count in Counter(case.id for case in cases).items() if count > 1]
    if twice:
        raise ConfigError(f"{where} gave case ids more than once: {', '.join(map(repr, twice[:5]))}; ids must be unique within an eval")
    return cases[:limit], tuple(dict.fromkeys(warned))


def _check(case: object, where: str) -> None:
    if not isinstance(case, Case):
        raise ConfigError(f"{where} gave {case!r}; every case must be an evalharness.Case")
    if case.group is not None and not isinstance(case.group, str):
        raise ConfigError(f"{where} gave case {case.id!r} with group {case.group!r}; a group is text or None")
    if not isinstance(case.tags, Mapping) or not all(isinstance(text, str) for tag in case.tags.items() for text in tag):
        raise ConfigError(f"{where} gave case {case.id!r} with tags {case.tags!r}; tags are texts by name")
    if not isinstance(case.id, str) or not case.id.strip() or not case.id.isprintable() or "::" in case.id:
        raise ConfigError(f"{where} gave a case with id {case.id!r}; ids are printable text without '::'")


@contextmanager
def _noting_warnings() -> Iterator[list[str]]:
    """Give a list of what users are warned of in the block, such as data left out; each is a warning all the same, afterwards."""
    noted: list[str] = []
    with warnings.catch_warnings(record=True) as caught:  # the filters stay: what is an error is raised
        yield noted
    for one in caught:
        if issubclass(one.category, UserWarning):
            noted.append(str(one.message))
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
