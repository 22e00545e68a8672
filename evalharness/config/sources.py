"""Where settings come from: command line, environment variables and two files at the root. Reading only."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.api.redaction import API_KEY
from evalharness.backends import AUTO
from evalharness.config.kinds import ENV_PREFIX, Choice, Option, Setting, Text

__all__ = ["ADDRESS", "ALIASES", "ENGINES", "SETTINGS_FILE", "DeviceList", "Source", "all_sources", "apply_aliases"]

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


# Names under which trainers know our options: `--inference-engine` and `--inference-url` for `--backend`, `--server` and `--base-url`

ADDRESS = Text(r"https?://\S+", legal="an address such as http://127.0.0.1:8000")


class _Meaning(NamedTuple):
    """What an engine's name stands for: a backend that loads the weights, where there is one, and a kind of server."""

    backend: str | None = None
    server: str | None = None


ENGINES: Mapping[str, _Meaning] = {
    "pytorch": _Meaning(backend="hf"),
    "huggingface": _Meaning(backend="hf"),
    "max": _Meaning(backend="max", server="max"),
    "vllm": _Meaning(backend="vllm", server="vllm"),
    "sglang": _Meaning(server="sglang"),
    "trtllm": _Meaning(server="trtllm"),
    "mlx": _Meaning(server="mlx"),
    "openai": _Meaning(server="openai"),
    "auto": _Meaning(backend=AUTO),
}

ALIASES: tuple[Option, ...] = (
    Option(
        "inference_engine",
        Choice(tuple(ENGINES)),
        "Another way to say --backend, and --server for what is behind an address: pytorch and huggingface are hf; max and vllm run here, "
        "or are servers where there is an address; sglang, trtllm, mlx and openai are servers (default: what --backend says)",
        metavar="NAME",
        table="inference",
    ),
    Option("inference_url", ADDRESS, "Another way to say --base-url (default: what --base-url says)", metavar="URL", table="inference"),
)
_ENGINE, _URL = ALIASES


class _Given(NamedTuple):
    """The value of an option at the strongest place that has it; `rank` 0 is the strongest."""

    value: Any
    label: str
    origin: str
    rank: int

    @property
    def shown(self) -> str:
        """The option and its value, as a message names them."""
        return f"{self.label} {_shown(self.value)}"


def apply_aliases(settings: Mapping[str, Setting], options: Mapping[str, Option], sources: Sequence[Source]) -> dict[str, Setting]:
    """Return the settings with what the aliases say, by the options' own names.

    A stronger place wins, whichever name it uses. Raises `ConfigError` where one place says different things by two names.
    """
    found = dict(settings)
    engine, url = _find(_ENGINE, sources), _find(_URL, sources)
    if url is not None:
        _take(found, options["base_url"], url.value, url, sources)
    if engine is not None:
        for name, value in _meaning(engine, has_address=found["base_url"].value is not None).items():
            _take(found, options[name], value, engine, sources)
    return found


def _find(option: Option, sources: Sequence[Source]) -> _Given | None:
    for rank, source in enumerate(sources):
        if option.name in source.values:
            value = option.kind.read(source.values[option.name], label=source.label(option), base=source.base, is_text=source.is_text)
            return _Given(value, source.label(option), source.origin(option), rank)
    return None


def _meaning(engine: _Given, *, has_address: bool) -> dict[str, Any]:
    meant = ENGINES[engine.value]
    if meant.server is not None and (has_address or meant.backend is None):
        return {"backend": ("openai",), "server": meant.server}
    return {"backend": (meant.backend,)}


def _take(found: dict[str, Setting], option: Option, value: Any, alias: _Given, sources: Sequence[Source]) -> None:
    if option.name == "backend":
        value = option.kind.read(list(value), label=f"{alias.shown} means --backend {_shown(value)}, and", base=Path(), is_text=True)
    own = _find(option, sources)
    if own is not None and own.rank < alias.rank:
        return
    if own is not None and own.rank == alias.rank and own.value != value:
        means = "" if option.name == "base_url" else f" means {option.flag} {_shown(value)} here and"
        raise ConfigError(f"{alias.shown}{means} contradicts {own.shown}; give one of them")
    found[option.name] = Setting(value, alias.origin)


class DeviceList(Text):
    """GPUs by number, or cpu; trainers' `cuda:1` is read as `gpu:1`."""

    def __init__(self) -> None:
        super().__init__(r"cpu|(gpu|cuda):\d+(\s*,\s*(gpu|cuda):\d+)*", legal="cpu or GPUs such as gpu:0 or gpu:0,gpu:2")

    def read(self, raw: object, *, label: str, base: Path, is_text: bool) -> str:
        text = super().read(raw, label=label, base=base, is_text=is_text)
        return re.sub(r"\s", "", text).replace("cuda:", "gpu:")


def _shown(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)
