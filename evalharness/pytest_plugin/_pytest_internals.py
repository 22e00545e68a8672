"""The parts of pytest used beyond its documented interface: fixtures' definitions and values, tracebacks, imports of test modules.

`tests/pytest_plugin/test_pytest_internals.py` fails if a release drops a part.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from _pytest._code.code import ExceptionChainRepr, ExceptionRepr, ReprEntry
from _pytest.config.findpaths import determine_setup
from _pytest.mark.expression import Expression
from _pytest.outcomes import Failed as Failed
from _pytest.pathlib import import_path

_NUM_ERROR_LINES = 3


def parametrised_fixture(metafunc: pytest.Metafunc, name: str) -> Sequence[Any] | None:
    """Return the definitions of a fixture that a test function takes; the last one takes effect."""
    return metafunc._arg2fixturedefs.get(name)


def parameters_of(metafunc: pytest.Metafunc, name: str) -> list[Any]:
    """Return the parameters of this name that a test has been given already."""
    return [call.params[name] for call in metafunc._calls if name in call.params]


def fixture_arguments(metafunc: pytest.Metafunc) -> list[Sequence[str]]:
    """Return the arguments of the project's own fixtures that a test takes, directly or through others."""
    taken = [definition for definitions in metafunc._arg2fixturedefs.values() for definition in definitions]
    return [
        definition.argnames for definition in taken if not definition.func.__module__.startswith(("_pytest.", "evalharness.pytest_plugin."))
    ]


def fixtures_of(item: pytest.Function) -> object:
    """Return the fixture information that all tests of one function share, for lookups by identity."""
    return item._fixtureinfo


def fixtures_of_item(item: pytest.Function, name: str) -> Sequence[Any] | None:
    """Return the definitions of a fixture that a collected test takes; the last one takes effect."""
    return item._fixtureinfo.name2fixturedefs.get(name)


def cached_value(item: pytest.Function, fixture: str, param: object) -> Any:
    """Return the current value of a session fixture; None if it has none, failed, or was made for another parameter."""
    kept = item._fixtureinfo.name2fixturedefs[fixture][-1].cached_result
    return kept[0] if kept is not None and kept[2] is None and kept[1] == param else None


def with_parameter(item: pytest.Function, name: str, value: object, id_end: str) -> pytest.Function:
    """Return a test like another one, with another value of its last parameter, whose id has one more end; its markers are the same."""
    spec = item.callspec
    changed = replace(spec, params={**spec.params, name: value}, _idlist=[*spec._idlist[:-1], spec._idlist[-1] + id_end])
    made: pytest.Function = type(item).from_parent(
        item.parent,
        name=f"{item.originalname}[{changed.id}]",
        callspec=changed,
        fixtureinfo=item._fixtureinfo,
        keywords={changed.id: True},
        originalname=item.originalname,
    )
    made.own_markers[:] = item.own_markers  # those of conftest.py's hooks included
    made.keywords.update({marker.name: marker for marker in item.own_markers})
    return made


def request_of(item: pytest.Function) -> pytest.FixtureRequest:
    """Return pytest's `request` fixture for a test, through a fixture made anew for each test."""
    return item._request


def import_module(path: Path, config: pytest.Config) -> ModuleType:
    """Return a test module as pytest imports it, so that its own imports work."""
    return import_path(
        path,
        mode=config.getoption("importmode"),
        root=config.rootpath,
        consider_namespace_packages=config.getini("consider_namespace_packages"),
    )


def setup_of_paths(config: pytest.Config, option: argparse.Namespace) -> tuple[Path, Path | None] | None:
    """Return the rootdir and the ini file that the test paths alone give; None if pytest reads no paths (--help, --version)."""
    if not hasattr(option, "file_or_dir"):
        return None
    rootdir, inipath, *_ = determine_setup(
        inifile=option.inifilename,
        override_ini=option.override_ini,
        args=option.file_or_dir,
        rootdir_cmd_arg=option.rootdir or None,
        invocation_dir=config.invocation_params.dir,
    )
    return rootdir, inipath


def move_rootdir(config: pytest.Config) -> None:
    """Set the rootdir to that of the test paths where pytest took an option's value for one of them, and no ini file depends on it.

    To be called before pytest's own plugins are configured, which go by the rootdir.
    """
    right = setup_of_paths(config, config.known_args_namespace)
    if right is not None and right[1] is None and config.inipath is None:
        config._rootpath = right[0]


