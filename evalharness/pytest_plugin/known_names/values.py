"""What an expression in code may be, as far as it can be told without running it: a known object, a text, or how it was made."""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True)
class Known:
    """An object that is there already: of a module, of a closure, or a constant."""

    value: Any


@dataclass(frozen=True)
class Text:
    """A text with "*" for each part that is not known."""

    pattern: str


@dataclass(frozen=True)
class Items:
    """A sequence, by what each element may be; `is_row`: as many as there are, in their order."""

    elements: tuple[Lazy, ...]
    is_row: bool = False


@dataclass(frozen=True)
class Dict:
    """A dict by its possible keys, and what its values may be."""

    keys: frozenset[str]
    values: Lazy


@dataclass(frozen=True)
class Made:
    """An instance of a class, by its fields as far as they are known."""

    of: type
    fields: Mapping[str, Lazy]


@dataclass(frozen=True)
class Method:
    """A function of a class, with what it is called on."""

    function: types.FunctionType
    owner: Value


class Anything:
    """A value of which nothing is known."""


Value: TypeAlias = "Known | Text | Items | Dict | Made | Method | Anything"
Values: TypeAlias = "tuple[Value, ...]"
"""What an expression may be: one of these."""
Lazy: TypeAlias = "Callable[[], Values]"
ANY: Values = (Anything(),)


def anything() -> Values:
    return ANY


def always(values: Values) -> Lazy:
    return lambda: values


def all_of(parts: Iterable[Lazy]) -> Values:
    return tuple(value for part in parts for value in part())


def row(*parts: Lazy) -> Lazy:
    return always((Items(parts, is_row=True),))


def pattern_of(value: Value) -> str:
    if isinstance(value, Known) and isinstance(value.value, str):
        return value.value
    return value.pattern if isinstance(value, Text) else "*"


def made(of: type, arguments: Sequence[Lazy], keywords: Mapping[str, Lazy]) -> Value:
    """Return the instance that a dataclass or a NamedTuple makes; of another class nothing is known."""
    fields = fields_of(of)
    return Anything() if fields is None else Made(of, {**dict(zip(fields, arguments, strict=False)), **keywords})


def declared(function: Any, name: str) -> Value:
    """Return an instance of the dataclass that a parameter, or what is returned, is declared to be, in code that is known to keep to it."""
    if (function.__module__ or "").startswith("evalharness."):
        with suppress(Exception):  # whatever an annotation that is evaluated may raise
            hint = typing.get_type_hints(function).get(name)
            if dataclasses.is_dataclass(hint) and isinstance(hint, type) and not hint.__subclasses__():
                return Made(hint, {})
    return Anything()


def fields_of(of: Any) -> Sequence[str] | None:
    """Return the fields that a dataclass or a NamedTuple is made of; None for a class that does something with them, or no class."""
    if not isinstance(of, type):
        return None
    own = vars(of)
    if dataclasses.is_dataclass(of) and not hasattr(of, "__post_init__") and "__init__" in own:
        is_made = own["__init__"].__code__.co_filename == "<string>"  # by the decorator
        return [field.name for field in dataclasses.fields(of) if field.init] if is_made else None
    fields: Sequence[str] | None = own.get("_fields") if issubclass(of, tuple) else None
    return () if of.__module__ == "builtins" else fields
