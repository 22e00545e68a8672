"""What an option is: its name in every place, its kind of value, and which backends it is for."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from evalharness.config.kinds import Kind

__all__ = ["ENV_PREFIX", "Option", "Setting"]

ENV_PREFIX = "EVALHARNESS_"


@dataclass(frozen=True)
class Option:
    """One row of the table. `only_for` names the backends that can honour it, () for all; `table` is that of a file where it has one."""

    name: str
    kind: Kind
    help: str
    default: Any = None
    metavar: str | None = None
    only_for: tuple[str, ...] = ()
    table: str | None = None

    @property
    def key(self) -> str:
        """The key in a settings file, or in its table there."""
        return self.name if self.table is None else self.name.removeprefix(f"{self.table}_")

    @property
    def flag(self) -> str:
        """The name on the command line."""
        return "--" + self.name.replace("_", "-")

    @property
    def env(self) -> str:
        """The name of the environment variable."""
        return ENV_PREFIX + self.name.upper()

    @property
    def dest(self) -> str:
        """The attribute under which an argument parser keeps the value; prefixed, as all pytest plugins share one namespace."""
        return "evalharness_" + self.name

    def argument(self) -> dict[str, Any]:
        """Return the keywords for `add_argument`; the parser hands the text on as it is, so `resolve` checks all sources alike."""
        keywords: dict[str, Any] = {"dest": self.dest, "default": None, "help": self.help}
        if self.kind.is_flag:
            # Also gives --no-…, which takes back what a settings file says.
            return {**keywords, "action": argparse.BooleanOptionalAction}
        action = "append" if self.kind.is_list else "store"
        return {**keywords, "action": action, "metavar": self.metavar or self.name.upper()}


@dataclass(frozen=True)
class Setting:
    """A value and where it is from: "command line", "environment EVALHARNESS_SEED", "evalharness.toml", "pyproject.toml" or "default".

    Where an alias said it, it is named: "command line, --inference-url".
    """

    value: Any
    origin: str
