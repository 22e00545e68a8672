"""What `pytest_plugin/_pytest_internals.py` uses of pytest's private parts is there; run this after an update of pytest."""

from __future__ import annotations

import importlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

import evalharness
from evalharness.pytest_plugin import _pytest_internals as internals

PARTS = [
    ("_pytest._code.code", "ExceptionChainRepr"),
    ("_pytest._code.code", "ExceptionRepr"),
    ("_pytest._code.code", "ReprEntry"),
    ("_pytest.capture", "CaptureManager.global_and_fixture_disabled"),
    ("_pytest.config.argparsing", "Parser.parse_known_and_unknown_args"),
    ("_pytest.config.findpaths", "determine_setup"),
    ("_pytest.mark.expression", "Expression.compile"),
    ("_pytest.outcomes", "Failed"),
    ("_pytest.pathlib", "import_path"),
    ("_pytest.python", "async_fail"),
    ("_pytest.terminal", "TerminalReporter.ensure_newline"),
    ("_pytest.terminal", "TerminalReporter.rewrite"),
]


def lacks(part: str) -> str:
    """Return what a test says where this pytest has no such part."""
    return f"pytest {pytest.__version__} has no {part}: mend pytest_plugin/_pytest_internals.py"


@pytest.mark.parametrize(("module", "part"), PARTS, ids=[part for _, part in PARTS])
def test_a_part_that_the_plugin_uses_is_there(module: str, part: str) -> None:
    value: Any = importlib.import_module(module)
    for name in part.split("."):
        value = getattr(value, name, None)
        assert value is not None, lacks(f"{module}.{part}")


@pytest.fixture(scope="session", params=["a"])
def parametrised(request: pytest.FixtureRequest) -> str:
    return f"value of {request.param}"


def test_the_fixtures_of_a_test_can_be_looked_up(request: pytest.FixtureRequest, parametrised: str) -> None:
    item = request.node
    assert hasattr(item, "_fixtureinfo"), lacks("Function._fixtureinfo")
    definitions = internals.fixtures_of_item(item, "parametrised")
    assert definitions, lacks("FuncFixtureInfo.name2fixturedefs")
    assert definitions[-1].func.__name__ == "parametrised"
    assert internals.fixtures_of(item) is item._fixtureinfo
    assert hasattr(definitions[-1], "cached_result"), lacks("FixtureDef.cached_result")
    assert internals.cached_value(item, "parametrised", "a") == "value of a", lacks("a cached_result of (value, parameter, error)")
    assert internals.cached_value(item, "parametrised", "b") is None
    assert internals.request_of(item).node is item, lacks("Function._request")


@pytest.mark.parametrize("number", [1], ids=["one"])
def test_a_test_can_be_made_from_another_one(request: pytest.FixtureRequest, number: int) -> None:
    request.node.add_marker(pytest.mark.skipif(False, reason="kept"))
    made = internals.with_parameter(request.node, "number", 2, "~again")
    assert made.nodeid == f"{request.node.nodeid[:-1]}~again]", lacks("CallSpec as it was")
    assert (made.callspec.params["number"], request.node.callspec.params["number"]) == (2, number)
    assert made.get_closest_marker("skipif"), lacks("Node.own_markers")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.function is test_the_fixtures_of_a_test_function_can_be_looked_up_while_it_is_parametrised:
        assert hasattr(metafunc, "_arg2fixturedefs"), lacks("Metafunc._arg2fixturedefs")
        definitions = internals.parametrised_fixture(metafunc, "tmp_path")
        others = internals.parametrised_fixture(metafunc, "other")
        metafunc.parametrize(("definitions", "others"), [(definitions, others)])


def test_the_fixtures_of_a_test_function_can_be_looked_up_while_it_is_parametrised(tmp_path: Path, definitions: Any, others: Any) -> None:
    assert definitions[-1].func.__module__ == "_pytest.tmpdir"
    assert others is None


def test_the_terminals_width_and_the_parsers_hints_are_there(pytestconfig: pytest.Config) -> None:
    reporter = pytest.TerminalReporter(pytestconfig, io.StringIO())  # made here: a worker of xdist, which CI runs this in, has none
    assert hasattr(reporter, "_tw"), lacks("TerminalReporter._tw")
    assert internals.terminal_width(reporter) > 0
    assert isinstance(getattr(pytestconfig._parser, "extra_info", None), dict), lacks("Parser.extra_info")
    assert callable(getattr(getattr(pytestconfig._parser, "optparser", None), "error", None)), lacks("Parser.optparser.error")


def test_a_module_is_imported_as_pytest_imports_it(pytestconfig: pytest.Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_internals.py").write_text("VALUE = 3\n")
    (tmp_path / "test_imports_internals.py").write_text("from beside_internals import VALUE\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = internals.import_module(tmp_path / "test_imports_internals.py", pytestconfig)
    assert module.VALUE == 3, lacks("pathlib.import_path")


def test_the_rootdir_of_the_test_paths_is_that_of_this_session(pytestconfig: pytest.Config) -> None:
    assert hasattr(pytestconfig.option, "file_or_dir"), lacks("Config.option.file_or_dir")
    assert internals.setup_of_paths(pytestconfig, pytestconfig.option) == (pytestconfig.rootpath, pytestconfig.inipath), lacks(
        "findpaths.determine_setup as it was"
    )


def test_every_text_of_a_traceback_can_be_changed() -> None:
    def fails(argument: str) -> None:
        local = "a local"
        raise ValueError(f"{argument} and {local}")

    try:
        try:
            fails("an argument")
        except ValueError as first:
            raise KeyError("second") from first
    except KeyError:
        caught = pytest.ExceptionInfo.from_current()
    representation = caught.getrepr(showlocals=True, funcargs=True)
    changed: list[str] = []
    assert internals.change_texts(representation, lambda text: changed.append(text) or "changed"), lacks("ExceptionRepr as it was")
    lines = str(representation).splitlines()
    assert {"a local", "an argument"} <= set(re.findall("a local|an argument", "\n".join(changed)))
    shown = {line for line in lines if not re.match(r"(\S+test_pytest_internals.py:\d+: \w*)?$|\w+ = |The above exception|[_ ]+$", line)}
    assert shown == {"changed"}, lacks("a text in its usual place")
    assert not internals.change_texts("a text", str.upper)


def test_a_failure_without_traceback_is_a_text() -> None:
    with pytest.raises(internals.Failed) as caught:
        pytest.fail("the reason", pytrace=False)
    representation = caught.getrepr(style="value")
    assert not internals.change_texts(representation, str.upper), lacks("ReprTraceback.style")
    assert str(representation) == "the reason"


def test_of_a_long_traceback_the_middle_is_left_out() -> None:
    with pytest.raises(AssertionError) as caught:
        raise AssertionError("\n".join(f"line {number}" for number in range(1000)))
    representation = caught.getrepr()
    assert internals.change_texts(representation, str, max_lines=20)
    text = str(representation)
    assert "(lines left out: " in text
    assert "line 999" in text
    assert text.count("\n") < 30


def test_no_other_module_imports_private_parts_of_pytest() -> None:
    package = Path(evalharness.__file__).parent
    imports = re.compile(r"^\s*(from|import) _pytest\b", re.MULTILINE)
    importing = [path.name for path in package.rglob("*.py") if imports.search(path.read_text(encoding="utf-8"))]
    assert importing == ["_pytest_internals.py"]
