"""Adapters and bases are written by hand here; what an engine makes of them is tested beside the backends."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import CheckpointError
from evalharness.checkpoints.adapter import find_base, fits_of, read_adapter
from evalharness.checkpoints.identity import fingerprint_adapter
from evalharness.checkpoints.info import inspect_checkpoint
from evalharness.checkpoints.weights import base_shapes, is_adapter
from tests.adapters import lora, matrix, write_adapter

CHECKPOINTS = Path(__file__).parents[2] / "fixtures" / "checkpoints"
Q, K = "model.layers.0.q_proj", "model.layers.0.k_proj"
BASE = {f"{Q}.weight": (6, 4), f"{K}.weight": (3, 4), f"{Q}.bias": (6,), "lm_head.weight": (9, 4)}


def adapter(tmp_path: Path, tensors: dict[str, Any] | None = None, **settings: Any) -> Path:
    return write_adapter(tmp_path / "lora", lora(Q, 6, 4) if tensors is None else tensors, **settings)


def test_an_adapter_that_fits_says_what_it_adapts_and_by_how_much(tmp_path: Path) -> None:
    found = read_adapter(adapter(tmp_path), BASE)
    (weight,) = found.weights
    assert (weight.base_name, weight.rank, weight.scaling) == (f"{Q}.weight", 2, 2.0)
    assert found.notices == ()
    assert found.to_json() == {
        "path": str(tmp_path / "lora"),
        "fingerprint": found.fingerprint,
        "ranks": [2],
        "scalings": [2.0],
        "num_adapted_weights": 1,
        "num_replaced_weights": 0,
    }


@pytest.mark.parametrize(
    ("settings", "scaling"),
    [
        pytest.param({}, 2.0, id="alpha-over-rank"),
        pytest.param({"use_rslora": True}, 4 / 2**0.5, id="rslora"),
        pytest.param({"alpha_pattern": {"q_proj": 6}}, 3.0, id="pattern-of-alpha"),
        pytest.param({"r": 64, "rank_pattern": {r"layers\.\d\.q_proj": 2}}, 2.0, id="pattern-of-rank"),
        pytest.param({"alpha_pattern": {"k_proj": 6}}, 2.0, id="pattern-of-others"),
    ],
)
def test_scaling_is_what_training_used(tmp_path: Path, settings: dict[str, Any], scaling: float) -> None:
    (weight,) = read_adapter(adapter(tmp_path, **settings), BASE).weights
    assert weight.scaling == pytest.approx(scaling)


def test_weights_go_by_names_of_an_older_release_and_whole_ones_replace_the_bases(tmp_path: Path) -> None:
    base = {"model.language_model.layers.0.q_proj.weight": (6, 4), "model.visual.layers.0.q_proj.weight": (6, 4)}
    (weight,) = read_adapter(adapter(tmp_path), base).weights
    assert weight.base_name == "model.language_model.layers.0.q_proj.weight"
    tensors = {**lora(Q, 6, 4), "lm_head.weight": matrix(9, 4)}
    found = read_adapter(adapter(tmp_path, tensors, modules_to_save=["lm_head"]), BASE)
    assert dict(found.replaced) == {"lm_head.weight": "base_model.model.lm_head.weight"}
    (notice,) = read_adapter(adapter(tmp_path, target_modules=["q_proj", "c_attn"]), BASE).notices
    assert notice.endswith("names 'c_attn', which is nothing in its base")


@pytest.mark.parametrize(
    ("tensors", "settings", "message"),
    [
        pytest.param(
            lora("model.layers.7.q_proj", 6, 4), {}, "no weight of its base, so it would be ignored; .*--base-model", id="no-module"
        ),
        pytest.param(lora(Q, 5, 4), {}, r"shape \[5, 4\], but the base's .* has \[6, 4\]", id="shape"),
        pytest.param(lora(Q, 6, 4, rank=3), {}, "has rank 3 in .* but adapter_config.json says 2", id="rank-of-the-settings"),
        pytest.param(
            {f"{Q}.lora_A.weight": matrix(2, 4), f"{Q}.lora_B.weight": matrix(6, 3)}, {}, "has rank 2 in .* but 3 in", id="a-and-b"
        ),
        pytest.param({f"{Q}.lora_A.weight": matrix(2, 4)}, {}, "has only .* A and B belong together", id="no-b"),
        pytest.param(lora(Q, 6, 4), {"lora_alpha": 0}, "lora_alpha in .* must be above 0 .* for .*, got 0", id="alpha-0"),
        pytest.param(lora(Q, 6, 4), {"r": 10**400}, "r in .* must be above 0 and below 1e.09 for .*, got 1000", id="huge-rank"),
        pytest.param(lora(Q, 6, 4), {"lora_alpha": None}, "got None", id="no-alpha"),
        pytest.param(
            lora(Q, 6, 4), {"target_modules": ["q_proj", "k_proj"]}, "names 'k_proj', but .* has no weights for it", id="lacks-target"
        ),
        pytest.param(lora(Q, 6, 4), {"modules_to_save": ["lm_head"]}, "names 'lm_head', but", id="lacks-module-to-save"),
        pytest.param({**lora(Q, 6, 4), **lora(f"language_model.{Q}", 6, 4)}, {}, "adapts .* twice", id="twice"),
        pytest.param({**lora(Q, 6, 4), f"{Q}.lora_magnitude_vector": matrix(1, 6)}, {}, "more than plain LoRA: merge", id="dora-weights"),
        pytest.param({"embed.lora_embedding_A": matrix(2, 4)}, {}, "more than plain LoRA", id="embedding"),
        pytest.param(lora(Q, 6, 4), {"use_dora": True}, "use_dora set, which is more than plain LoRA: merge", id="dora"),
        pytest.param(lora(Q, 6, 4), {"init_lora_weights": "pissa"}, "'pissa', which changes the base: merge", id="pissa"),
        pytest.param(lora(Q, 6, 4), {"peft_type": "IA3"}, "peft_type 'IA3'; only 'LORA'", id="other-kind"),
        pytest.param({}, {}, "holds no weights", id="no-weights"),
    ],
)
def test_an_adapter_whose_weights_would_be_ignored_or_do_not_fit_is_refused(
    tmp_path: Path, tensors: dict[str, Any], settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_adapter(adapter(tmp_path, tensors, **settings), BASE)


def test_pickled_adapters_and_bases_are_refused(tmp_path: Path) -> None:
    folder = adapter(tmp_path)
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(CheckpointError, match="but adapter_model.bin, a pickle"):
        read_adapter(folder, BASE)
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(CheckpointError, match="it cannot be checked whether an adapter fits it"):
        base_shapes(tmp_path)


@pytest.mark.parametrize("zero", [0.0, -0.0], ids=["plus", "minus"])
def test_an_untrained_adapter_or_an_unusual_scaling_is_noticed(tmp_path: Path, zero: float) -> None:
    tensors = {f"{Q}.lora_A.weight": matrix(2, 4), f"{Q}.lora_B.weight": [[zero] * 2] * 6}
    (notice,) = read_adapter(adapter(tmp_path, tensors), BASE).notices
    assert "changes nothing: every A or every B is zero" in notice
    (notice,) = read_adapter(adapter(tmp_path, lora_alpha=400), BASE).notices
    assert "is scaled by 200 (lora_alpha over r), which is unusual" in notice


def test_a_fingerprint_is_of_the_adapter_wherever_its_base_lies(tmp_path: Path) -> None:
    one, same = (write_adapter(tmp_path / name, lora(Q, 6, 4), base=name) for name in ("a", "b"))
    other = write_adapter(tmp_path / "c", lora(Q, 6, 4, seed=5))
    assert fingerprint_adapter(one) == fingerprint_adapter(same) != fingerprint_adapter(other)
    assert fits_of(["model.a.weight", "b.weight"], {"model.language_model.a.weight": (1,)}) == {
        "model.a.weight": "model.language_model.a.weight"
    }


@pytest.mark.parametrize(
    ("base", "named"),
    [
        pytest.param("runs/base", "../base", id="relative-to-the-adapter"),
        pytest.param("runs/base", "base", id="relative-to-its-parent"),
        pytest.param("models/base", "models/base", id="relative-to-the-root"),
        pytest.param("runs/base", "somebody/base", id="beside-it"),
    ],
)
def test_a_base_is_found(tmp_path: Path, base: str, named: str) -> None:
    (tmp_path / base).mkdir(parents=True)
    (tmp_path / base / "config.json").write_text("{}")
    folder = write_adapter(tmp_path / "runs" / "lora", lora(Q, 6, 4), base=named)
    assert find_base(folder, None, tmp_path) == tmp_path / base


def test_a_base_that_is_not_there_is_asked_for(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "lora", lora(Q, 6, 4), base="Qwen/Qwen3-VL-4B")
    with pytest.raises(CheckpointError, match="the base of adapter .*Qwen/Qwen3-VL-4B does not exist.*Fetch it.*--base-model PATH"):
        find_base(folder, None, tmp_path)
    with pytest.raises(CheckpointError, match="--base-model .* holds no config.json"):
        find_base(folder, tmp_path, tmp_path)


class TestFixtures:
    @pytest.mark.parametrize("name", ["lora-helps", "lora-hurts"])
    def test_an_adapter_counts_as_a_checkpoint_with_both_fingerprints(self, name: str) -> None:
        info = inspect_checkpoint(CHECKPOINTS / name)
        base = inspect_checkpoint(CHECKPOINTS / "middle")
        assert is_adapter(CHECKPOINTS / name)
        assert (info.base, info.variant, info.has_chat_template) == (base, "vlm", True)
        assert info.adapter is not None
        assert len(info.adapter.weights) == 28
        assert len({info.fingerprint, base.fingerprint, info.adapter.fingerprint}) == 3

    def test_another_base_is_taken_when_it_is_given_if_it_fits(self, tiny_vlm_checkpoint: Path) -> None:
        info = inspect_checkpoint(CHECKPOINTS / "lora-helps", base_model=CHECKPOINTS / "early")
        assert info.base is not None
        assert info.base.path == CHECKPOINTS / "early"
        with pytest.raises(CheckpointError, match="shape .*is this the base that it was trained on"):
            inspect_checkpoint(CHECKPOINTS / "lora-helps", base_model=tiny_vlm_checkpoint)

    @pytest.mark.parametrize(
        ("name", "content", "what"),
        [
            pytest.param("chat_template.jinja", "other", "chat template", id="template"),
            pytest.param("tokenizer.json", '{"model": {"vocab": {}}}', "tokenizer", id="tokenizer"),
        ],
    )
    def test_an_adapter_that_was_trained_with_other_tokens_is_refused(self, tmp_path: Path, name: str, content: str, what: str) -> None:
        shutil.copytree(CHECKPOINTS / "lora-helps", tmp_path / "lora")
        (tmp_path / "lora" / name).write_text(content)
        with pytest.raises(CheckpointError, match=f"has another {what} than its base"):
            inspect_checkpoint(tmp_path / "lora", base_model=CHECKPOINTS / "middle")

    def test_an_adapter_with_its_bases_tokenizer_beside_it_is_taken(self, tmp_path: Path) -> None:
        shutil.copytree(CHECKPOINTS / "lora-helps", tmp_path / "lora")
        for name in ("tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(CHECKPOINTS / "middle" / name, tmp_path / "lora")
        tokenizer = json.loads((CHECKPOINTS / "middle" / "tokenizer.json").read_text())
        (tmp_path / "lora" / "tokenizer.json").write_text(json.dumps(tokenizer, indent=1))
        assert inspect_checkpoint(tmp_path / "lora", base_model=CHECKPOINTS / "middle").adapter is not None
