"""The kinds of value an option can have: reading from text or TOML, range checks, plain JSON and back."""

from __future__ import annotations

import argparse
import errno
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError, did_you_mean

__all__ = [
    "ENV_PREFIX",
    "Arguments",
    "Choice",
    "Flag",
    "Folder",
    "Kind",
    "NameList",
    "Number",
    "Option",
    "PathList",
    "PerCheckpoint",
    "Setting",
    "Text",
]


class Kind:
    """One kind of value. `read` gives the checked value; `raw` is text, or what TOML made of it.

    `label` names the place of the value in messages; relative paths are relative to `base`.
    """

    is_flag = False
    is_list = False

    @property
    def legal(self) -> str:
        """Say what is accepted."""
        raise NotImplementedError

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> Any:
        raise NotImplementedError

    def refuse(self, raw: object, label: str, hint: str = "") -> ConfigError:
        """Return the error that says what was got, what is legal and what to do."""
        return ConfigError(f"{label} must be {self.legal}, got {raw!r}{hint}")

    def to_json(self, value: Any) -> Any:
        """Return the value as plain JSON data."""
        return value

    def from_json(self, value: Any) -> Any:
        """Return the value that `to_json` gave."""
        return value


@dataclass(frozen=True)
class Number(Kind):
    """An int or a finite float within bounds; `above` is exclusive."""

    integer: bool = True
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    hint_if_too_small: str = ""

    @property
    def legal(self) -> str:
        """Say what is accepted."""
        words = (("of at least", self.minimum), ("greater than", self.above), ("at most", self.maximum))
        bounds = " and ".join(f"{word} {bound}" for word, bound in words if bound is not None)
        return f"{'a whole number' if self.integer else 'a number'} {bounds}".strip()

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> int | float:
        value = raw
        if is_text and isinstance(raw, str):
            try:
                value = (int if self.integer else float)(raw)
            except ValueError:
                raise self.refuse(raw, label) from None
        if isinstance(value, bool) or not isinstance(value, int if self.integer else (int, float)):
            raise self.refuse(raw, label)
        if isinstance(value, float) and not math.isfinite(value):
            raise self.refuse(raw, label)
        if (self.minimum is not None and value < self.minimum) or (self.above is not None and value <= self.above):
            raise self.refuse(raw, label, self.hint_if_too_small)
        if self.maximum is not None and value > self.maximum:
            raise self.refuse(raw, label)
        return value


class Flag(Kind):
    """True or false."""

    is_flag = True
    legal = "true or false"
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}  # noqa: RUF012

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> bool:
        if isinstance(raw, bool):
            return raw
        if is_text and isinstance(raw, str) and raw.lower() in self.words:
            return self.words[raw.lower()]
        raise self.refuse(raw, label)


@dataclass(frozen=True)
class Text(Kind):
    """A string that a pattern matches in full; `legal` says in words what that is."""

    pattern: str
    legal: str = "text"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> str:
        if not isinstance(raw, str) or not re.fullmatch(self.pattern, raw):
            raise self.refuse(raw, label)
        return raw


@dataclass(frozen=True)
class Choice(Kind):
    """One of a few words."""

    words: tuple[str, ...]

    @property
    def legal(self) -> str:
        """Say what is accepted."""
        return f"one of {', '.join(self.words)}"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> str:
        if not isinstance(raw, str) or raw not in self.words:
            raise self.refuse(raw, label, did_you_mean(str(raw), self.words))
        return raw


def _items(kind: Kind, raw: object, label: str) -> list[str]:
    """Return the non-empty strings of a list; text is split at commas, as is each item of an option given several times."""
    given = [raw] if isinstance(raw, str) else raw
    if not isinstance(given, (list, tuple)) or not all(isinstance(item, str) for item in given):
        raise kind.refuse(raw, label)
    items = [part.strip() for item in given for part in item.split(",")]
    if not items or not all(items):
        raise kind.refuse(raw, label)
    return items


@dataclass(frozen=True)
class NameList(Kind):
    """Names out of a closed set, each at most once; `unknown` gives the message's end for one that is not of the set."""

    names: Callable[[], tuple[str, ...]]
    unknown: Callable[[str], str]
    is_list = True

    @property
    def legal(self) -> str:
        """Say what is accepted."""
        return f"a comma-separated list of {', '.join(self.names())}"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> tuple[str, ...]:
        items = _items(self, raw, label)
        for position, item in enumerate(items):
            if item not in self.names():
                raise ConfigError(f"{label} {self.unknown(item)}")
            if item in items[:position]:
                raise ConfigError(f"{label} names {item!r} twice; name each once")
        return tuple(items)

    def to_json(self, value: Any) -> Any:
        return None if value is None else list(value)

    def from_json(self, value: Any) -> Any:
        if value is None:
            return None
        return (value,) if isinstance(value, str) else tuple(value)  # older runs had one dtype


