"""The backends by name, as installed packages register them in the entry-point group `evalharness.backends`.

    [project.entry-points."evalharness.backends"]
    acme = "acme_evals:AcmeBackend"

Names cost only a look at the installed packages' metadata. A backend's module, and with it torch, transformers or vLLM, is imported when
it is first used. `evalharness.engine.backend_contract` tests a backend.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import ConfigError, EvalHarnessError, MissingDependency, did_you_mean
from evalharness.api.garbage import collector
from evalharness.api.installing import missing_package

if TYPE_CHECKING:
    from evalharness.backends.base import Backend


ENTRY_POINTS = "evalharness.backends"
"""The group in which packages register their backends."""

_PACKAGE = "evalharness"

AUTO = "auto"
"""Stands for the backend that works best here for a checkpoint; see `evalharness.hardware.auto_backend`."""

PLACEMENT_GROUP = "_EVALHARNESS_PLACEMENT_GROUP"
"""The variable that names the group of GPUs, in hex, which Ray has reserved for an engine of this process that spans hosts."""

SERVERS = ("vllm", "sglang", "trtllm", "mlx", "max", "openai")
"""Kinds of servers that the openai backend knows; `evalharness.backends.openai.flavours` says how they differ."""


def known_backends() -> tuple[str, ...]:
    """Return the names that `--backend` accepts, sorted."""
    return tuple(sorted(_registered()))


def unknown_backend(name: str, *also: str) -> str:
    """Return the end of a message about an unknown name: what may have been meant, and the known names, `also` among them."""
    if not _registered():
        return f"{name!r} is unknown: no backend is registered. Install evalharness again (pip install -e . in a checkout)."
    known = sorted((*_registered(), *also))
    return f"{name!r} is unknown{did_you_mean(name, known) or '.'} Known: {', '.join(known)}."


def load_backend_class(name: str) -> Callable[..., Backend]:
    """Import and return a backend's class.

    `MissingDependency` where a package that the backend imports is not installed; `ConfigError` for a name that is unknown or that several
    packages register, and for whatever else the import of the backend's module raises.
    """
    registered = _registered().get(name)
    if registered is None:
        raise ConfigError(f"backend {unknown_backend(name)}")
    if len(registered) > 1:
        packages = " and ".join(map(_described, registered))
        raise ConfigError(f"backend {name!r} is registered by {packages}; uninstall one of them, or have one use another name")
    (entry_point,) = registered
    problem = f"backend {name!r} of {_described(entry_point)} cannot be imported"
    try:
        with collector(on=False):  # a fifth of the time that torch and transformers take
            loaded: Any = entry_point.load()
    except EvalHarnessError:  # says itself what to do
        raise
    except Exception as error:  # another package's code, or a library that does not fit this machine
        if isinstance(error, ModuleNotFoundError) and _package(error.name or "") != _PACKAGE:
            if _package(entry_point.module) == _PACKAGE:
                raise MissingDependency(missing_package(f"backend {name!r}", error, name)) from error
            raise MissingDependency(f"{problem} ({error}); install what it needs") from error
        remedy = "reinstall that package and what it imports"
        raise ConfigError(f"{problem} ({type(error).__name__}: {error}); {remedy}") from error
    return loaded


def _package(module: str) -> str:
    return module.partition(".")[0]


def _described(entry_point: EntryPoint) -> str:
    package = f"{entry_point.dist.name} {entry_point.dist.version}" if entry_point.dist is not None else "an unnamed package"
    return f"{package} ({entry_point.value})"


@functools.cache
def _registered() -> Mapping[str, tuple[EntryPoint, ...]]:
    """Return the entry points under each name; more than one entry point is a clash."""
    by_name: dict[str, dict[str, EntryPoint]] = {}
    for entry_point in entry_points(group=ENTRY_POINTS):
        by_name.setdefault(entry_point.name, {})[_described(entry_point)] = entry_point
    return {name: tuple(each.values()) for name, each in by_name.items()}
