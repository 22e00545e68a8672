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
from typing import Any

from evalharness.pytest_plugin.known_names.uses import Uses, names_of_arguments, uses_of
from evalharness.pytest_plugin.known_names.values import Lazy, Values, anything


class Frame:
    """Where names are looked up: a function's own ones, or those of a loop within it, then those around it."""

    def __init__(self, uses: Uses | None, around: Mapping[str, Any], bound: Mapping[str, Lazy], outer: Frame | None = None) -> None:
        self.uses, self.around, self.bound, self.outer = uses, around, bound, outer
        self.found: dict[str, Values] = {}
        self.trusted: frozenset[str] = frozenset()
        """Functions that change nothing that they get."""

    @classmethod
    def of(cls, function: Any, bound: Mapping[str, Lazy] = types.MappingProxyType({})) -> Frame | None:
        """Return the frame of a function, None where its source is not there or it is none that can be read."""
        uses = source_of(function)
        if uses is None:
            return None
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        around = ChainMap({name: cell.cell_contents for name, cell in cells if _is_filled(cell)}, function.__globals__, vars(builtins))
        return cls(uses, around, {**dict.fromkeys(names_of_arguments(uses.function), anything), **bound})


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not cell
    except ValueError:
        return False


def source_of(function: Any) -> Uses | None:
    """Return what a function's code does; None where it cannot be read, or is one of several at its place."""
    if not isinstance(function, types.FunctionType):
        return None
    code = function.__code__
    if function.__globals__.get("__file__") != code.co_filename:
        return None  # the code may be that of another version of the file
    if code.co_flags & (inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR):
        return None
    try:
        facts = Path(code.co_filename).stat()
        found = _functions(code.co_filename, facts.st_mtime_ns, facts.st_size).get((code.co_name, code.co_firstlineno), [])
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    found = [node for node in found if names_of_arguments(node) == code.co_varnames[: len(names_of_arguments(node))]]
    return uses_of(found[0]) if len({*map(ast.dump, found)}) == 1 else None  # lambdas may share a line


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
