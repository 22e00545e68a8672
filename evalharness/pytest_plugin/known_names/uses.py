"""What a function's code does with each name: how it is bound, what is added to the dict that it is, and whether it may change besides."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

Function: TypeAlias = "ast.FunctionDef | ast.Lambda"
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_OWN_NAMES = (*_SCOPES, *_COMPREHENSIONS)
_READING = {"items", "keys", "values", "get", "copy", "pop", "popitem", "clear", "index", "count"}
"""Methods of dicts and lists that give them nothing."""
_ADDING = {"update", "setdefault"}
_CHANGING = {*_ADDING, "pop", "popitem", "clear", "append", "extend", "insert", "remove", "add", "discard", "sort"}
_MAKING = {"dict", "set", "float", "int", "bool", "str", "len", "sum", "any", "all", "round", "isinstance"}
"""Built-in functions whose result holds nothing that they get but keys and numbers."""
_PASSED_ON = (ast.IfExp, ast.BoolOp, ast.Starred)
_ONLY_READING = (
    ast.Return,
    ast.Compare,
    ast.BinOp,
    ast.UnaryOp,
    ast.FormattedValue,
    ast.For,
    ast.comprehension,
    ast.If,
    ast.While,
    ast.Assert,
    ast.Expr,
    ast.Subscript,
)


@dataclass(frozen=True)
class Binding:
    """One way in which a name gets its value, or a dict more keys.

    `each`: an element of the value, of which `places` lead to the part that is meant. `adds`: the value is merged into a dict; with `key`
    it is the value of that key, with `is_update` the arguments of the call.
    """

    value: ast.expr
    places: tuple[int, ...] = ()
    each: bool = False
    adds: bool = False
    key: ast.expr | None = None
    is_update: bool = False


class Uses:
    """The uses of names in one function."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.bindings: dict[str, list[Binding]] = {}
        self.handed_to: dict[str, list[tuple[ast.Call, int | str]]] = {}
        """The calls that get what a name stands for, with the argument's place or name."""
        self._calls: dict[str, list[ast.Call]] = {}
        self.returned: list[ast.expr] = [function.body] if isinstance(function, ast.Lambda) else []
        self._unclear: set[str] = set()
        self._escaped: set[str] = set()
        self._parts: dict[str, set[str]] = {}
        """Other names of what a name stands for, or of a part of it."""
        self._elements: dict[str, set[str]] = {}
        """Names of what is in what a name stands for, or of what a call made of it, which may hold it."""
        self._parents = {child: node for node in ast.walk(function) for child in ast.iter_child_nodes(node)}
        for node in _own_nodes(function):
            self._add_bindings(node)
        for node in ast.walk(function):
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                self._unclear.update(node.names)
        for part in ast.iter_child_nodes(function) if isinstance(function, ast.Lambda) else function.body:
            for node in ast.walk(part):
                if isinstance(node, ast.Name) and not self._is_inner(node):
                    self._add_use(node)

    @property
    def parameters(self) -> list[str]:
        """The names of the parameters that take one argument each, those first that take one by its place."""
        arguments = self.function.args
        return [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]

    def parameter(self, place: int) -> str | None:
        """Return the name of the parameter at a place, None beyond them."""
        arguments = self.function.args
        return self.parameters[place] if place < len(arguments.posonlyargs) + len(arguments.args) else None

    def calls_of(self, name: str) -> list[ast.Call]:
        """Return the calls of what a name stands for."""
        return self._calls.get(name, [])

    def is_within(self, node: ast.AST) -> bool:
        """Return whether a node is part of a comprehension, or of a function within this one, which have names of their own."""
        while node is not self.function:
            node = self._parents[node]
            if isinstance(node, _OWN_NAMES) and node is not self.function:
                return True
        return False

    def adds_to(self, name: str) -> bool:
        """Return whether keys are added to what a name stands for."""
        return any(binding.adds for binding in self.bindings.get(name, ()))

    def has_other_names(self, name: str) -> bool:
        """Return whether another name stands for the same object, or a part of it."""
        return bool(self._parts.get(name) or self._elements.get(name))

    def is_unclear(self, name: str) -> bool:
        """Return whether a name is bound, or what it stands for is changed, in a way that its bindings do not tell."""
        return name in self._unclear or name in self._escaped

    def may_change(self, name: str, seen: frozenset[str] = frozenset()) -> bool:
        """Return whether this is so, or something is added by another name."""
        parts, elements = ({*found.get(name, ())} - seen - {name} for found in (self._parts, self._elements))
        return (
            self.is_unclear(name)
            or any(part in self._unclear or self.adds_to(part) for part in elements)
            or any(self.adds_to(part) for part in parts)
            or any(part in self.handed_to or self.may_change(part, seen | {name}) for part in parts)
        )

    # Bindings

    def _add_bindings(self, node: ast.AST) -> None:
        if isinstance(node, ast.Return) and node.value is not None:
            self.returned.append(node.value)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, Binding(node.value))
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, Binding(node.value))
        elif isinstance(node, ast.For):
            self._bind(node.target, Binding(node.iter, each=True))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and isinstance(node.op, ast.BitOr):
            self._bind(node.target, Binding(node.value, adds=True))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Subscript):
            self._bind(node.target, Binding(node.value))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            self._add_method(node, node.func.value.id, node.func.attr)
        elif isinstance(node, _SCOPES[:3]) and node is not self.function:
            self._unclear.add(node.name)
        elif isinstance(node, ast.alias):
            self._unclear.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name is not None:
            self._unclear.add(node.name)
        elif isinstance(node, (ast.NamedExpr, ast.withitem, ast.AugAssign, ast.AsyncFor, ast.pattern)):
            self._unclear.update(_stored(node))

    def _bind(self, target: ast.expr, binding: Binding) -> None:
        if isinstance(target, ast.Name):
            self.bindings.setdefault(target.id, []).append(binding)
            root = None if binding.adds else _root(binding.value)
            if root is not None:
                (self._elements if binding.each else self._parts).setdefault(root, set()).add(target.id)
            for given in () if binding.adds else _arguments_of(binding.value):
                self._elements.setdefault(given, set()).add(target.id)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for place, part in enumerate(target.elts):
                self._bind(part, Binding(binding.value, (*binding.places, place), binding.each))
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            # A value that is unpacked or iterated over is not the expression, but keys are all that is asked for here.
            self.bindings.setdefault(target.value.id, []).append(Binding(binding.value, adds=True, key=target.slice))
        else:
            self._unclear.update(_stored(target))

    def _add_method(self, call: ast.Call, name: str, method: str) -> None:
        if method == "update":
            self.bindings.setdefault(name, []).append(Binding(call, adds=True, is_update=True))
        elif method == "setdefault" and call.args:
            self.bindings.setdefault(name, []).append(Binding(call.args[-1], adds=True, key=call.args[0]))

    # Uses

    def _is_inner(self, name: ast.Name) -> bool:
        """Return whether a name is one of a comprehension, or of a function within this one, rather than the function's own."""
        node = self._parents[name]
        while node is not self.function:
            if isinstance(node, _COMPREHENSIONS) and any(name.id in _stored(each.target) for each in node.generators):
                return True
            if isinstance(node, (ast.Lambda, ast.FunctionDef)) and name.id in names_of_arguments(node):
                return True
            node = self._parents[node]
        return False

    def _add_use(self, name: ast.Name) -> None:
        """Note where a use of a name, of an attribute of what it stands for, and so on, may change that."""
        node: ast.AST = name
        while isinstance(parent := self._parents.get(node), (ast.Attribute, ast.Subscript)) and parent.value is node:
            node = parent
        if isinstance(parent, ast.Call) and parent.func is node and isinstance(node, ast.Attribute):
            self._add_method_call(name, node, parent)
        elif not isinstance(getattr(node, "ctx", None), ast.Load):
            is_new_key = isinstance(node, ast.Subscript) and node.value is name
            if node is not name and (not is_new_key or self.is_within(node)):
                self._unclear.add(name.id)
        else:
            self._add_reading(name.id, node, parent)

    def _add_method_call(self, name: ast.Name, method: ast.Attribute, call: ast.Call) -> None:
        if method.value is name and method.attr in _ADDING:
            if self.is_within(call):  # whose names are others
                self._unclear.add(name.id)
        elif method.attr not in _READING:
            self.handed_to.setdefault(name.id, []).append((call, ""))

    def _add_reading(self, name: str, node: ast.AST, parent: ast.AST | None) -> None:
        is_value = isinstance(node, ast.Subscript)  # of a dict: a number, where the dict holds scores
        while isinstance(parent, _PASSED_ON):
            node, parent = parent, self._parents.get(parent)
        if isinstance(parent, (ast.Call, ast.keyword)):
            self._add_argument(name, node, parent)
        elif isinstance(parent, (ast.Assign, ast.AnnAssign)):
            self._add_other_names(name, node, parent)
        elif isinstance(parent, (ast.Tuple, ast.List)) and isinstance(self._parents.get(parent), ast.Return):
            pass  # whoever unpacks it has other names for it
        elif isinstance(parent, (ast.Dict, ast.DictComp)):
            if node in _values_of(parent) and not is_value:
                self._escaped.add(name)
        elif not (
            is_value or isinstance(parent, _ONLY_READING) or (isinstance(parent, ast.AugAssign) and isinstance(parent.op, ast.BitOr))
        ):
            self._escaped.add(name)

    def _add_other_names(self, name: str, node: ast.AST, assignment: ast.Assign | ast.AnnAssign) -> None:
        if node is not assignment.value:
            return  # an annotation
        targets = assignment.targets if isinstance(assignment, ast.Assign) else [assignment.target]
        self._parts.setdefault(name, set()).update(target.id for target in targets if isinstance(target, ast.Name))
        if not all(isinstance(target, ast.Name) for target in targets):
            self._escaped.add(name)

    def _add_argument(self, name: str, node: ast.AST, call: ast.Call | ast.keyword) -> None:
        if isinstance(call, ast.keyword):
            outer = self._parents.get(call)
            if call.arg is not None and isinstance(outer, ast.Call):
                self.handed_to.setdefault(name, []).append((outer, call.arg))
            return
        if node is call.func:
            self._calls.setdefault(name, []).append(call)
            return
        places = [place for place, argument in enumerate(call.args) if argument is node]
        if not places or any(isinstance(argument, ast.Starred) for argument in call.args[: places[0] + 1]):
            self._escaped.add(name)
        elif _last_name(call.func) not in _ADDING:
            self.handed_to.setdefault(name, []).append((call, places[0]))


