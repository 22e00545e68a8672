"""Which engines a run uses (checkpoint × backend), and how one is opened. Loads no torch until an engine is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.checkpoint import expand_models, inspect_checkpoint, name_checkpoints
from evalharness.config import OPTIONS, RunConfig
from evalharness.contracts import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions

if TYPE_CHECKING:
    from evalharness.engine import Engine

__all__ = ["EngineSpec", "engine_specs", "open_engine"]


@dataclass(frozen=True)
class EngineSpec:
    """One engine of the run; `id` ("hf:final") names it in test ids, rows and reports."""

    id: str
    backend: str
    checkpoint: str
    checkpoint_path: str
    fingerprint: str | None = None
    variant: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON data."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> EngineSpec:
        """Return the spec that `to_json` wrote."""
        return cls(**values)


def engine_specs(run: RunConfig, root: Path) -> list[EngineSpec]:
    """Return one spec per checkpoint × backend, checkpoints outside; `CheckpointError` or `ConfigError` before anything is loaded."""
    specs: list[EngineSpec] = []
    real = [name for name in run.backend if name != "fake"]
    if real:
        paths = expand_models(run.model, root)
        for path, name in zip(paths, name_checkpoints(paths), strict=True):
            info = inspect_checkpoint(path, trust_remote_code=run.trust_remote_code, allow_pickle=run.allow_pickle)
            specs += [EngineSpec(f"{backend}:{name}", backend, name, str(path), info.fingerprint, info.variant) for backend in real]
    if "fake" in run.backend:
        specs += [EngineSpec(f"fake:{Path(script).stem}", "fake", Path(script).stem, script) for script in _scripts(run)]
    return specs


def _scripts(run: RunConfig) -> list[str]:
    # A project's settings name a real checkpoint; the fake backend then echoes unless a script was asked for.
    if run.origin("model") not in ("command line", "environment EVALHARNESS_MODEL"):
        return ["echo"]
    return ["echo" if Path(path).name == "echo" else path for path in run.model if not Path(path).is_dir()] or ["echo"]


def open_engine(spec: EngineSpec, run: RunConfig, on_notice: Callable[[str], None]) -> Engine:
    """Return the loaded engine; the errors of the backend's start pass through. `on_notice`: see `Engine`."""
    from evalharness.engine import build_engine  # loads the backend's libraries

    mine = _options_for(spec.backend, run)
    return build_engine(
        spec.backend,
        ModelLoadConfig(
            spec.checkpoint_path,
            torch_dtype=run.dtype,
            device=mine["device"],
            attn_implementation=mine["attn_implementation"],
            trust_remote_code=run.trust_remote_code,
            allow_pickle=run.allow_pickle,
            variant=run.variant,
        ),
        vllm_options=VllmEngineOptions(
            tensor_parallel_size=mine["tensor_parallel_size"],
            gpu_memory_utilization=mine["gpu_memory_utilization"],
            max_model_len=mine["max_model_len"],
            trust_remote_code=run.trust_remote_code,
            dtype=run.dtype,
            enforce_eager=True if mine["enforce_eager"] else None,
        ),
        preprocess=VlmPreprocessOptions(max_pixels=run.max_pixels, min_pixels=run.min_pixels),
        fallback_backend=run.fallback_backend if run.fallback_backend != spec.backend else None,
        unsupported_options=run.unsupported_options,
        on_notice=on_notice,
    )


def _options_for(backend: str, run: RunConfig) -> dict[str, Any]:
    """Return every option's value, the default for those that concern only other backends of the matrix."""
    concerned = (backend, run.fallback_backend)
    return {
        option.name: getattr(run, option.name)
        if not option.only_for or any(name in option.only_for for name in concerned)
        else option.default
        for option in OPTIONS
    }
