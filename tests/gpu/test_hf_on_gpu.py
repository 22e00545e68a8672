"""The hf backend on a real GPU. Run: pytest tests/gpu/test_hf_on_gpu.py"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evalharness.api.errors import CapabilityError
from evalharness.api.options import GenerationOptions, ModelLoadConfig
from evalharness.api.scoring import ScoringRequest
from evalharness.api.structured_output import StructuredOutput
from evalharness.backends.hf import fixed_cache
from evalharness.engine.engine import Engine
from tests.backends.hf.test_images import mixed as mixed_image_prompts
from tests.backends.hf_models import ids, load, make_text_checkpoint, make_vlm_checkpoint, mixed_prompts, model_of, prompt, run
from tests.backends.live_models import answers, state_dict

CHECKPOINTS = Path(__file__).parents[2] / "fixtures" / "checkpoints"

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_text_checkpoint(tmp_path_factory.mktemp("hf") / "text")


@pytest.mark.parametrize(
    "values", [{}, {"temperature": 0.8, "top_p": 0.9}, {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2}], ids=str
)
def test_float32_ids_are_those_of_the_cpu_and_of_single_rows(checkpoint, values):
    on_gpu, on_cpu = load(checkpoint, device="cuda"), load(checkpoint, device="cpu")
    prompts = mixed_prompts(16, **values)
    together = ids(run(on_gpu, prompts))
    assert together == ids(run(on_cpu, prompts))
    assert together == {item.index: run(on_gpu, [item])[item.index].token_ids for item in prompts}


@pytest.mark.parametrize("values", [{}, {"temperature": 1.0, "stop_token_ids": tuple(range(40, 46))}], ids=["greedy", "rows leave"])
def test_steps_are_replayed_and_give_the_ids_of_a_growing_cache(checkpoint, values, monkeypatch):
    monkeypatch.setattr(fixed_cache, "GROWTH", 32)
    backend = load(checkpoint, device="cuda")
    prompts = mixed_prompts(24, max_new_tokens=120, **values)
    replayed = ids(run(backend, prompts))
    assert backend.describe()["cuda_graphs"] is True
    backend._steps.are_fixed = False
    assert replayed == ids(run(backend, prompts))


def test_answers_are_held_to_a_structure_as_on_the_cpu(checkpoint):
    pytest.importorskip("xgrammar")
    prompts = [prompt(index, [30 + index] * 5, structured=StructuredOutput(regex="(ab|cd|xyz){3}")) for index in range(8)]
    on_gpu, on_cpu = load(checkpoint, device="cuda"), load(checkpoint, device="cpu")
    found = ids(run(on_gpu, prompts))
    assert found == ids(run(on_cpu, prompts))
    assert all(re.fullmatch("(ab|cd|xyz){3}", on_gpu.tokenizer.decode(row, skip_special_tokens=True)) for row in found.values())


def test_images_give_the_ids_of_the_cpu(tmp_path):
    path = make_vlm_checkpoint(tmp_path / "vlm")
    on_gpu, on_cpu = load(path, device="cuda"), load(path, device="cpu")
    assert ids(run(on_gpu, mixed_image_prompts(on_gpu))) == ids(run(on_cpu, mixed_image_prompts(on_cpu)))


def test_the_default_is_bfloat16_on_the_gpu(checkpoint):
    description = load(checkpoint, device=None, torch_dtype=None).describe()
    assert (description["dtype"], description["device"]) == ("bfloat16", "cuda:0")


def test_a_batch_that_the_gpu_cannot_hold_is_halved_until_it_fits(checkpoint, monkeypatch):
    backend = load(checkpoint, device="cuda")
    prompts = [prompt(index, [30 + index % 40] * 200, max_new_tokens=20) for index in range(512)]
    expected = ids(run(backend, prompts))
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    monkeypatch.setattr(backend.batch_sizes, "row_cap", 512)
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_allocated() + 64 * 1024**2) / total)
    try:
        outputs = run(backend, prompts)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert backend.describe()["num_batches_halved"] >= 1
    assert ids(outputs) == expected


def test_close_gives_the_memory_back():
    seen = []
    for _ in range(2):  # the first time cuBLAS takes a workspace that it keeps
        before = torch.cuda.memory_allocated()
        backend = load(CHECKPOINTS / "middle", device="cuda")
        run(backend, mixed_prompts(4))
        running = torch.cuda.memory_allocated()
        backend.close()
        seen.append((running - before, torch.cuda.memory_allocated() - before))
    taken, left = seen[1]
    assert taken > 20 * 1024**2  # the weights
    assert left < 2 * 1024**2


def test_a_swapped_checkpoint_answers_as_a_new_load_there_and_back(checkpoint, tmp_path):
    other = make_text_checkpoint(tmp_path / "other", seed=1)
    backend = load(checkpoint, device="cuda", torch_dtype="bfloat16")
    first = ids(run(backend, mixed_prompts()))
    backend.weights.swap(ModelLoadConfig(str(other), torch_dtype="bfloat16", device="cuda"))
    assert ids(run(backend, mixed_prompts())) == ids(run(load(other, device="cuda", torch_dtype="bfloat16"), mixed_prompts())) != first
    backend.weights.swap(ModelLoadConfig(str(checkpoint), torch_dtype="bfloat16", device="cuda"))
    assert ids(run(backend, mixed_prompts())) == first


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_adapters_on_a_warm_base_answer_as_new_loads_and_leave_it_as_it_was(dtype):
    middle = str(CHECKPOINTS / "middle")
    backend = load(middle, device="cuda", torch_dtype=dtype)
    first = ids(run(backend, mixed_prompts()))
    seen = [first]
    for name in ("lora-helps", "lora-hurts"):
        adapter = str(CHECKPOINTS / name)
        backend.weights.swap(ModelLoadConfig(middle, torch_dtype=dtype, device="cuda", adapter_path=adapter))
        found = ids(run(backend, mixed_prompts()))
        assert found == ids(run(load(middle, device="cuda", torch_dtype=dtype, adapter_path=adapter), mixed_prompts()))
        assert found not in seen
        seen.append(found)
    backend.weights.swap(ModelLoadConfig(middle, torch_dtype=dtype, device="cuda"))
    assert ids(run(backend, mixed_prompts())) == first


def test_weights_that_sleep_leave_the_gpu_and_come_back_to_the_bit():
    engine = Engine(load(CHECKPOINTS / "middle", device="cuda"))
    model = model_of(engine)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    num_bytes = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    first = answers(engine)
    allocated = torch.cuda.memory_allocated()
    engine.weights.sleep()
    assert torch.cuda.memory_allocated() < allocated - 0.9 * num_bytes
    with pytest.raises(CapabilityError, match="backend 'hf' sleeps"):
        answers(engine)
    engine.weights.wake()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert answers(engine) == first
    engine.close()


def test_a_model_in_training_is_sampled_from_on_the_gpu_without_a_copy(checkpoint):
    from evalharness import build_engine_around
    from evalharness.backends.hf._transformers import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).to("cuda").train()
    engine = build_engine_around(model, transformers.AutoTokenizer.from_pretrained(checkpoint))
    first = answers(engine)  # the first time cuBLAS takes a workspace that it keeps
    allocated = torch.cuda.memory_allocated()
    assert answers(engine) == first
    assert torch.cuda.memory_allocated() < allocated + 1024**2
    assert first == answers(Engine(load(checkpoint, device="cpu")))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, fused=True)
    ids = torch.tensor([[5, 6, 7, 8]], device="cuda")
    for _ in range(2):
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    assert engine.weights.version == "1"  # fused steps are seen, however many
    assert answers(engine) != first


def test_a_trainers_tensors_on_the_gpu_answer_as_their_checkpoint(checkpoint, tmp_path):
    other = make_text_checkpoint(tmp_path / "other", seed=1)
    engine = Engine(load(checkpoint, device="cuda"))
    engine.weights.sync_from_state_dict({name: tensor.to("cuda") for name, tensor in state_dict(other).items()})
    assert answers(engine) == answers(Engine(load(other, device="cpu")))
    engine.close()


def test_responses_are_scored_as_on_the_cpu_and_with_gradients(checkpoint):
    prompts, responses = [[5, 6, 7], [8], [9] * 40], [[10, 11], [12, 13, 14], [15]]
    on_gpu, on_cpu = (Engine(load(checkpoint, device=device)) for device in ("cuda", "cpu"))
    expected = on_cpu.get_logprobs(prompts, responses).rows()
    for found, right in zip(on_gpu.get_logprobs(prompts, responses).rows(), expected, strict=True):
        assert found == pytest.approx(right, abs=1e-3)
    scores = on_gpu.get_logprobs(prompts, responses, grad=True)
    assert scores.values.device.type == "cuda"
    scores.values[scores.mask].sum().backward()
    assert all(parameter.grad is not None for parameter in model_of(on_gpu).parameters())


def test_choices_that_share_their_prompt_are_scored_as_alone_and_on_the_cpu(checkpoint):
    contexts = [[20 + place % 60 for place in range(length)] for length in (1, 31, 64, 200)]
    responses = [[8, 9], [8, 9, 10, 11], [8], [100], [100], [90, 91, 92]]
    requests = [ScoringRequest(context, response) for context in contexts for response in responses]
    with Engine(load(checkpoint, device="cuda")) as on_gpu, Engine(load(checkpoint, device="cpu")) as on_cpu:
        together, there = (dict(engine.stream(requests, GenerationOptions())) for engine in (on_gpu, on_cpu))
        for place, request in enumerate(requests):
            [(_, alone)] = on_gpu.stream([request], GenerationOptions())
            assert together[place].logprobs == pytest.approx(alone.logprobs, abs=1e-4)
            assert together[place].logprobs == pytest.approx(there[place].logprobs, abs=1e-3)
