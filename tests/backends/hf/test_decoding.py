"""No row may depend on its batch; each row ends by itself. Run: pytest tests/backends/hf/test_decoding.py"""

from __future__ import annotations

import itertools
import re
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api.errors import BackendError, ConfigError
from evalharness.api.hooks import normalise_plugins
from evalharness.api.requests import GenerationFailure
from evalharness.api.thinking import ThinkingBudget
from evalharness.backends.base import Completion
from tests.backends.hf_models import END_ID, PAD_ID, ids, load, mixed_prompts, prompt, run

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_in_one_thread")]


@pytest.fixture(scope="module")
def backend(hf_text_checkpoint):
    backend = load(hf_text_checkpoint)
    yield backend
    backend.close()


NO_END = {"stop_token_ids": (), "extra": (("suppress_tokens", [END_ID]),)}


def alone(backend, prompts, **kwargs):
    return {item.index: run(backend, [item], **kwargs)[item.index] for item in prompts}


def reference_ids(backend, item, **settings):
    """Return what plain transformers gives for one prompt, end token included."""
    import torch
    from transformers import GenerationConfig

    config = GenerationConfig(
        do_sample=False, max_new_tokens=item.plan.max_new_tokens, eos_token_id=END_ID, pad_token_id=PAD_ID, **settings
    )
    tokens = torch.tensor([item.token_ids])
    out = backend.model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), generation_config=config)
    return tuple(out[0, len(item.token_ids) :].tolist())


def test_other_code_that_generates_with_the_model_ends_where_the_checkpoint_says_and_ours_where_the_plan_says(hf_text_checkpoint, torch):
    backend = load(hf_text_checkpoint)
    tokens = torch.tensor([[5, 6, 7]])
    free = backend.model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=4, eos_token_id=-1)[0, 3:]
    backend.model.generation_config.eos_token_id = [int(free[1])]
    found = backend.model.generate(input_ids=tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=4, pad_token_id=0)
    assert found[0, 3:].tolist() == free[:2].tolist()
    item = prompt(0, (5, 6, 7), max_new_tokens=4, stop_token_ids=())
    assert run(backend, [item])[0].token_ids == tuple(free.tolist())
    assert backend.model.generation_config.eos_token_id == [int(free[1])]


PLANS = {
    "greedy": {},
    "no cache": {"use_cache": False},
    "repetition penalty": {"repetition_penalty": 1.5},
    "penalty below one": {"repetition_penalty": 0.7},
    "no repeated token": {"no_repeat_ngram_size": 1},
    "no repeated pair": {"no_repeat_ngram_size": 2},
    "bad words": {"extra": (("bad_words_ids", [[5], [7, 9], [1, 1, 20]]),)},
    "suppressed tokens": {"extra": (("suppress_tokens", [3, 8, 9]),)},
    "minimum length": {"extra": (("min_new_tokens", 6),)},
    "all penalties": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "extra": (("min_new_tokens", 3), ("suppress_tokens", [9]))},
    "sampling": {"temperature": 1.0},
    "nucleus": {"temperature": 0.7, "top_p": 0.8},
    "top-k and min-p": {"temperature": 1.5, "extra": (("top_k", 20), ("min_p", 0.05))},
    "typical": {"temperature": 1.0, "extra": (("typical_p", 0.8),)},
    "stop string": {"stop_strings": ("e", "zz")},
}


@pytest.mark.parametrize("values", PLANS.values(), ids=PLANS.keys())
def test_a_row_of_a_mixed_batch_equals_the_row_alone(backend, values):
    prompts = mixed_prompts(**values)
    together = run(backend, prompts)
    assert ids(together) == ids(alone(backend, prompts))


HF_SETTINGS = {
    "greedy": ({}, {}),
    "no cache": ({"use_cache": False}, {}),
    "repetition penalty": ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
    "no repeated pair": ({"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    "no repeated token": ({"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 1}),
    "bad words": ({"extra": (("bad_words_ids", [[5], [7, 9]]),)}, {"bad_words_ids": [[5], [7, 9]]}),
    "suppressed tokens": ({"extra": (("suppress_tokens", [3, 8, 9]),)}, {"suppress_tokens": [3, 8, 9]}),
    "minimum length": ({"extra": (("min_new_tokens", 6),)}, {"min_new_tokens": 6}),
    "several": (
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "extra": (("min_new_tokens", 6),)},
        {"repetition_penalty": 1.3, "no_repeat_ngram_size": 3, "min_new_tokens": 6},
    ),
}


