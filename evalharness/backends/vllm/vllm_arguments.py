"""Which engine arguments vLLM knows, read from its source: importing it takes seconds and touches CUDA. Loads no torch."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.api.suggestions import did_you_mean

__all__ = ["check_engine_options", "known_engine_arguments", "spans_hosts"]

_INSTEAD = {
    "allowed_local_media_path": "images are opened by the harness",
    "disable_log_stats": "the harness counts by itself",
    "distributed_executor_backend": "use --distributed-executor-backend",
    "dtype": "use --dtype",
    "enforce_eager": "use --enforce-eager",
    "generation_config": "a checkpoint's sampling defaults must not leak in",
    "gpu_memory_utilization": "use --gpu-memory-utilization",
    "limit_mm_per_prompt": "the harness sets it by what it asks",
    "load_format": "use --allow-pickle",
    "logprobs_mode": "scores need the raw ones",
    "max_model_len": "use --max-model-len",
    "mm_processor_kwargs": "use --max-pixels and --min-pixels",
    "model": "use --model",
    "pipeline_parallel_size": "use --pipeline-parallel-size",
    "seed": "every request has a seed of its own, see --seed",
    "skip_tokenizer_init": "texts need the tokenizer",
    "tensor_parallel_size": "use --tensor-parallel-size",
    "tokenizer": "a checkpoint is asked with its own",
    "trust_remote_code": "use --trust-remote-code",
    "use_tqdm_on_load": "progress is the harness's",
    "worker_extension_cls": "it swaps weights",
}
"""Arguments that are not given by name here, and why."""


def known_engine_arguments() -> tuple[str, ...] | None:
    """Return the arguments of vLLM's engine, sorted; None where vLLM is not installed, or its source is not where it was."""
    spec = importlib.util.find_spec("vllm")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        try:
            tree = ast.parse((Path(folder) / "engine" / "arg_utils.py").read_bytes())
        except (OSError, SyntaxError):
            return None
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
                fields = (line.target for line in node.body if isinstance(line, ast.AnnAssign))
                names = (target.id for target in fields if isinstance(target, ast.Name))
                return tuple(sorted(name for name in names if not name.startswith("_")))
    return None


def check_engine_options(options: Iterable[tuple[str, Any]]) -> None:
    """Raise `ConfigError` for an engine argument that vLLM does not know, or that is not for the user to set here."""
    names = [name for name, _ in options]
    for name in names:
        if name in _INSTEAD:
            raise ConfigError(f"--engine-option {name} cannot be given: {_INSTEAD[name]}")
    known = known_engine_arguments() if names else None
    if known is None:
        return
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or "; see vLLM's documentation of its engine arguments"
            raise ConfigError(f"--engine-option {name}: the installed vLLM has no such engine argument{hint}")


def spans_hosts(executor: str | None, options: Mapping[str, Any]) -> bool:
    """Return whether an engine's cards may be those of other hosts, so that nobody here can count them."""
    return executor in ("ray", "external_launcher") or int(options.get("nnodes") or 1) > 1
