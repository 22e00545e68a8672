"""Names under which trainers know our options: `--inference-engine` and `--inference-url` for `--backend`, `--server` and `--base-url`.

In a settings file they are the table `[inference]` with `engine` and `url`. They stand for the options that they mean, which are
recorded with the alias as their origin; among themselves and with those they obey the same order of places.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.api.errors import ConfigError
from evalharness.backends import AUTO
from evalharness.config.config_option import Option, Setting
from evalharness.config.kinds import Choice, Text
from evalharness.config.sources import Source

__all__ = ["ADDRESS", "ALIASES", "ENGINES", "DeviceList", "apply_aliases"]

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
