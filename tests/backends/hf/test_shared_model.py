"""Sampling from a model that is in training: one copy, found as it is, left as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness import build_engine_around
from evalharness.api.errors import CapabilityError, CheckpointError, ConfigError, ContractValueError
from evalharness.api.options import GenerationOptions, ModelLoadConfig
from evalharness.api.requests import TokenGenerationRequest
from evalharness.engine.cache import ResponseCache
from evalharness.engine.engine import Engine
from tests.backends.hf_models import load, make_vlm_checkpoint, model_of
from tests.backends.live_models import answers, state_dict

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_in_one_thread")]


def nameless(model: Any) -> Any:
    """Return the model, which no longer says where it came from."""
    model.config._name_or_path = ""
    return model


def step(model: Any, rate: float = 0.05) -> None:
    """Take one step of training."""
    import torch

    optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=rate)
    model(input_ids=torch.tensor([[5, 6, 7, 8]]), labels=torch.tensor([[5, 6, 7, 8]])).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def alone(model: Any, tmp_path: Path, folder: Path) -> list[tuple[int, ...]]:
    """Return what a new start on the model's weights, saved, answers."""
    tmp_path.mkdir(exist_ok=True)
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    model.save_pretrained(tmp_path)
    return answers(Engine(load(tmp_path)))


