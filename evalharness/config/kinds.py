"""Options and their kinds of value: parsed from text or TOML, checked, written as plain JSON and read back."""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Generic, TypeVar, cast, overload

from evalharness.api.checks import excerpt, refuse_constant
from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.checkpoints.hub import is_hub_name

T = TypeVar("T")
NumberT = TypeVar("NumberT", int, float)
WordT = TypeVar("WordT", bound=str)


class Kind(Generic[T]):
    """One kind of value. `read` returns the checked value of `raw`, which is text or a value of TOML, or raises `ConfigError`.

    `label` names the place of the value in messages; relative paths are relative to `base`.
    """

    is_flag = False
    is_list = False
    metavar: str | None = None
    json_type: type | tuple[type, ...] = str
    """Of what `to_json` gives."""

    @property
    def legal(self) -> str:
        """The accepted values, in words."""
        raise NotImplementedError

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> T:
        raise NotImplementedError

    def refuse(self, raw: object, label: str, hint: str = "") -> ConfigError:
        """Return the error that names the value, the accepted values and, with a hint, what to do."""
        return ConfigError(f"{label} must be {self.legal}, got {raw!r}{hint}")

    def to_json(self, value: T) -> Any:
        """Return the value as plain JSON data."""
        return list(value) if isinstance(value, tuple) else value

    def from_json(self, value: Any) -> T:
        """Return the value from what `to_json` gave; `ConfigError` for any other type, as a run may be damaged or a stranger's."""
        is_typed = isinstance(value, self.json_type) and (self.is_flag or not isinstance(value, bool))
        if not is_typed or (isinstance(value, list) and not all(isinstance(item, str) for item in value)):
            raise self.refuse(excerpt(repr(value), 80), "a recorded option")
        return cast(T, tuple(value) if isinstance(value, list) else value)


@dataclass(frozen=True)
class Number(Kind[NumberT]):
    """A whole number (`Number(int)`) or a finite one (`Number(float)`) within bounds; `above` is exclusive."""

    number: type[NumberT]
    minimum: float | None = None
    above: float | None = None
    maximum: float | None = None
    hint_if_too_small: str = ""
    bare: float | None = None
    """On the command line, what the option without a value stands for."""
    metavar = "N"
    json_type = (int, float)

    @property
    def legal(self) -> str:
        words = (("of at least", self.minimum), ("greater than", self.above), ("at most", self.maximum))
        bounds = " and ".join(f"{word} {bound}" for word, bound in words if bound is not None)
        return f"{'a whole number' if self.number is int else 'a number'} {bounds}".strip()

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> NumberT:
        value = raw
        if is_text and isinstance(raw, str):
            with contextlib.suppress(ValueError):
                value = self.number(raw)
        is_number = isinstance(value, int if self.number is int else (int, float)) and not isinstance(value, bool)
        if not is_number or (isinstance(value, float) and not math.isfinite(value)):
            raise self.refuse(raw, label, "" if self.bare is None else f"; before a path write {label}={self.bare}")
        value = cast(NumberT, value)
        if (self.minimum is not None and value < self.minimum) or (self.above is not None and value <= self.above):
            raise self.refuse(raw, label, self.hint_if_too_small)
        if self.maximum is not None and value > self.maximum:
            raise self.refuse(raw, label)
        return value


class Flag(Kind[bool]):
    """True or false."""

    is_flag = True
    json_type = bool
    legal = "true or false"
    words = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}  # noqa: RUF012

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> bool:
        if isinstance(raw, bool):
            return raw
        if is_text and isinstance(raw, str) and raw.lower() in self.words:
            return self.words[raw.lower()]
        raise self.refuse(raw, label)


@dataclass(frozen=True)
class Text(Kind[str]):
    """A string that matches the whole pattern; `legal` describes it in words."""

    pattern: str
    legal: str = "text"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> str:
        if not isinstance(raw, str) or not re.fullmatch(self.pattern, raw):
            raise self.refuse(raw, label)
        return raw


@dataclass(frozen=True)
class Choice(Kind[WordT]):
    """One of a few words."""

    words: tuple[WordT, ...]

    @property
    def metavar(self) -> str:  # type: ignore[override]
        return "|".join(self.words)

    @property
    def legal(self) -> str:
        return f"one of {', '.join(self.words)}"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> WordT:
        if not isinstance(raw, str) or raw not in self.words:
            raise self.refuse(raw, label, did_you_mean(str(raw), self.words))
        return raw


def _texts(kind: Kind[Any], raw: object, label: str) -> list[str]:
    """Return the strings of a list, or of a string alone."""
    texts = [raw] if isinstance(raw, str) else raw
    if not isinstance(texts, (list, tuple)) or not all(isinstance(text, str) for text in texts):
        raise kind.refuse(raw, label)
    return list(texts)


def _items(kind: Kind[Any], raw: object, label: str) -> list[str]:
    """Return the non-empty strings of a list, each split at commas."""
    items = [part.strip() for text in _texts(kind, raw, label) for part in text.split(",")]
    if not items or not all(items):
        raise kind.refuse(raw, label)
    return items


