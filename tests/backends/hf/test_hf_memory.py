"""How much fits, and that everything is given back. Run: pytest tests/backends/hf/test_hf_memory.py"""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path

import pytest

from evalharness.backends.hf.batching import BatchCost, available_bytes, is_broken_device, is_out_of_memory, max_padding
from tests.backends.hf_models import load, make_text_checkpoint, make_vlm_checkpoint, mixed_prompts, run

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_in_one_thread")]


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("make", [make_text_checkpoint, make_vlm_checkpoint], ids=["text", "vlm"])
def test_ten_rounds_of_open_and_close_leave_no_growth(tmp_path, make):
    path = make(tmp_path / "model")

    def round_trip():
        backend = load(path)
        run(backend, mixed_prompts(4, max_new_tokens=4))
        backend.close()

    for _ in range(3):  # imports, thread pools and allocator arenas come with the first rounds
        round_trip()
    before = resident_bytes()
    for _ in range(10):
        round_trip()
    grown = resident_bytes() - before
    weights = (path / "model.safetensors").stat().st_size
    assert grown < max(weights, 2 * 1024**2)  # ten rounds: far less than one model's worth


def test_close_lets_the_model_go_even_while_the_backend_lives(tmp_path):
    backend = load(make_text_checkpoint(tmp_path / "model"))
    list(backend.generate(mixed_prompts(4)))
    model = weakref.ref(backend.model)
    gc.disable()
    try:
        backend.close()
        assert model() is None
    finally:
        gc.enable()


def out_of_memory():
    import torch

    return {
        "torch": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB."),
        "cpu allocator": RuntimeError(
            "[enforce fail at alloc_cpu.cpp:124] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
        ),
        "driver": RuntimeError("CUDA error: out of memory"),
        "cublas": RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        "python": MemoryError(),
    }


@pytest.mark.parametrize("name", ["torch", "cpu allocator", "driver", "cublas", "python"])
def test_running_out_of_memory_is_recognised(name):
    assert is_out_of_memory(out_of_memory()[name])


def test_a_real_allocation_that_fails_is_recognised(torch):
    with pytest.raises(RuntimeError, match="allocate") as caught:
        torch.empty(2**55, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize("error", [RuntimeError("shape mismatch"), ValueError("not enough memory"), KeyError("x")], ids=str)
def test_other_errors_are_not_taken_for_it(error):
    assert not is_out_of_memory(error)
    assert not is_broken_device(error)


def test_a_device_that_is_lost_is_recognised():
    assert is_broken_device(RuntimeError("CUDA error: an illegal memory access was encountered"))


def test_the_cost_grows_with_rows_and_lengths():
    cost = BatchCost(cache_bytes=100, prefill_bytes=10, row_bytes=1000, mask_bytes=0)
    assert cost.bytes_for(1, 5, 5) == 1000 + 50 + 1000
    assert cost.bytes_for(3, 5, 5) == 3 * cost.bytes_for(1, 5, 5)


def test_a_batch_may_take_part_of_the_memory_that_is_free(torch):
    assert 64 * 1024**2 < available_bytes(torch.device("cpu")) < 1024**5


def test_the_larger_the_model_the_more_padding_is_worth_a_larger_batch(torch):
    cost = BatchCost(cache_bytes=46080, prefill_bytes=10, row_bytes=1000)
    small, large = (max_padding(torch.device("cpu"), weights, cost) for weights in (540 * 10**6, 8 * 10**9))
    assert 400 < small < 600  # 135 million weights in float32
    assert large > 10 * small
