"""The options of a run with their origins: `resolve` reads them into one `RunConfig`.

Command line > environment > evalharness.toml > [tool.evalharness] of pyproject.toml > default; each value keeps its origin.
Knows nothing about pytest and reads only these two files.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.config.kinds import Option, Setting
from evalharness.config.options import ARGUMENTS, OPTIONS, RunConfig as RunConfig
from evalharness.config.sources import all_sources, apply_aliases, find


def resolve(cli: Mapping[str, object | None], env: Mapping[str, str], root: Path, *, cwd: Path | None = None) -> RunConfig:
    """Return the config of a run. Raises `ConfigError` naming the place of a value that is unknown, ill-typed or out of range.

    `cli` is {option name: the parser's value, None where the option was not given}. Relative paths in the two settings files, and
    default paths, are relative to `root`; those of command line and environment to `cwd` (default: the current folder).
    """
    known = [option.name for option in ARGUMENTS]
    for name in cli:
        if name not in known:
            raise ConfigError(f"unknown option {name!r}{did_you_mean(name, known) or '.'} Known: {', '.join(known)}.")
    root, here = root.absolute(), (cwd or Path.cwd()).absolute()
    sources = all_sources({name: value for name, value in cli.items() if value is not None}, env, root, here)
    settings = {}
    for option in OPTIONS:
        value = find(option, sources)
        settings[option.name] = Setting(_default(option, root), "default") if value is None else Setting(value.value, value.origin)
    return RunConfig.from_settings(apply_aliases(settings, sources))


def _default(option: Option, root: Path) -> Any:
    if option.name == "run_id":  # random digits, as two runs may start in the same second
        return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(3).hex()}"
    return root / option.default if isinstance(option.default, Path) else option.default