@pytest.mark.parametrize("values, settings", HF_SETTINGS.values(), ids=HF_SETTINGS.keys())
def test_a_batch_gives_the_ids_of_plain_transformers_on_single_prompts(backend, values, settings):
    prompts = mixed_prompts(**values)
    assert ids(run(backend, prompts)) == {item.index: reference_ids(backend, item, **settings) for item in prompts}


def test_a_seed_of_more_than_64_bits_is_used_in_full(backend):
    outputs = [ids(run(backend, [prompt(0, [30, 31], temperature=1.0, seed=seed, stop_token_ids=())])) for seed in (1, 1 + 2**64)]
    assert outputs[0] != outputs[1]


def test_a_stop_string_ends_the_batch_before_the_budget_is_used_up(backend):
    free = run(backend, [prompt(0, [30, 31], **NO_END)])[0]
    text = backend.tokenizer.decode(free.token_ids[1:3])
    steps = CountSteps()
    run(backend, [prompt(0, [30, 31], stop_strings=(text,), max_new_tokens=200, **NO_END)], plugins=normalise_plugins([steps]))
    assert steps.count <= 3


def test_a_stop_string_completed_by_the_last_token_of_the_budget_counts(backend):
    free = run(backend, [prompt(0, [30, 31], **NO_END)])[0]
    text = backend.tokenizer.decode(free.token_ids[-2:])
    stopped = run(backend, [prompt(0, [30, 31], stop_strings=(text,), **NO_END)])[0]
    assert (stopped.stopped_by, stopped.token_ids) == ("string", free.token_ids)


class CountSteps:
    """Counts the steps of the generation loop."""

    def __init__(self):
        self.count = 0

    def hf_logits_processor(self, prompt_lengths):
        def step(input_ids, scores):
            self.count += 1
            return scores

        return [step]


class FailsAbove:
    """Raises as torch does when memory is not enough, or anything else, for batches of more than so many rows."""

    def __init__(self, max_rows, error, poison=None):
        self.max_rows = max_rows
        self.error = error
        self.poison = poison
        self.finished = []

    def hf_logits_processor(self, prompt_lengths):
        def check(input_ids, scores):
            if len(prompt_lengths) > self.max_rows or (self.poison is not None and (input_ids == self.poison).any()):
                raise self.error
            if input_ids.shape[1] == prompt_lengths[0] + 1:
                self.finished.append(len(prompt_lengths))
            return scores

        return [check]


def out_of_memory_errors():
    import torch

    allocator = "[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
    return {"GPU": torch.OutOfMemoryError("CUDA out of memory."), "CPU": RuntimeError(allocator), "Python": MemoryError()}


@pytest.mark.parametrize("where", ["GPU", "CPU", "Python"])
def test_a_batch_that_does_not_fit_is_halved_and_no_row_runs_twice(hf_text_checkpoint, where):
    backend = load(hf_text_checkpoint)
    prompts = mixed_prompts(16, stop_token_ids=())
    plugin = FailsAbove(5, out_of_memory_errors()[where])
    outputs = run(backend, prompts, plugins=normalise_plugins([plugin]))
    assert ids(outputs) == ids(run(backend, prompts))
    assert sum(plugin.finished) == 16
    assert backend.describe()["num_batches_halved"] >= 2


def test_after_running_out_of_memory_later_batches_start_smaller(hf_text_checkpoint):
    backend = load(hf_text_checkpoint)
    plugin = FailsAbove(8, out_of_memory_errors()["CPU"])
    run(backend, [prompt(index, [40] * 20) for index in range(16)], plugins=normalise_plugins([plugin]))
    halved = backend.describe()["num_batches_halved"]
    run(backend, [prompt(index, [40] * 20) for index in range(64)], plugins=normalise_plugins([plugin]))
    assert halved == backend.describe()["num_batches_halved"] == 1


def test_a_single_row_that_does_not_fit_is_an_error_row(hf_text_checkpoint):
    backend = load(hf_text_checkpoint)
    outputs = run(backend, mixed_prompts(3), plugins=normalise_plugins([FailsAbove(0, out_of_memory_errors()["GPU"])]))
    assert {output.kind for output in outputs.values()} == {"error"}
    assert all("out of memory" in output.problem for output in outputs.values())


def test_one_poisonous_row_does_not_take_the_others_along(backend):
    prompts = mixed_prompts(6)
    poisoned = [*prompts, prompt(99, [200, 201, 202])]
    plugin = FailsAbove(99, RuntimeError("shape mismatch"), poison=201)
    prompts = [item for item in prompts if 201 not in item.token_ids]
    outputs = run(backend, [*prompts, poisoned[-1]], plugins=normalise_plugins([plugin]))
    failure = outputs.pop(99)
    assert isinstance(failure, GenerationFailure)
    assert (failure.kind, failure.problem) == ("error", "RuntimeError: shape mismatch")
    assert isinstance(failure.error, BackendError)
    assert failure.error.__traceback__ is None  # it would keep the batch's tensors alive
    assert ids(outputs) == ids(run(backend, prompts))


