"""What holds for the package as a whole: imports, public names, the tree of errors, who may know what."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import evalharness
from evalharness.api import errors

PACKAGE = Path(evalharness.__file__).parent
SOURCES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
MODULES = [".".join(["evalharness", *Path(name).with_suffix("").parts]).removesuffix(".__init__") for name in SOURCES]
ROOT_MODULES = ("evalharness", "evalharness.__main__")
# From the ground up: each room imports only rooms before it.
ROOMS = (
    "api",
    "tool_calls",
    "generation_plugins",
    "checkpoints",
    "backends",
    "config",
    "hardware",
    "engine",
    "runs",
    "analysis",
    "data",
    "report",
    "interop",
    "answers",
    "prompts",
    "scores",
    "tasks",
    "training",
    "pytest_plugin",
    "cli",
)
HEAVY = ("torch", "torchvision", "transformers", "vllm", "pandas", "numpy", "scipy", "PIL")


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(parse(path)))


@pytest.fixture(scope="module", autouse=True)
def forget_sources() -> Iterator[None]:
    """A million nodes: the garbage collector would go through them in all tests to come."""
    yield
    parse.cache_clear()
    nodes_of.cache_clear()


def sources(*, without: tuple[str, ...] = ()) -> Iterator[tuple[str, Path]]:
    for name, path in SOURCES.items():
        if not name.startswith(without):
            yield name, path


def packages_imported(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the top-level packages that these nodes import."""
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.partition(".")[0])
    return found


def defined_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the names that a module's top level binds, also within `if` and `try`."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_importing_it_loads_nothing_heavy() -> None:
    modules = ("evalharness", "evalharness.api.requests", "evalharness.config", "evalharness.api.options", "evalharness.pytest_plugin")
    code = f"""
import importlib, sys
for module in {modules!r}:
    importlib.import_module(module)
    print(module, [name for name in {HEAVY!r} if name in sys.modules])"""
    assert run_python(code).splitlines() == [f"{module} []" for module in modules]


