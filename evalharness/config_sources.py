"""Where settings come from besides the command line: environment variables and two files at the root. Reading only."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evalharness.errors import ConfigError
from evalharness.suggestions import did_you_mean

__all__ = ["ENV_PREFIX", "SETTINGS_FILE", "read_environment", "read_settings_file", "read_tool_table"]

API_KEY = "EVALHARNESS_API_KEY"
ENV_PREFIX = "EVALHARNESS_"
SETTINGS_FILE = "evalharness.toml"


def read_environment(env: Mapping[str, str], names: Iterable[str]) -> dict[str, str]:
    """Return {option name: text} of the EVALHARNESS_* variables. Raises `ConfigError` for one that is no option."""
    known = {ENV_PREFIX + name.upper(): name for name in names}
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


def read_settings_file(root: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return the settings of evalharness.toml at the root, {} without that file."""
    return _known(_load(root / SETTINGS_FILE), SETTINGS_FILE, names)


def read_tool_table(root: Path, names: Iterable[str]) -> dict[str, Any]:
    """Return the settings of [tool.evalharness] in pyproject.toml at the root, {} without that file or table."""
    tool = _load(root / "pyproject.toml").get("tool", {})
    table = tool.get("evalharness", {}) if isinstance(tool, dict) else {}
    return _known(table, "[tool.evalharness] of pyproject.toml", names)


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


def _known(table: object, place: str, names: Iterable[str]) -> dict[str, Any]:
    """Return the table with '-' in its keys as '_'. Raises `ConfigError` for a key that is no option."""
    if not isinstance(table, dict):
        raise ConfigError(f"{place} must be a table of settings, got {table!r}")
    known = list(names)
    settings: dict[str, Any] = {}
    for key, value in table.items():
        name = key.replace("-", "_")
        if name not in known:
            raise ConfigError(f"{key!r} in {place} is unknown{did_you_mean(name, known) or '.'} Known: {', '.join(known)}.")
        if name in settings:
            raise ConfigError(f"{name!r} is set twice in {place}, with '-' and with '_'; keep one")
        settings[name] = value
    return settings