def test_there_is_no_second_copy_and_each_step_is_seen(trainers_parts: tuple[Any, Any], hf_text_checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer = trainers_parts
    engine = build_engine_around(model, tokenizer)
    places = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    inside = model_of(engine)
    assert {name: parameter.data_ptr() for name, parameter in inside.named_parameters()} == places
    first = answers(engine)
    assert first == answers(Engine(load(hf_text_checkpoint)))
    step(model)
    second = answers(engine)
    assert second == alone(model, tmp_path / "saved", hf_text_checkpoint) != first


def test_the_version_grows_with_each_step_and_stands_in_the_results(trainers_parts: tuple[Any, Any]) -> None:
    model, tokenizer = trainers_parts
    engine = build_engine_around(model, tokenizer)
    versions = []
    for _ in range(3):
        [result] = engine.generate_token_batch([TokenGenerationRequest([5])], GenerationOptions(max_new_tokens=1))
        versions.append(result.weight_version)
        assert engine.weights.version == result.weight_version  # looking is no change
        step(model)
    assert versions == ["0", "1", "2"]
    model.lm_head.weight.data = model.lm_head.weight.data * 2  # torch counts no such change
    step(model)
    assert (engine.weights.version, engine.weights.mark_changed("mine"), engine.weights.version) == ("3", "mine", "mine")


@pytest.mark.parametrize("kind", ["fused", "own"])
def test_steps_that_no_tensor_counts_are_seen(trainers_parts: tuple[Any, Any], kind: str, torch: Any) -> None:
    class Own(torch.optim.Optimizer):
        """As other libraries' optimizers: their kernels write to the weights and nothing counts it."""

        def step(self, closure: Any = None) -> None:
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.data.sub_(0.05 * torch.sign(parameter.grad))

    model, tokenizer = trainers_parts
    engine, others = build_engine_around(model, tokenizer), torch.nn.Linear(4, 4)
    first = answers(engine)
    kinds = {"fused": lambda weights: torch.optim.AdamW(weights, lr=0.05, fused=True), "own": lambda weights: Own(weights, {})}
    for trained, version in ((others, "0"), (model, "1")):
        optimizer = kinds[kind](list(trained.parameters()))
        ids = torch.tensor([[5, 6, 7, 8]])
        (model(input_ids=ids, labels=ids).loss if trained is model else others(torch.ones(4)).sum()).backward()
        counted = [parameter._version for parameter in trained.parameters()]
        optimizer.step()
        assert [parameter._version for parameter in trained.parameters()] == counted
        assert engine.weights.version == version
    del optimizer
    assert engine.weights.version == "1"  # though its optimizer is gone
    assert answers(engine) != first


def test_the_model_is_left_as_it_was_found(trainers_parts: tuple[Any, Any], torch: Any) -> None:
    model, tokenizer = trainers_parts
    model.train()
    model.model.layers[0].eval()  # a part that stays frozen
    model.gradient_checkpointing_enable()
    model.config.use_cache = False
    model.model.embed_tokens.weight.requires_grad_(False)
    model.generation_config.max_new_tokens = 1
    model.generation_config.do_sample = True
    engine = build_engine_around(model, tokenizer)

    def state() -> list[Any]:
        return [
            [module.training for module in model.modules()],
            [getattr(module, "gradient_checkpointing", None) for module in model.modules()],
            [parameter.requires_grad for parameter in model.parameters()],
            [parameter.grad for parameter in model.parameters()],
            model.config.to_dict(),
            id(model.generation_config),
            model.generation_config.to_dict(),
            torch.get_rng_state().tolist(),
            tokenizer.padding_side,
        ]

    before = state()
    assert answers(engine)[0]
    assert state() == before
    step(model)  # and can go on


def test_it_is_left_so_when_sampling_breaks_off_or_waits(trainers_parts: tuple[Any, Any]) -> None:
    model, tokenizer = trainers_parts
    model.train()
    model.gradient_checkpointing_enable()
    engine = build_engine_around(model, tokenizer)
    stream = engine.stream([TokenGenerationRequest([5, 6]), TokenGenerationRequest([7] * 200)], GenerationOptions(max_new_tokens=40))
    next(stream)
    assert model.training
    assert model.model.layers[1].training
    stream.close()
    model.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
    [outcome] = dict(engine.stream([TokenGenerationRequest([5])], GenerationOptions(max_new_tokens=4))).values()
    assert "ZeroDivisionError" in outcome.problem  # type: ignore[union-attr]
    assert model.training
    assert model.model.layers[0].gradient_checkpointing


def test_dropout_and_checkpointing_do_not_reach_the_samples(trainers_parts: tuple[Any, Any], hf_text_checkpoint: Path) -> None:
    model, tokenizer = trainers_parts
    model.train()
    model.config.use_cache = False
    model.gradient_checkpointing_enable()
    for layer in model.model.layers:
        layer.self_attn.attention_dropout = 0.9
    assert answers(build_engine_around(model, tokenizer)) == answers(Engine(load(hf_text_checkpoint)))


def test_adapters_of_peft_are_sampled_with_as_they_are_active(trainers_parts: tuple[Any, Any], hf_text_checkpoint: Path) -> None:
    import peft

    model, tokenizer = trainers_parts
    base = answers(build_engine_around(model, tokenizer))
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj", "down_proj"], lora_dropout=0.5))
    wrapped.enable_input_require_grads()
    wrapped.train()
    engine = build_engine_around(wrapped, tokenizer)
    assert answers(engine) == base  # B is zero
    for _ in range(3):
        step(wrapped, rate=0.3)
    adapted = answers(engine)
    assert adapted != base
    with wrapped.disable_adapter():
        assert answers(engine) == base
        reference = engine.weights.version
    assert answers(engine) == adapted
    assert len({"0", reference, engine.weights.version}) == 3
    assert wrapped.training
    step(wrapped)


def test_pictures_and_training_take_turns_on_one_model(tmp_path: Path) -> None:
    import torch
    import transformers

    from evalharness.api.requests import VlmGenerationRequest
    from tests.backends.vllm_models import noise

    folder = make_vlm_checkpoint(tmp_path / "vlm")
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder)
    engine = build_engine_around(model, processor=transformers.AutoProcessor.from_pretrained(folder))
    content = [{"type": "image", "image": noise(64, 64)}, {"type": "text", "text": "what"}]
    request = VlmGenerationRequest([{"role": "user", "content": content}])
    [before] = engine.generate_vlm_batch([request], GenerationOptions(max_new_tokens=8))
    own = Engine(load(folder)).generate_vlm_batch([request], GenerationOptions(max_new_tokens=8))
    assert before.token_ids == own[0].token_ids
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    model.train()
    model(input_ids=ids, labels=ids).loss.backward()  # nothing of the sampling is in the way
    assert all(parameter.grad is not None for parameter in model.model.language_model.parameters())


@pytest.mark.parametrize("wrap", ["compile", "parallel"])
def test_what_training_wraps_around_a_model_is_seen_through(trainers_parts: tuple[Any, Any], wrap: str, tmp_path: Path, torch: Any) -> None:
    model, tokenizer = trainers_parts
    plain = answers(build_engine_around(model, tokenizer))
    if wrap == "compile":
        assert answers(build_engine_around(torch.compile(model, backend="eager"), tokenizer)) == plain
        return
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    try:
        assert answers(build_engine_around(torch.nn.parallel.DistributedDataParallel(model), tokenizer)) == plain
    finally:
        torch.distributed.destroy_process_group()


