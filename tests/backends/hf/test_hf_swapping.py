"""Swaps and adapters in a transformers model, on tiny random checkpoints and on the trained ones of the fixtures."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import BackendError, CheckpointError
from evalharness.api.options import ModelLoadConfig
from evalharness.backends.loaded_weights import merged_weights
from evalharness.checkpoints.adapter import read_adapter
from evalharness.checkpoints.weights import base_shapes
from tests.adapters import write_adapter
from tests.backends.hf_models import END_ID, ids, load, make_text_checkpoint, mixed_prompts, run

CHECKPOINTS = Path(__file__).parents[3] / "fixtures" / "checkpoints"
MODULES = {"self_attn.q_proj": (64, 64), "self_attn.v_proj": (64, 64), "mlp.down_proj": (64, 128)}


pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_in_one_thread")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two checkpoints of one architecture, and an adapter of the first."""
    root = tmp_path_factory.mktemp("swapping")
    draw = random.Random(3)
    tensors = {}
    for layer in range(2):
        for module, (num_out, num_in) in MODULES.items():
            name = f"model.layers.{layer}.{module}"
            tensors[f"{name}.lora_A.weight"] = [[draw.gauss(0, 0.3) for _ in range(num_in)] for _ in range(2)]
            tensors[f"{name}.lora_B.weight"] = [[draw.gauss(0, 0.3) for _ in range(2)] for _ in range(num_out)]
    targets = [name.rpartition(".")[2] for name in MODULES]
    return {
        "a": make_text_checkpoint(root / "a", seed=0),
        "b": make_text_checkpoint(root / "b", seed=1, generation_config={"eos_token_id": [END_ID, 9]}),
        "lora": write_adapter(root / "lora", tensors, base="a", target_modules=targets),
    }


def config(folder: Path, adapter: Path | None = None, **changes: Any) -> ModelLoadConfig:
    path = str(adapter) if adapter is not None else None
    return ModelLoadConfig(str(folder), **{"torch_dtype": "float32", "device": "cpu", "adapter_path": path, **changes})


def answers(backend: Any) -> dict[int, tuple[int, ...]]:
    return ids(run(backend, mixed_prompts()))


def cold(folder: Path, adapter: Path | None = None) -> dict[int, tuple[int, ...]]:
    backend = load(folder, adapter_path=str(adapter) if adapter is not None else None)
    return answers(backend)


def merged(folder: Path, adapter: Path, out: Path) -> Path:
    """Return `out`, now the checkpoint with the adapter's product added to its weights."""
    import torch
    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, out)
    weights = load_file(folder / "model.safetensors").items()
    found = read_adapter(adapter, base_shapes(folder))
    save_file(dict(merged_weights(weights, found, torch.float32)), out / "model.safetensors", metadata={"format": "pt"})
    return out


def test_bases_and_adapters_that_take_each_others_place_answer_as_new_starts(folders: dict[str, Path]) -> None:
    adapter = folders["lora"]
    wanted = {(base, lora): cold(folders[base], lora) for base in "ab" for lora in (None, adapter)}
    assert len({tuple(each.items()) for each in wanted.values()}) == 4
    backend = load(folders["a"], adapter_path=str(adapter))
    for base, lora in (("b", None), ("b", adapter), ("a", None), ("a", adapter), ("a", None), ("a", adapter), ("b", None)):
        backend.weights.swap(config(folders[base], lora))
        assert answers(backend) == wanted[base, lora]
        assert (backend.describe()["adapter"] or {}).get("num_adapted_weights") == (None if lora is None else 6)
    assert set(backend.eos_token_ids) == {END_ID, 9}
    assert set(backend.model.generation_config.eos_token_id) == {END_ID, 9}, "other code that generates with the model ends there, too"


def test_a_swap_leaves_every_weight_as_a_new_start_has_it(folders: dict[str, Path], torch: Any) -> None:
    backend, other = load(folders["a"], torch_dtype="bfloat16"), load(folders["b"], torch_dtype="bfloat16")
    backend.weights.swap(config(folders["b"], torch_dtype="bfloat16"))
    own, wanted = backend.model.state_dict(), other.model.state_dict()
    assert list(own) == list(wanted)
    assert all(own[name].dtype == wanted[name].dtype and torch.equal(own[name], wanted[name]) for name in own)


