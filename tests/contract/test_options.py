"""Every option reaches every backend or is refused. Run: pytest tests/contract/test_options.py"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evalharness.api.errors import CheckpointError, ConfigError, UnsupportedOption
from evalharness.api.options import GenerationOptions, ModelLoadConfig, StopOptions, VllmEngineOptions, VlmPreprocessOptions
from evalharness.api.requests import GenerationResult
from evalharness.config.checks import HOOKS
from evalharness.engine.backend_contract import FREE, TEXTS, EndsAfter, ask, generate
from evalharness.engine.build import build_backend
from evalharness.engine.engine import Engine
from tests.backends.vllm_models import TRAPS, Reference
from tests.contract.conftest import HF
from tests.contract.stand_ins import StandIn

SAMPLED = replace(FREE, temperature=1.2, seed=11)
ASKED = [ask(text) for text in TEXTS]


def test_another_seed_gives_another_text(real_engine: Engine) -> None:
    first, second = (generate(real_engine, ASKED, replace(SAMPLED, seed=seed)) for seed in (11, 12))
    assert [result.token_ids for result in first] != [result.token_ids for result in second]


@pytest.mark.parametrize("seed", [0, 2**31, 2**63 - 1], ids=["0", "2^31", "2^63-1"])
def test_any_legal_seed_is_taken(engine: Engine, seed: int) -> None:
    assert generate(engine, [ask("hi")], replace(SAMPLED, seed=seed, max_new_tokens=4))[0].seed == seed


@pytest.mark.parametrize(
    "changes", [{"extra_generation_kwargs": {"top_k": 1}}, {"extra_generation_kwargs": {"min_p": 1.0}}], ids=["top_k", "min_p"]
)
def test_sampling_among_the_best_token_alone_is_greedy(engine: Engine, free: list[GenerationResult], changes: dict[str, Any]) -> None:
    if not changes["extra_generation_kwargs"].keys() <= engine.backend.capabilities.extra_options:
        with pytest.raises(UnsupportedOption, match="min_p"):
            generate(engine, ASKED, replace(SAMPLED, **changes))
        return
    results = generate(engine, ASKED, replace(SAMPLED, **changes))
    assert [result.token_ids for result in results] == [answer.token_ids for answer in free]


def test_greedy_tokens_are_the_best_of_the_raw_scores_whatever_the_generation_config_says(
    real_engine: Engine, reference: Reference
) -> None:
    for answer in generate(real_engine, ASKED[:4], FREE):
        best = reference.greedy(answer.prompt_text, max_new_tokens=FREE.max_new_tokens, end_ids=[])
        assert list(answer.token_ids) == best


def test_the_generation_config_cuts_nothing_of_what_is_drawn_from(real_engine: Engine) -> None:
    options = [replace(FREE, temperature=2.0, max_new_tokens=1, seed=seed) for seed in range(24)]
    drawn = {result.token_ids for result in generate(real_engine, [ask("hi")] * len(options), options)}
    assert len(drawn) > TRAPS["top_k"]


@pytest.mark.parametrize(
    "changes", [{}, {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.4, "seed": 3}], ids=["greedy", "sampled"]
)
def test_logprobs_are_those_of_the_raw_scores(real_engine: Engine, reference: Reference, changes: dict[str, Any]) -> None:
    for result in generate(real_engine, ASKED[:5], replace(FREE, logprobs=True, **changes)):
        assert result.logprobs == pytest.approx(reference.logprobs(result.prompt_text, result.token_ids), abs=1e-3)


def test_logprobs_end_with_the_token_that_completes_a_stop_string(engine: Engine) -> None:
    (answer,) = generate(engine, [ask("no")], FREE)
    string = answer.text.replace("\ufffd", " ").split()[-1][-2:]
    (result,) = generate(engine, [ask("no")], replace(FREE, logprobs=True, stop=StopOptions((string,))))
    assert result.stop_reason == string
    assert len(result.logprobs or ()) == len(result.token_ids)


@pytest.mark.parametrize("extra", [{"min_p": 4.0}, {"top_k": -2}, {"min_new_tokens": 99}], ids=["min_p", "top_k", "min_new_tokens"])
def test_an_extra_out_of_range_is_refused_before_anything_runs(real_engine: Engine, extra: dict[str, Any]) -> None:
    unused = StandIn(real_engine.backend)
    bad = replace(SAMPLED, extra_generation_kwargs=extra)
    with pytest.raises(ConfigError, match=r"min_p|top_k|min_new_tokens|min_tokens"):
        list(Engine(unused).stream(ASKED[:2], [SAMPLED, bad]))
    assert unused.num_calls == 0


@pytest.mark.parametrize(
    "changes",
    [{"stop": StopOptions(stop_token_ids=(151_645,))}, {"eos_token_id": 151_645}, {"eos_token_id": (642, 2**31 - 1)}],
    ids=["stop id", "end-of-sequence id", "the largest id"],
)
def test_a_stop_id_that_the_model_cannot_say_is_refused_before_anything_runs(real_engine: Engine, changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"stop token id \d+ would never stop"):
        next(real_engine.stream([ask("hi")], replace(FREE, **changes)))


def test_an_end_of_sequence_id_of_the_checkpoint_itself_may_be_one_that_it_cannot_say(
    real_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, options = [ask(text) for text in TEXTS], GenerationOptions(max_new_tokens=24)
    before = generate(real_engine, asked, options)
    monkeypatch.setattr(real_engine.backend, "eos_token_ids", (*real_engine.backend.eos_token_ids, 151_645))
    assert generate(real_engine, asked, options) == before


class Stopper:
    """Stops each row after its own number of new tokens, and notes which tokens it was shown."""

    def __init__(self, num_new: int) -> None:
        self._num_new = num_new
        self.shown: list[list[list[int]]] = []

    def hf_stopping_criteria(self, prompt_lengths: list[int]) -> list[Any]:
        def criterion(input_ids: Any, scores: Any, **_: Any) -> Any:
            rows = [row[length:].tolist() for row, length in zip(input_ids, prompt_lengths, strict=True)]
            self.shown.append(rows)
            return input_ids.new_tensor([len(row) >= self._num_new for row in rows]).bool()

        return [criterion]


def test_a_stopping_plugin_sees_only_the_new_tokens_of_each_padded_row(hf_engine: Engine, hf_free: list[GenerationResult]) -> None:
    plugin = Stopper(5)
    results = hf_engine.generate_text_batch(ASKED, FREE, plugins=[plugin])
    answer = {result.token_ids[:5] for result in hf_free}
    assert {tuple(row) for row in plugin.shown[-1]} <= answer
    assert [result.token_ids for result in results] == [result.token_ids[:5] for result in hf_free]
    assert {(result.finish_reason, result.stop_reason) for result in results} == {("stop", "Stopper")}


@pytest.fixture(scope="session")
def hf_free(hf_engine: Engine) -> list[GenerationResult]:
    return generate(hf_engine, ASKED, FREE)


def test_a_logits_plugin_sees_only_the_new_tokens_and_is_obeyed(hf_engine: Engine) -> None:
    class Counting:
        def hf_logits_processor(self, prompt_lengths: list[int]) -> list[Any]:
            def processor(input_ids: Any, scores: Any) -> Any:
                for row, length in enumerate(prompt_lengths):
                    scores[row, 100 + len(input_ids[row, length:])] = 1e4
                return scores

            return [processor]

    results = hf_engine.generate_text_batch(ASKED, replace(FREE, max_new_tokens=4), plugins=[Counting()])
    assert {result.token_ids for result in results} == {(100, 101, 102, 103)}


def test_the_hooks_that_plugins_of_the_command_line_may_have_are_those_that_the_backend_runs(engine: Engine) -> None:
    can, known = engine.backend.capabilities, HOOKS.get(engine.name)
    runs = {"watch": can.supports_token_watchers, "ban": can.supports_token_bans, "hf_logits_processor": can.supports_hf_hooks}
    assert {hook: known is None or hook in known for hook in runs} == runs


def test_a_watcher_that_never_wants_an_end_changes_nothing(engine: Engine) -> None:
    options = [FREE, replace(FREE, stop=StopOptions(stop=("a",))), GenerationOptions(max_new_tokens=24, logprobs=True)]
    for one in options:
        assert engine.generate_text_batch(ASKED, one, plugins=[EndsAfter(1_000)]) == generate(engine, ASKED, one)


def test_the_length_cap_is_no_plugins_doing(engine: Engine) -> None:
    (result,) = engine.generate_text_batch(ASKED[:1], replace(FREE, max_new_tokens=4), plugins=[EndsAfter(5)])
    assert (result.finish_reason, result.stop_reason) == ("length", None)
    (result,) = engine.generate_text_batch(ASKED[:1], replace(FREE, max_new_tokens=5), plugins=[EndsAfter(5)])
    assert (result.finish_reason, result.stop_reason) == ("stop", "ends-after")


@pytest.mark.parametrize("name", [HF, pytest.param("vllm", marks=pytest.mark.vllm)])
def test_an_unknown_dtype_is_refused_before_anything_is_loaded(name: str, tiny_vlm_checkpoint: Any) -> None:
    config = ModelLoadConfig(str(tiny_vlm_checkpoint), torch_dtype="bogus")
    with pytest.raises(ValueError, match=r"dtype 'bogus' is unknown.*float32"):
        build_backend(name, config, VlmPreprocessOptions(), VllmEngineOptions())


def test_the_dtype_in_force_is_reported(real_engine: Engine) -> None:
    assert real_engine.describe()["dtype"] == "float32"


@pytest.mark.parametrize("name", [HF, pytest.param("vllm", marks=pytest.mark.vllm)])
def test_a_checkpoint_that_is_not_there_is_refused(name: str) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        build_backend(name, ModelLoadConfig("/nowhere/at/all"), VlmPreprocessOptions(), VllmEngineOptions())
