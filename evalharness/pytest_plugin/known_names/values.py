"""What an expression in code may be, as far as it can be told without running it: a known object, a text, or how it was made."""

from __future__ import annotations

import collections
import dataclasses
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

MOST_ELEMENTS = 500
_GENERATED_IN = ("<string>", dataclasses.__file__, collections.__file__)
_SETTLED = (str, int, float, bool, types.NoneType, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)
_HARMLESS: tuple[Any, ...] = (len, sum, any, all, round, isinstance, str, repr, float, int, bool, print, dict, list, tuple, set, frozenset)
_HARMLESS += (sorted, zip, enumerate, reversed, min, max, vars(dict)["fromkeys"])
_PLAIN_ATTRIBUTES = (types.FunctionType, types.MemberDescriptorType, staticmethod, classmethod)


@dataclass(frozen=True)
class Known:
    """An object that is there already, as a function of a module; not a text, number or collection."""

    value: Any


@dataclass(frozen=True)
class Text:
    """A text, or a number as one, with "*" for each part that is not known."""

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


@dataclass(frozen=True)
class Arguments:
    """What a call gets; not `are_all`: there may be more, by place or by name."""

    by_place: Sequence[Lazy] = ()
    by_name: Mapping[str, Lazy] = field(default_factory=dict)
    are_all: bool = True


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
    return value.pattern if isinstance(value, Text) else "*"


def value_of(known: Any) -> Value:
    """Return an object as a value; plain ones by what is in them."""
    kind = type(known)
    if kind in (str, int, float, bool):
        return Text(str(known))
    if kind in (list, tuple, set, frozenset, dict) and len(known) > MOST_ELEMENTS:
        return Anything()
    if kind is dict:
        return Dict(frozenset(pattern_of(value_of(key)) for key in known), lambda: tuple(map(value_of, known.values())))
    if kind in (list, tuple, set, frozenset):
        return Items(tuple(always((value_of(each),)) for each in known), is_row=kind in (list, tuple))
    return Known(known)


def is_ours(known: Any) -> bool:
    """Return whether an object comes with the package, whose functions and classes are known to change nothing that they get."""
    if type(known) is types.FunctionType:
        name = known.__globals__.get("__name__")  # `__module__` may be copied from what it wraps
    else:
        name = known.__name__ if isinstance(known, types.ModuleType) else (known if isinstance(known, type) else type(known)).__module__
    return isinstance(name, str) and name.startswith("evalharness.")


def is_settled(known: Any) -> bool:
    """Return whether an object stays as it is."""
    if type(known) in (tuple, frozenset):
        return len(known) <= MOST_ELEMENTS and all(map(is_settled, known))
    return type(known) in _SETTLED or isinstance(known, type) or is_ours(type(known))


def changes_nothing(called: Any) -> bool:
    """Return whether an object is a function that leaves its arguments alone."""
    return any(called is each for each in _HARMLESS) or (isinstance(called, (types.FunctionType, type)) and is_ours(called))


def made(of: type, given: Arguments) -> Value:
    """Return the instance that a dataclass or a NamedTuple makes; of another class nothing is known."""
    fields = fields_of(of)
    if fields is None:
        return Anything()
    return Made(of, {**dict(zip(fields, given.by_place, strict=False)), **given.by_name} if given.are_all else {})


def declared(function: Any, name: str) -> Value:
    """Return an instance of the dataclass that a parameter, or what is returned, is declared to be, in code that is known to keep to it."""
    if is_ours(function):
        with suppress(Exception):  # whatever an annotation that is evaluated may raise
            hint = typing.get_type_hints(function).get(name)
            if dataclasses.is_dataclass(hint) and isinstance(hint, type) and not hint.__subclasses__():
                return Made(hint, {})
    return Anything()


def fields_of(of: Any) -> Sequence[str] | None:
    """Return what a dataclass or a NamedTuple takes by place; None for a class that does something with it, or no class."""
    if not isinstance(of, type) or not (is_ours(of) or _only_stores(of)):
        return None
    own = vars(of)
    if issubclass(of, tuple):
        return own.get("_fields")
    if not dataclasses.is_dataclass(of) or not _is_generated(own.get("__init__")):
        return None
    code = own["__init__"].__code__
    return code.co_varnames[1 : code.co_argcount]


def _is_generated(function: Any) -> bool:
    return isinstance(function, types.FunctionType) and function.__code__.co_filename in _GENERATED_IN


def _only_stores(of: type) -> bool:
    """Return whether the attributes of a class's instances are what they are made of, and nothing happens when they are used."""
    fields = getattr(of, "_fields", ())
    held = [
        each for base in of.__mro__ if base not in (object, tuple) for each in vars(base).items() if each[0] not in ("__repr__", *fields)
    ]
    special = [value for name, value in held if name.startswith("__") and isinstance(value, types.FunctionType)]
    own = [value for name, value in held if not name.startswith("__") and not isinstance(value, _PLAIN_ATTRIBUTES)]
    return type(of) is type and all(map(_is_generated, special)) and not any(hasattr(type(each), "__get__") for each in own)
