"""Weights of a running vLLM: every answer is compared with transformers' on the same weights, prefixes and pictures included.

All tests share the session's engine, which has its own checkpoint back after each.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.api.errors import CapabilityError, CheckpointError, ContractValueError
from evalharness.api.options import ModelLoadConfig
from evalharness.api.requests import VlmGenerationRequest
from evalharness.checkpoints.adapter import read_settings
from evalharness.engine.engine import Engine
from tests import vllm_installed
from tests.backends.hf_models import load
from tests.backends.live_models import GREEDY, answers, copy, make_adapter, overwrite, perturbed, state_dict, training_loops
from tests.backends.vllm_models import noise

if TYPE_CHECKING:
    from evalharness.backends.vllm.backend import VllmBackend

pytestmark = [pytest.mark.vllm, pytest.mark.skipif(not vllm_installed.IS_INSTALLED, reason=vllm_installed.WHY_NOT)]

LAYERS = "model.language_model.layers"
LONG = [random.Random(1).randrange(2, 640) for _ in range(400)]
SHORT = [[5, 6, 7], [9]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory, tiny_vlm_checkpoint: Path) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("live")
    return {
        "a": tiny_vlm_checkpoint,
        "b": perturbed(tiny_vlm_checkpoint, root / "b", seed=1),
        "lora-1": make_adapter(root / "lora-1", seed=3, layers=LAYERS),
        "lora-2": make_adapter(root / "lora-2", seed=4, layers=LAYERS),
    }


def asked(engine: Engine) -> list[tuple[int, ...]]:
    """Return the ids behind a long prompt, short ones and a picture."""
    content = [{"type": "image", "image": noise(96, 64)}, {"type": "text", "text": "what"}]
    [seen] = engine.generate_vlm_batch([VlmGenerationRequest([{"role": "user", "content": content}])], GREEDY)
    return [*answers(engine, [LONG, *SHORT]), seen.token_ids]


@pytest.fixture(scope="module")
def wanted(made: dict[str, Path]) -> dict[str, Any]:
    """What transformers, started anew on each, answers."""
    found = {}
    for name, base, adapter in (("a", "a", None), ("b", "b", None), ("1", "a", "lora-1"), ("2", "a", "lora-2"), ("b1", "b", "lora-1")):
        engine = Engine(load(made[base], adapter_path=None if adapter is None else str(made[adapter])))
        found[name] = asked(engine)
        engine.close()
    assert len({tuple(one) for one in found.values()}) == len(found)
    assert found["a"][3] != found["b"][3]
    return found


@pytest.fixture
def engine(vllm_vlm_backend: VllmBackend, tiny_vlm_checkpoint: Path) -> Iterator[Engine]:
    yield Engine(vllm_vlm_backend)
    vllm_vlm_backend.weights.swap(ModelLoadConfig(str(tiny_vlm_checkpoint), torch_dtype="float32"))


@pytest.fixture
def cached_tokens(vllm_vlm_backend: VllmBackend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens of each prompt vLLM took from its prefix cache, as requests end."""
    counts: list[int] = []
    step = vllm_vlm_backend._engine.step

    def watched() -> list[Any]:
        news = step()
        counts.extend(output.num_cached_tokens for output in news if output.finished)
        return news

    monkeypatch.setattr(vllm_vlm_backend._engine, "step", watched)
    return counts


def test_an_adapter_rewritten_in_place_answers_as_a_new_start_without_cached_tokens(
    engine: Engine, made: dict[str, Path], wanted: dict[str, Any], cached_tokens: list[int], tmp_path: Path
) -> None:
    live = copy(made["lora-1"], tmp_path / "live")
    engine.weights.load_adapter(str(live))
    assert answers(engine, [LONG]) == answers(engine, [LONG]) == wanted["1"][:1]
    assert cached_tokens[0] == 0
    assert cached_tokens[1] >= 256  # the cache is on
    overwrite(live, made["lora-2"])
    report = engine.weights.load_adapter(str(live))
    del cached_tokens[:]
    assert answers(engine, [LONG]) == wanted["2"][:1]
    assert cached_tokens == [0]
    assert (report.weight_version, report.num_loaded) == ("2", 12)
    assert asked(engine) == wanted["2"]


def test_a_prompt_that_branches_off_one_of_the_old_weights_answers_as_on_a_fresh_engine(
    engine: Engine, made: dict[str, Path], cached_tokens: list[int]
) -> None:
    branches = [[*LONG[:350], 7, 8], [*LONG[:350], 9]]
    answers(engine, [LONG])
    engine.weights.reload(str(made["b"]))
    del cached_tokens[:]
    found = [answers(engine, [branch])[0] for branch in branches]
    assert cached_tokens[0] == 0
    assert cached_tokens[1] > 0  # of the first branch, which the new weights have seen
    assert found == answers(Engine(load(made["b"])), branches)


