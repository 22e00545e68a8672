"""Checks options against each other, and returns the backends that they leave for `--backend auto`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from evalharness.api.errors import ConfigError, nearest_folder
from evalharness.api.hooks import GenerationPlugin
from evalharness.backends import AUTO
from evalharness.backends.option_support import SHIPPED
from evalharness.config import RunConfig
from evalharness.config.kinds import shown
from evalharness.config.options import OPTIONS, read_shard

CANDIDATES: tuple[str, ...] = ("vllm", "hf")


_TOKENS_SEEN = frozenset({"watch", "postprocess_text"})
HOOKS: Mapping[str, frozenset[str]] = {
    "fake": _TOKENS_SEEN,
    "max": _TOKENS_SEEN,
    "vllm": _TOKENS_SEEN,
    "openai": frozenset({"postprocess_text"}),
}
"""The hooks of generation plugins by backend; those that are absent run them all, or say themselves what they cannot run."""


class BackendConstraints(NamedTuple):
    """The backends among which `--backend auto` may choose.

    `narrowed_by` names the flags that only `candidates` honour; `cpu` is the flag that asks for the CPU, if any.
    """

    candidates: tuple[str, ...] = CANDIDATES
    narrowed_by: tuple[str, ...] = ()
    cpu: str | None = None


def constraints_of(run: RunConfig) -> BackendConstraints:
    """Return the constraints of command line and environment, and of all plugins, without which other answers would be given.

    Other options of settings files wait for their backend and constrain nothing.
    """
    candidates, narrowed_by = CANDIDATES, []
    for option in OPTIONS:
        if _is_for_this_run(run, option.name) and not all(map(option.is_for, candidates)):
            narrowed_by.append(option.flag)
            candidates = tuple(filter(option.is_for, candidates))
    for text, plugin in zip(run.plugin, run.plugins, strict=True):
        if not all(_runs(plugin, name) for name in candidates):
            narrowed_by.append(f"--plugin {text}")
            candidates = tuple(name for name in candidates if _runs(plugin, name))
    cpu = next((f"--{name} cpu" for name in ("devices", "device") if str(getattr(run, name)).startswith("cpu")), None)
    return BackendConstraints(candidates, tuple(narrowed_by), cpu)


def _is_for_this_run(config: RunConfig, name: str) -> bool:
    """Return whether an option must take effect in this run; that of a settings file applies only to backends that honour it."""
    return config.origin(name).startswith(("command line", "environment"))


def _runs(plugin: GenerationPlugin, backend: str) -> bool:
    return (plugin.backends is None or backend in plugin.backends) and plugin.hooks <= HOOKS.get(backend, plugin.hooks)


def possible_backends(run: RunConfig) -> tuple[str, ...]:
    """Return the backends that may run, the fallback included; `auto` stands for all that it could choose."""
    named = tuple(name for name in (*run.backend, run.fallback_backend) if name is not None)
    return named if AUTO not in named else (*(name for name in named if name != AUTO), *constraints_of(run).candidates)


def check_combinations(config: RunConfig) -> None:
    """Raise `ConfigError` for options that contradict each other, a missing model or a data folder that does not exist."""
    _check_auto(config)
    _check_backend_options(config)
    _check_numbers(config)
    if config.engine_option:
        from evalharness.backends.vllm.settings import check_engine_options  # few runs have any

        check_engine_options(config.engine_option)
    if config.shard is not None:
        read_shard(config.shard)
    if config.limit is not None and config.limit_first is not None:
        raise ConfigError(f"{_named(config, 'limit')} draws a sample, and {_named(config, 'limit_first')} takes the first cases; give one")
    if config.until_certain:
        if config.baseline is None:
            raise ConfigError(f"{_named(config, 'until_certain')} compares with a baseline; name one with --baseline")
        if config.shard is not None:
            raise ConfigError(f"{_named(config, 'until_certain')} needs all cases to draw from; leave {_named(config, 'shard')} out")
        if config.noise:
            raise ConfigError(f"{_named(config, 'until_certain')} leaves cases out; measure noise in a whole run, without it")
    if config.noise and (config.cache or (config.cache is None and config.cache_dir is not None)):
        raise ConfigError(f"{_named(config, 'noise')} asks cases again, and a cache would answer; leave the cache out, or give --no-cache")
    if not config.model and set(config.backend) != {"fake"}:
        raise ConfigError("no checkpoint to evaluate: give --model PATH, or set model in evalharness.toml or [tool.evalharness]")
    if config.data is not None and not config.data.exists():
        raise ConfigError(f"{_named(config, 'data')} does not exist; the nearest that exists is {nearest_folder(config.data)}")


def _named(config: RunConfig, name: str) -> str:
    """Return an option as its user wrote it, `--seed 3`, followed by its origin unless that is the command line."""
    value, flag = getattr(config, name), name.replace("_", "-")
    text = f"--{flag}" if value is True else f"--no-{flag}" if value is False else f"--{flag} {shown(value)}"
    return text if config.origin(name) == "command line" else f"{text} ({config.origin(name)})"


def _check_auto(config: RunConfig) -> None:
    if AUTO not in config.backend:
        return
    if len(config.backend) > 1:
        raise ConfigError(f"{_named(config, 'backend')}: auto chooses one backend for each checkpoint; give it alone, or name the backends")
    constraints = constraints_of(config)
    if not constraints.candidates:
        raise ConfigError(
            f"{_named(config, 'backend')} chooses between {' and '.join(CANDIDATES)}, and neither honours "
            f"{' with '.join(constraints.narrowed_by)}; leave that out, or name the backend"
        )


def idle_devices(config: RunConfig) -> bool:
    """Return whether the run's devices mean nothing, as only a server answers: loops that train give them along with its address."""
    return _is_for_this_run(config, "devices") and set(possible_backends(config)) == {"openai"}


