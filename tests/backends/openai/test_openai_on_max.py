"""The openai backend on a real `max serve` says what transformers says: ids, log-probabilities, stops, counts. Where MAX is installed.

Run in MAX's environment (docs/max.md): pytest tests/backends/openai/test_openai_on_max.py; the first run of a machine compiles for minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from evalharness.api.errors import UnsupportedOption
from evalharness.api.options import GenerationOptions, ModelLoadConfig, ServerOptions, StopOptions
from evalharness.api.requests import GenerationFailure
from evalharness.engine.backend_contract import FREE, TEXTS, ask, generate
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine
from tests.backends.max_models import IS_INSTALLED, WHY_NOT, TextReference
from tests.backends.server_process import free_ports, server_process

if TYPE_CHECKING:
    from evalharness.backends.max.backend import MaxBackend

pytestmark = pytest.mark.skipif(not IS_INSTALLED, reason=WHY_NOT)

START_S = 900.0
CONTEXT = 1024
ASKED = [ask(text) for text in TEXTS]
SEEDED = replace(FREE, temperature=0.8, top_p=0.9, seed=7)


@pytest.fixture(scope="module")
def server(max_text_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A running `max serve` on the tiny Llama, on the CPU; gives its address."""
    port, metrics_port = free_ports(2)
    command = [str(Path(sys.executable).parent / "max"), "serve", "--model-path", str(max_text_checkpoint)]
    command += ["--host", "127.0.0.1", "--port", str(port), "--devices", "cpu", "--quantization-encoding", "float32"]
    command += ["--max-length", str(CONTEXT), "--max-batch-size", "8", "--served-model-name", "tiny"]
    environment = {"MAX_SERVE_METRICS_ENDPOINT_PORT": str(metrics_port), "MAX_SERVE_DISABLE_TELEMETRY": "1"}
    log = tmp_path_factory.mktemp("server") / "log"
    with server_process(command, port, log, environment=environment, start_s=START_S) as url:
        yield url


@pytest.fixture(scope="module")
def served(server: str, max_text_checkpoint: Path) -> Iterator[Engine]:
    options = ServerOptions(server="max", base_url=server, concurrency=8)
    with build_engine("openai", ModelLoadConfig(str(max_text_checkpoint)), server_options=options) as engine:
        yield engine


@pytest.fixture(scope="module")
def reference(max_text_checkpoint: Path) -> TextReference:
    pytest.importorskip("torch")
    return TextReference(max_text_checkpoint)


def test_greedy_ids_are_those_of_transformers_and_exact(served: Engine, reference: TextReference) -> None:
    for result in generate(served, ASKED, FREE):
        assert list(result.token_ids) == reference.greedy(result.prompt_text, max_new_tokens=FREE.max_new_tokens, end_ids=[])
        assert (result.exact_ids, result.num_completion_tokens, result.finish_reason) == (True, FREE.max_new_tokens, "length")


def test_end_tokens_end_texts_and_are_kept(served: Engine, reference: TextReference) -> None:
    results = generate(served, ASKED, GenerationOptions(max_new_tokens=64))
    for result in results:
        assert list(result.token_ids) == reference.greedy(result.prompt_text, max_new_tokens=64)
    assert {result.finish_reason for result in results} == {"stop", "length"}


def test_counts_of_prompts_are_ours(served: Engine) -> None:
    for result in generate(served, ASKED, replace(FREE, max_new_tokens=1)):
        assert result.num_prompt_tokens == len(served.tokenizer.encode(result.prompt_text, add_special_tokens=False))


def test_logprobs_are_raw(served: Engine, reference: TextReference) -> None:
    for options in (FREE, SEEDED):
        for result in generate(served, ASKED[:5], replace(options, logprobs=True)):
            assert result.logprobs == pytest.approx(reference.logprobs(result.prompt_text, result.token_ids), abs=1e-3)


@pytest.mark.parametrize("seed", [0, 7, 2**63 - 1])
def test_a_seed_gives_the_same_again(served: Engine, seed: int) -> None:
    first, second = (generate(served, ASKED, replace(SEEDED, seed=seed)) for _ in range(2))
    assert first == second
    assert {result.seed for result in first} == {seed}


def test_a_seed_draws_what_it_draws_in_this_process(served: Engine, max_text_backend: MaxBackend) -> None:
    here, there = (generate(engine, ASKED, SEEDED) for engine in (Engine(max_text_backend), served))
    assert [replace(result, backend="") for result in here] == [replace(result, backend="") for result in there]


def test_another_seed_gives_another_text(served: Engine) -> None:
    first, second = (generate(served, ASKED, replace(SEEDED, seed=seed)) for seed in (7, 8))
    assert [result.token_ids for result in first] != [result.token_ids for result in second]


def test_a_stop_string_of_several_tokens_ends_the_text(served: Engine) -> None:
    free = generate(served, ASKED, FREE)
    for asked, said in zip(ASKED, free, strict=True):
        stop = said.text[3:6]
        if "\ufffd" in stop or len(stop.strip()) < 3:
            continue
        (cut,) = generate(served, [asked], replace(FREE, stop=StopOptions(stop=(stop,))))
        assert (cut.text, cut.finish_reason, cut.stop_reason) == (said.text[: said.text.find(stop)].strip(), "stop", stop)
        assert cut.token_ids == said.token_ids[: len(cut.token_ids)]


@pytest.mark.parametrize("keeps_eos", [True, False], ids=["beside EOS", "without EOS"])
def test_a_stop_id_ends_the_text_and_is_kept(served: Engine, keeps_eos: bool) -> None:
    base = replace(FREE, eos_token_id=None) if keeps_eos else FREE
    for asked, said in zip(ASKED, generate(served, ASKED, base), strict=True):
        token_id = said.token_ids[min(5, len(said.token_ids) - 1)]
        (cut,) = generate(served, [asked], replace(base, stop=StopOptions((), (token_id,)), logprobs=True))
        assert cut.token_ids == said.token_ids[: said.token_ids.index(token_id) + 1]
        assert len(cut.logprobs or ()) == len(cut.token_ids) == cut.num_completion_tokens
        assert cut.finish_reason == "stop"


def test_a_prompt_beyond_the_servers_context_is_invalid(served: Engine) -> None:
    [(_, failure)] = served.stream([ask("x " * CONTEXT)], GenerationOptions(max_new_tokens=4))
    assert isinstance(failure, GenerationFailure)
    assert failure.kind == "invalid"


@pytest.mark.parametrize(
    "changes",
    [
        {"repetition_penalty": 1.3},
        {"extra_generation_kwargs": {"presence_penalty": 1.0}},
        {"extra_generation_kwargs": {"min_new_tokens": 4}},
    ],
    ids=["repetition", "presence", "min_new_tokens"],
)
def test_what_such_a_server_leaves_out_without_a_word_is_refused(served: Engine, changes: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedOption):
        generate(served, ASKED[:1], replace(FREE, **changes))


def test_a_server_without_lora_says_so_and_keeps_answering(server: str, served: Engine) -> None:
    answer = httpx.post(f"{server}/v1/load_lora_adapter", json={"lora_name": "a", "lora_path": "/nowhere"}, timeout=30)
    assert answer.status_code == 501
    assert generate(served, ASKED[:1], replace(FREE, max_new_tokens=2))
