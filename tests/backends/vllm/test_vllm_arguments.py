"""Engine arguments that have no option of their own: known by vLLM's source, refused before anything runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evalharness.api.errors import ConfigError
from evalharness.backends.vllm._internals import known_engine_arguments
from evalharness.backends.vllm.settings import check_engine_options
from tests import vllm_installed

needs_vllm = pytest.mark.skipif(not vllm_installed.IS_INSTALLED, reason=vllm_installed.WHY_NOT)


@pytest.mark.engine
@needs_vllm
def test_the_arguments_that_the_source_names_are_those_of_the_class() -> None:
    code = """
from evalharness.backends.torchvision_cpu import register_missing_operators
register_missing_operators()
import dataclasses
from vllm.engine.arg_utils import EngineArgs
print(*sorted(field.name for field in dataclasses.fields(EngineArgs) if not field.name.startswith("_")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert known_engine_arguments() == tuple(done.stdout.splitlines()[-1].split())


@needs_vllm
def test_a_misspelt_argument_is_refused_with_what_may_have_been_meant() -> None:
    with pytest.raises(ConfigError, match="--engine-option max_num_seq: the installed vLLM has no such .*; did you mean 'max_num_seqs'"):
        check_engine_options([("max_num_seq", 64)])


@needs_vllm
@pytest.mark.parametrize("name", ["max_num_seqs", "kv_cache_dtype", "nnodes", "quantization"])
def test_arguments_of_vllm_are_accepted(name: str) -> None:
    check_engine_options([(name, 1)])


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
