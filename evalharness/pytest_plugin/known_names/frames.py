"""Where the names of a function's code are looked up: its arguments, what it binds, and the objects around it."""

from __future__ import annotations

import ast
import builtins
import copy
import functools
import inspect
import sysconfig
import types
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalharness.pytest_plugin.known_names.uses import Function, Uses, names_of_arguments, uses_of
from evalharness.pytest_plugin.known_names.values import (
    ANY,
    MOST_ELEMENTS,
    Lazy,
    Values,
    anything,
    changes_nothing,
    is_ours,
    is_settled,
    value_of,
)


class Frame:
    """Where names are looked up: those of a function, and within it those of a comprehension, then those around."""

    def __init__(self, function: types.FunctionType, uses: Uses, bound: Mapping[str, Lazy]) -> None:
        self.function, self.uses = function, uses
        self.of_comprehension: Mapping[str, Lazy] = {}
        self.found: dict[str, Values] = {}
        self.trusted: frozenset[str] = frozenset()
        """Functions that change nothing that they get."""
        self.bound = {**dict.fromkeys(names_of_arguments(uses.function), anything), **bound}
        self._file = _file_of(function)
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        closure = {name: _content(cell) for name, cell in cells}
        self._around = ChainMap(closure, function.__globals__, vars(builtins))

    def round(self, bound: Mapping[str, Lazy]) -> Frame:
        """Return the frame of a round of a comprehension."""
        inner = copy.copy(self)
        inner.of_comprehension = {**self.of_comprehension, **bound}
        return inner

    def outside(self, name: str) -> Values:
        """Return the object around the function that has a name, where it stays as it is."""
        known = self._around.get(name, _EMPTY)
        file = self._file
        if known is _EMPTY or file is None or name in file.rebound or "globals" in file.names:
            return ANY
        may_be = type(known) in (dict, list, set) and 0 < len(known) <= MOST_ELEMENTS  # an empty one is filled later
        return (value_of(known),) if is_settled(known) or (may_be and self._is_only_read(name, known, file)) else ANY

    def _is_only_read(self, name: str, known: Any, file: _File) -> bool:
        """Return whether a file does no more with a list or dict of its own than to read it."""
        settled = map(is_settled, [*known, *known.values()] if isinstance(known, dict) else known)
        is_own = known is self.function.__globals__.get(name) and name not in file.imported
        return is_ours(self.function) or (is_own and all(settled) and all(self._reads(use, file) for use in file.names[name]))

    def _reads(self, node: ast.Name, file: _File) -> bool:
        parent = file.parents[node]
        if isinstance(parent, ast.keyword) and parent.arg is not None:
            parent = file.parents[parent]
        if isinstance(parent, ast.Call):
            called = self._around.get(parent.func.id) if isinstance(parent.func, ast.Name) and parent.func.id not in file.bound else None
            return changes_nothing(called) and not any(each.arg == "key" for each in parent.keywords)
        if isinstance(parent, (ast.Assign, ast.AnnAssign)):
            return not isinstance(node.ctx, ast.Load)
        if isinstance(parent, ast.Attribute):
            return parent.attr in ("items", "keys", "values") and isinstance(file.parents[parent], ast.Call)
        if isinstance(parent, ast.Subscript):
            return isinstance(parent.ctx, ast.Load)
        return isinstance(parent, (ast.comprehension, ast.For, ast.Compare, ast.Starred, ast.keyword))


_EMPTY = object()
_INSTALLED = tuple(sysconfig.get_path(each) for each in ("stdlib", "purelib", "platlib"))
_MOST_BYTES = 200_000


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


class _File:
    """The functions of a file by name and first line, as their code has it, and what it does with its own names."""

    def __init__(self, path: str, *_facts: int) -> None:
        self.functions: dict[tuple[str, int], list[Function]] = {}
        self.rebound: set[str] = set()
        """Names that functions give to other objects."""
        self.imported: set[str] = set()
        self.bound: set[str] = set()
        """Names that stand for something anywhere but by `def`, `class` and `import`."""
        self.parents: dict[ast.AST, ast.AST] = {}
        self.names: dict[str, list[ast.Name]] = {}
        waiting: list[ast.AST] = [ast.parse(Path(path).read_bytes())]
        for node in waiting:
            children = [*ast.iter_child_nodes(node)]
            self.parents.update(dict.fromkeys(children, node))
            waiting += children
            if isinstance(node, ast.Name):
                self.names.setdefault(node.id, []).append(node)
                if not isinstance(node.ctx, ast.Load):
                    self.bound.add(node.id)
            elif isinstance(node, ast.arg):
                self.bound.add(node.arg)
            elif isinstance(node, ast.Lambda):
                self.functions.setdefault(("<lambda>", node.lineno), []).append(node)
            elif isinstance(node, ast.FunctionDef):
                line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                self.functions.setdefault((node.name, line), []).append(node)
            elif isinstance(node, (ast.Global, ast.Nonlocal)):
                self.rebound.update(node.names)
            elif isinstance(node, ast.alias):
                self.imported.add(node.asname or node.name)


def _file_of(function: types.FunctionType) -> _File | None:
    path = function.__code__.co_filename
    if function.__globals__.get("__file__") != path:
        return None  # the code may be that of another version of the file
    if path.startswith(_INSTALLED) and not is_ours(function):
        return None  # such files are many and long
    try:
        facts = Path(path).stat()
        return _read(path, facts.st_mtime_ns, facts.st_size) if facts.st_size <= _MOST_BYTES else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


_read = functools.lru_cache(maxsize=64)(_File)


def source_of(function: Any) -> Uses | None:
    """Return what a function's code does; None where it cannot be read, or is one of several at its place."""
    if not isinstance(function, types.FunctionType):
        return None
    code = function.__code__
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return None
    file = _file_of(function)
    found = [] if file is None else file.functions.get((code.co_name, code.co_firstlineno), [])
    found = [node for node in found if names_of_arguments(node) == code.co_varnames[: len(names_of_arguments(node))]]
    is_clear = len(found) == 1 or len({*map(ast.dump, found)}) == 1  # lambdas may share a line
    return uses_of(found[0]) if is_clear and not uses_of(found[0]).is_opaque else None