def test_a_broken_device_ends_everything(hf_text_checkpoint):
    backend = load(hf_text_checkpoint)
    plugin = FailsAbove(0, RuntimeError("CUDA error: device-side assert triggered"))
    with pytest.raises(BackendError, match="cannot be used any more by this process"):
        run(backend, mixed_prompts(3), plugins=normalise_plugins([plugin]))
    with pytest.raises(BackendError, match="cannot go on after: RuntimeError: CUDA error"):
        run(backend, mixed_prompts(3))


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["greedy", "sampling"])
def test_a_model_that_gives_nan_is_an_error_not_an_answer(hf_text_checkpoint, temperature, torch):
    backend = load(hf_text_checkpoint)
    with torch.no_grad():
        backend.model.get_input_embeddings().weight[250] = torch.nan
    outputs = run(backend, [prompt(0, [250, 30], temperature=temperature), prompt(1, [30, 31, 32], temperature=temperature)])
    assert outputs[0].kind == "error"
    assert "no usable scores" in outputs[0].problem
    assert isinstance(outputs[1], Completion)


def test_a_row_with_every_token_banned_is_an_error(backend):
    outputs = run(backend, [prompt(0, [30], extra=(("suppress_tokens", list(range(260))),))])
    assert "every token banned" in outputs[0].problem


BAD_EXTRAS = {
    "negative top_k": ({"extra": (("top_k", -1),)}, "top_k must be an int of at least 0"),
    "bool": ({"extra": (("top_k", True),)}, "top_k must be an int"),
    "min_p": ({"extra": (("min_p", 1.5),)}, "min_p must be a number from 0 to 1"),
    "typical_p": ({"extra": (("typical_p", 0),)}, "typical_p must be a number above 0"),
    "flat bad words": ({"extra": (("bad_words_ids", [5]),)}, "bad_words_ids must be a non-empty list of non-empty lists"),
    "id beyond the vocabulary": ({"extra": (("suppress_tokens", [260]),)}, "token id 260; the vocabulary ends at 259"),
    "minimum above maximum": ({"extra": (("min_new_tokens", 13),)}, r"must not exceed max_new_tokens \(12\)"),
    "stop id": ({"stop_token_ids": (END_ID, 260)}, "stop token id 260 would never stop: .* ends at 259"),
    "pad id": ({"pad_token_id": 260}, "pad_token_id is 260; the vocabulary ends at 259"),
}


@pytest.mark.parametrize("values, match", BAD_EXTRAS.values(), ids=BAD_EXTRAS.keys())
def test_an_option_that_cannot_be_honoured_is_refused_before_anything_runs(backend, values, match):
    with pytest.raises(ConfigError, match=match):
        run(backend, [prompt(0, [30], **values)])


def test_any_padding_id_gives_the_same_ids(backend):
    prompts = [mixed_prompts(8, repetition_penalty=1.4, no_repeat_ngram_size=1, pad_token_id=pad) for pad in (None, END_ID, 30)]
    assert ids(run(backend, prompts[0])) == ids(run(backend, prompts[1])) == ids(run(backend, prompts[2]))


def test_prompts_are_pulled_window_by_window(backend, monkeypatch):
    monkeypatch.setattr("evalharness.backends.hf.backend.WINDOW_SIZE", 4)
    pulled = itertools.count()
    outputs = backend.generate(prompt(next(pulled), [30], max_new_tokens=1) for _ in range(10))
    next(outputs)
    assert next(pulled) == 4
    assert len(list(outputs)) == 9


def test_should_stop_ends_the_batch_within_a_step_and_yields_nothing_more(backend):
    steps = CountSteps()
    prompts = [prompt(index, [30 + index], stop_token_ids=(), max_new_tokens=200) for index in range(40)]
    outputs = list(backend.generate(prompts, plugins=normalise_plugins([steps]), should_stop=lambda: steps.count >= 5))
    assert outputs == []
    assert steps.count == 5


def test_a_closed_backend_says_so(hf_text_checkpoint):
    backend = load(hf_text_checkpoint)
    backend.close()
    backend.close()
    with pytest.raises(BackendError, match="closed; make a new one"):
        run(backend, [prompt(0, [30])])