def test_a_base_that_is_not_what_was_loaded_is_not_read_for_an_adapter(
    engine: Engine, made: dict[str, Path], wanted: dict[str, Any], tmp_path: Path
) -> None:
    live = copy(made["a"], tmp_path / "a")
    engine.weights.reload(str(live))
    overwrite(live, made["b"])
    with pytest.raises(CheckpointError, match="has changed since it was loaded, or is gone, .* with engine.weights.reload"):
        engine.weights.load_adapter(str(made["lora-1"]))
    assert (answers(engine, SHORT), engine.weights.version) == (wanted["a"][1:3], "1")


def test_a_models_tensors_answer_as_its_checkpoint_and_carry_an_adapter(
    engine: Engine, made: dict[str, Path], wanted: dict[str, Any]
) -> None:
    tensors = state_dict(made["b"])
    report = engine.weights.sync_from_state_dict({f"module.{name}": tensor for name, tensor in tensors.items()}, weight_version="step-1")
    assert asked(engine) == wanted["b"]
    assert (report.num_loaded, report.not_matched, report.missing, report.weight_version) == (len(tensors), (), (), "step-1")
    engine.weights.load_adapter(str(made["lora-1"]))
    assert asked(engine) == wanted["b1"]
    engine.weights.unload_adapter()
    assert asked(engine) == wanted["b"]


def test_some_tensors_over_others_over_the_checkpoint(
    engine: Engine, made: dict[str, Path], wanted: dict[str, Any], tmp_path: Path
) -> None:
    from safetensors.torch import save_file

    tensors = state_dict(made["b"])
    head = {"lm_head.weight": tensors["lm_head.weight"]}
    layer = {name: tensor for name, tensor in tensors.items() if ".layers.1." in name}
    with pytest.raises(ContractValueError, match=f"{len(tensors) - 1} weights of the model not given"):
        engine.weights.sync_from_state_dict(head)
    assert answers(engine, SHORT) == wanted["a"][1:3]
    report = engine.weights.sync_from_state_dict({**head, "head.weight": tensors["lm_head.weight"].clone()}, strict=False)
    assert (report.not_matched, len(report.missing)) == (("head.weight",), len(tensors) - 1)
    engine.weights.sync_from_state_dict(layer, strict=False)
    mixed = copy(made["a"], tmp_path / "mixed")
    save_file({**state_dict(made["a"]), **head, **layer}, mixed / "model.safetensors", metadata={"format": "pt"})
    assert asked(engine) == asked(Engine(load(mixed)))


def test_an_adapters_tensors_answer_as_its_folder(engine: Engine, made: dict[str, Path], wanted: dict[str, Any]) -> None:
    engine.weights.sync_from_state_dict(state_dict(made["lora-1"]), adapter_config=read_settings(made["lora-1"]))
    assert asked(engine) == wanted["1"]
    engine.weights.sync_from_state_dict(state_dict(made["lora-2"]))
    assert asked(engine) == wanted["2"]
    engine.weights.unload_adapter()
    assert asked(engine) == wanted["a"]


def test_a_trainers_tensors_take_no_room_once_they_are_replaced_or_nobody_holds_them(
    engine: Engine, made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalharness.backends.vllm import weights as vllm_weights

    monkeypatch.setattr(vllm_weights, "_SHARED_MEMORY", tmp_path)
    engine.weights.sync_from_state_dict(state_dict(made["b"]))
    given = engine.backend.weights._given  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == [], "a killed process leaves nothing behind: the file has no name any more"
    file = given._file
    engine.weights.reload(str(made["a"]))
    assert file.closed


def test_a_start_removes_what_was_left_half_written_in_shared_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evalharness.backends.vllm import weights as vllm_weights

    monkeypatch.setattr(vllm_weights, "_SHARED_MEMORY", tmp_path)
    left, fresh, foreign = (tmp_path / name for name in ("evalharness-weights-left", "evalharness-weights-fresh", "others"))
    for folder in (left, fresh, foreign):
        folder.mkdir()
    os.utime(left, (0, 0))
    os.utime(foreign, (0, 0))
    (tmp_path / "evalharness-weights-link").symlink_to(foreign, target_is_directory=True)
    vllm_weights.remove_abandoned_files()
    assert not left.exists()
    assert fresh.is_dir()
    assert foreign.is_dir()


def test_a_cpu_has_no_sleep_mode(engine: Engine) -> None:
    with pytest.raises(CapabilityError, match=r"cannot do this to its weights \(sleep\): vLLM's sleep mode gives a GPU's memory back"):
        engine.weights.sleep()


def test_a_trainers_loop_beside_vllm_samples_from_what_was_trained(engine: Engine, made: dict[str, Path]) -> None:
    import transformers

    model = transformers.AutoModelForImageTextToText.from_pretrained(made["a"]).train()
    loops = training_loops()
    before = answers(engine, SHORT)
    reward = lambda sample: sum(token_id < 100 for token_id in sample.token_ids) / len(sample.token_ids)  # noqa: E731
    history = loops["train_beside"](engine, model, engine.tokenizer, SHORT, reward, 2)
    assert [version for version, _ in history] == ["1", "2"]
    assert engine.weights.version == "3"
    assert answers(engine, SHORT) == answers(loops["build_engine_around"](model, engine.tokenizer), SHORT) != before