def test_an_adapter_answers_as_its_merged_checkpoint(folders: dict[str, Path], tmp_path: Path) -> None:
    found = cold(folders["a"], folders["lora"])
    assert found == cold(merged(folders["a"], folders["lora"], tmp_path / "merged"))
    assert found != cold(folders["a"])


def test_weights_that_an_adapter_replaces_come_back_when_it_goes(folders: dict[str, Path], tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    folder = tmp_path / "lora"
    shutil.copytree(folders["lora"], folder)
    tensors = load_file(folder / "adapter_model.safetensors")
    tensors["base_model.model.lm_head.weight"] = load_file(folders["b"] / "model.safetensors")["lm_head.weight"]
    save_file(tensors, folder / "adapter_model.safetensors")
    backend = load(folders["a"])
    first = {name: tensor.clone() for name, tensor in backend.model.state_dict().items()}
    backend.weights.swap(config(folders["a"], folder))
    assert answers(backend) == cold(merged(folders["a"], folder, tmp_path / "merged"))
    backend.weights.swap(config(folders["a"]))
    assert all(torch.equal(tensor, first[name]) for name, tensor in backend.model.state_dict().items())


def test_an_adapter_that_does_not_fit_is_refused_before_its_base_is_loaded(folders: dict[str, Path], tmp_path: Path) -> None:
    folder = write_adapter(
        tmp_path / "lora", {"model.layers.9.q_proj.lora_A.weight": [[1.0]], "model.layers.9.q_proj.lora_B.weight": [[1.0]]}
    )
    with pytest.raises(CheckpointError, match="no weight of its base, so it would be ignored"):
        load(folders["a"], adapter_path=str(folder))


def test_what_cannot_be_swapped_says_why(folders: dict[str, Path], tmp_path: Path) -> None:
    path = shutil.copytree(folders["b"], tmp_path / "c") / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "rope_theta": 1.0}))
    backend = load(folders["a"])
    assert "config.json differs in rope_theta" in (backend.weights.why_not_swap(config(tmp_path / "c")) or "")
    with pytest.raises(BackendError, match="cannot take the place of the loaded checkpoint"):
        backend.weights.swap(config(tmp_path / "c"))


@pytest.mark.parametrize(
    ("rename", "message"),
    [
        pytest.param({"lm_head.weight": None}, "it lacks the model's lm_head.weight", id="lacks"),
        pytest.param({"lm_head.weight": "head.weight"}, "its head.weight is not a weight of the model as it is in memory", id="other-name"),
    ],
)
def test_tensors_that_do_not_pair_with_the_models_start_anew(
    folders: dict[str, Path], tmp_path: Path, rename: dict[str, str | None], message: str
) -> None:
    from safetensors.torch import load_file, save_file

    shutil.copytree(folders["b"], tmp_path / "c")
    tensors = load_file(tmp_path / "c" / "model.safetensors")
    changed = {new: tensor for name, tensor in tensors.items() if (new := rename.get(name, name)) is not None}
    save_file(changed, tmp_path / "c" / "model.safetensors", metadata={"format": "pt"})
    assert message in (load(folders["a"]).weights.why_not_swap(config(tmp_path / "c")) or "")


def test_weights_of_an_adapter_that_found_none_of_the_bases_are_an_error(folders: dict[str, Path], torch: Any) -> None:
    found = read_adapter(folders["lora"], base_shapes(folders["a"]))
    with pytest.raises(CheckpointError, match="6 weights of adapter .* not applied"):
        list(merged_weights([("x", torch.zeros(1))], found, torch.float32))


def test_the_trained_adapters_answer_as_their_merged_checkpoints(tmp_path: Path, torch: Any) -> None:
    backend = load(CHECKPOINTS / "early")
    prompt = [backend.tokenizer.encode("<|im_start|>user\n结论<|im_end|>\n<|im_start|>assistant\n", add_special_tokens=False)]
    for name in ("lora-helps", "lora-hurts"):
        backend.weights.swap(config(CHECKPOINTS / "middle", CHECKPOINTS / name))
        other = load(merged(CHECKPOINTS / "middle", CHECKPOINTS / name, tmp_path / name))
        with torch.no_grad():
            own, wanted = (one.model(input_ids=torch.tensor(prompt)).logits for one in (backend, other))
        torch.testing.assert_close(own, wanted, atol=1e-4, rtol=0)
