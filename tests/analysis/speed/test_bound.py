"""The least seconds of some work: by hand for a known model and cards, and what must hold for every model."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from evalharness.analysis.speed.bound import Device, Work, bound, decode_bytes, fewest_steps, prefill_flops, step_weight_bytes
from evalharness.checkpoints.model_shape import ModelShape, shape_of
from evalharness.hardware.cards import CARDS, limits_of
from tests.checkpoints.shapes import QWEN3_4B, dense

SHAPE = shape_of(QWEN3_4B, dense(QWEN3_4B), "bfloat16")


def device(name: str, dtype: str = "bfloat16") -> Device:
    """Return the limits of one card."""
    limits = limits_of(name)
    assert limits is not None
    flops = limits.flops(dtype)
    assert flops is not None
    return Device(flops, limits.bandwidth)


@pytest.mark.parametrize(
    ("card", "work", "rows", "thousands"),
    [("NVIDIA H200", Work.of_equal(6144, 184, 128), 1024, 50.2), ("NVIDIA H100 80GB HBM3", Work.of_equal(256, 192, 128), 256, 31.5)],
)
def test_tokens_per_second_at_the_limit_by_hand(card: str, work: Work, rows: int, thousands: float) -> None:
    assert work.num_made_tokens / bound(SHAPE, device(card), work, rows).seconds / 1000 == pytest.approx(thousands, rel=0.002)


def test_each_part_by_hand() -> None:
    # 2 x 3.6335e9 x 184 + 2 x 36 x 4096 x 184^2 for each prompt; 8.04 GB and 1,024 x 248 x 144 KiB for each of 768 steps
    work = Work.of_equal(6144, 184, 128)
    assert prefill_flops(SHAPE, work) / 6144 == pytest.approx(2 * 3.6335e9 * 184 + 2 * 36 * 4096 * 184**2, rel=1e-4)
    assert fewest_steps(work, 1024) == 768
    assert decode_bytes(SHAPE, work, 768) / 768 == pytest.approx(8.045e9 + 1024 * 248 * 144 * 1024, rel=1e-4)


def test_a_picture_costs_its_patches_and_their_squares() -> None:
    shape = replace(SHAPE, num_vision_params=300_000_000, num_merger_params=40_000_000, merge=4, num_vision_layers=24, vision_width=1024)
    work = replace(Work.of_equal(1, 184, 128), num_patches=1000, sum_patch_squares=1000**2)
    more = prefill_flops(shape, work) - prefill_flops(SHAPE, work)
    assert more == pytest.approx(2 * 310_000_000 * 1000 + 4 * 24 * 1024 * 1000**2)


def test_what_an_engine_kept_of_prompts_costs_nothing() -> None:
    work = Work.of_equal(100, 200, 50)
    assert prefill_flops(SHAPE, replace(work, num_kept_tokens=10_000)) == pytest.approx(prefill_flops(SHAPE, work) / 2)
    assert prefill_flops(SHAPE, replace(work, num_kept_tokens=20_000)) == 0


COUNTS = st.integers(1, 5000)
WORKS = st.builds(Work.of_equal, COUNTS, COUNTS, COUNTS)
SHAPES = st.builds(
    ModelShape,
    dtype=st.just("bfloat16"),
    num_layer_params=st.integers(1, 10**11),
    num_head_params=st.integers(1, 10**9),
    weight_bytes=st.integers(1, 10**12),
    num_full_layers=st.integers(1, 100),
    attention_width=st.integers(1, 20_000),
    kv_bytes=st.integers(1, 10_000),
    num_window_layers=st.integers(0, 100),
    window=st.integers(1, 10_000),
    num_expert_params=st.integers(0, 10**11),
    expert_bytes=st.integers(0, 10**12),
    num_experts=st.just(64),
    experts_per_token=st.integers(1, 64),
)
DEVICES = st.builds(Device, st.floats(1e12, 1e16), st.floats(1e11, 1e13))


@given(SHAPES, DEVICES, WORKS, st.integers(1, 4096))
def test_no_step_is_below_what_it_must_compute_or_read(shape: ModelShape, card: Device, work: Work, rows: int) -> None:
    least = bound(shape, card, work, rows)
    assert least.seconds * card.flops >= least.flops * (1 - 1e-9)
    assert least.seconds * card.bandwidth >= least.num_bytes * (1 - 1e-9)
    assert least.num_steps * min(rows, work.num_prompts) >= work.num_made_tokens * (1 - 1e-9)
    assert least.num_steps >= work.longest


@given(SHAPES, DEVICES, WORKS, st.integers(1, 4096), st.integers(1, 4096))
def test_more_rows_at_once_never_raise_the_bound(shape: ModelShape, card: Device, work: Work, rows: int, more: int) -> None:
    shape = replace(shape, num_experts=0)  # of experts, more rows take more
    few, many = (bound(shape, card, work, number).seconds for number in sorted((rows, more)))
    assert many <= few * (1 + 1e-9)


@given(SHAPES, DEVICES, WORKS, st.integers(1, 4096), st.floats(1.0, 8.0))
def test_a_faster_card_lowers_it_in_proportion(shape: ModelShape, card: Device, work: Work, rows: int, times: float) -> None:
    faster = Device(card.flops * times, card.bandwidth * times)
    assert bound(shape, faster, work, rows).seconds * times == pytest.approx(bound(shape, card, work, rows).seconds)


@given(SHAPES, st.integers(1, 4096))
def test_a_step_reads_between_one_tokens_experts_and_all(shape: ModelShape, rows: int) -> None:
    one = shape.weight_bytes + shape.expert_bytes * shape.experts_per_token / shape.num_experts
    assert one * (1 - 1e-9) <= step_weight_bytes(shape, rows) <= (shape.weight_bytes + shape.expert_bytes) * (1 + 1e-9)


@given(SHAPES, WORKS, st.integers(1, 4096))
def test_a_window_never_costs_more_than_the_whole_context(shape: ModelShape, work: Work, rows: int) -> None:
    whole = replace(shape, num_full_layers=shape.num_full_layers + shape.num_window_layers, num_window_layers=0)
    assert prefill_flops(shape, work) <= prefill_flops(whole, work) * (1 + 1e-9)
    assert decode_bytes(shape, work, rows) <= decode_bytes(whole, work, rows) * (1 + 1e-9)


def test_known_cards() -> None:
    assert limits_of("H200") == limits_of("NVIDIA H200")
    assert limits_of("NVIDIA H200 of tomorrow") is None
    assert limits_of("CPU") is None
    for limits in CARDS.values():
        fp16, fp32 = limits.flops("float16"), limits.flops("float32")
        assert fp16 is not None
        assert fp32 is not None
        assert 1e12 < fp32 < fp16 < 1e16
        assert 1e11 < limits.bandwidth < 1e13
        assert (limits.flops("bfloat16") is not None) == limits.has_bfloat16
        assert limits.flops("int3") is None
