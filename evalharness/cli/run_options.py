"""Options of a run for commands that open engines: the names, kinds and sources that `pytest evals` has, from the same table."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click

from evalharness.config import RunConfig, resolve
from evalharness.config.config_option import Option, Setting
from evalharness.config.options import ARGUMENTS, OPTIONS
from evalharness.config.sources import SETTINGS_FILE

__all__ = ["project_root", "resolve_options", "run_options"]

_EVALS_OWN = "what the eval says, otherwise "


def run_options(*names: str, defaults: Mapping[str, str] | None = None) -> Callable[[Any], Any]:
    """Return the decorator that adds these options, in this order; `defaults` says what is another default than in a run."""
    by_name = {option.name: option for option in ARGUMENTS}

    def decorate(function: Any) -> Any:
        for name in reversed(names):
            function = _click_option(by_name[name], (defaults or {}).get(name))(function)
        return function

    return decorate


def _click_option(option: Option, default: str | None) -> Callable[[Any], Any]:
    text = option.help.replace(_EVALS_OWN, "")
    if default is not None:
        text = f"{text.partition(' (default:')[0]} (default: {default})"
    if option.kind.is_flag:
        return click.option(f"{option.flag}/--no-{option.flag[2:]}", option.name, default=None, help=text)
    return click.option(option.flag, option.name, multiple=option.kind.is_list, metavar=option.metavar or option.name.upper(), help=text)


def project_root(start: Path) -> Path:
    """Return the nearest folder at or above `start` with evalharness.toml or pyproject.toml, else `start` itself."""
    for folder in (start, *start.parents):
        if (folder / SETTINGS_FILE).is_file() or (folder / "pyproject.toml").is_file():
            return folder
    return start


def resolve_options(given: Mapping[str, Any]) -> RunConfig:
    """Return the config of the options `given` by click, () or None where not given; all other options have their default.

    What settings files say of options that the command has not, such as `data`, is about runs and counts for nothing here.
    """
    cli = {name: list(value) if isinstance(value, tuple) else value for name, value in given.items() if value not in (None, ())}
    run = resolve(cli, os.environ, project_root(Path.cwd()))
    plain = {option.name: Setting(option.default, "default") for option in OPTIONS if option.name not in given}
    return RunConfig({**run.settings, **plain})
