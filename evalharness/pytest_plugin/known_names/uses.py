"""What a function's code does with each name: how it is bound, what is added to the dict that it is, and whether it may change besides.

A use of a name is followed outwards, from `scores` to `judged(scores)["a"]`, until it is clear that nothing is changed there. What is not
on the lists below is taken for a change.
"""

from __future__ import annotations

import ast
import functools
from dataclasses import dataclass
from typing import TypeAlias

Function: TypeAlias = "ast.FunctionDef | ast.Lambda"
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_SCOPES = (*_FUNCTIONS, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_SEES_ALL = {"exec", "eval", "locals", "globals"}
"""Functions that may use names without their being written."""
_READING = {"items", "keys", "values", "get", "copy", "pop"}
"""Methods of dicts that add nothing."""
_PASSES_ON = (ast.IfExp, ast.BoolOp, ast.BinOp, ast.Starred, ast.Tuple, ast.List, ast.Set, ast.Dict, *_COMPREHENSIONS)
_ONLY_READS = (ast.Return, ast.Compare, ast.UnaryOp, ast.FormattedValue, ast.If, ast.While, ast.Assert, ast.Expr, ast.Slice, ast.Subscript)
_BINDS_FREELY = (ast.NamedExpr, ast.withitem, ast.AugAssign, ast.AsyncFor, ast.Starred)


_DICT = ast.Name("dict", ast.Load())


@dataclass(frozen=True)
class Binding:
    """One way in which a name gets its value, or with `adds` a dict more keys, which are those of the value.

    `each`: an element of the value, of which `places` lead to the part that is meant.
    """

    value: ast.expr
    places: tuple[int, ...] = ()
    each: bool = False
    adds: bool = False

    @property
    def is_new_dict(self) -> bool:
        """Whether the value is a dict that nothing else stands for."""
        parts = [self.value.body, self.value.orelse] if isinstance(self.value, ast.IfExp) else [self.value]
        return not self.each and not self.places and all(isinstance(part, (ast.Dict, ast.DictComp)) or _is_dict_of(part) for part in parts)


class Uses:
    """The uses of names in one function."""

    def __init__(self, function: Function) -> None:
        self.function = function
        self.by_place = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        self.parameters = [*self.by_place, *(each.arg for each in function.args.kwonlyargs)]
        """The parameters that take one argument each."""
        self.bindings: dict[str, list[Binding]] = {}
        self.calls: dict[str, list[ast.Call]] = {}
        """The calls of what a name stands for."""
        self.handed_to: dict[str, list[tuple[ast.Call, int | str]]] = {}
        """The calls that get it, with the argument's place or name, "" for a method's object; "*" and "**" are among several."""
        self.returned: list[ast.expr] = [function.body] if isinstance(function, ast.Lambda) else []
        self.of_comprehensions: set[str] = set()
        self.is_opaque = False
        self._holders: dict[str, set[str]] = {}
        """Names of what is made of a name, which may hold it or be a part of it."""
        self.unclear: set[str] = set()
        """Names that are bound in a way that bindings do not tell."""
        self._changed: set[str] = set()
        body: list[ast.AST] = [function.body] if isinstance(function, ast.Lambda) else list(function.body)
        self._parents = {child: node for part in body for node in ast.walk(part) for child in ast.iter_child_nodes(node)}
        nodes = [node for part in body for node in ast.walk(part)]
        lambdas = [(names_of_arguments(node), ast.walk(node.body)) for node in nodes if isinstance(node, ast.Lambda)]
        inner = {part for names, parts in lambdas for part in parts if getattr(part, "id", None) in names}
        for node in nodes:
            if isinstance(node, (ast.Global, ast.Nonlocal)):
                self.unclear.update(node.names)
            elif not self.is_within(node, _SCOPES):
                self._add_bindings(node)
            if isinstance(node, ast.Name) and node not in inner:
                self._follow(node)
                self.is_opaque |= node.id in _SEES_ALL
        for name, bindings in self.bindings.items():
            made = [each.is_new_dict for each in bindings if not each.adds]
            is_own = made and all(made) and name not in names_of_arguments(function)
            if len(made) < len(bindings) and not is_own:
                self._changed.add(name)

    def is_within(self, node: ast.AST, kinds: tuple[type[ast.AST], ...] = (*_SCOPES, *_COMPREHENSIONS)) -> bool:
        """Return whether a node is part of a function or class within this one, or of a comprehension."""
        while (parent := self._parents.get(node)) is not None:
            if isinstance(parent, kinds):
                return True
            node = parent
        return False

    def is_changed(self, name: str) -> bool:
        """Return whether what a name stands for is changed in a way that its bindings do not tell."""
        return name in self.unclear or name in self._changed or name in self.calls

    def is_only_called(self, name: str) -> bool:
        """Return whether a parameter is only called, or handed to what is called."""
        return name not in self.unclear | self._changed | self.bindings.keys() and self.holders(name) == {name}

    def holders(self, name: str) -> set[str]:
        """Return a name and those of all that may hold what it stands for, or be a part of it."""
        found, waiting = {name}, [name]
        while waiting:
            new = self._holders.get(waiting.pop(), set()) - found
            found |= new
            waiting += new
        return found

    # Bindings

    def _add_bindings(self, node: ast.AST) -> None:
        if isinstance(node, ast.Return) and node.value is not None:
            self.returned.append(node.value)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, Binding(node.value))
            if len(node.targets) > 1:
                self._changed |= {name for target in node.targets for name in _stored(target)}
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, Binding(node.value))
        elif isinstance(node, ast.For):
            self._bind(node.target, Binding(node.iter, each=True))
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name) and isinstance(node.op, ast.BitOr):
            self._bind(node.target, Binding(node.value, adds=True))
        elif isinstance(node, ast.Call) and (updated := self._updated(node)) is not None:
            self.bindings.setdefault(updated, []).append(Binding(ast.Call(_DICT, node.args, node.keywords), adds=True))
        elif isinstance(node, ast.comprehension):
            self.of_comprehensions |= _stored(node.target)
        elif isinstance(node, _BINDS_FREELY):
            self.unclear |= _stored(node)
        elif isinstance(node, (*_SCOPES, ast.ExceptHandler, ast.pattern)):
            self.unclear |= {text for text in (getattr(node, "name", None), getattr(node, "rest", None)) if text is not None}
        elif isinstance(node, ast.alias):
            self.unclear.add(node.asname or node.name.partition(".")[0])

    def _bind(self, target: ast.expr, binding: Binding) -> None:
        if isinstance(target, ast.Name):
            self.bindings.setdefault(target.id, []).append(binding)
        elif any(isinstance(part, ast.Starred) for part in ast.walk(target)):
            self.unclear |= _stored(target)
        elif isinstance(target, (ast.Tuple, ast.List)):
            for place, part in enumerate(target.elts):
                self._bind(part, Binding(binding.value, (*binding.places, place), binding.each))
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            self.bindings.setdefault(target.value.id, []).append(Binding(ast.Dict([target.slice], [binding.value]), adds=True))
            if binding.each or binding.places:
                self._changed.add(target.value.id)

    def _updated(self, call: ast.Call) -> str | None:
        """Return the name of what a statement such as `scores.update(a=1)` adds to, None for another call."""
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name) and isinstance(self._parents.get(call), ast.Expr):
            return call.func.value.id if call.func.attr == "update" else None
        return None

    # Uses

    def _follow(self, name: ast.Name) -> None:
        if self.is_within(name, _SCOPES):
            self._changed.add(name.id)
            return
        node: ast.AST | None = name
        while node is not None:
            node = self._outer(name, node)

    def _outer(self, name: ast.Name, node: ast.AST) -> ast.AST | None:
        """Return the next larger expression that may be, hold or be a part of what a name stands for; None where its way ends."""
        parent = self._parents.get(node)
        if not isinstance(getattr(node, "ctx", ast.Load()), ast.Load):
            is_new_key = isinstance(node, ast.Subscript) and node.value is name and not isinstance(parent, ast.AugAssign)
            if node is not name and (not is_new_key or self.is_within(node)):
                self._changed.add(name.id)
        elif isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node:
            return parent
        elif isinstance(parent, ast.keyword) and isinstance(call := self._parents.get(parent), ast.Call):
            return self._into_call(name, node, call, parent.arg or "**")
        elif isinstance(parent, ast.Call):
            return self._into_call(name, node, parent, "")
        elif isinstance(parent, (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.For, ast.comprehension)):
            targets = parent.targets if isinstance(parent, ast.Assign) else [parent.target]
            stored = set[str]().union(*map(_stored, targets))
            self._holders.setdefault(name.id, set()).update(stored)
            if not stored:
                self._changed.add(name.id)  # it becomes part of what a call returned
        elif isinstance(parent, _PASSES_ON):
            return parent
        elif parent is not None and not isinstance(parent, _ONLY_READS):
            self._changed.add(name.id)
        return None

    def _into_call(self, name: ast.Name, node: ast.AST, call: ast.Call, argument: str) -> ast.AST | None:
        if (updated := self._updated(call)) is not None:
            self._holders.setdefault(name.id, set()).add(updated)
            return None
        if node is name and call.func is node:
            self.calls.setdefault(name.id, []).append(call)
            return None
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, (ast.Constant, ast.JoinedStr)):
            return None  # a method of a text
        if call.func is node and not isinstance(node, ast.Attribute):
            self._changed.add(name.id)
        elif not (isinstance(call.func, ast.Attribute) and call.func is node and call.func.attr in _READING):
            is_behind = any(isinstance(each, ast.Starred) for each in call.args)
            places = ["*" if is_behind else place for place, each in enumerate(call.args) if each is node]
            self.handed_to.setdefault(name.id, []).append((call, places[0] if places else argument))
        return call


uses_of = functools.lru_cache(maxsize=512)(Uses)


def names_of_arguments(function: Function) -> tuple[str, ...]:
    """Return the names of all parameters, in the order in which code objects have them."""
    args = function.args
    rest = [each for each in (args.vararg, args.kwarg) if each is not None]
    return tuple(each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs, *rest))


def _is_dict_of(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "dict"


def names_in(node: ast.AST) -> set[str]:
    return {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}


def _stored(node: ast.AST) -> set[str]:
    """Return the names that a target binds, or of which it changes a part."""
    parts = [part for part in ast.walk(node) if isinstance(getattr(part, "ctx", None), ast.Store)]
    return {part.id for part in map(_root, parts) if isinstance(part, ast.Name)}


def _root(node: ast.AST) -> ast.AST:
    return _root(node.value) if isinstance(node, (ast.Attribute, ast.Subscript)) else node