def _check_backend_options(config: RunConfig) -> None:
    running = set(possible_backends(config))
    for option in OPTIONS:
        if idle_devices(config) and option.name == "devices":
            continue  # a notice says so
        if _is_for_this_run(config, option.name) and not any(map(option.is_for, running)):
            *others, last = option.only_for or sorted(filter(option.is_for, SHIPPED))
            wanted = f"{', '.join(others)} or {last}" if others else last
            raise ConfigError(
                f"{_named(config, option.name)} is honoured by {wanted} only, but the run is on {_named(config, 'backend')}; "
                f"leave it out or add --backend {wanted}"
            )
    for text, plugin in zip(config.plugin, config.plugins, strict=True):
        lacking = sorted(name for name in running if not _runs(plugin, name))
        if lacking:
            origin = "" if config.origin("plugin") == "command line" else f" ({config.origin('plugin')})"
            remedy = "leave it out (--plugin none), or run on --backend"
            where = " or ".join(sorted(plugin.backends)) if plugin.backends is not None else "hf"
            raise ConfigError(f"--plugin {text}{origin} does not work on {' and '.join(lacking)}; {remedy} {where}")
    fallback = config.fallback_backend
    if fallback is not None and set(config.backend) == {fallback}:
        raise ConfigError(f"{_named(config, 'fallback_backend')} is the only backend of the run already; leave it out or name another")


def _check_numbers(config: RunConfig) -> None:
    def named(name: str) -> str:
        return _named(config, name)

    if config.devices is not None and config.device is not None and (config.devices == "cpu") != (config.device == "cpu"):
        raise ConfigError(f"{named('devices')} contradicts {named('device')}; give one of them")
    if config.cache is False and config.cache_dir is not None and config.origin("cache") == config.origin("cache_dir"):
        raise ConfigError(f"{named('cache')} contradicts {named('cache_dir')}; give one of them")
    if config.temperature == 0 and config.num_samples > 1:
        raise ConfigError(
            f"{named('num_samples')} with {named('temperature')} would give the same text every time; "
            "set a temperature above 0 or ask for one sample"
        )
    if config.temperature == 0 and config.top_p not in (None, 1.0):
        raise ConfigError(f"{named('top_p')} has no effect with {named('temperature')}; set a temperature above 0 or leave it out")
    if config.max_pixels is not None and config.min_pixels is not None and config.min_pixels > config.max_pixels:
        raise ConfigError(f"{named('min_pixels')} is more than {named('max_pixels')}; lower the first or raise the second")
    if config.max_model_len is not None and config.max_new_tokens is not None and config.max_new_tokens >= config.max_model_len:
        raise ConfigError(
            f"{named('max_new_tokens')} leaves no room for a prompt within {named('max_model_len')}; lower the first or raise the second"
        )