def test_all_is_true() -> None:
    wrong = {}
    for name, path in sources(without=("__init__.py",)):  # there it is made of the table of modules
        declared = [node.value for node in parse(path).body if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"]
        listed = ast.literal_eval(declared[0]) if declared else []
        undefined = set(listed) - defined_names(nodes_of(path)) if listed else set()
        twice = {name for name in listed if listed.count(name) > 1}
        if undefined or twice:
            wrong[name] = undefined | twice
    assert wrong == {}


def imported_modules(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the modules of the package that these nodes import."""
    modules: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules |= {f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES) or {node.module}
    return {module for module in modules if module.startswith("evalharness.")}


def run_on_import(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield the nodes that run while a module is imported, without the bodies of functions and what only type checkers read."""
    for node in nodes:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            yield node
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                yield from run_on_import(node.orelse)
            else:
                yield from run_on_import(ast.iter_child_nodes(node))


def packages_above(module: str) -> set[str]:
    return {module[:place] for place, letter in enumerate(module) if letter == "."}


def test_no_module_needs_itself_while_it_is_imported() -> None:
    """Else it depends on what was imported before it: what works in a run may break in a tool that imports one module alone."""
    needs = {}
    for module, path in zip(MODULES, SOURCES.values(), strict=True):
        imported = imported_modules(run_on_import(parse(path).body))
        packages = {package for name in imported for package in packages_above(name)}
        needs[module] = imported | packages - packages_above(module) - {module}
    assert set(TopologicalSorter(needs).static_order()) == set(MODULES)  # a circle raises `CycleError`, which names it


def room_of(module: str) -> str:
    return module.split(".")[1]


def test_rooms_import_only_rooms_below_them() -> None:
    upward = [
        f"{module} imports {imported}"
        for module, path in zip(MODULES, SOURCES.values(), strict=True)
        for imported in sorted(imported_modules(nodes_of(path)))
        if module not in ROOT_MODULES and ROOMS.index(room_of(imported)) > ROOMS.index(room_of(module))
    ]
    assert upward == []


def test_every_module_has_a_room() -> None:
    assert {room_of(module) for module in MODULES if module not in ROOT_MODULES} == set(ROOMS)


def test_every_public_name_can_be_had() -> None:
    assert all(getattr(evalharness, name) is not None for name in evalharness.__all__)
    for_types = {alias.name for node in ast.walk(parse(SOURCES["__init__.py"])) for alias in getattr(node, "names", ()) if alias.asname}
    assert for_types == set(evalharness.__all__), "type checkers and Python know other names"
    with pytest.raises(AttributeError, match="no attribute 'Engin'; public names: Case"):
        _ = evalharness.Engin


def test_the_error_tree_in_the_docstring_is_the_class_tree() -> None:
    drawn = {}
    ancestors = ["EvalHarnessError"]
    for line in (errors.__doc__ or "").splitlines():
        entry = re.match(r"    ([│├└─ ]*)(\w+) \((\w+)\)|    ([│├└─ ]+)(\w+)  ", line)
        if entry:
            prefix, name, builtin = entry[1] or entry[4], entry[2] or entry[5], entry[3]
            depth = len(prefix) // 4
            ancestors[depth:] = [name]
            drawn[name] = (ancestors[depth - 1], builtin)
    classes = {name: value for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)}
    actual = {}
    for name, cls in classes.items():
        if name != "EvalHarnessError":
            builtin = cls.__bases__[1].__name__ if len(cls.__bases__) > 1 else None
            actual[name] = (cls.__bases__[0].__name__, builtin)
    assert drawn == actual


def test_no_class_leaves_its_attributes_to_a_subclass() -> None:
    unset = []
    for name, path in sources():
        for node in nodes_of(path):
            if isinstance(node, ast.ClassDef) and not node.bases and not node.decorator_list:
                declared = {ast.unparse(line.target) for line in node.body if isinstance(line, ast.AnnAssign) and line.value is None}
                assigned = {use.attr for use in ast.walk(node) if isinstance(use, ast.Attribute) and isinstance(use.ctx, ast.Store)}
                unset += [f"{name}:{node.name}.{attribute}" for attribute in declared - assigned]
    assert unset == []


@pytest.mark.parametrize(
    ("packages", "home"),
    [
        pytest.param({"torch", "torchvision", "transformers", "vllm", "safetensors", "accelerate"}, "backends/", id="torch"),
        pytest.param({"pytest", "_pytest", "xdist", "pluggy"}, ("pytest_plugin/", "engine/backend_contract.py"), id="pytest"),
        pytest.param({"tabulate"}, "report/", id="tables"),
        pytest.param({"jinja2"}, ("report/", "backends/", "prompts/"), id="templates"),
        pytest.param({"scipy"}, "analysis/statistics/", id="statistics"),
        pytest.param({"rich"}, ("report/", "cli/"), id="terminal"),
        pytest.param({"click"}, "cli/", id="command-line"),
    ],
)
def test_a_package_is_known_in_one_room_only(packages: set[str], home: str | tuple[str, ...]) -> None:
    others = sources(without=(home,) if isinstance(home, str) else home)
    strangers = {name: found for name, path in others if (found := packages_imported(nodes_of(path)) & packages)}
    assert strangers == {}


def test_only_the_stop_policy_gives_a_finish_reason() -> None:
    deciding = []
    for name, path in sources(without=("engine/stop_policy.py",)):
        for node in nodes_of(path):
            if isinstance(node, ast.keyword) and node.arg == "finish_reason" and isinstance(node.value, ast.Constant):
                deciding.append(f"{name}:{node.value.lineno}")
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "GenerationResult" and len(node.args) > 2:
                deciding.append(f"{name}:{node.lineno}")
    assert deciding == []


def test_nothing_heavy_is_imported_at_the_top_outside_backends_report_and_numerics() -> None:
    at_top = {}
    # Geometry and draws are loaded where objects are matched, not by the evals.
    for name, path in sources(without=("backends/", "report/", "analysis/statistics/", "tasks/dense/geometry", "scores/detection_draws")):
        heavy = packages_imported(parse(path).body)
        if heavy.intersection(HEAVY):
            at_top[name] = heavy.intersection(HEAVY)
    assert at_top == {}
