"""Where settings come from: command line, environment variables and two files at the root. Reading only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.api.errors import ConfigError
from evalharness.api.redaction import API_KEY
from evalharness.api.suggestions import did_you_mean
from evalharness.config.config_option import ENV_PREFIX, Option

__all__ = ["SETTINGS_FILE", "Source", "all_sources"]

SETTINGS_FILE = "evalharness.toml"
_PYPROJECT = "pyproject.toml"
_COMMAND_LINE, _ENVIRONMENT = "command line", "environment"


class Source(NamedTuple):
    """One place of settings: raw values by the names of their options; `base` is what relative paths are relative to."""

    place: str
    values: Mapping[str, Any]
    base: Path
    is_text: bool

    def label(self, option: Option) -> str:
        """Return an option as this place writes it, for messages."""
        if self.place == _COMMAND_LINE:
            return option.flag
        if self.place == _ENVIRONMENT:
            return option.env
        file = SETTINGS_FILE if self.place == SETTINGS_FILE else "[tool.evalharness] of pyproject.toml"
        return f"{option.key} in {f'[{option.table}] of ' if option.table else ''}{file}"

    def origin(self, option: Option) -> str:
        """Return where a value is from, for records; an alias is named."""
        if self.place == _ENVIRONMENT:
            return f"{self.place} {option.env}"
        if option.table is None:
            return self.place
        return f"{self.place}, {option.flag if self.place == _COMMAND_LINE else f'[{option.table}] {option.key}'}"


def all_sources(cli: Mapping[str, Any], env: Mapping[str, str], options: Iterable[Option], root: Path, here: Path) -> list[Source]:
    """Return the places of settings, the strongest first. Raises `ConfigError` for names that are no option.

    Relative paths in the two files of `root` are relative to it; those of command line and environment to `here`.
    """
    known = list(options)
    return [
        Source(_COMMAND_LINE, cli, here, is_text=True),
        Source(_ENVIRONMENT, _read_environment(env, known), here, is_text=True),
        Source(SETTINGS_FILE, _known(_load(root / SETTINGS_FILE), SETTINGS_FILE, known), root, is_text=False),
        Source(_PYPROJECT, _read_tool_table(root, known), root, is_text=False),
    ]


def _read_environment(env: Mapping[str, str], options: Iterable[Option]) -> dict[str, str]:
    """Return {option name: text} of the EVALHARNESS_* variables."""
    known = {option.env: option.name for option in options}
    found = {}
    for variable, text in env.items():
        if not variable.startswith(ENV_PREFIX) or variable == API_KEY:  # a secret is no option: options are written down
            continue
        if variable not in known:
            raise ConfigError(
                f"environment variable {variable} is unknown{did_you_mean(variable, known) or '.'} Known: {', '.join(known)}."
            )
        found[known[variable]] = text
    return found


def _read_tool_table(root: Path, options: Iterable[Option]) -> dict[str, Any]:
    tool = _load(root / "pyproject.toml").get("tool", {})
    table = tool.get("evalharness", {}) if isinstance(tool, dict) else {}
    return _known(table, "[tool.evalharness] of pyproject.toml", options)


def _load(path: Path) -> dict[str, Any]:
    # Imported here, as importing the pytest plugin must stay cheap.
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path.name} is no valid TOML: {error}") from error


def _known(table: object, place: str, options: Iterable[Option]) -> dict[str, Any]:
    """Return {option name: value} of a file's table and of the tables in it that options have."""
    known = list(options)
    tables = dict.fromkeys(option.table for option in known if option.table is not None)
    values = _by_key(table, place, [*(option.key for option in known if option.table is None), *tables])
    settings = {name: value for name, value in values.items() if name not in tables}
    for name in tables:
        keys = {option.key: option.name for option in known if option.table == name}
        inner = _by_key(values.get(name, {}), f"[{name}] of {place}", keys)
        settings.update({keys[key]: value for key, value in inner.items()})
    return settings


def _by_key(table: object, place: str, known: Iterable[str]) -> dict[str, Any]:
    """Return the table with '-' in its keys as '_'. Raises `ConfigError` for a key that is not known."""
    if not isinstance(table, dict):
        raise ConfigError(f"{place} must be a table of settings, got {table!r}")
    names = list(known)
    settings: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in names:
            raise ConfigError(f"{key!r} in {place} is unknown{did_you_mean(name, names) or '.'} Known: {', '.join(names)}.")
        if name in settings:
            raise ConfigError(f"{name!r} is set twice in {place}, with '-' and with '_'; keep one")
        settings[name] = value
    return settings