@dataclass(frozen=True)
class NameList(Kind[tuple[str, ...]]):
    """Names of a closed set, each at most once; `unknown` returns the end of the message about a name that is not in the set."""

    names: Callable[[], tuple[str, ...]]
    unknown: Callable[[str], str]
    is_list = True
    json_type = list

    @property
    def legal(self) -> str:
        return f"a comma-separated list of {', '.join(self.names())}"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> tuple[str, ...]:
        items = _items(self, raw, label)
        for position, item in enumerate(items):
            if item not in self.names():
                raise ConfigError(f"{label} {self.unknown(item)}")
            if item in items[:position]:
                raise ConfigError(f"{label} names {item!r} twice; name each once")
        return tuple(items)

    def from_json(self, value: Any) -> tuple[str, ...]:
        return super().from_json([value] if isinstance(value, str) else value)  # older runs had one dtype


@dataclass(frozen=True)
class PerCheckpoint(Kind[tuple[tuple[str, str], ...]]):
    """Texts for checkpoints whose names match a pattern (`PATTERN=TEXT`), or for all; read as (pattern, text) pairs."""

    text: Text
    is_list = True
    json_type = list

    @property
    def legal(self) -> str:
        return f"{self.text.legal}, for all checkpoints or as PATTERN=… for those whose names match, comma-separated"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> tuple[tuple[str, str], ...]:
        pairs: list[tuple[str, str]] = []
        for item in _items(self, raw, label):
            pattern, sign, text = item.rpartition("=")
            if (sign and not pattern) or not re.fullmatch(self.text.pattern, text):
                raise self.refuse(item, label)
            if pattern in dict(pairs):
                raise ConfigError(f"{label} has two values for {pattern or 'all checkpoints'}; keep one")
            pairs.append((pattern, text))
        return tuple(pairs)

    def to_json(self, value: tuple[tuple[str, str], ...]) -> list[str]:
        return [f"{pattern}={text}" if pattern else text for pattern, text in value]

    def from_json(self, value: Any) -> tuple[tuple[str, str], ...]:
        items: Any = super().from_json(value)
        return tuple((pattern, text) for pattern, _, text in (item.rpartition("=") for item in items))

    @staticmethod
    def of(value: tuple[tuple[str, str], ...] | None, checkpoint: str) -> str | None:
        """Return the text for one checkpoint: that of the first pattern that its name matches, else that for all, else None."""
        pairs = value or ()
        texts = (text for pattern, text in pairs if pattern and fnmatchcase(checkpoint, pattern))
        return next(texts, dict(pairs).get(""))


@dataclass(frozen=True)
class Arguments(Kind[tuple[tuple[str, Any], ...]]):
    """Arguments for another library as (name, value) pairs sorted by name; read from NAME=VALUE or a TOML table.

    A value is read as JSON if it is valid JSON, otherwise as text. '-' in names becomes '_'; any name is accepted.
    """

    is_list = True
    json_type = dict
    legal: str = "NAME=VALUE, one each time, or a table in a settings file"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> tuple[tuple[str, Any], ...]:
        if isinstance(raw, Mapping):
            pairs = list(raw.items())
        else:
            pairs = [self._pair(text, label) for text in _texts(self, raw, label)]
        arguments: dict[str, Any] = {}
        for name, value in pairs:
            key = name.replace("-", "_")
            if not re.fullmatch(r"[A-Za-z]\w*", key):
                raise self.refuse(name, label)
            if key in arguments:
                raise ConfigError(f"{label} has two values for {key}; keep one")
            arguments[key] = value
        return tuple(sorted(arguments.items()))

    def _pair(self, item: str, label: str) -> tuple[str, Any]:
        name, sign, text = item.partition("=")
        if not sign:
            raise self.refuse(item, label)
        try:
            return name.strip(), json.loads(text, parse_constant=refuse_constant)
        except ValueError:
            return name.strip(), text

    def to_json(self, value: tuple[tuple[str, Any], ...]) -> dict[str, Any]:
        return dict(value)

    def from_json(self, value: Any) -> tuple[tuple[str, Any], ...]:
        return tuple(sorted(super().from_json(value).items()))  # type: ignore[attr-defined]


@dataclass(frozen=True)
class PluginList(Kind[tuple[str, ...]]):
    """Generation plugins as `NAME[:option=value…]`, each name at most once; `none` alone is none of them."""

    is_list = True
    json_type = list
    legal: str = "plugins as NAME[:option=value…], or none"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> tuple[str, ...]:
        from evalharness.generation_plugins.named import make_plugin  # few runs have any

        # A value may hold commas, a name does not.
        texts = [part.strip() for text in _texts(self, raw, label) for part in ([text] if ":" in text else text.split(","))]
        if texts == ["none"]:
            return ()
        names = [text.partition(":")[0] for text in texts]
        if "none" in names:
            other = next((name for name in names if name != "none"), "none")
            raise ConfigError(f"{label} names 'none', which turns all plugins off, beside {other!r}; give one of them")
        for position, text in enumerate(texts):
            if names[position] in names[:position]:
                raise ConfigError(f"{label} names {names[position]!r} twice; name each once")
            try:
                make_plugin(text)
            except ConfigError as error:
                raise ConfigError(f"{label}: {error}") from error
        return tuple(texts)


