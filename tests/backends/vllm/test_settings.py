"""What the vLLM backend passes on and what it refuses, without an engine."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import ConfigError, UnsupportedOption
from evalharness.api.options import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
from evalharness.api.requests import GenerationFailure
from evalharness.backends.vllm._internals import UNI_EXECUTOR
from evalharness.backends.vllm.engine import EngineLog, ErrorFileHandler
from evalharness.backends.vllm.sampling import completion_of
from evalharness.backends.vllm.settings import (
    BATCH_INVARIANT,
    check_engine_options,
    engine_arguments,
    pixel_budget_arguments,
    set_batch_invariance,
    set_environment_defaults,
)
from tests import vllm_installed
from tests.backends.vllm_models import plan


def arguments(device_type: str = "cpu", options: VllmEngineOptions | None = None, **config: Any) -> dict[str, Any]:
    chosen = ModelLoadConfig("some/checkpoint", **config)
    return engine_arguments(chosen, options or VllmEngineOptions(), image_arguments=None, device_type=device_type)


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        ({"device_map": "auto"}, r"model.device_map='auto' cannot be honoured by the vllm backend"),
        ({"attn_implementation": "sdpa"}, r"model.attn_implementation='sdpa' cannot be honoured"),
        ({"device": "cuda:1"}, r"model.device='cuda:1' cannot be honoured: vLLM runs on 'cpu' here"),
    ],
    ids=["device_map", "attention", "device"],
)
def test_what_vllm_cannot_honour_is_refused(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsupportedOption, match=problem):
        arguments(**config)


SIZES = {"max_model_len": 512, "gpu_memory_utilization": 0.5}
UNI = {"distributed_executor_backend": "uni"}
MORE = {"pipeline_parallel_size": 2, "distributed_executor_backend": "ray"}
ARGUMENTS = {
    "defaults on a CPU": ("cpu", {}, {}, {"dtype": "float32", "enforce_eager": True, "tensor_parallel_size": 1}),
    "defaults on a GPU": ("cuda", {}, {}, {"dtype": "bfloat16", "enforce_eager": False}),
    "dtype of the model": ("cuda", {"torch_dtype": "float32"}, {}, {"dtype": "float32"}),
    "dtype of vLLM": ("cpu", {}, {"dtype": "BFloat16"}, {"dtype": "bfloat16"}),
    "compiled on a CPU": ("cpu", {}, {"enforce_eager": False}, {"enforce_eager": False}),
    "no foreign code or defaults": ("cpu", {}, {}, {"trust_remote_code": False, "load_format": "safetensors", "generation_config": "vllm"}),
    "code and pickles": ("cpu", {"trust_remote_code": True, "allow_pickle": True}, {}, {"trust_remote_code": True, "load_format": "auto"}),
    "sizes": ("cpu", {}, SIZES, SIZES),
    "one process on a GPU": ("cuda", {}, UNI, UNI),
    "one process on a CPU": ("cpu", {}, UNI, {"distributed_executor_backend": UNI_EXECUTOR}),
    "others": ("cpu", {}, {**MORE, "extra": (("max_num_seqs", 8),)}, {**MORE, "max_num_seqs": 8}),
}


@pytest.mark.parametrize(("device_type", "config", "options", "wanted"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_are_as_asked_else_as_the_device_takes_them(
    device_type: str, config: dict[str, Any], options: dict[str, Any], wanted: dict[str, Any]
) -> None:
    assert arguments(device_type, VllmEngineOptions(**options), **config).items() >= wanted.items()


def test_batch_invariance_needs_a_gpu() -> None:
    invariant = VllmEngineOptions(batch_invariant=True)
    with pytest.raises(UnsupportedOption, match=r"batch-invariant mode has kernels for GPUs only, and vLLM runs on 'cpu' here"):
        arguments("cpu", invariant)
    assert arguments("cuda", invariant) == arguments("cuda")


@pytest.mark.parametrize(("users", "wanted", "after"), [(None, "1", None), ("1", "1", "1"), ("0", "1", None)], ids=["unset", "set", "off"])
def test_batch_invariance_is_set_for_one_engine(monkeypatch: pytest.MonkeyPatch, users: str | None, wanted: str, after: str | None) -> None:
    monkeypatch.setenv(BATCH_INVARIANT, users or "")
    if users is None:
        monkeypatch.delenv(BATCH_INVARIANT)
    set_batch_invariance(wanted=True)
    assert os.environ[BATCH_INVARIANT] == wanted
    set_batch_invariance(wanted=False)
    assert os.environ.get(BATCH_INVARIANT) == after


def test_what_is_unset_is_left_to_vllm() -> None:
    assert not {*SIZES, *MORE} & set(arguments())


def test_two_dtypes_contradict_each_other() -> None:
    with pytest.raises(ConfigError, match=r"model.torch_dtype='float32' and vllm.dtype='bfloat16' contradict each other"):
        arguments(options=VllmEngineOptions(dtype="bfloat16"), torch_dtype="float32")


def test_pixel_budget_is_passed_whole_or_not_at_all() -> None:
    class ImageProcessor:
        size = {"shortest_edge": 65536, "longest_edge": 786432}  # noqa: RUF012

    asked = pixel_budget_arguments(VlmPreprocessOptions(max_pixels=786432, do_resize=True), ImageProcessor())
    assert asked == {"size": {"shortest_edge": 65536, "longest_edge": 786432}, "do_resize": True}
    assert pixel_budget_arguments(VlmPreprocessOptions(), ImageProcessor()) == {}


def test_what_the_user_has_set_in_the_environment_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "7")
    monkeypatch.delenv("VLLM_LOGGING_LEVEL", raising=False)
    set_environment_defaults()
    assert os.environ["VLLM_CPU_KVCACHE_SPACE"] == "7"
    assert os.environ.pop("VLLM_LOGGING_LEVEL") == "ERROR"


def test_kernels_are_kept_in_one_folder_whatever_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_HOME", "/fast")
    monkeypatch.setenv("TRITON_CACHE_DIR", "")  # set back at the end
    monkeypatch.delenv("TRITON_CACHE_DIR")
    set_environment_defaults()
    assert os.environ["TRITON_CACHE_DIR"] == "/fast/.triton/cache"
    monkeypatch.setenv("TRITON_CACHE_DIR", "/mine")
    set_environment_defaults()
    assert os.environ["TRITON_CACHE_DIR"] == "/mine"


class Output:
    """What vLLM hands out, as far as it is read."""

    def __init__(self, finish_reason: str | None, stop_reason: str | int | None = None) -> None:
        self.finish_reason, self.stop_reason = finish_reason, stop_reason
        self.token_ids, self.logprobs = [5, 6], None
        self.outputs = [self]
        self.prompt_token_ids = [1, 2, 3]


@pytest.mark.parametrize("reason", ["abort", "error", None, "no output"], ids=str)
def test_a_request_that_vllm_gave_up_is_an_error_not_a_text(reason: str | None) -> None:
    from evalharness.backends.base import Prompt

    output = Output(reason)
    if reason == "no output":
        output.outputs = []
    index, failed = completion_of(Prompt(4, "", (1, 2, 3), 3, plan()), output, ())  # type: ignore[misc]
    assert index == 4
    assert isinstance(failed, GenerationFailure)
    assert failed.kind == "error"


def test_the_first_exception_is_the_root_cause(tmp_path: Path) -> None:
    log = EngineLog()
    logger = logging.Logger("engine")
    logger.addHandler(ErrorFileHandler(str(log._errors_path)))
    logger.warning("not an error")
    logger.error("something before it")
    for error in (MemoryError("no\nroom"), RuntimeError("see root cause above")):
        try:
            raise error
        except (MemoryError, RuntimeError):
            logger.exception("worker failed")
    cause = log.root_cause()
    assert cause is not None
    assert cause.summary == "MemoryError: no room"
    assert log.root_cause() is None
    log.close()
    logger.error("after the end")


def test_a_logging_configuration_of_the_user_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", "mine.json")
    log = EngineLog()
    with log.listening():
        assert os.environ["VLLM_LOGGING_CONFIG_PATH"] == "mine.json"
    log.close()


needs_vllm = pytest.mark.skipif(not vllm_installed.IS_INSTALLED, reason=vllm_installed.WHY_NOT)


@needs_vllm
def test_a_misspelt_argument_is_refused_with_what_may_have_been_meant() -> None:
    with pytest.raises(ConfigError, match="--engine-option max_num_seq: the installed vLLM has no such .*; did you mean 'max_num_seqs'"):
        check_engine_options([("max_num_seq", 64)])
    check_engine_options([(name, 1) for name in ("max_num_seqs", "kv_cache_dtype", "nnodes", "quantization")])


@needs_vllm
def test_speculative_decoding_is_an_argument_of_the_engine() -> None:
    draft = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4}
    check_engine_options([("speculative_config", draft)])
    assert arguments(options=VllmEngineOptions(extra=(("speculative_config", draft),)))["speculative_config"] == draft


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("tensor_parallel_size", "use --tensor-parallel-size"),
        ("generation_config", "a checkpoint's sampling defaults must not leak in"),
        ("worker_extension_cls", "it swaps weights"),
    ],
    ids=str,
)
def test_what_has_an_option_or_is_the_harnesss_own_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"--engine-option {name} cannot be given: {message}"):
        check_engine_options([(name, 1)])
