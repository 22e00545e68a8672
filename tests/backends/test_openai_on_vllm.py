"""The openai backend on a real vLLM server says what vLLM says in this process: text and pictures, ids, log-probabilities, stops."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from evalharness.contracts import (
    GenerationOptions,
    ModelLoadConfig,
    ServerOptions,
    StopOptions,
    TextGenerationRequest,
    VlmGenerationRequest,
)
from evalharness.engine import Engine
from evalharness.engine_building import build_engine

pytestmark = pytest.mark.vllm

START_S = 300.0
TEXTS = [TextGenerationRequest([{"role": "user", "content": content}]) for content in ("hi", "What is this?", "中文")]
PHOTOS = [
    VlmGenerationRequest(
        [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}], [Image.new("RGB", size, colour)]
    )
    for size, colour in (((96, 64), "red"), ((64, 128), "blue"))
]


@pytest.fixture(scope="module")
def server(tiny_vlm_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running `vllm serve` on the tiny Qwen3-VL; gives its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("server") / "log"
    arguments = ["--model", str(tiny_vlm_checkpoint), "--port", str(port), "--dtype", "float32", "--enforce-eager"]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.backends.vllm_server", *arguments, "--max-model-len", "512", "--served-model-name", "tiny"],
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_up(url, process, log)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_up(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(urllib.error.URLError, OSError):
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return
        time.sleep(0.3)
    pytest.fail(f"the server did not start (exit code {process.poll()}):\n{log.read_text(errors='replace')[-3000:]}")


@pytest.fixture(scope="module")
def served(server: str, tiny_vlm_checkpoint: Path) -> Iterator[Engine]:
    config = ModelLoadConfig(str(tiny_vlm_checkpoint))
    with build_engine("openai", config, server_options=ServerOptions(base_url=server)) as engine:
        yield engine


@pytest.fixture(scope="module")
def in_process(vllm_vlm_backend: object) -> Engine:
    return Engine(vllm_vlm_backend)


OPTIONS = {
    "greedy": GenerationOptions(max_new_tokens=12, logprobs=True),
    "penalty": GenerationOptions(max_new_tokens=12, repetition_penalty=1.3),
    "seeded": GenerationOptions(max_new_tokens=12, temperature=0.8, top_p=0.9, seed=7),
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=list(OPTIONS))
def test_texts_and_pictures_get_the_tokens_that_vllm_gives_in_this_process(
    served: Engine, in_process: Engine, options: GenerationOptions
) -> None:
    for requests in (TEXTS, PHOTOS):
        here, there = (dict(engine.stream(requests, options)) for engine in (in_process, served))
        for index in range(len(requests)):
            mine, theirs = here[index], there[index]
            assert theirs.token_ids == mine.token_ids, (theirs, mine)
            assert (theirs.text, theirs.raw_text, theirs.finish_reason) == (mine.text, mine.raw_text, mine.finish_reason)
            assert (theirs.num_prompt_tokens, theirs.prompt_sha256) == (mine.num_prompt_tokens, mine.prompt_sha256)
            if options.logprobs:
                assert theirs.logprobs == pytest.approx(mine.logprobs, abs=1e-4)


def test_a_stop_string_ends_the_text_on_the_server_too(served: Engine) -> None:
    [(_, free)] = served.stream(TEXTS[:1], GenerationOptions(max_new_tokens=12))
    stop = free.text[3:5]
    [(_, cut)] = served.stream(TEXTS[:1], GenerationOptions(max_new_tokens=12, stop=StopOptions(stop=(stop,))))
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (free.text[: free.text.find(stop)].strip(), "stop", stop)
    assert len(cut.token_ids) < len(free.token_ids)


def test_a_prompt_beyond_the_servers_context_is_invalid(served: Engine) -> None:
    [(_, failure)] = served.stream([TextGenerationRequest([{"role": "user", "content": "x " * 600}])], GenerationOptions(max_new_tokens=4))
    assert failure.kind == "invalid"
