"""`--backend auto`: what it takes of what probes found, and what options leave of the choice."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import CheckpointError, ConfigError
from evalharness.api.options import ModelLoadConfig
from evalharness.backends.probe import _check_quantization, _gguf_refusal
from evalharness.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evalharness.config.checks import BackendConstraints, check_combinations, constraints_of, possible_backends
from evalharness.engine.build import build_engine
from evalharness.hardware.auto_backend import Chosen, Probed, choose_backends
from evalharness.hardware.devices import Card, auto_num_workers, cards_per_engine, uses_cards
from tests.adapters import write_adapter
from tests.checkpoints.test_info import GOOD, write
from tests.config.test_config import config_of

ARCHITECTURE = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
HF = Probed(1.0, None, {"transformers": "5.19.0", "num_cards": 1})
VLLM = Probed(1.0, None, {"vllm": "0.32.0", "num_cards": 1})
ABSENT = Probed(1.0, "ModuleNotFoundError: No module named 'vllm'")


@pytest.fixture
def info(tmp_path: Path) -> CheckpointInfo:
    return inspect_checkpoint(write(tmp_path / "ckpt", {**GOOD, "config.json": ARCHITECTURE}))


def refusing(probed: Probed, info: CheckpointInfo, why: str) -> Probed:
    return Probed(probed.took_s, None, probed.facts, {str(info.path): why})


def chosen(info: CheckpointInfo, *, cards: bool = False, constraints: BackendConstraints | None = None, **probes: Probed) -> Chosen:
    [found] = choose_backends(constraints or BackendConstraints(), [info], has_cards=cards, probe=lambda name, _: probes[name])
    return found


def test_vllm_is_taken_on_a_gpu_else_transformers_and_the_other_is_not_even_imported(info: CheckpointInfo) -> None:
    assert chosen(info, hf=HF) == Chosen("hf", "there is no GPU, and transformers 5.19.0 runs LlamaForCausalLM")
    assert chosen(info, cards=True, vllm=VLLM) == Chosen("vllm", "there is a GPU, and vllm 0.32.0 runs LlamaForCausalLM")
    found = chosen(info, cards=True, constraints=BackendConstraints(cpu="--devices cpu"), hf=HF)
    assert found == Chosen("hf", "it is to run on the CPU (--devices cpu), and transformers 5.19.0 runs LlamaForCausalLM")


def test_what_is_not_installed_is_passed_over_and_said(info: CheckpointInfo) -> None:
    found = chosen(info, cards=True, vllm=ABSENT, hf=HF)
    assert found.backend == "hf"
    assert found.why.endswith("runs LlamaForCausalLM; not vllm: it cannot be used (ModuleNotFoundError: No module named 'vllm')")


def test_an_architecture_that_a_library_does_not_know_is_passed_over(info: CheckpointInfo) -> None:
    found = chosen(info, cards=True, vllm=refusing(VLLM, info, "vLLM 0.32.0 does not run LlamaForCausalLM"), hf=HF)
    assert (found.backend, found.why.partition("; ")[2]) == ("hf", "not vllm: vLLM 0.32.0 does not run LlamaForCausalLM")
    assert chosen(info, hf=refusing(HF, info, "too old"), vllm=VLLM).backend == "vllm"


def test_a_vllm_that_sees_no_gpu_is_not_what_a_gpu_is_for(info: CheckpointInfo) -> None:
    blind = Probed(1.0, None, {"vllm": "0.32.0", "num_cards": 0})
    found = chosen(info, cards=True, vllm=blind, hf=HF)
    assert (found.backend, found.why.partition("; ")[2]) == ("hf", "not vllm: it was built without CUDA, or sees no GPU")


def test_where_nothing_sees_the_gpu_the_cpu_works_as_without_one(info: CheckpointInfo) -> None:
    blind = {"vllm": Probed(1.0, None, {"num_cards": 0}), "hf": Probed(1.0, None, {"transformers": "5.19.0", "num_cards": 0})}
    found = chosen(info, cards=True, **blind)
    assert (found.backend, found.why.partition(",")[0]) == ("hf", "there is a GPU that nothing here can use")


def test_images_need_a_torchvision_that_can_be_imported(tmp_path: Path) -> None:
    vlm = inspect_checkpoint(write(tmp_path / "vlm", GOOD))
    broken = Probed(1.0, None, {"torchvision_problem": "RuntimeError: operator torchvision::nms does not exist"})
    with pytest.raises(CheckpointError, match="hf: torchvision cannot be imported, so image requests cannot run"):
        chosen(vlm, hf=broken, vllm=ABSENT)


def test_where_nothing_works_every_reason_is_told(info: CheckpointInfo) -> None:
    with pytest.raises(CheckpointError, match=r"auto found nothing here that can take .*ckpt: hf: too old; vllm: it cannot be used \("):
        chosen(info, hf=refusing(HF, info, "too old"), vllm=ABSENT)


def test_each_backend_is_imported_once_for_all_checkpoints(tmp_path: Path) -> None:
    infos = [inspect_checkpoint(write(tmp_path / name, {**GOOD, "config.json": ARCHITECTURE})) for name in "abc"]
    asked: list[tuple[str, int]] = []

    def probe(name: str, about: Sequence[CheckpointInfo]) -> Probed:
        asked.append((name, len(about)))
        return HF

    assert {found.backend for found in choose_backends(BackendConstraints(), infos, has_cards=False, probe=probe)} == {"hf"}
    assert asked == [("hf", 3)]


def gguf(path: Path, architecture: str) -> Path:
    """Write a GGUF file of one tensor of one number."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    values = {"general.architecture": architecture, "tokenizer.ggml.model": "gpt2", "tokenizer.chat_template": "{{ messages }}"}
    body = b"".join(text(name) + struct.pack("<I", 8) + text(value) for name, value in values.items())
    tensor = text("w") + struct.pack("<IQIQ", 1, 1, 0, 0)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1, len(values)) + body + tensor + b"\0" * 64)
    return path


