"""Reads settings from command line, environment variables and the two settings files at the root."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.api.checks import read_regular
from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.api.redaction import API_KEY
from evalharness.config.kinds import ENV_PREFIX, Option, Setting, shown
from evalharness.config.options import ALIASES, ARGUMENTS, ENGINES, OPTIONS

_ENGINE, _URL = ALIASES

SETTINGS_FILE = "evalharness.toml"
_PYPROJECT = "pyproject.toml"
_TOOL_TABLE = f"[tool.evalharness] of {_PYPROJECT}"
_COMMAND_LINE, _ENVIRONMENT = "command line", "environment"


def project_root(start: Path) -> Path:
    """Return the nearest folder at or above `start` with evalharness.toml or pyproject.toml, else `start` itself."""
    for folder in (start, *start.parents):
        if (folder / SETTINGS_FILE).is_file() or (folder / _PYPROJECT).is_file():
            return folder
    return start


class Source(NamedTuple):
    """One place of settings: raw values by option name; relative paths are relative to `base`."""

    place: str
    values: Mapping[str, Any]
    base: Path
    is_text: bool

    def label(self, option: Option) -> str:
        """Return the option's name in this place, for messages."""
        if self.place == _COMMAND_LINE:
            return option.flag
        if self.place == _ENVIRONMENT:
            return option.env
        file = SETTINGS_FILE if self.place == SETTINGS_FILE else _TOOL_TABLE
        return f"{option.key} in {f'[{option.table}] of ' if option.table else ''}{file}"

    def origin(self, option: Option) -> str:
        """Return the origin of a value, for records; aliases are named."""
        if self.place == _ENVIRONMENT:
            return f"{self.place} {option.env}"
        if option.table is None:
            return self.place
        return f"{self.place}, {option.flag if self.place == _COMMAND_LINE else f'[{option.table}] {option.key}'}"


def all_sources(cli: Mapping[str, Any], env: Mapping[str, str], root: Path, here: Path) -> list[Source]:
    """Return the places of settings, the strongest first. Raises `ConfigError` for unknown names."""
    tool = _load(root / _PYPROJECT).get("tool", {})
    table = tool.get("evalharness", {}) if isinstance(tool, dict) else {}
    return [
        Source(_COMMAND_LINE, cli, here, is_text=True),
        Source(_ENVIRONMENT, _read_environment(env), here, is_text=True),
        Source(SETTINGS_FILE, _read_table(_load(root / SETTINGS_FILE), SETTINGS_FILE), root, is_text=False),
        Source(_PYPROJECT, _read_table(table, _TOOL_TABLE), root, is_text=False),
    ]


def _read_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return {option name: text} of the EVALHARNESS_* variables."""
    known = {option.env: option.name for option in ARGUMENTS}
    values = {}
    for variable, text in env.items():
        if not variable.startswith(ENV_PREFIX) or variable == API_KEY:  # the key is a secret, and options are recorded
            continue
        if variable not in known:
            hint = did_you_mean(variable, known) or "."
            raise ConfigError(f"environment variable {variable} is unknown{hint} Known: {', '.join(known)}.")
        values[known[variable]] = text
    return values


def _load(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):  # imported here, as importing the pytest plugin must stay cheap
        import tomllib
    else:
        import tomli as tomllib

    try:
        return tomllib.loads(read_regular(path).decode("utf-8-sig"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path.name} is not valid TOML: {error}") from error


def _read_table(table: object, place: str) -> dict[str, Any]:
    """Return {option name: value} of a file's table and of the tables inside it that hold options."""
    tables = dict.fromkeys(option.table for option in ARGUMENTS if option.table is not None)
    values = _by_key(table, place, [*(option.key for option in ARGUMENTS if option.table is None), *tables])
    settings = {name: value for name, value in values.items() if name not in tables}
    for name in tables:
        keys = {option.key: option.name for option in ARGUMENTS if option.table == name}
        inner = _by_key(values.get(name, {}), f"[{name}] of {place}", keys)
        settings.update({keys[key]: value for key, value in inner.items()})
    return settings


def _by_key(table: object, place: str, known: Iterable[str]) -> dict[str, Any]:
    """Return the table with '-' in its keys as '_'. Raises `ConfigError` for an unknown key."""
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


class SourcedValue(NamedTuple):
    """The value of an option from the strongest place that sets it; `rank` 0 is the strongest."""

    value: Any
    label: str
    origin: str
    rank: int

    def __str__(self) -> str:
        return f"{self.label} {shown(self.value)}"


def find(option: Option, sources: Sequence[Source]) -> SourcedValue | None:
    """Return the option's checked value, None if it was not set. Raises `ConfigError` for an illegal value."""
    for rank, source in enumerate(sources):
        if option.name in source.values:
            value = option.kind.read(source.values[option.name], label=source.label(option), base=source.base, is_text=source.is_text)
            return SourcedValue(value, source.label(option), source.origin(option), rank)
    return None


def apply_aliases(settings: Mapping[str, Setting], sources: Sequence[Source]) -> dict[str, Setting]:
    """Return the settings with the values of aliases, under the names of the options that they stand for.

    A stronger place wins, whichever name it uses. Raises `ConfigError` where one place sets an option and its alias to different values.
    """
    merged = dict(settings)
    engine, url = find(_ENGINE, sources), find(_URL, sources)
    if url is not None:
        _apply(merged, "base_url", url.value, url, sources)
    if engine is not None:
        backend, server = ENGINES[engine.value]
        if server is not None and (merged["base_url"].value is not None or backend is None):
            _apply(merged, "backend", ("openai",), engine, sources)
            _apply(merged, "server", server, engine, sources)
        else:
            _apply(merged, "backend", (backend,), engine, sources)
    return merged


def _apply(merged: dict[str, Setting], name: str, value: Any, alias: SourcedValue, sources: Sequence[Source]) -> None:
    [option] = [option for option in OPTIONS if option.name == name]
    if name == "backend":
        value = option.kind.read(list(value), label=f"{alias} means --backend {shown(value)}, which", base=Path(), is_text=True)
    named = find(option, sources)
    if named is not None and named.rank < alias.rank:
        return
    if named is not None and named.rank == alias.rank and named.value != value:
        means = "" if name == "base_url" else f" means {option.flag} {shown(value)} here and"
        raise ConfigError(f"{alias}{means} contradicts {named}; give one of them")
    merged[name] = Setting(value, alias.origin)
