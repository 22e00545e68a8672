"""Which options contradict each other, asked once before anything is loaded."""

from __future__ import annotations

from typing import NamedTuple

from evalharness.api.errors import ConfigError, nearest_folder
from evalharness.backends import AUTO
from evalharness.backends.vllm.settings import check_engine_options
from evalharness.config import RunConfig
from evalharness.config.options import OPTIONS, read_shard

__all__ = ["CANDIDATES", "Wishes", "check_combinations", "possible_backends", "wishes_of"]


# What a run's options leave of the backends that `--backend auto` chooses between; `auto_backend.py` chooses

CANDIDATES: tuple[str, ...] = ("vllm", "hf")


class Wishes(NamedTuple):
    """What was asked for that narrows the choice: `narrowed_by` names the options that only `candidates` honour, `cpu` what says so."""

    candidates: tuple[str, ...] = CANDIDATES
    narrowed_by: tuple[str, ...] = ()
    cpu: str | None = None


def wishes_of(run: RunConfig) -> Wishes:
    """Return what a run's options say; those of settings files are standing wishes for when a backend runs, and narrow nothing."""
    candidates, narrowed_by = CANDIDATES, []
    for option in OPTIONS:
        if option.only_for and run.origin(option.name).startswith(("command line", "environment")):
            left = tuple(name for name in candidates if name in option.only_for)
            if left != candidates:
                narrowed_by.append(option.flag)
            candidates = left
    cpu = next((f"--{name} cpu" for name in ("devices", "device") if str(getattr(run, name)).startswith("cpu")), None)
    return Wishes(candidates, tuple(narrowed_by), cpu)


def possible_backends(run: RunConfig) -> tuple[str, ...]:
    """Return the backends that may run, the fallback's included; in place of `auto` those that it could choose."""
    named = tuple(name for name in (*run.backend, run.fallback_backend) if name is not None)
    return named if AUTO not in named else (*(name for name in named if name != AUTO), *wishes_of(run).candidates)


def check_combinations(config: RunConfig) -> None:
    """Raise `ConfigError` for options that contradict each other, for a missing model and for a data folder that is none."""
    _check_auto(config)
    _check_backend_options(config)
    _check_fallback(config)
    _check_devices(config)
    _check_sampling(config)
    _check_pixels(config)
    _check_lengths(config)
    check_engine_options(config.engine_option)
    _check_inputs(config)


def _named(config: RunConfig, name: str) -> str:
    """Return an option as its user wrote it: `--seed 3`, or with its origin where that is not the command line."""
    value = config.settings[name].value
    each = ["=".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in value] if isinstance(value, tuple) else [value]
    shown = ",".join(map(str, each))
    flag = "--" + name.replace("_", "-")
    text = flag if value is True else f"--no-{flag[2:]}" if value is False else f"{flag} {shown}"
    return text if config.origin(name) == "command line" else f"{text} ({config.origin(name)})"


def _check_auto(config: RunConfig) -> None:
    if AUTO not in config.backend:
        return
    if len(config.backend) > 1:
        raise ConfigError(f"{_named(config, 'backend')}: auto chooses one backend for each checkpoint; give it alone, or name them all")
    wishes = wishes_of(config)
    if not wishes.candidates:
        raise ConfigError(
            f"{_named(config, 'backend')} chooses between {' and '.join(CANDIDATES)}, and neither honours "
            f"{' with '.join(wishes.narrowed_by)}; leave that out, or name the backend"
        )


def _check_backend_options(config: RunConfig) -> None:
    running = set(possible_backends(config))
    for option in OPTIONS:
        # What a settings file says is a standing wish for when that backend runs; what was asked for this run must take effect.
        asked_now = config.origin(option.name).startswith(("command line", "environment"))
        if option.only_for and asked_now and not running.intersection(option.only_for):
            wanted = " or ".join(option.only_for)
            raise ConfigError(
                f"{_named(config, option.name)} is honoured by {wanted} only, but the run is on {_named(config, 'backend')}; "
                f"leave it out or add --backend {wanted}"
            )


def _check_fallback(config: RunConfig) -> None:
    fallback = config.fallback_backend
    if fallback is not None and set(config.backend) == {fallback}:
        raise ConfigError(f"{_named(config, 'fallback_backend')} is the only backend of the run already; leave it out or name another")


def _check_devices(config: RunConfig) -> None:
    if config.devices is None or config.device is None:
        return
    if (config.devices == "cpu") != (config.device == "cpu"):
        raise ConfigError(f"{_named(config, 'devices')} contradicts {_named(config, 'device')}; give one of them")


def _check_sampling(config: RunConfig) -> None:
    if config.temperature == 0:
        if config.num_samples > 1:
            raise ConfigError(
                f"{_named(config, 'num_samples')} with {_named(config, 'temperature')} would give the same text every time; "
                "set a temperature above 0 or ask for one sample"
            )
        if config.top_p not in (None, 1.0):
            raise ConfigError(
                f"{_named(config, 'top_p')} has no effect with {_named(config, 'temperature')}; set a temperature above 0 or leave it out"
            )


def _check_pixels(config: RunConfig) -> None:
    if config.max_pixels is not None and config.min_pixels is not None and config.min_pixels > config.max_pixels:
        raise ConfigError(f"{_named(config, 'min_pixels')} is more than {_named(config, 'max_pixels')}; lower the one or raise the other")


def _check_lengths(config: RunConfig) -> None:
    if config.max_model_len is not None and config.max_new_tokens is not None and config.max_new_tokens >= config.max_model_len:
        raise ConfigError(
            f"{_named(config, 'max_new_tokens')} leaves no room for a prompt within {_named(config, 'max_model_len')}; "
            "lower the one or raise the other"
        )


def _check_inputs(config: RunConfig) -> None:
    if config.shard is not None:
        read_shard(config.shard)
    if not config.model and set(config.backend) != {"fake"}:
        raise ConfigError("no checkpoint to evaluate: give --model PATH, or set model in evalharness.toml or [tool.evalharness]")
    if config.data is not None and not config.data.is_dir():
        raise ConfigError(f"{_named(config, 'data')} is no folder; the nearest that exists is {nearest_folder(config.data)}")
