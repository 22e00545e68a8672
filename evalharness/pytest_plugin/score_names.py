"""The names that code gives to scores and aggregates, read from it without running it: `names_of` evaluates what dicts have for keys.

Calls are followed into functions whose source is there, with what is known of their arguments; conditions and the order of statements are
not weighed, so the names are all that can come, and maybe some that never do. A part of a name that only running code knows is "*".
Wherever an object might get further keys in a way that is not understood, the answer is None, never a guess.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import inspect
import itertools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.pytest_plugin.source_uses import Binding, Uses, uses_of

_MAX_STEPS, _MAX_DEPTH, _MAX_COMBINATIONS = 50_000, 30, 500
_FUNCTIONS = (ast.FunctionDef, ast.Lambda)
_FROM_KEYS = vars(dict)["fromkeys"]
_BUILT_IN_TYPES = (type, types.BuiltinFunctionType, types.ClassMethodDescriptorType)
_BUILT_IN = (list, tuple, set, frozenset, sorted, reversed, zip, enumerate, _FROM_KEYS)


class _Unclear(Exception):
    """The code does not tell."""


class _GaveUp(Exception):
    """It would take too long to tell."""


@dataclass(frozen=True)
class _Known:
    """An object that is there already: of a module, of a closure, or a constant."""

    value: Any


@dataclass(frozen=True)
class _Text:
    """A text with "*" for each part that is not known."""

    pattern: str


@dataclass(frozen=True)
class _Items:
    """A sequence, by what each element may be; `is_row`: as many as there are, in their order."""

    elements: tuple[Lazy, ...]
    is_row: bool = False


@dataclass(frozen=True)
class _Dict:
    """A dict by its possible keys, and what its values may be."""

    keys: frozenset[str]
    values: Lazy


@dataclass(frozen=True)
class _Made:
    """An instance of a class, by its fields as far as they are known."""

    of: type
    fields: Mapping[str, Lazy]


@dataclass(frozen=True)
class _Method:
    """A function of a class, with what it is called on."""

    function: types.FunctionType
    owner: _Value


class _Anything:
    """A value of which nothing is known."""


_Value: TypeAlias = "_Known | _Text | _Items | _Dict | _Made | _Method | _Anything"
Values: TypeAlias = "tuple[_Value, ...]"
"""What an expression may be: one of these."""
Lazy: TypeAlias = "Callable[[], Values]"
_ANY: Values = (_Anything(),)


def names_of(expression: ast.expr, function: Callable[..., Any], trusted: Iterable[str] = ()) -> frozenset[str] | None:
    """Return the keys of the mapping that an expression in a function is; None where the code does not tell.

    `trusted`: names of functions that change nothing that they get.
    """
    frame = _Frame.of(function)
    if frame is None:
        return None
    frame.trusted = frozenset(trusted)
    return _names_in(lambda reader: reader.values(expression, frame))


def names_returned(function: Any, *, nested: bool = False) -> frozenset[str] | None:
    """Return the keys of the mappings that a function returns, None where the code does not tell.

    `nested`: of the mappings in what it returns, or in the field `metrics` of that.
    """

    def read(reader: _Reader) -> Values:
        found = reader.called((_Known(function),), [], {}, is_complete=False)
        if not nested:
            return found
        whole = (one for each in found for one in (reader.attribute(each, "metrics") if isinstance(each, _Made) else (each,)))
        return tuple(value for each in whole for value in reader.elements_of_dict(each))

    return _names_in(read)


def _names_in(read: Callable[[_Reader], Values]) -> frozenset[str] | None:
    reader = _Reader()
    try:
        names = reader.keys(read(reader))
    except (_Unclear, _GaveUp, RecursionError):
        return None
    return names if all(name.strip("*") for name in names) else None


def _anything() -> Values:
    return _ANY


def _always(values: Values) -> Lazy:
    return lambda: values


def _all_of(parts: Iterable[Lazy]) -> Values:
    return tuple(value for part in parts for value in part())


def _row(*parts: Lazy) -> Lazy:
    return _always((_Items(parts, is_row=True),))


class _Frame:
    """Where names are looked up: a function's own ones, or those of a loop within it, then those around it."""

    def __init__(self, uses: Uses | None, around: Mapping[str, Any], bound: Mapping[str, Lazy], outer: _Frame | None = None) -> None:
        self.uses, self.around, self.bound, self.outer = uses, around, bound, outer
        self.found: dict[str, Values] = {}
        self.trusted: frozenset[str] = frozenset()
        """Functions that change nothing that they get."""

    @classmethod
    def of(cls, function: Any, bound: Mapping[str, Lazy] = types.MappingProxyType({})) -> _Frame | None:
        """Return the frame of a function, None where its source is not there or it is none that can be read."""
        uses = _source_of(function)
        if uses is None:
            return None
        signature = inspect.signature(function).parameters
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        around = {**vars(builtins), **function.__globals__, **{name: cell.cell_contents for name, cell in cells if _is_filled(cell)}}
        return cls(uses, around, {**dict.fromkeys(signature, _anything), **bound})


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def _source_of(function: Any) -> Uses | None:
    """Return what is known of a plain function's code; None for any other, one of several at its place, or one that is wrapped."""
    if not isinstance(function, types.FunctionType) or hasattr(function, "__wrapped__"):
        return None
    code = function.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return None
    try:
        facts = Path(code.co_filename).stat()
        found = _functions(code.co_filename, facts.st_mtime_ns, facts.st_size).get((code.co_name, code.co_firstlineno), [])
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return uses_of(found[0]) if len(found) == 1 else None


