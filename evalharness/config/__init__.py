"""The one resolved `RunConfig` that the table of options gives.

Command line > environment > evalharness.toml > [tool.evalharness] of pyproject.toml > default; each value keeps its origin.
Knows nothing about pytest and asks nothing of the file system but the two files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.config.kinds import Option, Setting
from evalharness.config.options import ARGUMENTS, OPTIONS
from evalharness.config.sources import Source, all_sources, apply_aliases

__all__ = ["RunConfig", "resolve"]

_BY_NAME = {option.name: option for option in OPTIONS}


@dataclass(frozen=True)
class RunConfig:
    """Every option's value, as an attribute of its name (`config.max_new_tokens`); unset ones are None or the default."""

    settings: Mapping[str, Setting]

    def __getattr__(self, name: str) -> Any:
        # Only reached for names that are no field. `settings` itself is missing while pickle rebuilds the object.
        if name == "settings" or name not in self.settings:
            raise AttributeError(f"{name!r} is no option; options: {', '.join(_BY_NAME)}")
        return self.settings[name].value

    def origin(self, name: str) -> str:
        """Return where the option's value is from."""
        return self.settings[name].origin

    def is_set(self, name: str) -> bool:
        """Return whether someone set the option, even to its default."""
        return self.origin(name) != "default"

    def to_json(self) -> dict[str, dict[str, Any]]:
        """Return {name: {"value", "origin"}} as plain JSON data. No option holds a secret."""
        return {
            name: {"value": _BY_NAME[name].kind.to_json(setting.value), "origin": setting.origin} for name, setting in self.settings.items()
        }

    @classmethod
    def from_json(cls, values: Mapping[str, Mapping[str, Any]]) -> RunConfig:
        """Return the config that `to_json` wrote; options unknown here are ignored, absent ones have their default."""
        settings = {option.name: Setting(option.default, "default") for option in OPTIONS}
        for name, given in values.items():
            if name in _BY_NAME:
                settings[name] = Setting(_BY_NAME[name].kind.from_json(given["value"]), given["origin"])
        return cls(settings)


def resolve(cli: Mapping[str, object | None], env: Mapping[str, str], root: Path, *, cwd: Path | None = None) -> RunConfig:
    """Return the config of a run. Raises `ConfigError` naming the place of what is unknown, ill-typed or out of range.

    `cli` is {option name: what the parser got, None where it was not given}. Relative paths in the two files of settings,
    and default ones, are relative to `root`; those of command line and environment to `cwd` (default: the current folder).
    """
    root, here = root.absolute(), (cwd or Path.cwd()).absolute()
    sources = all_sources(_given_on_command_line(cli), env, ARGUMENTS, root, here)
    settings = {option.name: _setting(option, sources, root) for option in OPTIONS}
    return RunConfig(apply_aliases(settings, _BY_NAME, sources))


def _setting(option: Option, sources: Sequence[Source], root: Path) -> Setting:
    for source in sources:
        if option.name in source.values:
            value = option.kind.read(source.values[option.name], label=source.label(option), base=source.base, is_text=source.is_text)
            return Setting(value, source.origin(option))
    return Setting(_default(option, root), "default")


def _given_on_command_line(cli: Mapping[str, object | None]) -> dict[str, object]:
    known = {option.name for option in ARGUMENTS}
    for name in cli:
        if name not in known:
            raise ConfigError(f"{name!r} is no option; options: {', '.join(_BY_NAME)}")
    return {name: value for name, value in cli.items() if value is not None}


def _default(option: Option, root: Path) -> Any:
    if option.name == "run_id":
        # Random digits, so that two runs started in the same second get folders of their own.
        return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
    return root / option.default if isinstance(option.default, Path) else option.default