def _absolute(text: str, base: Path, kind: Kind[Any], label: str) -> Path:
    try:
        path = base / Path(text).expanduser()
        path.lstat()
    except (OSError, ValueError, RuntimeError) as error:  # a zero byte; `~name` of an unknown user; a missing file is fine
        if not isinstance(error, OSError) or error.errno == errno.ENAMETOOLONG:
            raise ConfigError(f"{kind.refuse(text, label)} ({getattr(error, 'strerror', None) or error})") from None
    return path


@dataclass(frozen=True)
class PathList(Kind[tuple[str, ...]]):
    """Paths or glob patterns, made absolute; they need not exist. With `or_hub_names`, what may be a name on the hub stays as it is."""

    or_hub_names: bool = False

    is_list = True
    json_type = list
    legal: str = "a comma-separated list of paths or glob patterns"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> tuple[str, ...]:
        items = _items(self, raw, label)
        return tuple(item if self.or_hub_names and is_hub_name(item, base) else str(_absolute(item, base, self, label)) for item in items)


@dataclass(frozen=True)
class Folder(Kind[Path]):
    """The path of a folder, made absolute; it need not exist. With `or_hub_name`, what may be a name on the hub stays as it is."""

    or_hub_name: bool = False

    metavar = "FOLDER"
    legal: str = "the path of a folder"

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> Path:
        if not isinstance(raw, str) or not raw.strip():
            raise self.refuse(raw, label)
        return Path(raw) if self.or_hub_name and is_hub_name(raw, base) else _absolute(raw, base, self, label)

    def to_json(self, value: Path) -> str:
        return str(value)

    def from_json(self, value: Any) -> Path:
        return Path(super().from_json(value))


class DeviceList(Text):
    """GPUs by number, or cpu; trainers' `cuda:1` means `gpu:1`."""

    def __init__(self) -> None:
        super().__init__(r"cpu|(gpu|cuda):\d+(\s*,\s*(gpu|cuda):\d+)*", legal="cpu or GPUs such as gpu:0 or gpu:0,gpu:2")

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> str:
        text = super().read(raw, label=label, base=base, is_text=is_text)
        return re.sub(r"\s", "", text).replace("cuda:", "gpu:")


ENV_PREFIX = "EVALHARNESS_"


@dataclass(frozen=True)
class Option:
    """An option and its name in every place.

    `only_for` names the backends that honour it, () for all; `not_for` those of this package that do not: other packages' may.

    `table` is the table of the settings files that holds its key, None for the top level.
    """

    name: str
    kind: Kind[Any]
    help: str
    default: Any = None
    metavar: str = ""
    only_for: tuple[str, ...] = ()
    not_for: tuple[str, ...] = ()
    table: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "metavar", self.metavar or self.kind.metavar or self.name.upper())

    def is_for(self, backend: str) -> bool:
        """Return whether a backend honours the option."""
        return backend not in self.not_for and (not self.only_for or backend in self.only_for)

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
        """The parser's attribute for the value; prefixed, as all pytest plugins share one namespace."""
        return "evalharness_" + self.name

    def argument(self) -> dict[str, Any]:
        """Return the keywords of `add_argument`; the parser checks nothing, as `resolve` checks all sources alike."""
        keywords: dict[str, Any] = {"dest": self.dest, "default": None, "help": self.help}
        if self.kind.is_flag:
            return {**keywords, "action": argparse.BooleanOptionalAction}  # with --no-…, against a settings file
        bare = getattr(self.kind, "bare", None)
        if bare is not None:
            keywords |= {"nargs": "?", "const": str(bare)}
        action = "append" if self.kind.is_list else "store"
        return {**keywords, "action": action, "metavar": self.metavar}


@overload
def option(
    kind: Kind[T], help: str, *, default: T, metavar: str = "", only_for: tuple[str, ...] = (), not_for: tuple[str, ...] = ()
) -> T: ...
@overload
def option(kind: Kind[T], help: str, *, metavar: str = "", only_for: tuple[str, ...] = (), not_for: tuple[str, ...] = ()) -> T | None: ...
def option(kind: Kind[Any], help: str, *, default: Any = None, **keywords: Any) -> Any:
    """Return the dataclass field of an option; typed as its value, so that mypy checks the field's annotation against its kind.

    `help` ends with the default, which is added where it is not stated.
    """
    if "(default:" not in help:
        text = "off" if default is False else "none" if default in (None, ()) else shown(default)
        help = f"{help} (default: {text.removesuffix('.0')})"
    return field(default=default, metadata={"kind": kind, "help": help, **keywords})


@dataclass(frozen=True)
class Setting:
    """A value and its origin: "command line", "environment EVALHARNESS_SEED", "evalharness.toml", "pyproject.toml" or "default".

    An alias is named: "command line, --inference-url".
    """

    value: Any
    origin: str


def shown(value: object) -> str:
    """Return a value as a user writes it: items joined by commas, pairs by `=`."""
    if not isinstance(value, tuple):
        return str(value)
    return ",".join("=".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in value)