@functools.lru_cache(maxsize=64)
def _functions(path: str, mtime_ns: int, num_bytes: int) -> dict[tuple[str, int], list[ast.FunctionDef | ast.Lambda]]:
    """Return the functions of a file by name and first line, as their code has it."""
    found: dict[tuple[str, int], list[ast.FunctionDef | ast.Lambda]] = {}
    for node in ast.walk(ast.parse(Path(path).read_bytes())):
        if isinstance(node, ast.Lambda):
            found.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, ast.FunctionDef):
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            found.setdefault((node.name, line), []).append(node)
    return found


class _Reader:
    """Evaluates expressions; gives up after so many steps."""

    def __init__(self) -> None:
        self._steps = itertools.count()
        self._depth = 0

    # What is asked of values

    def keys(self, values: Values) -> frozenset[str]:
        """Return the possible keys of mappings; `_Unclear` where a value may be another one."""
        found: set[str] = set()
        for value in values:
            if isinstance(value, _Dict):
                found |= value.keys
            elif isinstance(value, _Known) and isinstance(value.value, Mapping):
                found |= {str(key) for key in value.value}
            else:
                raise _Unclear
        return frozenset(found)

    def elements(self, values: Values) -> list[Lazy]:
        """Return what the elements of a sequence, or the keys of a mapping, may be."""
        found: list[Lazy] = []
        for value in values:
            if isinstance(value, _Items):
                found += value.elements
            elif isinstance(value, _Dict):
                found += [_always((_Text(key),)) for key in sorted(value.keys)]
            elif isinstance(value, _Known) and isinstance(value.value, (list, tuple, set, frozenset, Mapping)):
                found += [_always((_Known(each),)) for each in value.value]
            else:
                found.append(_anything)
        return found if len(found) <= _MAX_COMBINATIONS else [_anything]

    def elements_of_dict(self, value: _Value) -> Values:
        """Return what the values of a mapping may be."""
        if isinstance(value, _Dict):
            return value.values()
        if isinstance(value, _Known) and isinstance(value.value, Mapping):
            return tuple(_Known(each) for each in value.value.values())
        return _ANY

    def _pairs(self, value: _Value) -> _Items:
        if isinstance(value, _Known) and isinstance(value.value, Mapping):
            return _Items(tuple(_row(_always((_Known(key),)), _always((_Known(each),))) for key, each in value.value.items()))
        keys = [_always((_Text(key),)) for key in sorted(value.keys)] if isinstance(value, _Dict) else [_anything]
        return _Items(tuple(_row(key, functools.partial(self.elements_of_dict, value)) for key in keys))

    def texts(self, values: Values) -> set[str]:
        """Return the texts that values may be, "*" for what is not known."""
        return set(map(_pattern_of, values))

    def attribute(self, value: _Value, name: str) -> Values:
        """Return what an attribute may be."""
        if isinstance(value, _Known) and isinstance(value.value, types.ModuleType):
            return (_Known(vars(value.value)[name]),) if name in vars(value.value) else _ANY
        of = value.of if isinstance(value, _Made) else value.value if isinstance(value, _Known) else None
        if isinstance(value, _Made) and name in value.fields:
            return value.fields[name]()
        if not isinstance(of, type):
            return _ANY
        held = inspect.getattr_static(of, name, None)
        if isinstance(held, staticmethod):
            return (_Known(held.__func__),)
        if isinstance(held, classmethod):
            return (_Method(held.__func__, _Known(of)),)
        if not isinstance(value, _Made):
            return (_Known(held),)
        if isinstance(held, types.FunctionType):
            return (_Method(held, value),)
        read = held.fget if isinstance(held, property) else held.func if isinstance(held, functools.cached_property) else None
        return _ANY if read is None else self._returned(read, [_always((value,))], {}, is_complete=True)

    # Expressions

    def values(self, node: ast.expr, frame: _Frame) -> Values:
        """Return what an expression may be."""
        if next(self._steps) > _MAX_STEPS:
            raise _GaveUp
        read = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        found: Values = _ANY if read is None else read(node, frame)
        return found

    def _of_constant(self, node: ast.Constant, frame: _Frame) -> Values:
        return (_Known(node.value),)

    def _of_name(self, node: ast.Name, frame: _Frame) -> Values:
        return self._looked_up(node.id, frame)

    def _of_attribute(self, node: ast.Attribute, frame: _Frame) -> Values:
        return tuple(found for value in self.values(node.value, frame) for found in self.attribute(value, node.attr))

    def _of_subscript(self, node: ast.Subscript, frame: _Frame) -> Values:
        found: list[_Value] = []
        for value in self.values(node.value, frame):
            if isinstance(value, _Items):
                found += _all_of(value.elements)
            else:
                found += self.elements_of_dict(value)
        return tuple(found)

    def _of_ifexp(self, node: ast.IfExp, frame: _Frame) -> Values:
        return (*self.values(node.body, frame), *self.values(node.orelse, frame))

    def _of_boolop(self, node: ast.BoolOp, frame: _Frame) -> Values:
        return tuple(value for part in node.values for value in self.values(part, frame))

    def _of_joinedstr(self, node: ast.JoinedStr, frame: _Frame) -> Values:
        texts = {""}
        for part in node.values:
            if isinstance(part, ast.Constant):
                added = {str(part.value)}
            elif isinstance(part, ast.FormattedValue) and part.conversion == -1 and part.format_spec is None:
                values = self.values(part.value, frame)
                added = {str(value.value) if isinstance(value, _Known) else next(iter(self.texts((value,)))) for value in values}
            else:
                added = {"*"}
            texts = {start + end for start in texts for end in (added if len(texts) * len(added) <= _MAX_COMBINATIONS else {"*"})}
        return tuple(map(_Text, sorted(texts)))

    def _of_binop(self, node: ast.BinOp, frame: _Frame) -> Values:
        left, right = self.values(node.left, frame), self.values(node.right, frame)
        if isinstance(node.op, ast.BitOr):
            return (self._merged([left, right]),)
        if isinstance(node.op, ast.Add) and all(isinstance(value, (_Text, _Known)) for value in (*left, *right)):
            return tuple(_Text(start + end) for start in sorted(self.texts(left)) for end in sorted(self.texts(right)))
        return _ANY

    def _of_tuple(self, node: ast.Tuple | ast.List | ast.Set, frame: _Frame) -> Values:
        elements: list[Lazy] = []
        for part in node.elts:
            if isinstance(part, ast.Starred):
                elements += self.elements(self.values(part.value, frame))
            else:
                elements.append(functools.partial(self.values, part, frame))
        return (_Items(tuple(elements), is_row=not any(isinstance(part, ast.Starred) for part in node.elts)),)

    _of_list = _of_set = _of_tuple

    def _of_dict(self, node: ast.Dict, frame: _Frame) -> Values:
        parts: list[Values] = []
        for key, value in zip(node.keys, node.values, strict=True):
            if key is None:
                parts.append(self.values(value, frame))
            else:
                parts.append((self._entry(key, value, frame),))
        return (self._merged(parts),)

    def _entry(self, key: ast.expr, value: ast.expr, frame: _Frame) -> _Dict:
        return _Dict(frozenset(self.texts(self.values(key, frame))), lambda: self.values(value, frame))

    def _merged(self, parts: Sequence[Values]) -> _Value:
        try:
            keys = frozenset[str]().union(*(self.keys(part) for part in parts))
        except _Unclear:
            return _Anything()
        return _Dict(keys, lambda: tuple(found for part in parts for value in part for found in self.elements_of_dict(value)))

    def _of_dictcomp(self, node: ast.DictComp, frame: _Frame) -> Values:
        return (self._merged([(self._entry(node.key, node.value, each),) for each in self._rounds(node.generators, frame)]),)

    def _of_listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, frame: _Frame) -> Values:
        return (_Items(tuple(functools.partial(self.values, node.elt, each) for each in self._rounds(node.generators, frame))),)

    _of_setcomp = _of_generatorexp = _of_listcomp

    def _rounds(self, generators: Sequence[ast.comprehension], frame: _Frame) -> Iterator[_Frame]:
        """Yield the frame of each round of a comprehension, as if its conditions all held."""
        if not generators:
            yield frame
            return
        first, *others = generators
        for element in self.elements(self.values(first.iter, frame)):
            bound = dict(self._unpacked(first.target, element))
            yield from self._rounds(others, _Frame(None, frame.around, bound, frame))

    def _unpacked(self, target: ast.expr, element: Lazy) -> Iterator[tuple[str, Lazy]]:
        if isinstance(target, ast.Name):
            yield target.id, element
        elif isinstance(target, (ast.Tuple, ast.List)):
            for place, part in enumerate(target.elts):
                yield from self._unpacked(part, lambda place=place: self._part_of(element(), place))  # type: ignore[misc]
        elif isinstance(target, ast.Starred):
            yield from self._unpacked(target.value, _anything)

    def _part_of(self, values: Values, place: int) -> Values:
        """Return what one place of a sequence may be."""
        found: list[_Value] = []
        for value in values:
            known = value.value if isinstance(value, _Known) and isinstance(value.value, (tuple, list)) else None
            if isinstance(value, _Items) and value.is_row and place < len(value.elements):
                found += value.elements[place]()
            elif known is not None and place < len(known):
                found.append(_Known(known[place]))
            else:
                found += _ANY
        return tuple(found)

    # Names

    def _looked_up(self, name: str, frame: _Frame) -> Values:
        here: _Frame | None = frame
        while here is not None and here.uses is None and name not in here.bound:
            here = here.outer
        assert here is not None
        if here.uses is None:
            return here.bound[name]()
        if here.uses.is_unclear(name):
            return _ANY
        if name in here.found:
            return here.found[name]
        if name in here.uses.bindings or name in here.bound:
            here.found[name] = _ANY  # of what is made of itself
            here.found[name] = self._local(name, here)
            if self.changes(name, here):
                here.found[name] = _ANY
            return here.found[name]
        if name not in here.around:
            return _ANY
        known = here.around[name]
        if isinstance(known, (dict, list, set)) and (not known or here.uses.may_change(name)):
            return _ANY  # it may be filled later
        return (_Known(known),)

    def _local(self, name: str, frame: _Frame) -> Values:
        assert frame.uses is not None
        bindings = frame.uses.bindings.get(name, [])
        values = [*frame.bound.get(name, tuple)(), *(value for each in bindings if not each.adds for value in self._bound(each, frame))]
        added = [self._bound(each, frame) for each in bindings if each.adds]
        return (self._merged([tuple(values), *added]),) if added else tuple(values)

    def _bound(self, binding: Binding, frame: _Frame) -> Values:
        if binding.key is not None:
            return (self._entry(binding.key, binding.value, frame),)
        if binding.is_update and isinstance(binding.value, ast.Call):
            return self._dict_of(binding.value, frame)
        values = self.values(binding.value, frame)
        if binding.each:
            values = _all_of(self.elements(values))
        for place in binding.places:
            values = self._part_of(values, place)
        return values

    def changes(self, name: str, frame: _Frame) -> bool:
        """Return whether what a local name stands for may be changed in a way that is not understood."""
        assert frame.uses is not None
        if frame.uses.may_change(name):
            return True
        return any(self._is_changed_by(call, argument, frame) for call, argument in frame.uses.handed_to.get(name, ()))

    def _is_changed_by(self, call: ast.Call, argument: int | str, frame: _Frame) -> bool:
        """Return whether a call may change what it is given, or, where the argument is "", what its method belongs to."""
        if isinstance(call.func, ast.Name) and call.func.id in frame.trusted:
            return False
        for value in self.values(call.func, frame):
            called = value.function if isinstance(value, _Method) else value.value if isinstance(value, _Known) else None
            if _fields_of(called) is not None or (isinstance(called, types.BuiltinFunctionType) and called.__module__ == "builtins"):
                continue  # which change no arguments
            uses = _source_of(called)
            owner = uses.parameter(0) if uses is not None and isinstance(value, _Method) else None
            inner = _Frame.of(called, {owner: _always((value.owner,))} if owner is not None and isinstance(value, _Method) else {})
            if uses is None or inner is None:
                return True
            place = 0 if argument == "" else argument + (owner is not None) if isinstance(argument, int) else None
            parameter = argument if place is None else uses.parameter(place)
            if parameter is None or self._within(functools.partial(self.changes, parameter, inner), True):
                return True
        return False

    def _within(self, ask: Callable[[], Any], otherwise: Any) -> Any:
        """Return what a function of one more call says, `otherwise` where calls are too deep."""
        if self._depth >= _MAX_DEPTH:
            return otherwise
        self._depth += 1
        try:
            return ask()
        finally:
            self._depth -= 1

    # Calls

    def _of_call(self, node: ast.Call, frame: _Frame) -> Values:
        if isinstance(node.func, ast.Attribute):
            owners = self.values(node.func.value, frame)
            of_mappings = self._of_mappings(owners, node.func.attr)
            if of_mappings is not None:
                return of_mappings
            functions = tuple(found for owner in owners for found in self.attribute(owner, node.func.attr))
        else:
            functions = self.values(node.func, frame)
        known = functions[0].value if len(functions) == 1 and isinstance(functions[0], _Known) else None
        if known is dict:
            return self._dict_of(node, frame)
        arguments: list[Lazy] = [functools.partial(self.values, argument, frame) for argument in node.args]
        starred = any(isinstance(argument, ast.Starred) for argument in node.args) or any(keyword.arg is None for keyword in node.keywords)
        if isinstance(known, _BUILT_IN_TYPES) and known in _BUILT_IN:
            return _ANY if starred else (self._built_in(known, [argument() for argument in arguments]),)
        keywords: dict[str, Lazy] = {
            keyword.arg: functools.partial(self.values, keyword.value, frame) for keyword in node.keywords if keyword.arg is not None
        }
        return self.called(functions, [] if starred else arguments, keywords, is_complete=not starred)

    def _built_in(self, function: Any, arguments: Sequence[Values]) -> _Value:
        """Return what built-in functions of sequences give."""
        columns = [self.elements(argument) for argument in arguments]
        first = columns[0] if columns else []
        if function is _FROM_KEYS:
            return _Dict(frozenset(text for each in first for text in self.texts(each())), _anything)
        if function is zip:
            others = [column if len(column) == len(first) else [_anything] * len(first) for column in columns[1:]]
            return _Items(tuple(_row(*each) for each in zip(first, *others, strict=True)))
        if function is enumerate:
            return _Items(tuple(_row(_anything, each) for each in first))
        return _Items(tuple(first))

    def _of_mappings(self, owners: Values, method: str) -> Values | None:
        """Return what a method of mappings gives; None for another method, or other objects."""
        if method not in ("items", "keys", "values", "copy") or not all(
            isinstance(owner, _Dict) or (isinstance(owner, _Known) and isinstance(owner.value, Mapping)) for owner in owners
        ):
            return None
        if method == "items":
            return tuple(map(self._pairs, owners))
        if method == "values":
            return (_Items(tuple(functools.partial(self.elements_of_dict, owner) for owner in owners)),)
        return owners if method == "copy" else (_Items(tuple(self.elements(owners))),)

    def _dict_of(self, node: ast.Call, frame: _Frame) -> Values:
        """Return what `dict(mapping, name=value)` makes, or `update` adds."""
        if len(node.args) > 1 or any(isinstance(argument, ast.Starred) for argument in node.args):
            return _ANY
        parts = [self.values(argument, frame) for argument in node.args]
        for keyword in node.keywords:
            entry = self._entry(ast.Constant(keyword.arg), keyword.value, frame)
            parts.append(self.values(keyword.value, frame) if keyword.arg is None else (entry,))
        parts = [tuple(self._of_pairs(value) for value in part) for part in parts]
        return (self._merged(parts),)

    def _of_pairs(self, value: _Value) -> _Value:
        """Return the dict of a sequence of pairs; anything else as it is."""
        if not isinstance(value, _Items):
            return value
        keys = frozenset(text for each in value.elements for text in self.texts(self._part_of(each(), 0)))
        return _Dict(keys, lambda: tuple(one for each in value.elements for one in self._part_of(each(), 1)))

    def called(self, functions: Values, arguments: Sequence[Lazy], keywords: Mapping[str, Lazy], *, is_complete: bool) -> Values:
        """Return what calls may give; not `is_complete`: there may be arguments besides."""
        found: list[_Value] = []
        for function in functions:
            known = function.value if isinstance(function, _Known) else None
            if isinstance(function, _Method):
                found += self._returned(function.function, [_always((function.owner,)), *arguments], keywords, is_complete=is_complete)
            elif isinstance(known, functools.partial):
                bound = [*(_always((_Known(each),)) for each in known.args), *arguments]
                named = {**{name: _always((_Known(each),)) for name, each in known.keywords.items()}, **keywords}
                found += self.called((_Known(known.func),), bound, named, is_complete=is_complete)
            elif isinstance(known, type):
                found.append(_made(known, arguments if is_complete else (), keywords if is_complete else {}))
            else:
                found += self._returned(known, arguments, keywords, is_complete=is_complete)
        return tuple(found)

    def _returned(self, function: Any, arguments: Sequence[Lazy], keywords: Mapping[str, Lazy], *, is_complete: bool) -> Values:
        """Return what a function may return."""
        uses = _source_of(function)
        if uses is None or not uses.is_plain:
            return _ANY
        frame = _Frame.of(function, self._parameters(function, arguments, keywords, is_complete=is_complete))
        assert frame is not None
        found: Values = self._within(lambda: tuple(value for node in uses.returned for value in self.values(node, frame)), _ANY)
        return tuple(value if not isinstance(value, _Anything) else _declared(function, "return") for value in found)

    def _parameters(
        self, function: Any, arguments: Sequence[Lazy], keywords: Mapping[str, Lazy], *, is_complete: bool
    ) -> Mapping[str, Lazy]:
        """Return what each parameter may be."""
        bound: dict[str, Lazy] = {}
        left, named = list(arguments), dict(keywords)
        for name, parameter in inspect.signature(function).parameters.items():
            default: Lazy = _anything if parameter.default is parameter.empty else _always((_Known(parameter.default),))
            if parameter.kind is parameter.VAR_POSITIONAL:
                bound[name] = _always((_Items(tuple(left)),)) if is_complete else _anything
            elif parameter.kind is parameter.VAR_KEYWORD:
                given = _Dict(frozenset(named), lambda: _all_of(named.values()))
                bound[name] = _always((given,)) if is_complete else _anything
            else:
                is_next = left and parameter.kind is not parameter.KEYWORD_ONLY
                given_values = left.pop(0) if is_next else named.pop(name, default if is_complete else _anything)
                bound[name] = functools.partial(self._or_declared, given_values, function, name)
        return bound

    def _or_declared(self, given: Lazy, function: Any, name: str) -> Values:
        return tuple(value if not isinstance(value, _Anything) else _declared(function, name) for value in given())


