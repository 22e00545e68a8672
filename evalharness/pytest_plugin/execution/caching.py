"""The cache of a run's answers: which one, and what tells its engines apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from evalharness.config import RunConfig
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec

if TYPE_CHECKING:
    from evalharness.engine.cache import ResponseCache
    from evalharness.engine.engine import Engine

__all__ = ["cache_identity", "make_cache"]

# Facts of an engine that may change its answers; others, such as how long it took to load, differ from start to start.
_FACTS = ("torch", "transformers", "vllm", "max", "device", "dtype", "attn_implementation", "max_model_len", "template_sha256")
_OPTIONS = (
    "max_pixels",
    "min_pixels",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "engine_option",
    "enforce_eager",
    "attn_implementation",
    "variant",
)


def make_cache(run: RunConfig, on_notice: Callable[[str], None]) -> ResponseCache | None:
    """Return the run's cache, None where none is wanted. `ConfigError` where its folder cannot be used."""
    wanted = run.cache if run.cache is not None else run.cache_dir is not None
    if not wanted:
        return None
    from evalharness.engine.cache import ResponseCache  # brings sqlite along

    return ResponseCache(run.cache_dir, on_notice=on_notice)


def cache_identity(spec: EngineSpec, run: RunConfig, engine: Engine) -> dict[str, Any]:
    """Return what answers depend on besides the question: weights by fingerprint, backend, libraries, how it all runs."""
    facts = engine.describe()
    return {
        "fingerprint": spec.fingerprint,
        "backend": spec.backend,
        "facts": {name: facts[name] for name in _FACTS if name in facts},
        "options": {name: getattr(run, name) for name in _OPTIONS},
    }