@functools.lru_cache(maxsize=512)
def uses_of(function: Function) -> Uses:
    """Return the uses of names in a function."""
    return Uses(function)


def _own_nodes(function: Function) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of functions and classes within it."""
    waiting: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
    while waiting:
        node = waiting.pop(0)
        yield node
        if not isinstance(node, _SCOPES):
            waiting[:0] = ast.iter_child_nodes(node)


def names_of_arguments(function: Function) -> tuple[str, ...]:
    """Return the names of all parameters, in the order in which code objects have them."""
    args = function.args
    rest = [each for each in (args.vararg, args.kwarg) if each is not None]
    return tuple(each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs, *rest))


def changed_in(function: ast.FunctionDef) -> set[str]:
    """Return the names that a function binds for others, and those of what it may change, its own ones included."""
    names = {name for node in ast.walk(function) if isinstance(node, (ast.Global, ast.Nonlocal)) for name in node.names}
    for node in ast.walk(function):
        is_changing = isinstance(node, ast.Attribute) and node.attr in _CHANGING
        if is_changing or (isinstance(node, (ast.Attribute, ast.Subscript)) and isinstance(node.ctx, (ast.Store, ast.Del))):
            names.add(_root(node) or "")
    return names


def _stored(node: ast.AST) -> set[str]:
    """Return the names that a node binds, or whose objects it changes."""
    names = {str(part.id) for part in ast.walk(node) if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}
    roots = {_root(part) for part in ast.walk(node) if isinstance(part, (ast.Attribute, ast.Subscript)) and isinstance(part.ctx, ast.Store)}
    captured = {text for part in ast.walk(node) if (text := getattr(part, "name", None)) or (text := getattr(part, "rest", None))}
    return names | {root for root in roots if root is not None} | {text for text in captured if isinstance(text, str)}


def _root(node: ast.AST) -> str | None:
    """Return the name at the beginning of `name.attribute[key]`, or of `name.values()`; None for anything else."""
    while isinstance(node, (ast.Attribute, ast.Subscript)) or (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


def _arguments_of(node: ast.AST) -> set[str]:
    """Return the names at the beginning of what a call gets whose result may hold it; none of another expression."""
    if isinstance(node, (ast.IfExp, ast.BoolOp)):
        parts = [node.body, node.orelse] if isinstance(node, ast.IfExp) else node.values
        return {name for part in parts for name in _arguments_of(part)}
    if not isinstance(node, ast.Call) or _last_name(node.func) in _MAKING:
        return set()
    return {name for given in (*node.args, *(each.value for each in node.keywords)) if (name := _root(given)) is not None}


def _values_of(node: ast.Dict | ast.DictComp) -> list[ast.expr]:
    """Return what becomes the values of a dict, rather than its keys or several entries."""
    if isinstance(node, ast.DictComp):
        return [node.value]
    return [value for key, value in zip(node.keys, node.values, strict=True) if key is not None]


def _last_name(node: ast.AST) -> str | None:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", None)
