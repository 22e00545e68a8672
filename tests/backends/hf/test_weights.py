"""Weights of a running transformers engine: reloads, adapters, a trainer's tensors, sleep. Every answer is compared with a new start's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from evalharness.api.errors import BackendError, CapabilityError, CheckpointError, ContractTypeError, ContractValueError
from evalharness.api.options import ModelLoadConfig
from evalharness.checkpoints.adapter import read_settings
from evalharness.engine.cache import ResponseCache
from evalharness.engine.engine import Engine
from evalharness.engine.weights import WeightSync
from evalharness.training import TrainerEngine
from tests.backends.hf_models import load, make_text_checkpoint, model_of
from tests.backends.live_models import GREEDY, answers, copy, make_adapter, overwrite, state_dict

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_in_one_thread")]

Made: TypeAlias = "dict[str, Path]"
Cold: TypeAlias = "dict[str, Any]"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("live")
    return {
        "a": make_text_checkpoint(root / "a", seed=0),
        "b": make_text_checkpoint(root / "b", seed=1),
        "lora-1": make_adapter(root / "lora-1", seed=3),
        "lora-2": make_adapter(root / "lora-2", seed=4),
        "lora-8": make_adapter(root / "lora-8", seed=3, lora_alpha=16),
    }


@pytest.fixture(scope="module")
def cold(made: Made) -> dict[str, Any]:
    """What new starts answer."""
    found = {name: answers(start(made[name])) for name in "ab"}
    for name in ("lora-1", "lora-2", "lora-8"):
        found[name] = answers(start(made["a"], adapter_path=str(made[name])))
    found["b with lora-1"] = answers(start(made["b"], adapter_path=str(made["lora-1"])))
    assert len({tuple(one) for one in found.values()}) == len(found)
    return found


def start(folder: Path, **config: Any) -> Engine:
    return Engine(load(folder, **config))


@pytest.fixture
def engine(made: Made, tmp_path: Path) -> Engine:
    """An engine on a copy of `a`, at tmp_path / "a"."""
    return start(copy(made["a"], tmp_path / "a"))


def test_a_reload_answers_as_a_new_start_and_counts_the_version(engine: Engine, made: Made, cold: Cold) -> None:
    report = engine.weights.reload(str(made["b"]))
    assert answers(engine) == cold["b"]
    assert (report.source, report.weight_version, report.num_loaded) == (str(made["b"]), "1", 21)
    assert report.duration_s > 0
    assert engine.weights.reload(str(made["a"]), weight_version="step-7").weight_version == engine.weights.version == "step-7"
    assert answers(engine) == cold["a"]


def test_the_same_folder_rewritten_in_place_gives_the_new_weights(engine: Engine, made: Made, cold: Cold, tmp_path: Path) -> None:
    overwrite(tmp_path / "a", made["b"])
    assert answers(engine) == cold["a"]  # until it is asked for
    engine.weights.reload(str(tmp_path / "a"))
    assert answers(engine) == cold["b"]


def test_an_adapter_rewritten_in_place_answers_as_a_new_start(engine: Engine, made: Made, cold: Cold, tmp_path: Path) -> None:
    live = copy(made["lora-1"], tmp_path / "live")
    report = engine.weights.load_adapter(str(live))
    assert answers(engine) == cold["lora-1"]
    assert report.adapter is not None
    assert (report.num_loaded, report.adapter["path"], report.adapter["num_adapted_weights"]) == (12, str(live), 6)
    overwrite(live, made["lora-2"])
    assert answers(engine) == cold["lora-1"]
    assert engine.weights.load_adapter(str(live)).weight_version == "2"
    assert answers(engine) == cold["lora-2"]
    engine.weights.unload_adapter()
    assert answers(engine) == cold["a"]


def test_what_is_loaded_does_not_need_its_folder(engine: Engine, made: Made, cold: Cold, tmp_path: Path) -> None:
    engine.weights.load_adapter(str(copy(made["lora-1"], tmp_path / "live")))
    shutil.rmtree(tmp_path / "live")
    shutil.rmtree(tmp_path / "a")
    assert answers(engine) == cold["lora-1"]
    engine.weights.load_adapter(str(made["lora-2"]))
    assert answers(engine) == cold["lora-2"]
    engine.weights.unload_adapter()
    assert answers(engine) == cold["a"]
    engine.weights.reload(str(made["b"]))
    assert answers(engine) == cold["b"]


def test_a_swap_to_a_folder_that_was_rewritten_reads_it_again(engine: Engine, made: Made, cold: Cold, tmp_path: Path) -> None:
    overwrite(tmp_path / "a", made["b"])
    engine.weights.swap(ModelLoadConfig(str(tmp_path / "a"), torch_dtype="float32", device="cpu"))
    assert answers(engine) == cold["b"]
    assert engine.weights.version == "0"


def test_a_reload_with_an_adapter_is_one_change(engine: Engine, made: Made, cold: Cold) -> None:
    report = engine.weights.reload(str(made["b"]), adapter_path=str(made["lora-1"]))
    assert answers(engine) == cold["b with lora-1"]
    assert (report.weight_version, report.adapter is not None) == ("1", True)
    assert engine.weights.reload(str(made["b"])).adapter is None
    assert answers(engine) == cold["b"]


def test_weights_may_be_named_as_the_hub_names_them(
    engine: Engine, made: Made, cold: Cold, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for name in ("b", "lora-1"):
        model = tmp_path / f"models--org--{name}"
        (model / "refs").mkdir(parents=True)
        (model / "refs" / "main").write_text("1" * 40)
        (model / "snapshots").mkdir()
        (model / "snapshots" / ("1" * 40)).symlink_to(made[name])
    trainer = TrainerEngine(engine)
    for change, expected in (
        (lambda: trainer.reload_weights("org/b"), "b"),
        (lambda: trainer.reload_weights("org/lora-1"), "b with lora-1"),
        (lambda: engine.weights.reload("org/b@main"), "b"),
        (lambda: engine.weights.load_adapter("org/lora-1"), "b with lora-1"),
        (lambda: engine.weights.reload("org/b", adapter_path="org/lora-1"), "b with lora-1"),
    ):
        change()
        assert answers(engine) == cold[expected]
    with pytest.raises(CheckpointError, match="`hf download org/nothing`"):
        trainer.reload_weights("org/nothing")
    assert (answers(engine), engine.weights.version) == (cold["b with lora-1"], "5")


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        pytest.param(lambda e, m: e.weights.reload("nowhere"), CheckpointError, "there is no folder nowhere", id="no folder"),
        pytest.param(lambda e, m: e.weights.reload(str(m["lora-1"])), CheckpointError, "is an adapter, not a whole model", id="adapter"),
        pytest.param(lambda e, m: e.weights.load_adapter("nowhere"), CheckpointError, "there is no folder nowhere", id="no adapter folder"),
        pytest.param(
            lambda e, m: e.weights.load_adapter(str(m["b"])),
            CheckpointError,
            "is not an adapter: it has no adapter_config.json",
            id="no adapter",
        ),
        pytest.param(lambda e, m: e.weights.unload_adapter(), CapabilityError, "there is no adapter to remove", id="nothing to take off"),
    ],
)
def test_what_is_refused_leaves_weights_and_version_as_they_were(
    engine: Engine, made: Made, cold: Cold, change: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        change(engine, made)
    assert (answers(engine), engine.weights.version) == (cold["a"], "0")


def test_a_sync_whose_reload_failed_is_tried_again(engine: Engine, made: Made, cold: Cold, tmp_path: Path) -> None:
    live = tmp_path / "live"
    sync = WeightSync(lambda: engine.weights.load_adapter(str(live)))
    with pytest.raises(CheckpointError, match="there is no folder"):
        sync()
    assert sync.dirty
    copy(made["lora-1"], live)
    sync()
    assert (sync.dirty, answers(engine)) == (False, cold["lora-1"])


@contextmanager
def a_failing_disk(monkeypatch: pytest.MonkeyPatch, torch: Any) -> Iterator[None]:
    """Let the sixth tensor that is copied fail, and expect that."""
    copies = []

    def copy_until_the_disk_fails(self: Any, other: Any) -> Any:
        copies.append(1)
        if len(copies) > 5:
            raise OSError("input/output error")
        return copy_(self, other)

    copy_ = torch.Tensor.copy_
    with monkeypatch.context() as patch, pytest.raises(OSError, match="input/output"):
        patch.setattr(torch.Tensor, "copy_", copy_until_the_disk_fails)
        yield


def test_a_change_that_broke_off_lets_nothing_be_generated_until_a_checkpoint_is_loaded(
    engine: Engine, made: Made, cold: Cold, monkeypatch: pytest.MonkeyPatch, torch: Any
) -> None:
    with a_failing_disk(monkeypatch, torch):
        engine.weights.reload(str(made["b"]))
    with pytest.raises(BackendError, match=r"weights broke off.*input/output error; load a checkpoint \(engine.weights.reload\)"):
        answers(engine)
    with pytest.raises(BackendError, match="weights broke off"):
        engine.weights.load_adapter(str(made["lora-1"]))
    engine.weights.reload(str(made["b"]))
    assert answers(engine) == cold["b"]


def test_all_of_a_trainers_tensors_mend_a_change_that_broke_off_with_an_adapter_on(
    engine: Engine, made: Made, cold: Cold, monkeypatch: pytest.MonkeyPatch, torch: Any
) -> None:
    engine.weights.load_adapter(str(made["lora-1"]))
    with a_failing_disk(monkeypatch, torch):
        engine.weights.reload(str(made["b"]))
    engine.weights.sync_from_state_dict(state_dict(made["b"]))
    assert answers(engine) == cold["b"]


def test_an_adapter_that_could_not_be_filled_leaves_no_layer_behind(
    engine: Engine, made: Made, cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    import safetensors.torch

    model = model_of(engine)
    names = set(model.state_dict())

    def unreadable(path: Path) -> Any:
        raise OSError("stale file handle")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="stale file handle"):
        patch.setattr(safetensors.torch, "load_file", unreadable)
        engine.weights.load_adapter(str(made["lora-1"]))
    assert set(model.state_dict()) == names
    with pytest.raises(BackendError, match="broke off"):
        answers(engine)
    engine.weights.reload(str(made["a"]))
    assert answers(engine) == cold["a"]


def test_weights_do_not_change_under_a_stream(engine: Engine, made: Made) -> None:
    from evalharness.api.requests import TokenGenerationRequest

    stream = engine.stream([TokenGenerationRequest([5, 6]), TokenGenerationRequest([7])], GREEDY)
    next(stream)
    with pytest.raises(BackendError, match="still generates"):
        engine.weights.reload(str(made["b"]))
    stream.close()
    engine.weights.reload(str(made["b"]))


def test_a_models_tensors_answer_as_its_checkpoint(engine: Engine, made: Made, cold: Cold) -> None:
    report = engine.weights.sync_from_state_dict(state_dict(made["b"]))
    assert answers(engine) == cold["b"]
    assert (report.source, report.num_loaded, report.not_matched, report.missing) == ("tensors", 21, (), ())


def changed(tensors: dict[str, Any], **others: Any) -> dict[str, Any]:
    renamed = {name.replace("__", "."): tensor for name, tensor in others.items()}
    return {name: tensor for name, tensor in {**tensors, **renamed}.items() if tensor is not None}


@pytest.mark.parametrize(
    ("others", "error", "message"),
    [
        pytest.param({"head__weight": "model.norm.weight"}, ContractValueError, "1 of the names mean no weight .* 'head.weight'", id="new"),
        pytest.param({"lm_head__weight": None}, ContractValueError, "1 weight of the model not given.* 'lm_head.weight'", id="missing"),
    ],
)
def test_names_and_shapes_that_do_not_match_are_refused_and_nothing_changes(
    engine: Engine, made: Made, cold: Cold, others: dict[str, str | None], error: type[Exception], message: str
) -> None:
    tensors = state_dict(made["b"])
    given = changed(tensors, **{name: tensors[source].clone() if source is not None else None for name, source in others.items()})
    with pytest.raises(error, match=message):
        engine.weights.sync_from_state_dict(given)
    assert (answers(engine), engine.weights.version) == (cold["a"], "0")


def test_what_is_no_tensor_or_quantized_is_refused(engine: Engine, made: Made, torch: Any) -> None:
    tensors = state_dict(made["b"])
    with pytest.raises(ContractTypeError, match="tensors must map names to torch tensors, got 'lm_head.weight': list"):
        engine.weights.sync_from_state_dict({**tensors, "lm_head.weight": [1.0]})
    with pytest.raises(ContractValueError, match=r"'lm_head.weight' holds torch.int8, which is quantized"):
        engine.weights.sync_from_state_dict({**tensors, "lm_head.weight": tensors["lm_head.weight"].to(torch.int8)})
    with pytest.raises(ContractValueError, match="'lm_head.weight' is a part of a sharded tensor, or has no values"):
        engine.weights.sync_from_state_dict({**tensors, "lm_head.weight": tensors["lm_head.weight"].to("meta")})


def test_what_is_not_strict_is_left_out_and_reported(engine: Engine, made: Made, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    tensors = state_dict(made["b"])
    given = {"head.weight": tensors["lm_head.weight"].clone(), "model.norm.weight": tensors["model.norm.weight"] * 2}
    report = engine.weights.sync_from_state_dict(given, strict=False)
    assert (report.num_loaded, report.not_matched, len(report.missing)) == (1, ("head.weight",), 20)
    folder = copy(made["a"], tmp_path / "mixed")
    mixed = {**state_dict(made["a"]), "model.norm.weight": given["model.norm.weight"]}
    save_file(mixed, folder / "model.safetensors", metadata={"format": "pt"})
    assert answers(engine) == answers(start(folder))


def test_a_base_that_somebody_trained_is_not_kept_by_a_swap_back_to_it(
    engine: Engine, made: Made, cold: Cold, tmp_path: Path, torch: Any
) -> None:
    with torch.no_grad():
        for weight in model_of(engine).parameters():
            weight.mul_(1.5)
    engine.weights.load_adapter(str(made["lora-1"]))
    engine.weights.swap(ModelLoadConfig(str(tmp_path / "a"), torch_dtype="float32", device="cpu"))
    assert answers(engine) == cold["a"]


def test_tensors_of_which_none_is_meant_are_no_change_strict_or_not(engine: Engine, torch: Any) -> None:
    for strict in (True, False):
        with pytest.raises(ContractValueError, match="none of the names means a weight of the model, such as 'other.weight'"):
            engine.weights.sync_from_state_dict({"other.weight": torch.ones(2)}, strict=strict)
    assert engine.weights.version == "0"


def test_an_adapters_tensors_answer_as_its_folder(engine: Engine, made: Made, cold: Cold) -> None:
    first, second, scaled = (state_dict(made[name]) for name in ("lora-1", "lora-2", "lora-8"))
    report = engine.weights.sync_from_state_dict(first, adapter_config=read_settings(made["lora-1"]))
    assert answers(engine) == cold["lora-1"]
    assert (report.num_loaded, report.source, report.weight_version) == (12, "tensors", "1")
    engine.weights.sync_from_state_dict(second)  # scaled as the one before
    assert answers(engine) == cold["lora-2"]
    engine.weights.sync_from_state_dict(scaled, adapter_config=read_settings(made["lora-8"]))
    assert answers(engine) == cold["lora-8"]
    assert engine.describe()["adapter"]["path"] == "tensors"
    engine.weights.unload_adapter()
    assert answers(engine) == cold["a"]


def test_an_adapter_of_peft_is_taken_as_peft_has_it(engine: Engine, made: Made) -> None:
    import peft
    import torch

    model = load(made["a"]).model
    config = peft.LoraConfig(r=2, lora_alpha=3, use_rslora=True, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    wrapped = peft.get_peft_model(model, config)
    report = engine.weights.sync_from_state_dict(peft.get_peft_model_state_dict(wrapped), adapter_config=wrapped.peft_config["default"])
    assert report.adapter is not None
    assert report.adapter["scalings"] == pytest.approx([3 / 2**0.5])
    own = model_of(engine)
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        torch.testing.assert_close(own(input_ids=ids).logits, wrapped(input_ids=ids).logits)
    with pytest.raises(ContractValueError, match="is a weight of the base, between tensors of its adapter"):
        engine.weights.sync_from_state_dict(wrapped.state_dict(), adapter_config=config)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda t, s: (t, None), "do not say how they are scaled; give adapter_config", id="no settings"),
        pytest.param(
            lambda t, s: (t, {**s, "r": 4}), "the tensors do not form an adapter of the loaded model: .* has rank 2", id="another rank"
        ),
        pytest.param(lambda t, s: (t, {**s, "use_dora": True}), "use_dora set, which is more than plain LoRA", id="more than LoRA"),
        pytest.param(
            lambda t, s: ({**t, "model.layers.9.mlp.up_proj.lora_A.weight": t[min(t)]}, s),
            "1 of the names adapt no weight of the model, such as 'model.layers.9",
            id="another model",
        ),
        pytest.param(lambda t, s: ({"x.lora_A.weight": t[min(t)]}, s), "names adapt no weight of the model", id="none of it"),
    ],
)
def test_tensors_that_are_no_adapter_of_this_model_are_refused(engine: Engine, made: Made, cold: Cold, change: Any, message: str) -> None:
    tensors, settings = change(state_dict(made["lora-1"]), read_settings(made["lora-1"]))
    with pytest.raises(ContractValueError, match=message):
        engine.weights.sync_from_state_dict(tensors, adapter_config=settings)
    assert (answers(engine), engine.weights.version) == (cold["a"], "0")


def test_an_adapters_tensors_that_mean_nothing_here_are_left_out_where_that_is_allowed(engine: Engine, made: Made, cold: Cold) -> None:
    tensors, settings = state_dict(made["lora-1"]), read_settings(made["lora-1"])
    strange = {f"draft.lora_{part}.weight": tensors[min(tensors)] for part in "AB"}
    report = engine.weights.sync_from_state_dict({**tensors, **strange}, adapter_config=settings, strict=False)
    assert (answers(engine), report.not_matched) == (cold["lora-1"], tuple(strange))


def test_whole_weights_under_an_adapter_are_refused(engine: Engine, made: Made) -> None:
    engine.weights.load_adapter(str(made["lora-1"]))
    with pytest.raises(CapabilityError, match=r"an adapter is loaded, .*; call unload_adapter\(\) first"):
        engine.weights.sync_from_state_dict(state_dict(made["b"]))


def test_an_adapter_goes_onto_weights_that_came_from_memory(engine: Engine, made: Made, cold: Cold) -> None:
    engine.weights.sync_from_state_dict(state_dict(made["b"]))
    engine.weights.load_adapter(str(made["lora-1"]))
    assert answers(engine) == cold["b with lora-1"]
    engine.weights.unload_adapter()
    assert answers(engine) == cold["b"]


def test_answers_of_other_weights_are_not_taken_from_the_cache(engine: Engine, made: Made, cold: Cold) -> None:
    cache = ResponseCache()
    engine.use_cache(cache, {"checkpoint": "a"})
    assert answers(engine) == answers(engine) == cold["a"]
    assert cache.counts.hits == 4
    engine.weights.load_adapter(str(made["lora-1"]))
    assert answers(engine) == cold["lora-1"]
    assert cache.counts.hits == 4
    assert answers(engine) == cold["lora-1"]
    assert cache.counts.hits == 8


def test_a_step_of_training_on_the_engines_own_model_is_a_new_version(engine: Engine, tmp_path: Path, torch: Any) -> None:
    engine.use_cache(ResponseCache(), {"checkpoint": "a"})
    before = answers(engine)
    optimizer = torch.optim.SGD(model_of(engine).parameters(), lr=10.0)
    scores = engine.get_logprobs([[5, 6, 7]], [[8, 9]], grad=True)
    scores.values[scores.mask].sum().backward()
    optimizer.step()
    assert engine.weights.version == "1"
    assert engine.weights.were_changed
    assert answers(engine) != before
    engine.weights.swap(ModelLoadConfig(str(tmp_path / "a"), torch_dtype="float32", device="cpu"))
    assert (answers(engine), engine.weights.were_changed) == (before, False)


def test_weights_that_slept_are_the_same_to_the_bit_and_nothing_is_asked_of_sleepers(
    engine: Engine, made: Made, cold: Cold, torch: Any
) -> None:
    model = model_of(engine)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine.weights.sleep()
    assert sum(parameter.numel() for parameter in model.parameters()) == 0
    for use in (answers, lambda sleeping: sleeping.weights.reload(str(made["b"])), lambda sleeping: sleeping.weights.load_adapter("x")):
        with pytest.raises(CapabilityError, match=r"backend 'hf' sleeps.*wake the engine first \(engine.weights.wake\(\)\)"):
            use(engine)
    engine.weights.sleep()  # sleeps already
    engine.weights.wake("kv_cache")
    with pytest.raises(CapabilityError, match="sleeps"):
        answers(engine)
    engine.weights.wake("weights")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert (answers(engine), engine.weights.version) == (cold["a"], "0")
    engine.weights.wake()  # is awake already


def test_weights_that_find_no_room_stay_and_those_that_cannot_come_back_are_kept(
    engine: Engine, cold: Cold, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tempfile

    import torch

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(tempfile, "TemporaryFile", full)
        with pytest.raises(BackendError, match="cannot be put away, they stay where they are: .*No space left"):
            engine.weights.sleep()
    assert answers(engine) == cold["a"]
    engine.weights.sleep()
    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", full)
        with pytest.raises(BackendError, match="cannot be brought back, try again when there is room"):
            engine.weights.wake()
    with pytest.raises(CapabilityError, match="sleeps"):
        answers(engine)
    engine.weights.wake()
    assert answers(engine) == cold["a"]


def test_tied_weights_are_tied_after_sleep_and_may_be_given_once_or_twice(torch: Any) -> None:
    engine = start(Path(__file__).parents[3] / "fixtures" / "checkpoints" / "early")
    model = model_of(engine)
    engine.weights.sleep()
    engine.weights.wake()
    assert model.lm_head.weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    tensors = {name: tensor.clone() * 1.5 for name, tensor in model.state_dict().items()}
    report = engine.weights.sync_from_state_dict(tensors)
    assert (report.missing, len(report.tied)) == ((), 1)
    assert torch.equal(model.lm_head.weight, tensors["lm_head.weight"])
    with pytest.raises(ContractValueError, match="differ, but the model has one weight for both"):
        engine.weights.sync_from_state_dict({**tensors, "lm_head.weight": tensors["lm_head.weight"] * 2})
    del tensors["lm_head.weight"]
    assert engine.weights.sync_from_state_dict(tensors).missing == ()
    engine.close()