MANY_ENDS = {
    "greedy": {},
    "repetition penalty": {"repetition_penalty": 1.3},
    "no repeated pair": {"no_repeat_ngram_size": 2},
    "sampling": {"temperature": 1.0, "top_p": 0.9},
    "stop string": {"stop_strings": ("a", "Z")},
    "bad words": {"extra": (("bad_words_ids", [[5, 6], [7]]),)},
    "logprobs": {"logprobs": True},
}


@pytest.fixture
def calls(backend, monkeypatch):
    """How many rows each call of the model's `generate` has had."""
    calls, whole = [], backend.model.generate
    monkeypatch.setattr(backend.model, "generate", lambda **kwargs: calls.append(len(kwargs["input_ids"])) or whole(**kwargs))
    return calls


@pytest.mark.parametrize("values", MANY_ENDS.values(), ids=MANY_ENDS.keys())
def test_rows_that_go_on_without_finished_ones_are_as_alone(backend, values, calls):
    # Ids that end a row are common, so rows end at different times; 100 tokens are many times 8.
    common = {"stop_token_ids": tuple(range(40, 52)), "max_new_tokens": 100, **values}
    prompts = [prompt(i, [60 + i, 70, 80 + i], seed=i, **common) for i in range(12)]
    together = run(backend, prompts)
    assert len(calls) > 1, "no row left"
    assert sorted(calls, reverse=True) == calls
    single = alone(backend, prompts)
    assert ids(together) == ids(single)
    if "logprobs" in values:
        assert {i: pytest.approx(made.logprobs, abs=1e-4) for i, made in single.items()} == {
            i: made.logprobs for i, made in together.items()
        }


class SaysNothingTwice:
    """Bans in each row what it has said, and ends a row where the sum of its ids can be divided by 23."""

    def ban(self, tokenizer, vocab_size):
        said = set()
        return SimpleNamespace(push=said.add, banned=lambda: said)

    def watch(self, tokenizer):
        said = []
        return SimpleNamespace(push=lambda token_id: said.append(token_id) or sum(said) % 23 == 0)


def objects_of_transformers():
    """Return a processor and criteria that keep a state of one row, read the ids from the row's beginning, and refuse padding."""
    import transformers

    class NothingTwice(transformers.LogitsProcessor):
        def __init__(self):
            self.said = []

        def __call__(self, input_ids, scores):
            assert not {PAD_ID, END_ID} & set(input_ids[0].tolist()), "padding, or what follows an end"
            self.said.append(int(input_ids[0, -1]))
            scores[:, self.said] = -float("inf")  # in place, as many write it
            return scores

    class Odd(transformers.StoppingCriteria):
        def __init__(self):
            self.calls = 0

        def __call__(self, input_ids, scores, **kwargs):
            self.calls += 1
            return bool(self.calls > 8 and int(input_ids[0, -1]) % 5 == 0)  # a plain bool, as before transformers 4.39

    return [NothingTwice(), transformers.StoppingCriteriaList([Odd()])]


def test_objects_of_transformers_get_each_rows_own_ids_and_keep_its_state(backend):
    prompts = [prompt(i, list(range(60, 62 + i)), max_new_tokens=40, stop_token_ids=(END_ID,)) for i in range(5)]
    together = run(backend, prompts, plugins=normalise_plugins(objects_of_transformers()))
    assert ids(together) == ids(alone(backend, prompts, plugins=normalise_plugins(objects_of_transformers())))
    assert all(len(set(made.token_ids)) == len(made.token_ids) for made in together.values())
    assert {(made.stopped_by, made.stop_name) for made in together.values()} >= {("plugin", "Odd")}


WRONG_RETURNS = {
    "too few": (lambda scores: scores[:, :5], r"a tensor of shape \(1, 5\) of scores of shape"),
    "nothing": (lambda scores: None, r"NoneType of scores of shape \(1, \d+\); it must return as many scores"),
}


@pytest.mark.parametrize("for_batch", [False, True], ids=["row", "batch"])
@pytest.mark.parametrize("make, problem", WRONG_RETURNS.values(), ids=WRONG_RETURNS)
def test_a_processor_that_gives_no_scores_is_named(backend, make, problem, for_batch):
    import transformers

    mine = type("Mine", (transformers.LogitsProcessor,), {"__call__": lambda self, ids, scores: make(scores)})()
    plugin = SimpleNamespace(hf_logits_processor=lambda lengths: [mine]) if for_batch else mine
    assert re.search(f"Mine made .*{problem}", run(backend, [prompt(0, [30])], plugins=normalise_plugins([plugin]))[0].problem)