def test_a_gguf_file_is_for_transformers_though_there_is_a_gpu(tmp_path: Path) -> None:
    info = CheckpointInfo(gguf(tmp_path / "m.gguf", "llama"), "text", True)
    found = chosen(info, cards=True, vllm=refusing(VLLM, info, "vLLM 0.32.0 reads no GGUF files; use --backend hf"), hf=HF)
    why = "there is a GPU, and transformers 5.19.0 runs GGUF files of llama"
    assert found == Chosen("hf", f"{why}; not vllm: vLLM 0.32.0 reads no GGUF files; use --backend hf")


@pytest.mark.engine
@pytest.mark.parametrize(
    ("architecture", "refusal"),
    [
        *((name, None) for name in ("llama", "qwen2moe", "gpt-oss")),
        ("rwkv9", "reads no GGUF files of rwkv9; convert the checkpoint to safetensors"),
    ],
)
def test_transformers_knows_some_gguf_files(tmp_path: Path, architecture: str, refusal: str | None) -> None:
    found = _gguf_refusal(gguf(tmp_path / "m.gguf", architecture))
    assert found == (None if refusal is None else f"transformers {version('transformers')} {refusal}")


@pytest.mark.engine
@pytest.mark.skipif(find_spec("gptqmodel") is not None, reason="is about what is not installed")
def test_quantised_weights_whose_package_is_missing_are_refused_by_transformers() -> None:
    from evalharness.backends.hf._transformers import transformers

    _check_quantization(transformers.LlamaConfig())
    with pytest.raises(ImportError, match="requires gptqmodel"):
        _check_quantization(transformers.LlamaConfig(quantization_config={"quant_method": "awq", "bits": 4, "group_size": 128}))


