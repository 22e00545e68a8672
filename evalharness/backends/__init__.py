"""The backends by name. Their modules, and with them torch, transformers and vLLM, are imported only when one is used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import ConfigError, MissingDependency, did_you_mean
from evalharness.api.installing import missing_package

if TYPE_CHECKING:
    from collections.abc import Callable

    from evalharness.backends.base import Backend

__all__ = ["AUTO", "BACKENDS", "SERVERS", "known_backends", "load_backend_class", "unknown_backend"]

BACKENDS = {
    "fake": "evalharness.backends.fake:FakeBackend",
    "hf": "evalharness.backends.hf.backend:HfBackend",
    "max": "evalharness.backends.max.backend:MaxBackend",
    "openai": "evalharness.backends.openai.backend:OpenAIBackend",
    "vllm": "evalharness.backends.vllm.backend:VllmBackend",
}

AUTO = "auto"
"""Stands for the backend that works best here for a checkpoint; `auto_backend.py` chooses."""

SERVERS = ("vllm", "sglang", "trtllm", "mlx", "max", "openai")
"""Kinds of servers that the openai backend knows; `openai_flavours.py` says how they differ."""


def known_backends() -> tuple[str, ...]:
    """Return the names that `--backend` accepts, sorted."""
    return tuple(sorted(BACKENDS))


def unknown_backend(name: str, *also: str) -> str:
    """Return the end of a message about a name that is no backend: what may have been meant, and what is known, `also` with it."""
    known = sorted((*BACKENDS, *also))
    return f"{name!r} is unknown{did_you_mean(name, known) or '.'} Known: {', '.join(known)}."


def load_backend_class(name: str) -> Callable[..., Backend]:
    """Import and return the backend's class. `ConfigError` for an unknown name, `MissingDependency` where its engine is not installed."""
    if name not in BACKENDS:
        raise ConfigError(f"backend {unknown_backend(name)}")
    module, _, attribute = BACKENDS[name].partition(":")
    try:
        loaded: Any = getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] == __name__.partition(".")[0]:
            raise
        raise MissingDependency(missing_package(f"backend {name!r}", error, name)) from error
    return loaded
