"""No process of vLLM outlives the one that started it, however that one ends. A killed server: test_openai_on_vllm.py."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from evalharness.api.errors import CheckpointError

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

START_S = 240  # a busy machine with two cores
END_S = 120


class Script:
    """`vllm_script.py` in a process group of its own."""

    def __init__(self, checkpoint: Path) -> None:
        command = [sys.executable, str(Path(__file__).with_name("vllm_script.py")), str(checkpoint)]
        self.errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  # closed by the fixture
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.errors, text=True, start_new_session=True)
        self.children: set[psutil.Process] = set()

    def wait_for(self, state: str) -> None:
        """Read states until this one."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{") and json.loads(line)["state"] == state:
                return
        raise AssertionError(f"the script ended with {self.process.wait()} before it was {state}")

    def wait_for_engine(self) -> None:
        """Wait until the engine's process is there and has begun to import vLLM."""
        deadline = time.monotonic() + START_S
        while not any("spawn_main" in command for command in self.commands()):
            assert time.monotonic() < deadline
            assert self.process.poll() is None
            time.sleep(0.1)
        time.sleep(2)

    def commands(self) -> Iterator[str]:
        """Yield the command lines of the script's children; some of them live for a moment only."""
        for child in self.look():
            with contextlib.suppress(psutil.NoSuchProcess):
                yield " ".join(child.cmdline())

    def look(self) -> set[psutil.Process]:
        """Return the script's children seen so far."""
        with contextlib.suppress(psutil.NoSuchProcess):
            self.children |= set(psutil.Process(self.process.pid).children(recursive=True))
        return self.children

    def end_code(self) -> int:
        """Return the exit code once the script has ended; one that hangs has written where, see vllm_script.py."""
        try:
            return self.process.wait(timeout=END_S)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGUSR1)
            time.sleep(1)
            self.errors.seek(0)
            raise AssertionError(f"the script still runs {END_S} s after it was interrupted:\n{self.errors.read()[-8000:]}") from None

    def left_after(self, timeout_s: float) -> list[psutil.Process]:
        """Return the children that are still there after so many seconds."""
        return psutil.wait_procs(self.children, timeout=timeout_s)[1]


@pytest.fixture
def script(tiny_vlm_checkpoint: Path) -> Iterator[Script]:
    running = Script(tiny_vlm_checkpoint)
    yield running
    running.look()
    running.process.kill()
    running.process.wait(timeout=30)
    for child in running.children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    assert running.process.stdout is not None
    running.process.stdout.close()
    running.errors.close()


def test_ctrl_c_while_generating_leaves_no_process(script: Script) -> None:
    script.wait_for("generating")
    assert len(script.look()) >= 2
    os.killpg(script.process.pid, signal.SIGINT)  # what a terminal does: parent and children get it at once
    assert script.end_code() != 0
    assert script.left_after(60) == []


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGKILL], ids=["ctrl-c", "killed"])
def test_an_end_while_starting_leaves_no_process(script: Script, signal_number: signal.Signals) -> None:
    script.wait_for("starting")
    script.wait_for_engine()
    if signal_number == signal.SIGINT:
        os.killpg(script.process.pid, signal.SIGINT)
    else:
        script.process.kill()  # alone, as for want of memory
    assert script.end_code() != 0
    assert script.left_after(60) == []


def engine_processes() -> list[str]:
    return [
        process.name() for process in psutil.Process().children(recursive=True) if "resource_tracker" not in " ".join(process.cmdline())
    ]


def test_corrupt_weights_are_named_and_leave_no_process(tiny_vlm_checkpoint: Path, tmp_path: Path) -> None:
    from evalharness.api.options import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
    from evalharness.backends.vllm.backend import VllmBackend

    before = engine_processes()
    corrupt = shutil.copytree(tiny_vlm_checkpoint, tmp_path / "corrupt")
    weights = corrupt / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[: weights.stat().st_size // 2])
    with pytest.raises(CheckpointError, match=r"vLLM could not start on .*corrupt: SafetensorError: .*file not fully covered"):
        VllmBackend(ModelLoadConfig(str(corrupt)), VlmPreprocessOptions(), VllmEngineOptions(distributed_executor_backend="uni"))
    assert engine_processes() == before


def test_a_model_class_that_this_machine_has_not_seen_can_be_looked_at() -> None:
    """vLLM asks a program of its own, once per architecture; beside a CPU torch that program could not import transformers."""
    from evalharness.backends.torchvision_cpu import register_missing_operators

    register_missing_operators()
    from vllm.model_executor.models import registry

    from evalharness.backends.vllm.processes import children_prepared

    before = registry._SUBPROCESS_COMMAND
    with children_prepared():
        assert registry._run_in_subprocess(lambda: 42) == 42
    assert before == registry._SUBPROCESS_COMMAND