def test_an_adapter_is_judged_by_its_base(tmp_path: Path, info: CheckpointInfo) -> None:
    write_adapter(tmp_path / "lora", {"a.lora_A.weight": [[0.0] * 8], "a.lora_B.weight": [[0.0]]}, base=str(info.path), r=1)
    adapted = CheckpointInfo(tmp_path / "lora", "text", True, base=info)
    found = chosen(adapted, cards=True, vllm=refusing(VLLM, info, "it does not run the base"), hf=HF)
    assert found.backend == "hf"


@pytest.mark.parametrize(
    ("arguments", "constraints"),
    [
        pytest.param([], BackendConstraints(), id="none"),
        pytest.param(["--device", "cpu"], BackendConstraints(("hf",), ("--device",), "--device cpu"), id="of-hf-alone"),
        pytest.param(["--tensor-parallel-size", "2"], BackendConstraints(("vllm",), ("--tensor-parallel-size",)), id="of-vllm-alone"),
        pytest.param(["--devices", "cpu"], BackendConstraints(cpu="--devices cpu"), id="of-both"),
    ],
)
def test_options_of_this_run_narrow_the_choice(tmp_path: Path, arguments: list[str], constraints: BackendConstraints) -> None:
    config = config_of(tmp_path, "--backend", "auto", "--model", "m", *arguments)
    assert constraints_of(config) == constraints
    assert possible_backends(config) == constraints.candidates
    check_combinations(config)


def test_options_of_a_settings_file_wait_for_their_backend(tmp_path: Path) -> None:
    config = config_of(tmp_path, "--backend", "auto", "--model", "m", evalharness_toml="enforce_eager = true\n")
    assert constraints_of(config) == BackendConstraints()


def test_where_options_leave_one_nothing_is_imported(info: CheckpointInfo) -> None:
    found = chosen(info, cards=True, constraints=BackendConstraints(("vllm",), ("--enforce-eager", "--engine-option")))
    assert found == Chosen("vllm", "--enforce-eager and --engine-option are honoured by it alone")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--backend", "auto,hf"],
            "^--backend auto,hf: auto chooses one backend for each checkpoint; give it alone, or name the backends$",
        ),
        (["--backend", "auto", "--base-url", "http://a"], "between vllm and hf, and neither honours --base-url; leave that out, or name"),
        (["--backend", "auto", "--device", "cuda:0", "--enforce-eager"], "neither honours --device with --enforce-eager"),
        (["--backend", "auto", "--fallback-backend", "auto"], "--fallback-backend must be one of"),
    ],
    ids=["not-alone", "address", "two-that-exclude-each-other", "fallback"],
)
def test_what_leaves_no_choice_is_refused(tmp_path: Path, arguments: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_combinations(config_of(tmp_path, "--model", "m", *arguments))


@pytest.mark.parametrize(
    ("arguments", "cards", "expected"),
    [
        pytest.param([], 0, (True, 1, 2), id="cpu-as-transformers"),
        pytest.param([], 4, (True, 1, 4), id="cards"),
        pytest.param(["--devices", "cpu"], 4, (False, 1, 2), id="cpu-by-choice"),
        pytest.param(["--tensor-parallel-size", "2"], 4, (True, 2, 2), id="cards-together"),
        pytest.param(["--enforce-eager"], 0, (True, 1, 1), id="cpu-as-vllm"),
    ],
)
def test_workers_are_counted_by_what_may_be_taken(tmp_path: Path, arguments: list[str], cards: int, expected: Any) -> None:
    config = config_of(tmp_path, "--backend", "auto", "--model", "m", *arguments)
    installed = [Card(index) for index in range(cards)]
    assert (uses_cards(config), cards_per_engine(config), auto_num_workers(config, {}, installed, 16)) == expected


def test_an_engine_of_auto_says_why(tiny_vlm_checkpoint: Path) -> None:
    with build_engine("auto", ModelLoadConfig(str(tiny_vlm_checkpoint), device="cpu"), fallback_backend="hf") as engine:
        assert (engine.name, engine.describe()["chosen"]) == ("hf", "device is honoured by it alone")