def check_expressions(config: pytest.Config) -> None:
    """Raise `pytest.UsageError` for an expression of -k or -m that pytest refuses.

    Workers would only find out after their collection, and end without a word.
    """
    for flag, name in (("-k", "keyword"), ("-m", "markexpr")):
        text = str(getattr(config.option, name, "") or "").strip()
        try:
            if text:
                Expression.compile(text)
        except SyntaxError as error:
            raise pytest.UsageError(f"Wrong expression passed to '{flag}': {text}: at column {error.offset}: {error.msg}") from None


def add_hint(parser: pytest.Parser, flag: str, hint: str) -> None:
    """Have pytest print a hint beneath its own "unrecognized arguments"."""
    parser.extra_info[flag] = hint


def change_usage_errors(parser: pytest.Parser, change: Callable[[str], str]) -> None:
    """Change the texts of pytest's own usage errors, which repeat what was typed."""
    raise_error = parser.optparser.error
    parser.optparser.error = lambda message: raise_error(change(message))  # type: ignore[method-assign]


def report_collection(collector: pytest.Collector) -> None:
    """Collect, and report the outcome, such as an error."""
    report = collector.ihook.pytest_make_collect_report(collector=collector)
    vars(report).pop("call", None)  # as pytest does itself: workers could not send it
    collector.ihook.pytest_collectreport(report=report)


def terminal_width(reporter: Any) -> int:
    """Return the width of the terminal in characters."""
    return int(reporter._tw.fullwidth)


def terminal_file(reporter: Any) -> Any:
    """Return the file that pytest's reporter writes to."""
    return reporter._tw._file


def replace_terminal_file(reporter: Any, file: Any) -> None:
    """Have pytest's reporter write to this file."""
    reporter._tw._file = file


def begin_new_line(reporter: Any) -> bool:
    """Have the reporter begin a new line; return whether it stood in one, and ends that before it writes the next."""
    was_in_line = bool(reporter.currentfspath)
    reporter.currentfspath = None
    reporter._tw._current_line = ""
    return was_in_line


def change_last_line(reporter: Any, parts: Sequence[str], color: str | None) -> None:
    """Put parts before the counts of pytest's last line, and give it the colour, but never a milder one than its own."""
    build = reporter.build_summary_stats_line

    def built() -> tuple[list[tuple[str, dict[str, bool]]], str]:
        counts, own = build()
        chosen = color if color is not None and own != "red" else own
        return [*((part, {chosen: True, "bold": True}) for part in parts), *counts], chosen

    reporter.build_summary_stats_line = built


def failing_line(representation: object) -> str | None:
    """Return the place, the failing line and the error of a traceback; None for a message without a traceback."""
    if not isinstance(representation, ExceptionRepr) or not representation.reprtraceback.reprentries:
        return None
    entry = representation.reprtraceback.reprentries[-1]
    place = getattr(entry, "reprfileloc", None)
    crash = representation.reprcrash
    errors = [f"E   {line}" for line in (crash.message if crash is not None else "").splitlines()]
    failing = [line.removeprefix(">").strip() for line in entry.lines if line.startswith(">")][-1:]
    where = [] if place is None else [f"{place.path}:{place.lineno}: {failing[0] if failing else place.message}"]
    return "\n".join([*where, *errors[:_NUM_ERROR_LINES]])


def change_crash_message(representation: object, message: str) -> None:
    """Set what the short summary and the JUnit file say of a failure; does nothing where they say the whole text."""
    crash = getattr(representation, "reprcrash", None)
    if crash is not None:
        crash.message = message


def change_texts(representation: object, change: Callable[[str], str], max_lines: int = 200) -> bool:
    """Change every text of a traceback in place; return False for a message without a traceback.

    Of an entry longer than `max_lines`, lines in the middle are left out: the failing line stands at the end.
    """
    if not isinstance(representation, ExceptionRepr) or representation.reprtraceback.style == "value":
        return False
    last = (representation.reprtraceback, representation.reprcrash, None)
    for traceback, crash, _ in representation.chain if isinstance(representation, ExceptionChainRepr) else [last]:
        if crash is not None:
            crash.message = change(crash.message)
        if traceback.extraline is not None:
            traceback.extraline = change(traceback.extraline)
        for entry in traceback.reprentries:
            num_more, half = len(entry.lines) - max_lines, max_lines // 2
            shown = entry.lines if num_more <= 0 else [*entry.lines[:half], f"… (lines left out: {num_more:,})", *entry.lines[-half:]]
            entry.lines = [change(line) for line in shown]
            if isinstance(entry, ReprEntry):
                if entry.reprfuncargs is not None:
                    entry.reprfuncargs.args = [(name, change(str(value))) for name, value in entry.reprfuncargs.args]
                if entry.reprlocals is not None:
                    entry.reprlocals.lines = [change(line) for line in entry.reprlocals.lines]
    representation.sections = [(name, change(content), mark) for name, content, mark in representation.sections]
    return True
