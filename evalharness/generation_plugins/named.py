"""Plugins by name, as `--plugin` and settings files ask for them: those of this package, and those that installed packages register.

    --plugin object-cap:num_objects=60:roots=[

    [project.entry-points."evalharness.generation_plugins"]
    short-lines = "acme_evals:ShortLines"

An entry point is a class, or a function that returns a plugin; options are its keyword arguments, JSON or text.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from evalharness.api.checks import any_text, refuse_constant
from evalharness.api.errors import ConfigError, EvalHarnessError, did_you_mean
from evalharness.api.hooks import GenerationPlugin, normalise_plugins
from evalharness.generation_plugins.dense import BalancedJsonStop, DuplicateObjectBan, DuplicateObjectStop, ObjectCap

ENTRY_POINTS = "evalharness.generation_plugins"
"""The group in which packages register their plugins."""

_SHIPPED: Mapping[str, Callable[..., Any]] = {
    plugin.name: plugin for plugin in (BalancedJsonStop, ObjectCap, DuplicateObjectStop, DuplicateObjectBan)
}

_NEXT_OPTION = re.compile(r":(?=\s*[A-Za-z_][\w-]*\s*=)")
"""A colon before `option=`; a value may have others."""


def make_plugin(text: str) -> GenerationPlugin:
    """Return the plugin of `NAME[:option=value…]`; `ConfigError` for an unknown name or option, or one that is missing or wrong."""
    name, colon, rest = text.partition(":")
    pairs = _NEXT_OPTION.split(rest) if colon else []
    kind = _kind(name.strip())
    try:
        signature: inspect.Signature | None = inspect.signature(kind)
    except ValueError:  # some builtins have none
        signature = None
    options: dict[str, Any] = {}
    for pair in pairs:
        option, sign, value = pair.partition("=")
        option = option.strip().replace("-", "_")
        if not sign or option in options:
            problem = "is given twice" if option in options else "has no value"
            raise ConfigError(f"option {option!r} of plugin {name!r} {problem}; write {name}:{option or 'option'}=VALUE once")
        options[option] = _value(value)
    if signature is not None:
        _check_options(name, options, signature)
    try:
        (plugin,) = normalise_plugins([kind(**options)])
    except EvalHarnessError as error:
        raise ConfigError(f"plugin {name!r}: {error}") from error
    except Exception as error:  # another package's code
        raise ConfigError(f"plugin {name!r} cannot be made ({type(error).__name__}: {any_text(error)}); check its options") from error
    return plugin


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except ValueError:
        return text


def _check_options(name: str, options: Mapping[str, Any], signature: inspect.Signature) -> None:
    kinds = signature.parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in kinds.values()):
        for option in options:
            if option not in kinds:
                listed = f"its options: {', '.join(kinds)}" if kinds else "it takes none"
                raise ConfigError(f"plugin {name!r} has no option {option!r}{did_you_mean(option, kinds) or ';'} {listed}")
    missing = [key for key, one in kinds.items() if one.default is one.empty and one.kind.name[:3] != "VAR" and key not in options]
    if missing:
        raise ConfigError(f"plugin {name!r} needs {', '.join(missing)}; write {name}:{missing[0]}=VALUE")


def _kind(name: str) -> Callable[..., Any]:
    registered: dict[str, dict[str, EntryPoint]] = {}
    for entry_point in entry_points(group=ENTRY_POINTS):
        registered.setdefault(entry_point.name, {})[entry_point.value] = entry_point
    found = list(registered.get(name, {}).values())
    if name in _SHIPPED and not found:
        return _SHIPPED[name]
    if not found:
        known = sorted({*_SHIPPED, *registered})
        raise ConfigError(f"plugin {name!r} is unknown{did_you_mean(name, known) or '.'} Known: {', '.join(known)}.")
    if name in _SHIPPED or len(found) > 1:
        by = " and ".join([*(["evalharness"] if name in _SHIPPED else []), *(entry_point.value for entry_point in found)])
        raise ConfigError(f"plugin {name!r} is registered by {by}; uninstall one of them, or have one use another name")
    try:
        loaded = found[0].load()
    except Exception as error:  # another package's code
        raise ConfigError(f"plugin {name!r} ({found[0].value}) cannot be imported: {type(error).__name__}: {any_text(error)}") from error
    if not callable(loaded):
        raise ConfigError(f"plugin {name!r} ({found[0].value}) is neither a class nor a function that returns a plugin")
    made: Callable[..., Any] = loaded
    return made
