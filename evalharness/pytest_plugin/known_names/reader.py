"""Evaluates expressions of code without running it, as far as it tells what mappings have for keys.

Calls are followed into functions whose source is there, with what is known of their arguments; conditions and the order of statements are
not weighed, so the keys are all that can come, and maybe some that never do. Where an object may get further ones in a way that is not
understood, it is `Anything`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from evalharness.pytest_plugin.known_names.frames import Frame, source_of
from evalharness.pytest_plugin.known_names.uses import Binding, Uses, names_in
from evalharness.pytest_plugin.known_names.values import (
    ANY,
    MOST_ELEMENTS,
    Anything,
    Arguments,
    Dict,
    Items,
    Known,
    Lazy,
    Made,
    Method,
    Text,
    Value,
    Values,
    all_of,
    always,
    anything,
    changes_nothing,
    declared,
    fields_of,
    is_ours,
    is_settled,
    made,
    pattern_of,
    row,
    value_of,
)

_MAX_STEPS = 5000
_OF_A_CALL = 10
"""Steps that looking into a function counts for."""
_FROM_KEYS = vars(dict)["fromkeys"]
_BUILT_IN = (list, tuple, set, frozenset, sorted, reversed, zip, _FROM_KEYS)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.ClassMethodDescriptorType, types.ModuleType)


class Unclear(Exception):
    """The code does not tell, or it would take too long."""


class Reader:
    """Evaluates expressions; gives up after so many steps."""

    def __init__(self) -> None:
        self._steps = 0

    # What is asked of values

    def keys(self, values: Values) -> frozenset[str]:
        """Return the possible keys of mappings; `Unclear` where a value may be another one."""
        found: set[str] = set()
        for value in values or ANY:  # what returns nothing raises an error
            if not isinstance(value, Dict):
                raise Unclear
            found |= value.keys
        return frozenset(found)

    def elements(self, values: Values) -> list[Lazy]:
        """Return what the elements of a sequence, or the keys of a mapping, may be."""
        found: list[Lazy] = []
        for value in values:
            keys = [always((Text(key),)) for key in sorted(value.keys)] if isinstance(value, Dict) else [anything]
            found += value.elements if isinstance(value, Items) else keys
        return found if len(found) <= MOST_ELEMENTS else [anything]

    def elements_of_dict(self, value: Value) -> Values:
        """Return what the values of a mapping may be."""
        return value.values() if isinstance(value, Dict) else ANY

    def attribute(self, value: Value, name: str) -> Values:
        """Return what an attribute may be; data only where nobody changes it."""
        if isinstance(value, Made) and name in value.fields:
            return value.fields[name]()
        known = value.value if isinstance(value, Known) else None
        if isinstance(known, types.ModuleType):
            return _told(vars(known).get(name), known)
        of = value.of if isinstance(value, Made) else known
        if not isinstance(of, type):
            return ANY
        held = inspect.getattr_static(of, name, None)
        if isinstance(held, classmethod):
            return (Method(cast("types.FunctionType", held.__func__), Known(of)),)
        if isinstance(held, staticmethod) or of is known:
            return _told(held.__func__ if isinstance(held, staticmethod) else held, of)
        if isinstance(held, types.FunctionType):
            return (Method(held, value),)
        read = held.fget if isinstance(held, property) else held.func if isinstance(held, functools.cached_property) else None
        return ANY if read is None else self._returned(read, Arguments([always((value,))]))

    # Expressions

    def values(self, node: ast.expr, frame: Frame) -> Values:
        """Return what an expression may be."""
        self._count(1)
        read = getattr(self, f"_of_{type(node).__name__.lower()}", None)
        found: Values = ANY if read is None else read(node, frame)
        return found

    def _count(self, steps: int) -> None:
        self._steps += steps
        if self._steps > _MAX_STEPS:
            raise Unclear

    def _of_constant(self, node: ast.Constant, frame: Frame) -> Values:
        return (value_of(node.value),)

    def _of_name(self, node: ast.Name, frame: Frame) -> Values:
        return self._looked_up(node.id, frame)

    def _of_attribute(self, node: ast.Attribute, frame: Frame) -> Values:
        return tuple(found for value in self.values(node.value, frame) for found in self.attribute(value, node.attr))

    def _of_subscript(self, node: ast.Subscript, frame: Frame) -> Values:
        found: list[Value] = []
        for value in self.values(node.value, frame):
            if isinstance(value, Items) and not isinstance(node.slice, ast.Slice):
                found += all_of(value.elements)
            else:
                found += self.elements_of_dict(value)
        return tuple(found)

    def _of_ifexp(self, node: ast.IfExp | ast.BoolOp, frame: Frame) -> Values:
        parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
        return all_of(functools.partial(self.values, part, frame) for part in parts)

    _of_boolop = _of_ifexp

    def _of_joinedstr(self, node: ast.JoinedStr, frame: Frame) -> Values:
        texts = {""}
        for part in node.values:
            shown = part.value if isinstance(part, ast.FormattedValue) and part.conversion == -1 and part.format_spec is None else part
            added = set(map(pattern_of, self.values(shown, frame)))  # "*" for what has a format
            texts = {start + end for start in texts for end in (added if len(texts) * len(added) <= MOST_ELEMENTS else {"*"})}
        return tuple(map(Text, sorted(texts)))

    def _of_binop(self, node: ast.BinOp, frame: Frame) -> Values:
        if isinstance(node.op, ast.BitOr):
            return (self._merged([self.values(node.left, frame), self.values(node.right, frame)]),)
        return ANY

    def _of_tuple(self, node: ast.Tuple | ast.List | ast.Set, frame: Frame) -> Values:
        if not any(isinstance(part, ast.Starred) for part in node.elts):
            return (Items(tuple(functools.partial(self.values, part, frame) for part in node.elts), is_row=True),)
        parts = [self.elements(self.values(part.value, frame)) for part in node.elts if isinstance(part, ast.Starred)]
        plain = [functools.partial(self.values, part, frame) for part in node.elts if not isinstance(part, ast.Starred)]
        return (Items((*plain, *(each for part in parts for each in part))),)

    _of_list = _of_set = _of_tuple

    def _of_dict(self, node: ast.Dict, frame: Frame) -> Values:
        return (self._merged([self._part(key, value, frame) for key, value in zip(node.keys, node.values, strict=True)]),)

    def _part(self, key: ast.expr | None, value: ast.expr, frame: Frame) -> Values:
        """Return what an entry of a dict display adds to it."""
        return self.values(value, frame) if key is None else (self._entry(key, value, frame),)

    def _entry(self, key: ast.expr, value: ast.expr, frame: Frame) -> Dict:
        return Dict(frozenset(map(pattern_of, self.values(key, frame))), lambda: self.values(value, frame))

    def _merged(self, parts: Sequence[Values]) -> Value:
        try:
            keys = frozenset[str]().union(*(self.keys(part) for part in parts))
        except Unclear:
            return Anything()
        return Dict(keys, lambda: tuple(found for part in parts for value in part for found in self.elements_of_dict(value)))

    def _of_dictcomp(self, node: ast.DictComp, frame: Frame) -> Values:
        return (self._merged([(self._entry(node.key, node.value, each),) for each in self._rounds(node.generators, frame)]),)

    def _of_listcomp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp, frame: Frame) -> Values:
        return (Items(tuple(functools.partial(self.values, node.elt, each) for each in self._rounds(node.generators, frame))),)

    _of_setcomp = _of_generatorexp = _of_listcomp

    def _rounds(self, generators: Sequence[ast.comprehension], frame: Frame) -> Iterator[Frame]:
        """Yield the frame of each round of a comprehension, as if its conditions all held."""
        if not generators:
            yield frame
            return
        first, *others = generators
        for element in self.elements(self.values(first.iter, frame)):
            bound = dict(self._unpacked(first.target, element))
            yield from self._rounds(others, frame.round(bound))

    def _unpacked(self, target: ast.expr, element: Lazy) -> Iterator[tuple[str, Lazy]]:
        if isinstance(target, ast.Name):
            yield target.id, element
        elif any(isinstance(part, ast.Starred) for part in ast.walk(target)):
            yield from ((name, anything) for name in names_in(target))
        elif isinstance(target, (ast.Tuple, ast.List)):
            for place, part in enumerate(target.elts):
                yield from self._unpacked(part, functools.partial(self._part_of, element, place))

    def _part_of(self, sequence: Lazy, place: int) -> Values:
        """Return what one place of a sequence may be."""
        found: list[Value] = []
        for value in sequence():
            is_there = isinstance(value, Items) and value.is_row and place < len(value.elements)
            found += value.elements[place]() if is_there and isinstance(value, Items) else ANY
        return tuple(found)

    # Names

    def _looked_up(self, name: str, frame: Frame) -> Values:
        if name in frame.of_comprehension:
            found = frame.of_comprehension[name]()
            return ANY if self._may_change(found, name, frame) else found
        if name in frame.uses.unclear:
            return ANY
        if name not in frame.uses.bindings and name not in frame.bound:
            return frame.outside(name)
        if name not in frame.found:
            frame.found[name] = ANY  # of what is made of itself
            frame.found[name] = found = self._local(name, frame)
            if self._may_change(found, name, frame):
                frame.found.clear()  # what was found meanwhile may be made of it
                frame.found[name] = ANY
        return frame.found[name]

    def _may_change(self, values: Values, name: str, frame: Frame) -> bool:
        stays = (isinstance(each, (Text, Anything)) or (isinstance(each, Known) and is_settled(each.value)) for each in values)
        try:
            return not all(stays) and self.changes(name, frame)
        except Unclear:
            return True

    def _local(self, name: str, frame: Frame) -> Values:
        bindings = frame.uses.bindings.get(name, [])
        values = [*frame.bound.get(name, tuple)(), *(value for each in bindings if not each.adds for value in self._bound(each, frame))]
        added = [self._bound(each, frame) for each in bindings if each.adds]
        return (self._merged([tuple(values), *added]),) if added else tuple(values)

    def _bound(self, binding: Binding, frame: Frame) -> Values:
        values = self.values(binding.value, frame)
        if binding.each:
            values = all_of(self.elements(values))
        for place in binding.places:
            values = self._part_of(always(values), place)
        return values

    def changes(self, name: str, frame: Frame) -> bool:
        """Return whether what a local name stands for may be changed in a way that is not understood."""
        if is_ours(frame.function):
            return frame.uses.is_changed(name)  # it changes nothing that it has by another name
        names = sorted(frame.uses.holders(name))
        calls = [each for holder in names for each in frame.uses.handed_to.get(holder, ())]
        return any(map(frame.uses.is_changed, names)) or any(self._is_changed_by(*each, frame) for each in calls)

    def _is_changed_by(self, call: ast.Call, argument: int | str, frame: Frame) -> bool:
        if isinstance(call.func, ast.Name) and call.func.id in frame.trusted:
            return False
        if not frame.uses.of_comprehensions.isdisjoint(names_in(call.func)):
            return True
        has_key = any(keyword.arg == "key" for keyword in call.keywords)  # which is a function that is called
        for value in self.values(call.func, frame):
            called = value.function if isinstance(value, Method) else value.value if isinstance(value, Known) else None
            is_kept = fields_of(called) is not None or (changes_nothing(called) and not has_key)
            if not is_kept and self.changes(*self.taken(value, call, argument, frame)):
                return True
        return False

    def taken(self, called: Value, call: ast.Call, argument: int | str, frame: Frame) -> tuple[str, Frame]:
        """Return the parameter that gets an argument of a call, and its frame; `Unclear` where it is not known.

        The argument is its place or its name, or "" for the object to which a method belongs.
        """
        self._count(_OF_A_CALL)
        function = called.function if isinstance(called, Method) else called.value if isinstance(called, Known) else None
        uses = source_of(function)
        if uses is None:
            raise Unclear
        owner = [always((called.owner,))] if isinstance(called, Method) else []
        by_place = uses.by_place
        parameters: dict[int | str, str] = {name: name for name in uses.parameters}
        parameters.update(enumerate(by_place[len(owner) :]))
        parameter = by_place[0] if owner and argument == "" and by_place else parameters.get(argument)
        if parameter is None:
            raise Unclear
        bound = self._parameters(function, uses, self._arguments(call, frame, *owner))
        return parameter, Frame(cast("types.FunctionType", function), uses, bound)

    # Calls

    def _of_call(self, node: ast.Call, frame: Frame) -> Values:
        if isinstance(node.func, ast.Attribute):
            owners = self.values(node.func.value, frame)
            of_mappings = self._of_mappings(owners, node.func.attr)
            if of_mappings is not None:
                return of_mappings
            functions = tuple(found for owner in owners for found in self.attribute(owner, node.func.attr))
        else:
            functions = self.values(node.func, frame)
        known = functions[0].value if len(functions) == 1 and isinstance(functions[0], Known) else None
        if known is dict:
            return self._dict_of(node, frame)
        given = self._arguments(node, frame)
        if any(known is each for each in _BUILT_IN):
            return (self._built_in(known, [argument() for argument in given.by_place]),) if given.are_all else ANY
        return self.called(functions, given)

    def _arguments(self, node: ast.Call, frame: Frame, *before: Lazy) -> Arguments:
        by_place = [functools.partial(self.values, each, frame) for each in node.args]
        by_name = {each.arg: functools.partial(self.values, each.value, frame) for each in node.keywords if each.arg is not None}
        has_more = any(isinstance(each, ast.Starred) for each in node.args)
        are_all = not has_more and len(by_name) == len(node.keywords)
        return Arguments(() if has_more else [*before, *by_place], by_name, are_all)

    def _built_in(self, function: Any, arguments: Sequence[Values]) -> Value:
        """Return what built-in functions of sequences give."""
        columns = [self.elements(argument) for argument in arguments]
        first = columns[0] if columns else []
        if function is _FROM_KEYS:
            return Dict(frozenset(map(pattern_of, all_of(first))), anything)
        if function is zip:
            return Items((row(*(functools.partial(all_of, column) for column in columns)),))
        return Items(tuple(first))

    def _of_mappings(self, owners: Values, method: str) -> Values | None:
        """Return what a method of mappings gives; None for another method, or other objects."""
        if method not in ("items", "keys", "values") or not all(isinstance(owner, Dict) for owner in owners):
            return None
        found = [(key, functools.partial(self.elements_of_dict, owner)) for owner in owners for key in self.elements((owner,))]
        return (Items(tuple(row(*each) if method == "items" else each[method == "values"] for each in found)),)

    def _dict_of(self, node: ast.Call, frame: Frame) -> Values:
        """Return what `dict(mapping, name=value)` makes, or `update` adds."""
        if len(node.args) > 1 or any(isinstance(argument, ast.Starred) for argument in node.args):
            return ANY
        parts = [tuple(map(self._of_pairs, self.values(argument, frame))) for argument in node.args]
        named = [(None if each.arg is None else ast.Constant(each.arg), each.value) for each in node.keywords]
        return (self._merged([*parts, *(self._part(key, value, frame) for key, value in named)]),)

    def _of_pairs(self, value: Value) -> Value:
        """Return the dict of a sequence of pairs; anything else as it is."""
        if not isinstance(value, Items):
            return value
        keys, values = (functools.partial(self._part_of, functools.partial(all_of, value.elements), place) for place in (0, 1))
        return Dict(frozenset(map(pattern_of, keys())), values)

    def called(self, functions: Values, given: Arguments) -> Values:
        """Return what calls may give."""
        found: list[Value] = []
        for function in functions:
            known = function.value if isinstance(function, Known) else None
            if isinstance(function, Method):
                found += self._returned(function.function, replace(given, by_place=[always((function.owner,)), *given.by_place]))
            elif isinstance(known, type):
                found.append(made(known, given))
            else:
                found += self._returned(known, given)
        return tuple(found)

    def _returned(self, function: Any, given: Arguments) -> Values:
        """Return what a function may return."""
        self._count(_OF_A_CALL)
        uses = source_of(function)
        if uses is None:
            return ANY
        frame = Frame(function, uses, self._parameters(function, uses, given))
        found = all_of(functools.partial(self.values, node, frame) for node in uses.returned)
        return tuple(value if not isinstance(value, Anything) else declared(function, "return") for value in found or ANY)

    def _parameters(self, function: Any, uses: Uses, given: Arguments) -> Mapping[str, Lazy]:
        """Return what each parameter may be."""
        bound: dict[str, Lazy] = {}
        left, named, args = list(given.by_place), dict(given.by_name), uses.function.args
        defaults = dict(zip(reversed(uses.by_place), reversed(function.__defaults__ or ()), strict=False))
        defaults.update(function.__kwdefaults__ or {})
        for name in uses.parameters:
            is_known = given.are_all and name in defaults and is_settled(defaults[name])
            default = always((value_of(defaults[name]),)) if is_known else anything
            value = left.pop(0) if left and name in uses.by_place else named.pop(name, default)
            bound[name] = functools.partial(self._or_declared, value, function, name)
        if args.vararg is not None and given.are_all:
            bound[args.vararg.arg] = always((Items(tuple(left)),))
        if args.kwarg is not None and given.are_all:
            bound[args.kwarg.arg] = always((Dict(frozenset(named), lambda: all_of(named.values())),))
        return bound

    def _or_declared(self, given: Lazy, function: Any, name: str) -> Values:
        return tuple(value if not isinstance(value, Anything) else declared(function, name) for value in given())


def _told(held: Any, owner: Any) -> Values:
    """Return what a module or class holds, where nobody changes it."""
    return (value_of(held),) if isinstance(held, _CODE) or (is_ours(owner) and held is not None) else ANY
