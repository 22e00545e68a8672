"""lmms-eval's scorers as they are in its wheel, without what else importing them would load (torch, a hub client, judges).

The package is installed without its dependencies (.ci/make_environment.sh). Of a module, its functions, classes and constants are run,
and its imports of the standard library, numpy and other modules of lmms-eval; decorators are left out, they only register.
"""

from __future__ import annotations

import ast
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest

VERSION = "0.7.3"


def tasks_folder() -> Path:
    """Return the folder of lmms-eval's tasks; skips the test where lmms-eval is not installed."""
    spec = importlib.util.find_spec("lmms_eval")  # only found: importing it would load half of its dependencies
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip(f"lmms-eval is not installed: pip install --no-deps lmms-eval=={VERSION}")
    return Path(spec.submodule_search_locations[0], "tasks")


@cache
def lmms_eval(module: str) -> SimpleNamespace:
    """Return the names of `lmms_eval.<module>`, such as "tasks.mmmu.utils"; skips the test where lmms-eval is not installed."""
    path = Path(tasks_folder().parent, *module.split(".")).with_suffix(".py")
    names: dict[str, object] = {"__file__": str(path), "__name__": f"lmms_eval.{module}"}
    for node in ast.parse(path.read_text("utf-8")).body:
        _run(node, names, path)
    return SimpleNamespace(**names)


def _run(node: ast.stmt, names: dict[str, object], path: Path) -> None:
    if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("lmms_eval.tasks."):
        try:
            found = lmms_eval(node.module.removeprefix("lmms_eval."))
        except FileNotFoundError:
            return
        names.update({alias.asname or alias.name: getattr(found, alias.name) for alias in node.names})
        return
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        if not all(name.partition(".")[0] in {*sys.stdlib_module_names, "numpy"} for name in modules):
            return
    elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        node.decorator_list = []
        if isinstance(node, ast.FunctionDef):
            node.returns = None
            for argument in node.args.args:
                argument.annotation = None
    elif not isinstance(node, (ast.Assign, ast.AnnAssign)):
        return
    try:
        exec(compile(ast.Module([node], []), str(path), "exec"), names)
    except NameError:  # a constant made by a library that is left out
        return