@pytest.mark.parametrize("for_batch", [False, True], ids=["row", "batch"])
def test_a_criterion_that_gives_no_bool_is_named(backend, for_batch):
    import transformers

    mine = type("Mine", (transformers.StoppingCriteria,), {"__call__": lambda self, ids, scores, **kwargs: None})()
    plugin = SimpleNamespace(name="Mine", hf_stopping_criteria=lambda lengths: [mine]) if for_batch else mine
    problem = run(backend, [prompt(0, [30])], plugins=normalise_plugins([plugin]))[0].problem
    assert "Mine gave None; stopping criteria must return a bool, or a tensor of 1 bools" in problem


def test_an_object_of_transformers_with_another_hook_does_both(backend):
    import transformers

    def say_a(self, input_ids, scores):
        scores[:, :] = -1.0
        scores[:, 97] = 0.0
        return scores

    kind: Any = type("Mine", (transformers.LogitsProcessor,), {"postprocess_text": lambda self, text: text, "__call__": say_a})
    (plugin,) = normalise_plugins([kind()])
    assert plugin.hooks == {"LogitsProcessor", "postprocess_text"}
    assert run(backend, [prompt(0, [30], max_new_tokens=2)], plugins=[plugin])[0].token_ids == (97, 97)
    calls_itself = type("Mine", (kind,), {"hf_logits_processor": lambda self, lengths: [self]})()
    assert normalise_plugins([calls_itself])[0].hooks == {"hf_logits_processor", "postprocess_text"}, "it says how it is to be called"


def test_a_processor_of_transformers_acts_as_in_plain_transformers(backend):
    import transformers

    prompts = mixed_prompts()
    mine = [transformers.RepetitionPenaltyLogitsProcessor(1.5), transformers.NoRepeatNGramLogitsProcessor(2)]
    together = run(backend, prompts, plugins=normalise_plugins([transformers.LogitsProcessorList(mine)]))
    settings = {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2}
    assert ids(together) == {item.index: reference_ids(backend, item, **settings) for item in prompts}
    prompts = mixed_prompts(stop_token_ids=(), max_new_tokens=8)
    longest = min(len(item.token_ids) for item in prompts) + 5
    ended = run(backend, prompts, plugins=normalise_plugins([transformers.MaxLengthCriteria(longest)]))
    assert [len(ended[item.index].token_ids) for item in prompts] == [max(1, min(8, longest - len(item.token_ids))) for item in prompts]


STATES = {
    "plugins": ([SaysNothingTwice()], {"stop_token_ids": ()}),
    "transformers": (objects_of_transformers, {"stop_token_ids": ()}),
    "thinking budget": ([], {"thinking": ThinkingBudget((70,), (30, 31), 24), "temperature": 1.0}),
}


@pytest.mark.parametrize(("plugins", "values"), STATES.values(), ids=STATES)
def test_rows_that_go_on_keep_what_is_known_of_them_alone(backend, plugins, values, calls):
    plugins = plugins() if callable(plugins) else plugins
    common = {"stop_token_ids": tuple(range(40, 46)), "max_new_tokens": 60, **values}
    prompts = [prompt(i, [60 + i, 70 if i % 2 else 72, 80 + i], seed=i, **common) for i in range(12)]  # 70 opens a thought
    together = run(backend, prompts, plugins=normalise_plugins(plugins))
    assert len(calls) > 1, "no row left"
    single = alone(backend, prompts, plugins=normalise_plugins(plugins))
    assert ids(together) == ids(single)
    assert {i: made.stopped_by for i, made in together.items()} == {i: made.stopped_by for i, made in single.items()}
    if plugins:
        assert all(len(set(token_ids)) == len(token_ids) for token_ids in ids(together).values())
    else:
        forced = {i for i, token_ids in ids(together).items() if token_ids[23:25] == (30, 31)}
        assert forced <= {1, 3, 5, 7, 9, 11}
        assert forced


def test_a_finished_row_is_handed_out_while_another_goes_on(backend):
    plan = {"stop_token_ids": tuple(range(40, 46)), "max_new_tokens": 150, "temperature": 1.0}
    prompts = [prompt(i, [60 + i, 70, 80 + i], seed=i, **plan) for i in range(12)]
    steps, arrivals, lengths = [], {}, {}
    for output in backend.generate(iter(prompts), should_stop=lambda: steps.append(1) is not None):
        arrivals[output.index], lengths[output.index] = len(steps), len(output.token_ids)
    shortest, longest = min(lengths, key=lengths.get), max(lengths, key=lengths.get)
    assert arrivals[shortest] < lengths[shortest] + 50 < lengths[longest] < arrivals[longest]
