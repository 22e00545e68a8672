"""The code that a test's verdicts depend on, as far as it can be read from the project's files, as a hash of each definition.

From a test and its module's eval marker, names are followed to the functions, classes and constants that they stand for, in that module,
in `conftest.py` (fixtures) and in the project's other modules. Comments, docstrings and the layout of code do not count, nor do gates and
what only shows results (`tables`, `outputs`): they change no verdict, and a gate on a baseline is often added once there is one. Installed
packages are left out, for they have versions; so is what only running code could tell: names made up at run time, and data files.

Every version of Python gives the same hashes, for a run may be compared with one of another machine.
"""

from __future__ import annotations

import ast
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from evalharness.runs.judging import function_of

_CHARS = 8
_MAX_DEFINITIONS = 2000
_DEFINES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_OWN = "evalharness"
_OF_TASKS = f"{_OWN}/tasks/"
_SHOWS = ("outputs", "tables")
_INSTALLED = ("site-packages", "dist-packages")


def eval_code(root: Path, path: str, tests: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return, for each test function of the module `path`, the hashes of the definitions that it depends on, by `file::name`.

    Files are named relative to the module's folder. A module that cannot be read gives nothing.
    """
    project = _Project(root, (root / path).parent)
    module = project.source(root / path)
    if module is None:
        return {}
    module.is_eval = True
    functions = dict.fromkeys(map(function_of, tests))
    return {function: project.closure(module, [function.partition("::")[0], "pytestmark"]) for function in functions}


class _Import(NamedTuple):
    """A name that an import binds: `module`, dots first where it is relative, and the name in it, None for the module itself."""

    module: str
    name: str | None


class _Source:
    """The top level of one file: statements and imports by the name that they bind."""

    def __init__(self, path: Path, label: str, tree: ast.Module) -> None:
        self.path, self.label = path, label
        self.is_eval = False
        self.statements: dict[str, list[ast.stmt]] = {}
        self.imports: dict[str, _Import] = {}
        self.stars: list[str] = []
        self.fixtures: list[str] = []
        """Fixtures that every test has, without naming them."""
        for statement in tree.body:
            self._add(statement)

    def _add(self, statement: ast.stmt) -> None:
        names: set[str] = set()
        for node in ast.walk(statement) if not isinstance(statement, _DEFINES) else [statement]:
            if isinstance(node, _DEFINES):
                names.add(node.name)
                if any("autouse" in ast.dump(decorator) for decorator in node.decorator_list):
                    self.fixtures.append(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                self._add_import(node)
        for name in names:
            self.statements.setdefault(name, []).append(statement)

    def _add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                self.imports[alias.asname or alias.name.partition(".")[0]] = _Import(alias.name, None)
                continue
            module = "." * node.level + (node.module or "")
            if alias.name == "*":
                self.stars.append(module)
            else:
                self.imports[alias.asname or alias.name] = _Import(module, alias.name)


class _Project:
    """The modules of a project, each read once."""

    def __init__(self, root: Path, labels_from: Path) -> None:
        self._root = root.resolve()
        self._labels_from = labels_from
        self.source = cache(self._source)
        self._hash = cache(_hash)
        self._find = cache(self._find_file)
        self._is_inside = cache(self._is_own)

    def _source(self, path: Path) -> _Source | None:
        try:
            tree = ast.parse(path.read_bytes())
        except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        _take_out_what_judges_nothing(tree)
        return _Source(path, Path(os.path.relpath(path, self._labels_from)).as_posix(), tree)

    def _module(self, importer: Path, module: str) -> _Source | None:
        """Return the project's own module that an import names, None if it has none."""
        path = self._find(importer.parent, module)
        return None if path is None else self.source(path)

    def _find_file(self, folder: Path, module: str) -> Path | None:
        level = len(module) - len(module.lstrip("."))
        parts = [part for part in module.split(".") if part]
        above = (folder, *folder.parents)
        for base in above[level - 1 : level] if level else above:
            place = base.joinpath(*parts)
            for path in (place.with_name(f"{place.name}.py"), place / "__init__.py"):
                if self._is_inside(base) and path.is_file() and self._is_inside(path):
                    return path
        return None

    def _is_own(self, path: Path) -> bool:
        """Return whether a path is the project's: evalharness has a version, except for the tasks of a checkout."""
        path = path.resolve()
        if not path.is_relative_to(self._root):
            return False
        inside = path.relative_to(self._root).as_posix()
        is_library = bool(set(_INSTALLED) & set(path.parts)) or (inside.startswith(f"{_OWN}/") and not inside.startswith(_OF_TASKS))
        return not is_library or path.is_dir()

    def closure(self, module: _Source, roots: Iterable[str]) -> dict[str, str]:
        """Return the hash of every definition that can be reached from names in a module."""
        found: dict[str, str] = {}
        waiting = [(module, name) for name in (*roots, *module.fixtures)]
        seen = set()
        while waiting and len(found) < _MAX_DEFINITIONS:
            source, name = waiting.pop()
            if (source.path, name) in seen:
                continue
            seen.add((source.path, name))
            if name in source.statements:
                statements = source.statements[name]
                found[f"{source.label}::{name}"] = _sha256("".join(map(self._hash, statements)))  # all that bind the name
                waiting += [(source, used) for statement in statements for used in _names(statement)]
                waiting += [(source, used) for statement in statements for used in _attributes(statement, source.imports)]
            else:
                waiting += self._elsewhere(source, name)
        return found

    def _elsewhere(self, source: _Source, name: str) -> Iterator[tuple[_Source, str]]:
        """Yield where a name that a file does not define may be defined: an import, or a fixture of conftest.py."""
        alias, _, attribute = name.partition(".")
        imported = source.imports.get(alias)
        if imported is None:
            places = [(self._module(source.path, star), name) for star in source.stars]
            if source.is_eval:
                above = (folder / "conftest.py" for folder in (source.path.parent, *source.path.parent.parents) if self._is_inside(folder))
                places += [(self.source(path), name) for path in above]
        elif imported.name is None:
            places = [(self._module(source.path, imported.module), attribute)]
        else:  # a name of a module, or a module of a package
            separator = "" if imported.module.endswith(".") else "."
            places = [(self._module(source.path, imported.module), imported.name)]
            if attribute:
                places.append((self._module(source.path, f"{imported.module}{separator}{imported.name}"), attribute))
        yield from ((there, wanted) for there, wanted in places if there is not None and wanted)


def _names(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement reads, and those of parameters: fixtures of a test."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg


def _attributes(statement: ast.stmt, imports: Mapping[str, _Import]) -> Iterator[str]:
    """Yield `module.name` for each name that a statement reads from an imported module."""
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in imports:
            yield f"{node.value.id}.{node.attr}"


def _take_out_what_judges_nothing(tree: ast.Module) -> None:
    for node in ast.walk(tree):
        if isinstance(node, _DEFINES) and len(node.body) > 1 and _is_docstring(node.body[0]):
            del node.body[0]
        if isinstance(node, ast.Call) and _is_mark(node, "eval"):
            node.keywords = [keyword for keyword in node.keywords if keyword.arg not in _SHOWS]
        for _, children in ast.iter_fields(node):
            if isinstance(children, list):
                children[:] = [child for child in children if not _is_mark(child, "gate")]


def _is_mark(node: object, name: str) -> bool:
    """Return whether a node is `pytest.mark.NAME(...)` or `mark.NAME(...)`."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == name):
        return False
    return getattr(node.func.value, "attr", getattr(node.func.value, "id", None)) == "mark"


def _hash(statement: ast.stmt) -> str:
    return _sha256(_written(statement))


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_CHARS]


def _written(value: object) -> str:
    """Return a part of a syntax tree as text. Unlike `ast.dump`'s it is the same in all versions of Python: without empty fields."""
    if isinstance(value, ast.JoinedStr):  # some versions end the parts of an f-string with an empty text
        return f"JoinedStr({_written([part for part in value.values if getattr(part, 'value', None) != ''])})"
    if isinstance(value, ast.AST):
        fields = [f"{name}={_written(child)}" for name, child in ast.iter_fields(value) if child is not None and child != []]
        return f"{type(value).__name__}({','.join(fields)})"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return repr(value)


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant) and isinstance(statement.value.value, str)
