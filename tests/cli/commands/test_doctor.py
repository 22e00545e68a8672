"""`evalharness doctor`: real imports in real processes; the scripted backend where those do not matter."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import NOT_PASSED
from evalharness.cli import main
from evalharness.cli.commands.doctor import diagnose
from evalharness.hardware.auto_backend import _MARK
from tests.checkpoints.test_info import GOOD, write
from tests.cli.conftest import Command
from tests.hardware.test_auto_backend import gguf


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def checks(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict[str, dict[str, str]]:
    assert main(["doctor", "--backend", "fake", "--json", *arguments]) == code
    found = json.loads(capsys.readouterr().out)
    assert found["ok"] == (code == 0)
    return {check["name"]: check for check in found["checks"]}


def test_a_machine_in_order_has_no_problem(printed: Command, tmp_path: Path) -> None:
    shown = printed("doctor", "--backend", "fake")
    parts = ("── machine\nok       python: 3.", "evalharness 0.", "── project\n", f"{tmp_path}/reports can be written", "fake: imports in ")
    assert [part for part in parts if part not in shown] == []
    assert shown.endswith("0 problems, 0 warnings\n")
    assert list(tmp_path.iterdir()) == []


def test_modules_that_are_compiled_at_every_start_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "vllm", raising=False)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    found = checks(capsys)["modules"]
    assert (found["status"], found["text"].partition(",")[0]) == ("warning", "Python compiles vllm at every start")
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert "modules" not in checks(capsys)


def test_a_checkpoint_is_described(capsys: pytest.CaptureFixture[str], tiny_vlm_checkpoint: Path) -> None:
    text = checks(capsys, str(tiny_vlm_checkpoint))[str(tiny_vlm_checkpoint)]["text"]
    assert text.startswith("Qwen3VLForConditionalGeneration (vlm); ")
    for part in (" parameters in F32", " MB in 1 file", "fingerprint ", "chat template"):
        assert part in text


def test_a_gguf_file_is_described(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = gguf(tmp_path / "m.gguf", "llama")
    assert checks(capsys, str(path))[str(path)]["text"].startswith("GGUF files of llama (text); gguf F32; 0.0 MB; fingerprint ")


def test_the_shipped_adapter_names_its_base(capsys: pytest.CaptureFixture[str]) -> None:
    adapter = Path(__file__).parents[3] / "fixtures/checkpoints/lora-helps"
    assert f"LoRA adapter of {adapter.parent / 'middle'}; Qwen3VL" in checks(capsys, str(adapter))[str(adapter)]["text"]


def test_a_training_run_stands_for_its_checkpoints_with_their_steps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for step in (100, 200):
        write(tmp_path / f"run/checkpoint-{step}", {**GOOD, "chat_template.jinja": "x", "trainer_state.json": {"global_step": step}})
    found = checks(capsys, "run")
    assert [f"step {step}" in found[str(tmp_path / f"run/checkpoint-{step}")]["text"] for step in (100, 200)] == [True, True]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({}, "does not exist; the nearest folder", id="missing"),
        pytest.param({**GOOD, "model.safetensors": b""}, "is empty (0 bytes)", id="empty-weights"),
    ],
)
def test_a_checkpoint_that_cannot_be_used_is_a_problem(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, files: dict[str, Any], message: str
) -> None:
    if files:
        write(tmp_path / "broken", files)
    found = checks(capsys, "broken", code=NOT_PASSED)
    [problem] = [check for check in found.values() if check["status"] == "problem"]
    assert message in problem["text"]


def test_a_checkpoint_without_a_chat_template_takes_bare_texts(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    write(tmp_path / "base", {**GOOD, "tokenizer_config.json": {}})
    found = checks(capsys, "base")[str(tmp_path / "base")]
    assert (found["status"], "no chat template: it takes bare texts only" in found["text"]) == ("warning", True)


def test_settings_that_cannot_be_read_are_a_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "evalharness.toml").write_text('bakend = "hf"\n')
    assert "did you mean 'backend'" in checks(capsys, code=NOT_PASSED)["settings"]["text"]


@pytest.mark.skipif(not Path("/proc/version").exists(), reason="needs a folder in which nobody can write, /proc")
def test_reports_that_cannot_be_written_are_a_problem(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "evalharness.toml").write_text('report_dir = "/proc/version/reports"\n')
    assert "cannot be written" in checks(capsys, code=NOT_PASSED)["reports"]["text"]


def test_transformers_is_really_imported_and_asked_about_a_checkpoint(tiny_vlm_checkpoint: Path, tmp_path: Path) -> None:
    foreign = write(tmp_path / "foreign", {**GOOD, "chat_template.jinja": "x"})
    (foreign / "config.json").write_text(json.dumps({"model_type": "no_such_model", "architectures": ["NoSuchModel"]}))
    found = {check.name: check for check in diagnose([str(tiny_vlm_checkpoint), str(foreign)], tmp_path, backends=["hf"])}
    assert "transformers 5." in found["hf"].text
    assert found[f"hf on {tiny_vlm_checkpoint}"].text == "can run it"
    assert found[f"hf on {foreign}"].status == "problem"
    assert "no_such_model" in found[f"hf on {foreign}"].text


def test_it_says_what_auto_takes_and_why(tiny_vlm_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EVALHARNESS_DEVICE", "cpu")  # leaves no choice, so nothing needs to be imported
    found = {check.name: check for check in diagnose([str(tiny_vlm_checkpoint)], tmp_path, backends=["auto"])}
    said = found[f"auto on {tiny_vlm_checkpoint}"]
    assert (said.status, said.text) == ("ok", "takes hf: --device is honoured by it alone")


@pytest.mark.slow
def test_an_import_that_fails_is_shown_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "broken" / "transformers"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('libbroken.so: \\x1b[31mcannot be opened')\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"))
    [found] = [check for check in diagnose([], tmp_path, backends=["hf"]) if check.name == "hf"]
    assert (found.status, "libbroken.so" in found.text) == ("problem", True)
    assert found.remedy == "for the whole message run: python -m evalharness.backends.probe hf"


@pytest.mark.engine
def test_a_torchvision_that_fails_without_a_word_is_a_fact_like_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from evalharness.backends.probe import _torch_facts

    (tmp_path / "torchvision.py").write_text("raise ImportError\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    assert _torch_facts()["torchvision_problem"] == "ImportError: ImportError"


def test_an_unknown_backend_is_refused(refused: Command) -> None:
    assert "did you mean 'vllm'?" in refused("doctor", "--backend", "vlm")


def test_the_mark_of_a_probe_is_the_one_that_is_looked_for() -> None:
    from evalharness.backends.probe import MARK

    assert MARK == _MARK