def _pattern_of(value: _Value) -> str:
    if isinstance(value, _Known) and isinstance(value.value, str):
        return value.value
    return value.pattern if isinstance(value, _Text) else "*"


def _made(of: type, arguments: Sequence[Lazy], keywords: Mapping[str, Lazy]) -> _Value:
    """Return the instance that a dataclass or a NamedTuple makes; of another class nothing is known."""
    fields = _fields_of(of)
    return _Anything() if fields is None else _Made(of, {**dict(zip(fields, arguments, strict=False)), **keywords})


def _declared(function: Any, name: str) -> _Value:
    """Return an instance of the dataclass that a parameter, or what is returned, is declared to be, in code that is known to keep to it."""
    if function.__module__.startswith("evalharness."):
        with suppress(Exception):  # whatever an annotation that is evaluated may raise
            hint = typing.get_type_hints(function).get(name)
            if dataclasses.is_dataclass(hint) and isinstance(hint, type) and not hint.__subclasses__():
                return _Made(hint, {})
    return _Anything()


def _fields_of(of: Any) -> Sequence[str] | None:
    """Return the fields that a dataclass or a NamedTuple is made of; None for a class that does something with them, or no class."""
    if not isinstance(of, type):
        return None
    if dataclasses.is_dataclass(of) and not hasattr(of, "__post_init__") and "__init__" in vars(of):
        return [field.name for field in dataclasses.fields(of) if field.init]
    return list(of._fields) if issubclass(of, tuple) and hasattr(of, "_fields") else () if of.__module__ == "builtins" else None
