"""What a template makes of one row: a text, an answer, or a list of choices. Jinja runs in the sandbox, with its limits.

A field is written as in lm-evaluation-harness: Jinja over the row's columns, the name of a column, or a function of the row. A column whose
name is no name in Jinja is `row["Correct Answer"]`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, TypeAlias

from evalharness.answers.patterns import pattern as bounded_pattern
from evalharness.api.cases import Case
from evalharness.api.checks import excerpt
from evalharness.api.errors import ConfigError, ContractTypeError, EvalHarnessError, RequestError, did_you_mean

Row: TypeAlias = "Mapping[str, Any]"
Field: TypeAlias = "str | Callable[[Row], Any]"
"""Jinja, the name of a column, or a function of the row."""
Answer: TypeAlias = "str | int | list[str]"
_NAME = re.compile(r"[^\W\d][\w.-]*")
_PLACE = re.compile(r"[0-9]{1,9}")
_CONSTANT = ("description", "prefill")
"""Fields in which one word is more likely a text than a misspelt column."""


class _NullError(Exception):
    """An expression of a template has no value."""


def row_of(case: Case) -> Row:
    """Return the row of a case from a file, or the fields of another one."""
    row = getattr(case, "row", None)
    return row if isinstance(row, Mapping) else {f.name: getattr(case, f.name) for f in fields(case)}


def check_field(path: str, value: object) -> None:
    """Raise `ContractTypeError` for what is no field, `ConfigError` for Jinja that is not well formed."""
    if not isinstance(value, str):
        if not callable(value):
            raise ContractTypeError(f"{path} must be Jinja, a column or a function of the row, got {value!r} ({type(value).__name__})")
        return
    from jinja2 import TemplateError

    try:
        _compiled(value)
    except TemplateError as error:
        raise ConfigError(f"{path} is not Jinja: {type(error).__name__}: {error}; got {excerpt(value, 80)!r}") from error


def text_of(field: Field, row: Row, what: str) -> str:
    """Return the text that a field makes of a row; `RequestError` where it makes none."""
    value = _value(field, row, what)
    if not isinstance(value, str):
        raise RequestError(f"{what} must be a text, got {value!r} ({type(value).__name__})")
    return value


def answer_of(field: Field | int, row: Row, choices: Sequence[str] | None, what: str) -> Answer:
    """Return the right answer of a row: a text, the place of a choice (from 0), or a list of right texts."""
    value = field if isinstance(field, int) else _value(field, row, what)
    if isinstance(value, str) and _PLACE.fullmatch(value) and choices is not None and not _is_column(field, row):
        value = int(value)
    if isinstance(value, str) and len(value) > 1 and (value[0], value[-1]) == ("[", "]") and not _is_column(field, row):
        value = _literal(value) or value
    if isinstance(value, float) and choices is None:
        value = str(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, list)) or value == []:
        raise RequestError(f"{what} must be a text, a place among the choices or a list of texts, got {value!r} ({type(value).__name__})")
    if isinstance(value, int) and choices is not None and not 0 <= value < len(choices):
        raise RequestError(f"{what} is {value}, and there are the choices 0 to {len(choices) - 1}")
    return value


def choices_of(field: Field | Sequence[str], row: Row, what: str) -> list[str]:
    """Return the choices of a row; `RequestError` unless they are texts."""
    made = _value(field, row, what) if isinstance(field, str) or callable(field) else field
    value = _literal(made) if isinstance(made, str) else made
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(choice, str) for choice in value):
        raise RequestError(f"{what} must make a list of texts, got {excerpt(repr(made), 80)}; in Jinja: {{{{[first, second]}}}}")
    return list(value)


def _literal(text: str) -> list[Any] | None:
    """Return the list that a text spells as Python does, as Jinja writes lists; None where it spells none."""
    try:
        value = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _is_column(field: object, row: Row) -> bool:
    return isinstance(field, str) and field in row


def _value(field: Field, row: Row, what: str) -> Any:
    if not isinstance(field, str):
        return field(row)
    if field in row:
        return row[field]
    if what not in _CONSTANT and _NAME.fullmatch(field):
        meant = did_you_mean(field, [str(column) for column in row]) or ";"
        raise RequestError(f"{what} is {field!r}, no column of the row{meant} it has: {', '.join(map(str, row)) or 'none'}")
    from jinja2 import TemplateError, UndefinedError

    try:
        return _compiled(field).render({"row": row, **row})
    except _NullError:
        empty = ", ".join(str(column) for column in row if row[column] is None) or "none of its columns itself"
        raise RequestError(
            f"{what} writes a value that is null; write {{{{column or ''}}}} where that is meant; null are: {empty}"
        ) from None
    except UndefinedError as error:
        raise RequestError(f"{what}: {error}{_meant(str(error), row)} the row has: {', '.join(map(str, row)) or 'no columns'}") from error
    except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, RecursionError, re.error) as error:
        raise RequestError(f"{what} makes no text of this row: {type(error).__name__}: {error}") from error


def _meant(message: str, row: Row) -> str:
    name = re.match(r"'(.*)' is undefined", message)
    return (did_you_mean(name[1], [str(column) for column in row]) if name else "") or ";"


@cache
def _compiled(source: str) -> Any:
    return _environment().from_string(source)


@cache
def _environment() -> Any:
    from jinja2 import StrictUndefined

    from evalharness.backends.template_sandbox import LimitedEnvironment

    environment = LimitedEnvironment(undefined=StrictUndefined, keep_trailing_newline=True)
    limited: Callable[[Any], Any] = environment.finalize or str
    environment.finalize = lambda value: limited(_written(value))
    environment.filters["regex_replace"] = _regex_replace
    return environment


def _written(value: Any) -> Any:
    """Refuse what Jinja would write as "None": a column without a value is as one that is not there, in whichever format the rows are."""
    if value is None:
        raise _NullError
    return value


def _regex_replace(text: str, pattern: str, repl: str, count: int = 0) -> str:
    """Replace as `re.sub` does, within bounds of time and size: a row may come from anyone."""
    from jinja2.exceptions import FilterArgumentError

    from evalharness.backends.template_sandbox import MAX_VALUE

    try:
        return bounded_pattern(pattern).replace(text, repl, count, MAX_VALUE)
    except EvalHarnessError as error:
        raise FilterArgumentError(f"regex_replace: {error}") from error
