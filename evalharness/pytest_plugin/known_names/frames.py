"""Where the names of a function's code are looked up: its arguments, what it binds, and the objects around it."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import types
from collections import ChainMap
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.pytest_plugin.known_names.uses import Uses, changed_in, names_of_arguments, uses_of
from evalharness.pytest_plugin.known_names.values import Lazy, Values, anything


class Frame:
    """Where names are looked up: a function's own ones, or those of a loop within it, then those around it."""

    def __init__(self, uses: Uses | None, around: Mapping[str, Any], bound: Mapping[str, Lazy], outer: Frame | None = None) -> None:
        self.uses, self.around, self.bound, self.outer = uses, around, bound, outer
        self.found: dict[str, Values] = {}
        self.changed: frozenset[str] = frozenset()
        """Names of the module that may stand for something else when code runs."""
        self.trusted: frozenset[str] = frozenset()
        """Functions that change nothing that they get."""

    @classmethod
    def of(cls, function: Any, bound: Mapping[str, Lazy] = types.MappingProxyType({})) -> Frame | None:
        """Return the frame of a function, None where its source is not there or it is none that can be read."""
        uses, file = source_of(function), _file_of(function)
        if uses is None or file is None:
            return None
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        around = ChainMap({name: cell.cell_contents for name, cell in cells if _is_filled(cell)}, function.__globals__, vars(builtins))
        frame = cls(uses, around, {**dict.fromkeys(names_of_arguments(uses.function), anything), **bound})
        frame.changed = file.changed
        return frame


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def source_of(function: Any) -> Uses | None:
    """Return what a function's code does; None where it cannot be read, or is one of several at its place."""
    source = _file_of(function)
    if source is None or function.__code__.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return None
    code = function.__code__
    found = source.functions.get((code.co_name, code.co_firstlineno), [])
    found = [node for node in found if names_of_arguments(node) == code.co_varnames[: len(names_of_arguments(node))]]
    return uses_of(found[0]) if len({*map(ast.dump, found)}) == 1 else None  # lambdas may share a line


class _File(NamedTuple):
    """The functions of a file by name and first line, as their code has it, and the names that functions bind or change for others."""

    functions: Mapping[tuple[str, int], list[ast.FunctionDef | ast.Lambda]]
    changed: frozenset[str]


def _file_of(function: Any) -> _File | None:
    if not isinstance(function, types.FunctionType):
        return None
    path = function.__code__.co_filename
    if function.__globals__.get("__file__") != path:
        return None  # the code may be that of another version of the file
    try:
        facts = Path(path).stat()
        return _read(path, facts.st_mtime_ns, facts.st_size)
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


@functools.lru_cache(maxsize=64)
def _read(path: str, mtime_ns: int, num_bytes: int) -> _File:
    functions: dict[tuple[str, int], list[ast.FunctionDef | ast.Lambda]] = {}
    changed: set[str] = set()
    for node in ast.walk(ast.parse(Path(path).read_bytes())):
        if isinstance(node, ast.Lambda):
            functions.setdefault(("<lambda>", node.lineno), []).append(node)
        elif isinstance(node, ast.FunctionDef):
            line = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            functions.setdefault((node.name, line), []).append(node)
            changed |= changed_in(node)
    return _File(functions, frozenset(changed))
