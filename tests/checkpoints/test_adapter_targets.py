"""An adapter's file holds what its settings name, layer by layer, and both speak of its base."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import CheckpointError
from evalharness.checkpoints.adapter import read_adapter
from evalharness.checkpoints.adapter_targets import Targets
from evalharness.checkpoints.info import inspect_checkpoint
from tests.adapters import lora, matrix, write_adapter, write_tensors
from tests.checkpoints.test_info import GOOD, write

LAYERS = "model.language_model.layers"
ATTENTION = ("q_proj", "k_proj")
BASE: dict[str, tuple[int, ...]] = {
    **{f"{LAYERS}.{layer}.self_attn.{name}.weight": (6, 4) for layer in range(4) for name in ATTENTION},
    **{f"{LAYERS}.{layer}.mlp.experts.{number}.up_proj.weight": (6, 4) for layer in range(4) for number in range(2)},
    **{f"model.visual.blocks.{layer}.q_proj.weight": (6, 4) for layer in range(6)},
    f"{LAYERS}.0.input_layernorm.weight": (4,),
    "model.language_model.embed_tokens.weight": (9, 4),
    "lm_head.weight": (9, 4),
    "mtp.layers.0.q_proj.weight": (6, 4),
}


def tensors(*modules: str, layers: Any = range(4), prefix: str = LAYERS) -> dict[str, Any]:
    return {key: value for layer in layers for name in modules for key, value in lora(f"{prefix}.{layer}.self_attn.{name}", 6, 4).items()}


def read(tmp_path: Path, given: dict[str, Any], base: Any = None, **settings: Any) -> tuple[str, ...]:
    return read_adapter(write_adapter(tmp_path / "lora", given, **settings), BASE if base is None else base).notices


LANGUAGE = {"exclude_modules": r".*visual.*"}


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        pytest.param(tensors("q_proj"), {"target_modules": ["q_proj"], **LANGUAGE}, id="list"),
        pytest.param(tensors("q_proj"), {"target_modules": r".*language_model.*q_proj"}, id="pattern"),
        pytest.param(tensors(*ATTENTION), {"target_modules": r"model\.language_model\..*\.(q|k)_proj"}, id="pattern-of-two"),
        pytest.param(tensors("q_proj"), {"target_modules": [f"{LAYERS}.{layer}.self_attn.q_proj" for layer in range(4)]}, id="full-names"),
        pytest.param(tensors("q_proj", layers=[1, 3]), {"layers_to_transform": [1, 3], **LANGUAGE}, id="some-layers"),
        pytest.param(tensors("q_proj", layers=[2]), {"layers_to_transform": 2, "layers_pattern": "layers"}, id="one-layer-of-a-pattern"),
        pytest.param(tensors("q_proj", layers=[2]), {"layers_to_transform": [2], "layers_pattern": ["h", "layers"]}, id="of-two-patterns"),
        pytest.param(tensors("q_proj"), {"target_modules": "all-linear"}, id="all-linear"),
        pytest.param(tensors("q_proj"), {"target_modules": None}, id="nothing-said"),
        pytest.param(
            tensors("q_proj", prefix="model.layers"), {"target_modules": r"model\.layers\..*q_proj"}, id="names-of-another-release"
        ),
        pytest.param(tensors(*ATTENTION), {"target_modules": [*ATTENTION, "up_proj"], **LANGUAGE}, id="experts-are-one-tensor-when-loaded"),
    ],
)
def test_a_file_that_holds_what_is_named_is_taken_without_a_word(tmp_path: Path, given: dict[str, Any], settings: dict[str, Any]) -> None:
    settings = {"target_modules": ["q_proj"], **settings}
    assert [notice for notice in read(tmp_path, given, **settings) if "experts" in notice] == []
    assert read(tmp_path, given, **settings) == ()


@pytest.mark.parametrize(
    ("given", "settings", "message"),
    [
        pytest.param(
            tensors("q_proj", layers=[0, 1, 3]), {}, r"no weights for '.*layers\.2\.self_attn\.q_proj', which .*target_", id="list"
        ),
        pytest.param(
            tensors("q_proj", layers=range(3)),
            {"target_modules": r".*language_model.*q_proj"},
            r"no weights for '.*layers\.3",
            id="pattern",
        ),
        pytest.param(tensors("q_proj", layers=[0]), {"target_modules": "all-linear"}, r"no weights for '.*layers\.1", id="all-linear"),
        pytest.param(
            {**tensors("q_proj"), **tensors("k_proj", layers=[0])},
            {"target_modules": [*ATTENTION]},
            r"layers\.1\.self_attn\.k_proj",
            id="two",
        ),
        pytest.param(
            tensors("q_proj", layers=[1]), {"layers_to_transform": [1, 2]}, r"no weights for '.*layers\.2", id="layers-to-transform"
        ),
        pytest.param(
            tensors("q_proj", layers=range(3), prefix="model.layers"),
            {},
            r"no weights for 'model\.layers\.3",
            id="names-of-another-release",
        ),
        pytest.param(
            tensors("q_proj", layers=[0]),
            {"target_modules": [f"{LAYERS}.0.self_attn.q_proj", f"{LAYERS}.1.self_attn.q_proj"]},
            r"no weights for '.*layers\.1",
            id="full-names",
        ),
    ],
)
def test_a_file_that_lacks_a_layer_is_refused(tmp_path: Path, given: dict[str, Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, given, **{"target_modules": ["q_proj"], **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"target_modules": ["k_proj"]}, "adapts '.*q_proj', which adapter_config.json does not name", id="list"),
        pytest.param({"target_modules": r".*k_proj"}, "adapts '.*q_proj', which adapter_config.json does not name", id="pattern"),
        pytest.param({"exclude_modules": ["q_proj"]}, "does not name; settings and weights are not of one adapter", id="excluded"),
        pytest.param({"layers_to_transform": [0, 1, 2]}, r"adapts '.*layers\.3.*', which adapter_config.json does not name", id="layer"),
        pytest.param({"layers_to_transform": [0], "layers_pattern": "blocks"}, "adapter_config.json does not name", id="layers-pattern"),
        pytest.param({"modules_to_save": ["self_attn"]}, "which adapter_config.json does not name", id="saved-whole"),
    ],
)
def test_a_file_that_holds_more_than_is_named_is_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    """Loaders differ in what they make of it: peft leaves it out, others add it."""
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, tensors("q_proj"), **settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"layers_to_transform": [0, 1, 2, 3, 9]}, "names layer 9, which its base does not have", id="layers-to-transform"),
        pytest.param({"target_modules": ["q_proj", f"{LAYERS}.9.self_attn.q_proj"]}, r"names '.*\.9\..*', which its base", id="list"),
        pytest.param({"rank_pattern": {r"layers\.9\.self_attn\.q_proj": 4}}, "rank_pattern .* which its base does not", id="rank-pattern"),
        pytest.param({"alpha_pattern": {"layers.9.self_attn.q_proj": 4}}, "alpha_pattern .* which its base does not", id="alpha-pattern"),
        pytest.param({"target_modules": "(((q_proj"}, "'\\(\\(\\(q_proj' is not a regular expression", id="no-pattern"),
        pytest.param({"rank_pattern": {"*": 4}}, "'\\*' is not a regular expression", id="no-rank-pattern"),
        pytest.param({"rank_pattern": {"(?i)q": 4}}, "'\\(\\?i\\)q' is not a regular expression", id="none-where-peft-puts-it"),
        pytest.param({"layers_to_transform": ["0"]}, "layers_to_transform must be a number or a list of them", id="no-number"),
        pytest.param({"target_modules": {"q_proj": 1}}, "target_modules must be a text or a list of texts", id="no-list"),
        pytest.param({"rank_pattern": [1]}, "rank_pattern must be an object", id="no-object"),
    ],
)
def test_settings_that_name_what_is_not_there_are_refused(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read(tmp_path, tensors("q_proj"), **settings)


@pytest.mark.parametrize(
    "settings",
    [{"target_modules": "(.*[a-z_]+)+!"}, {"exclude_modules": "(.*[a-z_]+)+!"}, {"alpha_pattern": {"([a-z_.]+)+!": 4}},
     {"layers_to_transform": [0], "layers_pattern": "(.*[a-z_]+)+!"}],
    ids=["target", "exclude", "alpha", "layers"],
)  # fmt: skip
def test_a_pattern_that_would_take_for_ever_is_refused(tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalharness.checkpoints.adapter_targets._MAX_TRIAL_S", 0.5)
    with pytest.raises(CheckpointError, match="adapter_config.json: .* take more than 0.5 s"):
        read(tmp_path, tensors("q_proj"), **settings)


@pytest.mark.parametrize(
    ("settings", "notice"),
    [
        pytest.param({"target_modules": ["q_proj", "c_attn"], **LANGUAGE}, "names 'c_attn', which is nothing in its base", id="word"),
        pytest.param({"rank_pattern": {"c_attn": 4}, **LANGUAGE}, "names 'c_attn', which is nothing in its base", id="rank-pattern"),
        pytest.param({}, "adapts nothing of model.visual.blocks.N.q_proj, which its target_modules names as well", id="vision-tower"),
    ],
)
def test_what_may_be_meant_is_told(tmp_path: Path, settings: dict[str, Any], notice: str) -> None:
    [found] = read(tmp_path, tensors("q_proj"), **settings)
    assert notice in found


def test_a_layer_that_guesses_further_tokens_is_none_of_the_model(tmp_path: Path) -> None:
    base = {**BASE, f"{LAYERS}.4.self_attn.q_proj.weight": (6, 4), f"{LAYERS}.4.eh_proj.weight": (4, 8)}
    assert read(tmp_path, tensors("q_proj"), base, **LANGUAGE) == ()


def test_modules_that_are_saved_whole_are_saved_in_every_layer(tmp_path: Path) -> None:
    base = {**BASE, **{f"{LAYERS}.{layer}.gate.weight": (2, 4) for layer in range(2)}}
    given = {**tensors("q_proj"), f"{LAYERS}.0.gate.weight": matrix(2, 4)}
    with pytest.raises(CheckpointError, match=r"no weights for '.*layers\.1\.gate\.weight', which .* \(modules_to_save\)"):
        read(tmp_path, given, base, modules_to_save=["gate"], **LANGUAGE)
    given[f"{LAYERS}.1.gate.weight"] = matrix(2, 4)
    assert read(tmp_path, given, base, modules_to_save=["gate"], **LANGUAGE) == ()


@pytest.mark.parametrize("zero", ["A", "B"])
def test_one_that_changes_nothing_is_noticed_whichever_side_is_zero(tmp_path: Path, zero: str) -> None:
    given = {name: [[0.0] * len(rows[0])] * len(rows) if f"lora_{zero}" in name else rows for name, rows in tensors("q_proj").items()}
    [notice] = read(tmp_path, given, **LANGUAGE)
    assert "changes nothing: every A or every B is zero" in notice


def test_one_that_saves_its_bases_own_weights_is_noticed(tmp_path: Path) -> None:
    base, head = write(tmp_path / "base", GOOD), matrix(9, 4)
    write_tensors(base / "model.safetensors", {"layers.0.q_proj.weight": matrix(6, 4), "lm_head.weight": head})
    given = lora("layers.0.q_proj", 6, 4)
    for name, saved, num_notices in (("same", head, 1), ("other", matrix(9, 4, seed=2), 0)):
        zero = {"layers.0.q_proj.lora_B.weight": [[0.0] * 2] * 6}
        folder = write_adapter(tmp_path / name, {**given, **zero, "lm_head.weight": saved}, base=base, modules_to_save=["lm_head"])
        adapter = inspect_checkpoint(folder).adapter
        assert adapter is not None
        assert len(adapter.notices) == num_notices
        assert all("changes nothing: all of its weights are its base's own" in notice for notice in adapter.notices)


@pytest.mark.engine
@pytest.mark.parametrize(
    "settings",
    [
        {"target_modules": ["q_proj"]},
        {"target_modules": ["self_attn.q_proj", "lm_head"]},
        {"target_modules": r".*\.(q_proj|up_proj)"},
        {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": [1, 2]},
        {"target_modules": ["q_proj", "up_proj"], "layers_to_transform": 3, "layers_pattern": "layers"},
        {"target_modules": ["q_proj"], "layers_to_transform": [0], "layers_pattern": ["blocks", "h"]},
        {"target_modules": ["q_proj", "k_proj"], "exclude_modules": ["k_proj"]},
        {"target_modules": ["q_proj", "k_proj"], "exclude_modules": r".*visual.*"},
        {"target_modules": ["q_proj", "lm_head"], "modules_to_save": ["lm_head", "visual"]},
    ],
    ids=json.dumps,
)
def test_modules_are_named_as_peft_says(tmp_path: Path, settings: dict[str, Any]) -> None:
    import evalharness.backends.hf._transformers  # noqa: F401  (peft imports transformers, which this makes importable)

    peft = pytest.importorskip("peft")
    from peft.tuners.tuners_utils import _ExcludedModule, check_target_module_exists

    config, targets = peft.LoraConfig(**settings), Targets(settings, tmp_path)
    for module in (name.removesuffix(".weight") for name in BASE):
        found = check_target_module_exists(config, module)
        assert targets.names(module) == (bool(found) and not isinstance(found, _ExcludedModule)), module
