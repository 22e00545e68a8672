"""The options of a run with their origins: `resolve` reads them into one `RunConfig`.

Command line > environment > evalharness.toml > [tool.evalharness] of pyproject.toml > default; each value keeps its origin.
Knows nothing about pytest and reads no files but these two.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.config.kinds import Option, Setting
from evalharness.config.options import ARGUMENTS, OPTIONS, RunConfig
from evalharness.config.sources import Source, all_sources, apply_aliases, find

__all__ = ["RunConfig", "resolve"]


def resolve(cli: Mapping[str, object | None], env: Mapping[str, str], root: Path, *, cwd: Path | None = None) -> RunConfig:
    """Return the config of a run. Raises `ConfigError` naming the place of a value that is unknown, ill-typed or out of range.

    `cli` is {option name: what the parser got, None where it was not given}. Relative paths in the two settings files, and
    default ones, are relative to `root`; those of command line and environment to `cwd` (default: the current folder).
    """
    root, here = root.absolute(), (cwd or Path.cwd()).absolute()
    sources = all_sources(_given_on_command_line(cli), env, root, here)
    settings = {option.name: _setting(option, sources, root) for option in OPTIONS}
    return RunConfig.from_settings(apply_aliases(settings, {option.name: option for option in OPTIONS}, sources))


def _setting(option: Option, sources: Sequence[Source], root: Path) -> Setting:
    given = find(option, sources)
    return Setting(_default(option, root), "default") if given is None else Setting(given.value, given.origin)


def _given_on_command_line(cli: Mapping[str, object | None]) -> dict[str, object]:
    known = [option.name for option in ARGUMENTS]
    for name in cli:
        if name not in known:
            raise ConfigError(f"unknown option {name!r}{did_you_mean(name, known) or '.'} Known: {', '.join(known)}.")
    return {name: value for name, value in cli.items() if value is not None}


def _default(option: Option, root: Path) -> Any:
    if option.name == "run_id":
        # Random digits, so that two runs started in the same second differ.
        return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
    return root / option.default if isinstance(option.default, Path) else option.default
