"""What a run's options leave of the backends that `--backend auto` chooses between; `auto_backend.py` chooses."""

from __future__ import annotations

from typing import NamedTuple

from evalharness.backends import AUTO
from evalharness.config import RunConfig
from evalharness.config.options import OPTIONS

__all__ = ["CANDIDATES", "Wishes", "possible_backends", "wishes_of"]

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