def test_weights_brought_to_a_shared_model_are_there_and_are_a_new_version(trainers_parts: tuple[Any, Any], tmp_path: Path) -> None:
    import peft

    model, tokenizer = trainers_parts
    engine = build_engine_around(model, tokenizer)
    model.save_pretrained(tmp_path / "whole")
    assert engine.weights.reload(str(tmp_path / "whole")).num_loaded == len(state_dict(tmp_path / "whole"))
    assert engine.weights.sync_from_state_dict({name: each.bfloat16() for name, each in model.state_dict().items()}).weight_version == "2"
    wrapped = peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False), adapter_name="policy")
    engine = build_engine_around(wrapped, tokenizer)
    wrapped.save_pretrained(tmp_path / "adapter")
    tensors = peft.get_peft_model_state_dict(wrapped, adapter_name="policy")
    before = answers(engine)
    assert engine.weights.load_adapter(str(tmp_path / "adapter" / "policy")).num_loaded == len(tensors) == 4
    assert engine.weights.sync_from_state_dict(tensors).num_loaded == 4
    assert engine.weights.sync_from_state_dict(wrapped.state_dict(), weight_version="mine").not_matched == ()
    assert engine.weights.reload(str(tmp_path / "whole"), adapter_path=str(tmp_path / "adapter" / "policy")).weight_version == "4"
    assert answers(engine) == before


def test_other_weights_than_its_own_are_not_ignored_by_a_shared_model(trainers_parts: tuple[Any, Any], tmp_path: Path) -> None:
    model, tokenizer = trainers_parts
    engine = build_engine_around(model, tokenizer)
    old = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.save_pretrained(tmp_path / "old")
    step(model)
    version = engine.weights.version
    problem = "differs from the model's, and the model is shared with its trainer, who alone changes it: nothing is loaded into it here"
    with pytest.raises(ContractValueError, match=problem):
        engine.weights.sync_from_state_dict(old)
    with pytest.raises(CheckpointError, match=f"old: .*{problem}"):
        engine.weights.reload(str(tmp_path / "old"))
    with pytest.raises(CheckpointError, match="there is no folder .*nowhere"):
        engine.weights.load_adapter(str(tmp_path / "nowhere"))
    with pytest.raises(ContractValueError, match="none of the names means a weight of the model, such as 'x'"):
        engine.weights.sync_from_state_dict({"x": old[next(iter(old))]})
    assert engine.weights.version == version


def test_what_only_its_trainer_can_do_to_a_shared_model_is_refused(trainers_parts: tuple[Any, Any], hf_text_checkpoint: Path) -> None:
    engine = build_engine_around(*trainers_parts)
    for change in (engine.weights.unload_adapter, engine.weights.sleep):
        with pytest.raises(CapabilityError, match="the model is shared with its trainer, who alone changes it"):
            change()
    with pytest.raises(CapabilityError, match="may change unseen, so none of its answers can be kept"):
        engine.use_cache(ResponseCache(), {})
    assert engine.describe()["is_shared"] is True
    assert engine.weights.why_not_swap(ModelLoadConfig(str(hf_text_checkpoint))) == "the model is a trainer's"


def test_a_model_from_a_folder_needs_no_tokenizer_beside_it(trainers_parts: tuple[Any, Any]) -> None:
    model, tokenizer = trainers_parts
    assert answers(build_engine_around(model)) == answers(build_engine_around(model, tokenizer))


def test_closing_the_engine_leaves_the_model_to_its_trainer(trainers_parts: tuple[Any, Any]) -> None:
    model, tokenizer = trainers_parts
    with build_engine_around(model, tokenizer) as engine:
        answers(engine)
    step(model)


@pytest.mark.parametrize(
    ("break_it", "error", "message"),
    [
        pytest.param(lambda m, t: (nameless(m), None), ConfigError, "needs its tokenizer, or the processor", id="no tokenizer"),
        pytest.param(lambda m, t: (m.lm_head, t), CapabilityError, "Linear cannot generate", id="no model"),
        pytest.param(lambda m, t: (m.to("meta"), t), CapabilityError, "has no values yet", id="no values"),
    ],
)
def test_what_cannot_be_sampled_from_is_refused(
    trainers_parts: tuple[Any, Any], break_it: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        build_engine_around(*break_it(*trainers_parts))


def test_a_learned_prompt_is_refused(trainers_parts: tuple[Any, Any]) -> None:
    import peft

    model, tokenizer = trainers_parts
    wrapped = peft.get_peft_model(model, peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))
    with pytest.raises(CapabilityError, match="adapter 'default' learns a prompt"):
        build_engine_around(wrapped, tokenizer)
