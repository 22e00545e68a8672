"""The command line options and markers of the plugin; the options themselves come from `evalharness.config.options.ARGUMENTS`."""

from __future__ import annotations

import argparse
import os
from typing import Any

import pytest

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.api.redaction import redactor, remember_options
from evalharness.config import RunConfig, resolve
from evalharness.config.foreign_options import instead_of
from evalharness.config.options import ARGUMENTS
from evalharness.pytest_plugin._pytest_internals import add_hint, change_usage_errors, move_rootdir, setup_of_paths

_MARKERS = (
    "eval(cases, request, options=GenerationOptions(), num_samples=1, plugins=(), aggregate=None, across=None, tables=None, "
    "outputs=None, directions={}, data=None, optional=False): makes this module an eval, with a test per case; docs/writing_evals.md lists "
    "the arguments",
    "gate(*expressions): conditions on this test's metrics, such as 'valid >= 0.95', 'f1[site=*] >= 0.8' (each slice), "
    "'low(f1) >= 0.7' (interval); a failed assertion is then a miss, not a failure",
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add every option of the table."""
    group = parser.getgroup("evalharness", "evals of checkpoints (evalharness)")
    for option in ARGUMENTS:
        group.addoption(option.flag, **option.argument())
    group.addoption(
        "--watch", metavar="DIR", action=_Watch, help="Not an option: `evalharness watch DIR -- evals …` runs pytest for each checkpoint"
    )


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Have pytest's own usage errors hide secrets, and say beneath "unrecognized arguments" which of our options to write.

    Where an option's value has moved the rootdir, put it right.
    """
    remember_options(args)
    if any(getattr(early_config.known_args_namespace, option.dest, None) is not None for option in ARGUMENTS):
        move_rootdir(early_config)
    change_usage_errors(parser, redactor().text)
    known = [option.flag for option in ARGUMENTS]
    for word in parser.parse_known_and_unknown_args(args)[1]:
        flag = word.partition("=")[0]
        if not flag.startswith("--"):
            continue
        if instead := instead_of(flag):
            add_hint(parser, flag, instead)
        elif hint := did_you_mean(flag, known, cutoff=0.75):  # all begin with dashes: 0.6 fits too many
            add_hint(parser, flag, f"{hint.removeprefix('; ')} `pytest --help` lists every option")


class _Watch(argparse.Action):
    """Refuses `--watch` and names the command: one pytest could not give each checkpoint a run and an exit code."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        raise pytest.UsageError(
            f"--watch {values} is a separate command, as each checkpoint gets its own run and exit code: "
            f"evalharness watch {values} -- evals …, with the other options after `--`"
        )


def add_markers(config: pytest.Config) -> None:
    """Register the two markers, for `--markers` and strict mode."""
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


def asked_on_command_line(config: pytest.Config) -> bool:
    """Return whether an option of the plugin was given: then this session is about evals."""
    return any(config.getoption(option.dest) is not None for option in ARGUMENTS)


def runs_nothing(config: pytest.Config) -> bool:
    """Return whether tests are only listed (--collect-only and the like)."""
    return any(config.getoption(name) for name in ("collectonly", "setupplan", "showfixtures", "show_fixtures_per_test"))


def resolve_run_config(config: pytest.Config) -> RunConfig:
    """Return the resolved options; raises a usage error for a wrong option."""
    try:
        return resolve({option.name: config.getoption(option.dest) for option in ARGUMENTS}, os.environ, config.rootpath)
    except ConfigError as error:
        raise pytest.UsageError(redactor().text(str(error))) from error


def refuse_misplaced_rootdir(config: pytest.Config) -> None:
    """Raise `pytest.UsageError` if pytest derived the rootdir from the value of one of our options."""
    right = setup_of_paths(config, config.option)
    if right is not None and right[0] != config.rootpath:
        raise pytest.UsageError(
            f"pytest took the value of an option for a test path and would run in {config.rootpath} instead of {right[0]}: "
            f"write options with '=', such as --model=PATH --data=PATH, or add --rootdir {right[0]}"
        )
