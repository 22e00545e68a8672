"""The openai backend on a real vLLM server with a trained checkpoint and its adapters says what transformers says in this process."""

from __future__ import annotations

import shutil
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest

from evalharness.api.errors import CheckpointError, RequestsFailed
from evalharness.api.options import GenerationOptions, ModelLoadConfig, ServerOptions, StopOptions, VlmPreprocessOptions
from evalharness.api.requests import (
    CompletionRequest,
    GenerationFailure,
    GenerationResult,
    TextGenerationRequest,
    TokenGenerationRequest,
    VlmGenerationRequest,
)
from evalharness.api.scoring import ScoringRequest
from evalharness.api.structured_output import StructuredOutput, fits
from evalharness.backends.vllm.weights import WORKER_EXTENSION
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine
from tests.backends.hf_models import one_thread
from tests.backends.lora_server import BASE, CHECKPOINTS, HELPS, HURTS, copied
from tests.backends.server_process import free_ports, server_process

if TYPE_CHECKING:
    from evalharness.backends.base import Backend

pytestmark = pytest.mark.vllm

START_S = 300.0
TEXTS = [TextGenerationRequest([{"role": "user", "content": content}]) for content in ("hi", "What is this?", "中文")]
_SITE = sorted((CHECKPOINTS.parent / "site_photos").rglob("*.jp*g"))[:2]
PHOTOS = [
    VlmGenerationRequest([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}], [str(photo)])
    for photo in _SITE
]
LONG = TokenGenerationRequest([position % 600 for position in range(5, 405)])
"""A prompt whose blocks a server remembers."""
OTHERS = [
    CompletionRequest("The screw is"),
    CompletionRequest("a<|im_end|>b"),
    *(replace(one, prefill="It is") for one in (TEXTS[0], PHOTOS[0])),
]
"""Bare texts, and answers that are started."""
GREEDY = GenerationOptions(max_new_tokens=12, logprobs=True)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running `vllm serve` on the trained Qwen3-VL, ready for adapters and checkpoints; gives its address."""
    [port] = free_ports(1)
    command = [sys.executable, "-m", "tests.backends.vllm_server", "--model", str(BASE), "--port", str(port), "--dtype", "float32"]
    command += ["--enforce-eager", "--max-model-len", "512", "--served-model-name", "middle", "--enable-lora", "--max-lora-rank", "16"]
    command += ["--worker-extension-cls", WORKER_EXTENSION]
    routes = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_SERVER_DEV_MODE": "1"}
    environment = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1", **routes}
    log = tmp_path_factory.mktemp("server") / "log"
    with server_process(command, port, log, environment=environment, start_s=START_S) as url:
        yield url


@pytest.fixture(scope="module")
def served(server: str) -> Iterator[Engine]:
    with build_engine("openai", ModelLoadConfig(str(BASE)), server_options=ServerOptions(base_url=server)) as engine:
        yield engine


@pytest.fixture(scope="module")
def transformers() -> Iterator[Engine]:
    """The same checkpoint in this process."""
    from evalharness.backends.hf.backend import HfBackend

    with one_thread():
        backend: Backend = HfBackend(weights(None), VlmPreprocessOptions())
        with Engine(backend) as engine:
            yield engine


def weights(adapter: Path | None, base: Path = BASE) -> ModelLoadConfig:
    return ModelLoadConfig(str(base), torch_dtype="float32", device="cpu", adapter_path=str(adapter) if adapter is not None else None)


def answers(engine: Engine, requests: Sequence[Any], options: GenerationOptions) -> list[GenerationResult]:
    found = dict(engine.stream(requests, options))
    results = [found[index] for index in range(len(requests))]
    assert all(isinstance(result, GenerationResult) for result in results), results
    return results  # type: ignore[return-value]


def assert_same_tokens(served: Engine, transformers: Engine, options: GenerationOptions = GREEDY) -> None:
    """Ask both for texts, pictures and a long prompt of ids."""
    for requests in (TEXTS, PHOTOS, [LONG], OTHERS):
        for mine, theirs in zip(answers(transformers, requests, options), answers(served, requests, options), strict=True):
            assert theirs.token_ids == mine.token_ids, (theirs, mine)
            assert (theirs.text, theirs.raw_text, theirs.finish_reason) == (mine.text, mine.raw_text, mine.finish_reason)
            assert (theirs.num_prompt_tokens, theirs.prompt_sha256) == (mine.num_prompt_tokens, mine.prompt_sha256)
            assert theirs.exact_ids
            assert theirs.logprobs == pytest.approx(mine.logprobs, abs=1e-3)


@pytest.mark.parametrize("options", [GREEDY, replace(GREEDY, repetition_penalty=1.3)], ids=["greedy", "penalty"])
def test_texts_and_pictures_get_the_tokens_that_transformers_gives_in_this_process(
    served: Engine, transformers: Engine, options: GenerationOptions
) -> None:
    assert_same_tokens(served, transformers, options)


def test_given_responses_are_scored_as_in_this_process(server: str, served: Engine, transformers: Engine) -> None:
    prompts = [*TEXTS, LONG, [], PHOTOS[0]]
    responses = ["yes", "a screw, or two", "中文", "no", [5, 6, 7], "x"]
    # One at a time: with --enable-lora, on a CPU, vLLM 0.32 dies of two (evalharness/backends/openai/payload.py).
    one_by_one = ServerOptions(base_url=server, concurrency=1)
    with build_engine("openai", ModelLoadConfig(str(BASE)), server_options=one_by_one) as careful:
        theirs = careful.get_logprobs(prompts[:5], responses[:5])
        [made] = careful.generate_text_batch([LONG], GenerationOptions(max_new_tokens=4))
        asked = [ScoringRequest(LONG, ids, greedy=True) for ids in (made.token_ids, (*made.token_ids[:-1], 7))]
        assert [result.is_greedy for result in careful.generate_text_batch(asked, GenerationOptions())] == [True, False]
    mine = transformers.get_logprobs(prompts[:5], responses[:5])
    assert (theirs.token_ids, theirs.num_prompt_tokens) == (mine.token_ids, mine.num_prompt_tokens)
    for one, other in zip(mine.rows(), theirs.rows(), strict=True):
        assert other == pytest.approx(one, abs=1e-3)
    assert theirs.rows()[4][0] is None
    with pytest.raises(RequestsFailed, match="takes images with messages only"):
        served.get_logprobs(prompts[5:], responses[5:])


STRUCTURES = {
    # No object: between its parts white space is allowed, and the small model writes of it to the end of its budget.
    "json_schema": StructuredOutput(json_schema={"enum": ["screw", "螺丝", 12, None]}),
    "regex": StructuredOutput(regex=r"[a-c]{3}-\d{2,4}"),
    "choice": StructuredOutput(choice=("yes", "no", "maybe so", '{"a": "\\n"}')),
    "grammar": StructuredOutput(grammar='root ::= "a" [x-z] [x-z]? "b"'),
}


@pytest.mark.parametrize("structured", STRUCTURES.values(), ids=STRUCTURES)
def test_answers_are_held_to_a_structure_as_in_this_process(served: Engine, transformers: Engine, structured: StructuredOutput) -> None:
    options = GenerationOptions(max_new_tokens=48, structured=structured)
    for requests in (TEXTS, PHOTOS):
        for mine, theirs in zip(answers(transformers, requests, options), answers(served, requests, options), strict=True):
            assert theirs.token_ids == mine.token_ids, (theirs, mine)
            assert theirs.finish_reason == "stop"
            assert fits(theirs.text, structured)


def test_a_structure_that_no_grammar_can_be_made_of_is_the_requests_fault(served: Engine) -> None:
    [(_, failure)] = served.stream(TEXTS[:1], GenerationOptions(structured=StructuredOutput(grammar="root ::= other")))
    assert isinstance(failure, GenerationFailure)
    assert failure.kind == "invalid"
    assert answers(served, TEXTS[:1], GREEDY)


def test_samples_are_drawn_by_their_seeds(served: Engine) -> None:
    options = GenerationOptions(max_new_tokens=12, temperature=1.0, top_p=0.9, seed=7)
    alone, three, again = (served.generate_samples(TEXTS, options, num_samples) for num_samples in (1, 3, 3))
    assert three == again
    assert [group[0] for group in three] == [group[0] for group in alone]
    assert len({result.token_ids for group in three for result in group}) > len(TEXTS)


def test_a_stop_string_ends_the_text_on_the_server_too(served: Engine) -> None:
    [(_, free)] = served.stream(TEXTS[:1], GenerationOptions(max_new_tokens=12))
    stop = free.text[3:5]
    [(_, cut)] = served.stream(TEXTS[:1], GenerationOptions(max_new_tokens=12, stop=StopOptions(stop=(stop,))))
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (free.text[: free.text.find(stop)].strip(), "stop", stop)
    assert len(cut.token_ids) < len(free.token_ids)


def test_a_prompt_beyond_the_servers_context_is_invalid(served: Engine) -> None:
    [(_, failure)] = served.stream([TextGenerationRequest([{"role": "user", "content": "x " * 600}])], GenerationOptions(max_new_tokens=4))
    assert failure.kind == "invalid"


def test_an_adapter_written_over_in_its_folder_answers_as_in_this_process(
    served: Engine, transformers: Engine, server: str, tmp_path: Path
) -> None:
    folder, seen = tmp_path / "live", []
    for adapter in (HELPS, HURTS, HELPS):
        served.weights.load_adapter(str(copied(adapter, folder)))
        shutil.rmtree(folder)  # gone as soon as it is loaded
        transformers.weights.swap(weights(adapter))
        assert_same_tokens(served, transformers)
        seen += served.generate_token_batch([LONG], GREEDY)
    assert seen[0].token_ids == seen[2].token_ids != seen[1].token_ids
    served.weights.unload_adapter()
    transformers.weights.swap(weights(None))
    assert served.generate_token_batch([LONG], GREEDY)[0].token_ids == transformers.generate_token_batch([LONG], GREEDY)[0].token_ids
    urllib.request.urlopen(f"{server}/health", timeout=10).close()


def test_an_adapter_that_the_server_refuses_leaves_the_one_before(served: Engine, tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    served.weights.load_adapter(str(HELPS))
    before = served.generate_token_batch([LONG], GREEDY)
    wide = copied(HELPS, tmp_path / "wide")
    tensors = load_file(wide / "adapter_model.safetensors")
    doubled = {name: torch.cat([tensor, tensor], dim=0 if "lora_A" in name else 1) for name, tensor in tensors.items()}
    save_file(doubled, wide / "adapter_model.safetensors")
    settings = (wide / "adapter_config.json").read_text()
    (wide / "adapter_config.json").write_text(settings.replace('"r": 16', '"r": 32'))
    with pytest.raises(CheckpointError, match="did not take adapter .*status 500: .*32.*--max-lora-rank"):
        served.weights.load_adapter(str(wide))
    assert [result.token_ids for result in served.generate_token_batch([LONG], GREEDY)] == [result.token_ids for result in before]
    served.weights.unload_adapter()


def test_another_checkpoint_answers_as_in_this_process(served: Engine, transformers: Engine) -> None:
    for base in (CHECKPOINTS / "final", BASE):
        served.weights.reload(str(base))
        transformers.weights.swap(weights(None, base))
        assert_same_tokens(served, transformers)


def test_a_server_that_is_killed_leaves_no_process(server: str) -> None:
    """The last test of this file. The server starts its engine as the backend in this process does, and is killed alone."""
    [process] = [child for child in psutil.Process().children() if "tests.backends.vllm_server" in child.cmdline()]
    below = process.children(recursive=True)
    assert below
    process.kill()
    assert psutil.wait_procs(below, timeout=60)[1] == []
