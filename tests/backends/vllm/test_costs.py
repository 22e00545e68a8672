"""Our arithmetic against vLLM's own estimate of FLOPs and bytes, where this vLLM has one: dense, with windows, and of experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evalharness.analysis.speed.bound import Work, decode_bytes, decode_flops, prefill_flops
from evalharness.checkpoints.model_shape import shape_of
from tests import vllm_installed
from tests.checkpoints.shapes import QWEN3_4B, Tensors, attention, dense, mlp

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not vllm_installed.IS_INSTALLED, reason=vllm_installed.WHY_NOT)]

NUM_ROWS, CONTEXT, WINDOW = 512, 300, 128
WINDOWS = {"layer_types": ["sliding_attention", "full_attention"] * 18, "sliding_window": WINDOW}
EXPERTS = {"num_experts": 32, "num_experts_per_tok": 4, "num_hidden_layers": 3, "moe_intermediate_size": 768}
ALIKE = 0.002  # norms are no part of vLLM's


def tensors_of(config: dict[str, Any]) -> Tensors:
    if "num_experts" not in config:
        return dense(config)
    tensors = dense({**config, "num_hidden_layers": 0})
    for layer in range(config["num_hidden_layers"]):
        tensors |= attention(config, f"model.layers.{layer}.")
        for expert in range(config["num_experts"]):
            tensors |= mlp(config, f"model.layers.{layer}.mlp.experts.{expert}.", config["moe_intermediate_size"])
    return tensors


@pytest.mark.parametrize("changes", [{}, WINDOWS, EXPERTS], ids=["dense", "windows", "experts"])
def test_flops_and_bytes_are_those_that_vllm_estimates(changes: dict[str, Any]) -> None:
    from evalharness.backends.torchvision_cpu import register_missing_operators

    register_missing_operators()
    perf = pytest.importorskip("vllm.v1.metrics.perf")
    config = {**QWEN3_4B, **changes}
    sizes = {"weight_byte_size": 2, "activation_byte_size": 2, "pp_size": 1, "tp_size": 1, "ffn_tp_size": 1, "ffn_ep_size": 1}
    known = {**config, **sizes, "cache_byte_size": 2, "num_moe_layers": config["num_hidden_layers"] if "num_experts" in config else 0}
    if changes is WINDOWS:
        known["num_swa_layers"] = 18
    parts = [perf.AttentionMetrics(**known), perf.FfnMetrics(**known), perf.UnembedMetrics(**known)]
    shape = shape_of(config, tensors_of(config), "bfloat16")

    step = perf.ExecutionContext()
    for _ in range(NUM_ROWS):
        step.add(1, CONTEXT, False)
    work = replace(Work(), num_prompts=NUM_ROWS, num_made_tokens=NUM_ROWS, sum_context=NUM_ROWS * CONTEXT)
    assert sum(part.get_num_flops(step) for part in parts) == pytest.approx(decode_flops(shape, work), rel=ALIKE)
    read = {name: size for part in parts for name, size in part.get_read_bytes_breakdown(step).items()}
    counted = sum(size for name, size in read.items() if name.endswith(("weight", "weights")) or name == "attn_input")
    queries = NUM_ROWS * shape.attention_width * 2 * config["num_hidden_layers"]  # vLLM has them with keys and values
    assert counted - queries == pytest.approx(decode_bytes(shape, work, 1), rel=ALIKE)

    prompt = perf.ExecutionContext()
    prompt.add(CONTEXT, CONTEXT, True)
    head = parts[2].get_num_flops(prompt)
    without = replace(Work(), num_prompts=1, num_prompt_tokens=CONTEXT)
    attention_all = prefill_flops(shape, replace(without, sum_prompt_squares=CONTEXT**2)) - prefill_flops(shape, without)
    # vLLM lets each token of a prompt look at all of it, of which half is before the token.
    if changes is not WINDOWS:
        ours = prefill_flops(shape, without) + 2 * attention_all
        assert sum(part.get_num_flops(prompt) for part in parts) - head == pytest.approx(ours, rel=ALIKE)