@dataclass(frozen=True)
class PerCheckpoint(Kind):
    """Texts, each for the checkpoints whose name a pattern before `=` fits, or for all; read as (pattern, text) pairs."""

    text: Text
    is_list = True

    @property
    def legal(self) -> str:
        """Say what is accepted."""
        return f"{self.text.legal}, for all checkpoints or as PATTERN=… for those whose name fits, comma-separated"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> tuple[tuple[str, str], ...]:
        pairs: list[tuple[str, str]] = []
        for item in _items(self, raw, label):
            pattern, sign, text = item.rpartition("=")
            if (sign and not pattern) or not re.fullmatch(self.text.pattern, text):
                raise self.refuse(item, label)
            if pattern in dict(pairs):
                raise ConfigError(f"{label} says twice what counts for {pattern or 'all checkpoints'}; say it once")
            pairs.append((pattern, text))
        return tuple(pairs)

    def to_json(self, value: Any) -> Any:
        return None if value is None else [f"{pattern}={text}" if pattern else text for pattern, text in value]

    def from_json(self, value: Any) -> Any:
        return None if value is None else tuple((pattern, text) for pattern, _, text in (item.rpartition("=") for item in value))

    @staticmethod
    def of(value: tuple[tuple[str, str], ...] | None, checkpoint: str) -> str | None:
        """Return the text for one checkpoint: of the first pattern that fits its name, else the one for all, else None."""
        pairs = value or ()
        fitting = [text for pattern, text in pairs if pattern and fnmatchcase(checkpoint, pattern)]
        return fitting[0] if fitting else dict(pairs).get("")


@dataclass(frozen=True)
class Arguments(Kind):
    """Arguments for something else, by name, as (name, value) pairs in order of names; read from NAME=VALUE or a TOML table.

    A value is what JSON makes of it, else text. Names are written with `_`; whether they mean anything is not asked here.
    """

    is_list = True
    legal: str = "NAME=VALUE, one each time, or a table in a settings file"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> tuple[tuple[str, Any], ...]:
        if isinstance(raw, Mapping):
            pairs = [(name, value) for name, value in raw.items()]
        else:
            given = [raw] if isinstance(raw, str) else raw
            if not isinstance(given, (list, tuple)) or not all(isinstance(item, str) for item in given):
                raise self.refuse(raw, label)
            pairs = [self._pair(item, label) for item in given]
        found: dict[str, Any] = {}
        for name, value in pairs:
            plain = name.replace("-", "_")
            if not re.fullmatch(r"[A-Za-z]\w*", plain):
                raise self.refuse(name, label)
            if plain in found:
                raise ConfigError(f"{label} gives {plain} twice; give it once")
            found[plain] = value
        return tuple(sorted(found.items()))

    def _pair(self, item: str, label: str) -> tuple[str, Any]:
        name, sign, text = item.partition("=")
        if not sign:
            raise self.refuse(item, label)
        try:
            return name.strip(), json.loads(text, parse_constant=_no_number)
        except ValueError:
            return name.strip(), text

    def to_json(self, value: Any) -> Any:
        return dict(value)

    def from_json(self, value: Any) -> Any:
        return tuple(sorted((value or {}).items()))


def _no_number(text: str) -> float:
    raise ValueError(text)


def _absolute(text: str, base: Path, kind: Kind, label: str) -> Path:
    try:
        path = base / Path(text).expanduser()
        path.lstat()
    except (OSError, ValueError, RuntimeError) as error:  # a zero byte; `~name` of nobody; whether it exists is asked later
        if not isinstance(error, OSError) or error.errno == errno.ENAMETOOLONG:
            raise ConfigError(f"{kind.refuse(text, label)} ({getattr(error, 'strerror', None) or error})") from None
    return path


@dataclass(frozen=True)
class PathList(Kind):
    """Paths or glob patterns, made absolute; whether they exist is not asked here."""

    is_list = True
    legal: str = "a comma-separated list of paths or glob patterns"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> tuple[str, ...]:
        return tuple(str(_absolute(item, base, self, label)) for item in _items(self, raw, label))

    def to_json(self, value: Any) -> Any:
        return list(value)

    def from_json(self, value: Any) -> Any:
        return tuple(value)


@dataclass(frozen=True)
class Folder(Kind):
    """The path of a folder, made absolute; whether it exists is not asked here."""

    legal: str = "the path of a folder"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> Path:
        if not isinstance(raw, str) or not raw.strip():
            raise self.refuse(raw, label)
        return _absolute(raw, base, self, label)

    def to_json(self, value: Any) -> Any:
        return None if value is None else str(value)

    def from_json(self, value: Any) -> Any:
        return None if value is None else Path(value)


# What an option is: its name in every place, its kind of value, and which backends it is for

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
