"""Whether a session will collect evals, told before anything is collected: only then are workers counted and given GPUs.

Other people's tests on the same machine keep xdist's own counting and see every GPU.
"""

from __future__ import annotations

import ast
import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from evalharness.pytest_plugin.options import asked_on_command_line

__all__ = ["holds_evals", "will_collect_evals"]


def will_collect_evals(config: pytest.Config) -> bool:
    """Return whether one of our options was given, or whether a module that is asked for has an eval marker."""
    if asked_on_command_line(config):
        return True
    folder = config.invocation_params.dir
    names, skipped = config.getini("python_files"), config.getini("norecursedirs")
    paths = [folder / argument.partition("::")[0] for argument in config.args]
    return any(holds_evals(module) for path in paths for module in _modules(path, names, skipped))


def _modules(path: Path, names: Sequence[str], skipped: Sequence[str]) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not any(fnmatch.fnmatch(name, pattern) for pattern in skipped)]
        for name in files:
            if name.endswith(".py") and any(fnmatch.fnmatch(name, pattern) for pattern in names):
                yield Path(folder, name)


def holds_evals(module: Path) -> bool:
    """Return whether a module's own code marks the module, or a test of it, as an eval. Nothing is imported."""
    try:
        source = module.read_bytes()
        if b"mark.eval" not in source:
            return False
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return False  # whatever is wrong with it, collection says
    return any(map(_marks_eval, tree.body))


def _marks_eval(node: ast.stmt) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return any(map(_names_mark, node.decorator_list))
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets) and _names_mark(node.value)
    return False


def _names_mark(tree: ast.expr) -> bool:
    """Return whether an expression has `….mark.eval` in it."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "eval" and isinstance(node.value, ast.Attribute) and node.value.attr == "mark"
        for node in ast.walk(tree)
    )
