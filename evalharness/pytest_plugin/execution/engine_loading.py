"""How an engine of a run is opened: what the run's options are for its backend. Imported when the first engine is; loads torch with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evalharness.api.engine_options import ChatTemplateOptions, ModelLoadConfig, ServerOptions, VllmEngineOptions, VlmPreprocessOptions
from evalharness.api.thinking import DEFAULT_MARKS
from evalharness.config import RunConfig
from evalharness.config.options import OPTIONS
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec, concerns

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine

__all__ = ["load_config", "open_engine"]


def open_engine(spec: EngineSpec, run: RunConfig, on_notice: Callable[[str], None]) -> Engine:
    """Return the loaded engine; the errors of the backend's start pass through. `on_notice`: see `Engine`."""
    from evalharness.engine.build import build_engine  # loads the backend's libraries

    mine = _options_for(spec.backend, run)
    return build_engine(
        spec.backend,
        load_config(spec, run),
        vllm_options=VllmEngineOptions(
            tensor_parallel_size=mine["tensor_parallel_size"],
            pipeline_parallel_size=mine["pipeline_parallel_size"],
            distributed_executor_backend=mine["distributed_executor_backend"],
            gpu_memory_utilization=mine["gpu_memory_utilization"],
            max_model_len=mine["max_model_len"],
            trust_remote_code=run.trust_remote_code,
            dtype=spec.dtype,
            enforce_eager=mine["enforce_eager"],
            extra=mine["engine_option"],
        ),
        server_options=ServerOptions(
            server=mine["server"],
            base_url=mine["base_url"],
            served_model=mine["served_model"],
            concurrency=mine["concurrency"],
            request_timeout_s=mine["request_timeout"],
            adapter_dir=str(mine["adapter_dir"]) if mine["adapter_dir"] is not None else None,
        ),
        chat_template=ChatTemplateOptions(
            enable_thinking=run.thinking,
            thinking_marks=tuple(run.thinking_marks.split(",")) if run.thinking_marks else DEFAULT_MARKS,
        ),
        preprocess=VlmPreprocessOptions(max_pixels=run.max_pixels, min_pixels=run.min_pixels),
        fallback_backend=run.fallback_backend if run.fallback_backend != spec.backend else None,
        unsupported_options=run.unsupported_options,
        on_notice=on_notice,
    )


def load_config(spec: EngineSpec, run: RunConfig) -> ModelLoadConfig:
    """Return which weights an engine of the spec loads, and how."""
    mine = _options_for(spec.backend, run)
    return ModelLoadConfig(
        spec.base_path or spec.checkpoint_path,
        torch_dtype=spec.dtype,
        device=mine["device"],
        attn_implementation=mine["attn_implementation"],
        trust_remote_code=run.trust_remote_code,
        allow_pickle=run.allow_pickle,
        variant=run.variant,
        adapter_path=spec.checkpoint_path if spec.base_path is not None else None,
    )


def _options_for(backend: str, run: RunConfig) -> dict[str, Any]:
    """Return every option's value, the default for those that concern only other backends of the matrix."""
    return {option.name: getattr(run, option.name) if concerns(option, backend, run) else option.default for option in OPTIONS}
