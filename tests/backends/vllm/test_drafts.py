"""Drafts in a real vLLM: whatever they say, answers are those of an engine without them, greedy and sampled."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.api.errors import ConfigError, UnsupportedOption
from evalharness.api.options import GenerationOptions, ModelLoadConfig, StopOptions, VllmEngineOptions
from evalharness.api.requests import GenerationResult, TextGenerationRequest
from evalharness.api.structured_output import StructuredOutput
from evalharness.backends.vllm.drafts import BYTES_PER_SCORE, LONGEST, MAX_ROWS, MEMORY_SHARE, draft_arguments, with_draft

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine

ENDLESS = Path(__file__).parents[3] / "fixtures" / "checkpoints" / "endless"
REQUESTS = [TextGenerationRequest([{"role": "user", "content": f"List {number} objects of site {number % 3}."}]) for number in range(6)]
LENGTH = 40
PLAIN = GenerationOptions(max_new_tokens=LENGTH)


@pytest.fixture(scope="module")
def drafting() -> Iterator[Engine]:
    """A running engine that checks drafts, in one process as on a GPU."""
    from evalharness.engine.build import build_engine

    options = VllmEngineOptions(max_model_len=2048, distributed_executor_backend="uni", drafts=True)
    with build_engine("vllm", ModelLoadConfig(str(ENDLESS), torch_dtype="float32"), vllm_options=options) as engine:
        yield engine


def seeded(**changes: Any) -> list[GenerationOptions]:
    return [GenerationOptions(max_new_tokens=LENGTH, temperature=0.9, seed=seed, **changes) for seed in range(len(REQUESTS))]


EVERY_WAY: dict[str, GenerationOptions | list[GenerationOptions]] = {
    "greedy": PLAIN,
    "penalty": GenerationOptions(max_new_tokens=LENGTH, repetition_penalty=1.2),
    "log-probabilities": GenerationOptions(max_new_tokens=LENGTH, logprobs=True),
    "stop-string": GenerationOptions(max_new_tokens=LENGTH, stop=StopOptions(stop=("e ", '"l'))),
    "banned-words": GenerationOptions(max_new_tokens=LENGTH, extra_generation_kwargs={"bad_words": ["a"]}),
    "fewest-tokens": GenerationOptions(max_new_tokens=LENGTH, extra_generation_kwargs={"min_new_tokens": 20}),
    "structured": GenerationOptions(max_new_tokens=LENGTH, structured=StructuredOutput(regex=r'(\{"[a-z]{3,9}": [0-9]{1,3}\},? ){3,9}')),
    "sampled": seeded(),
    "sampled-cut": seeded(top_p=0.8, extra_generation_kwargs={"top_k": 20}),
    "sampled-log-probabilities": [*seeded(logprobs=True)[:3], *[GenerationOptions(max_new_tokens=LENGTH, logprobs=True)] * 3],
}


def results(engine: Engine, options: Any, drafts: Sequence[Sequence[int]] = ()) -> list[GenerationResult]:
    outcomes = dict(engine.stream(REQUESTS, options, drafts=[partial(list, ids) for ids in drafts]))
    made = [outcomes[position] for position in range(len(REQUESTS))]
    assert all(isinstance(one, GenerationResult) for one in made), made
    return made  # type: ignore[return-value]


def hurt(ids: Sequence[int], draw: random.Random) -> list[int]:
    """Return ids with tokens replaced, left out and put in."""
    made = list(ids)
    for _ in range(1 + len(made) // 8):
        place = draw.randrange(len(made))
        made[place : place + draw.randint(0, 2)] = [draw.randrange(600) for _ in range(draw.randint(0, 2))]
    return made


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.parametrize("way", EVERY_WAY)
def test_answers_are_those_of_an_engine_without_drafts(vllm_endless: Engine, drafting: Engine, way: str) -> None:
    options, draw = EVERY_WAY[way], random.Random(way)
    expected = results(vllm_endless, options)
    before = drafting.work()
    right = [one.token_ids for one in expected]
    for drafts in (right, [hurt(ids, draw) for ids in right], [[draw.randrange(600) for _ in ids] for ids in right], []):
        for made, wanted in zip(results(drafting, options, drafts), expected, strict=True):
            assert (made.token_ids, made.text, made.finish_reason) == (wanted.token_ids, wanted.text, wanted.finish_reason)
            assert made.logprobs == (None if wanted.logprobs is None else pytest.approx(wanted.logprobs, abs=1e-4))
    assert drafting.work()["draft_num_taken"] > before.get("draft_num_taken", 0)


@pytest.mark.vllm
@pytest.mark.slow
def test_a_right_draft_saves_steps_and_the_counts_say_so(vllm_endless: Engine, drafting: Engine) -> None:
    expected = results(vllm_endless, PLAIN)
    results(drafting, PLAIN)
    before = drafting.work()
    assert results(drafting, PLAIN, [one.token_ids for one in expected])[0].token_ids == expected[0].token_ids
    counts = {name: value - before[name] for name, value in drafting.work().items() if name.startswith("draft_")}
    num_tokens = sum(len(one.token_ids) for one in expected)
    assert counts["draft_num_found"] == counts["draft_num_answers"] == len(REQUESTS)
    assert counts["draft_num_tokens"] >= num_tokens
    assert counts["draft_num_tokens"] == counts["draft_num_row_steps"] + counts["draft_num_taken"]
    assert counts["draft_num_taken"] <= counts["draft_num_drafted"]


@pytest.mark.vllm
@pytest.mark.slow
def test_what_vllm_refuses_beside_drafts_is_refused_before(drafting: Engine) -> None:
    options = GenerationOptions(max_new_tokens=4, extra_generation_kwargs={"logit_bias": {5: 1.0}})
    with pytest.raises(UnsupportedOption, match="option logit_bias cannot be honoured by vLLM beside drafts; leave out it or --draft-from"):
        list(drafting.stream(REQUESTS, options))


def test_other_drafts_are_refused() -> None:
    with pytest.raises(ConfigError, match="--engine-option speculative_config has drafts of its own"):
        draft_arguments({"speculative_config": {"method": "ngram"}}, 1000, None, 0.9)


@pytest.mark.parametrize("memory_gib", [16, 24, 80, 141])
@pytest.mark.parametrize("vocab_size", [32_000, 151_936, 256_000])
@pytest.mark.parametrize("asked", [None, 32, 1024])
def test_rows_and_length_fit_into_their_share_of_the_memory(memory_gib: int, vocab_size: int, asked: int | None) -> None:
    given = {} if asked is None else {"max_num_seqs": asked}
    made = draft_arguments(given, vocab_size, memory_gib * 2**30, 0.9)
    rows, longest = made["max_num_seqs"], made["speculative_config"]["num_speculative_tokens"]
    assert 1 <= longest <= LONGEST
    assert 1 <= rows <= min(asked or MAX_ROWS, MAX_ROWS)
    assert rows * (longest + 1) * vocab_size * BYTES_PER_SCORE <= MEMORY_SHARE * memory_gib * 2**30
    assert made["gpu_memory_utilization"] == pytest.approx(0.9 - MEMORY_SHARE)
    sizes = made["compilation_config"]["cudagraph_capture_sizes"]
    assert sizes[-1] == rows * (longest + 1)
    assert all(size % (longest + 1) == 0 for size in sizes)


def test_a_draft_of_another_vocabulary_is_left_out() -> None:
    assert with_draft([1, 2, 700], 600) == {}
    assert with_draft([], 600) == {}
    assert with_draft([1, 2], 600) != {}
