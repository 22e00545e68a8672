"""Given responses on transformers: log-probabilities, entropies, logits, gradients. Run: pytest tests/backends/hf/test_scoring.py"""

from __future__ import annotations

import inspect
import math
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api.errors import CapabilityError, ConfigError, UnsupportedOption
from evalharness.api.options import GenerationOptions, StopOptions
from evalharness.api.scoring import ScoringRequest
from evalharness.backends.hf.decoding import Row
from evalharness.backends.hf.scoring import logits_of_responses, row_to_score
from evalharness.engine.engine import Engine
from tests.backends.hf_models import END_ID, PAD_ID, load, plan, prompt, run

DOCS = Path(__file__).parents[3] / "docs" / "scoring.md"

# Of very different lengths.
PAIRS = [([5, 6, 7], [8, 9]), (list(range(2, 60)), list(range(60, 90))), ([200], [100, 101, 102, 103, 104]), ([], [3, 4, 5]), ([9, 9], [])]
PROMPTS, RESPONSES = [list(pair[0]) for pair in PAIRS], [list(pair[1]) for pair in PAIRS]
HALF = {"logprobs": True, "temperature": 0.5, "seed": 3}


LAYERS = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"intermediate_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 16}


pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_in_one_thread")]


@pytest.fixture(scope="module")
def engine(hf_text_checkpoint):
    with Engine(load(hf_text_checkpoint)) as engine:
        yield engine


def plain_logits(engine, prompt_ids, response_ids):
    """Return what one plain forward pass says before each token of a response, `(response, vocab)`; without prompt one less."""
    import torch

    ids = [*prompt_ids, *response_ids]
    with torch.no_grad():
        logits = engine.backend.model(input_ids=torch.tensor([ids])).logits[0].float()
    return logits[max(len(prompt_ids) - 1, 0) : len(ids) - 1]


def gathered(scores, response_ids):
    return scores[range(len(scores)), response_ids[len(response_ids) - len(scores) :]]


def test_rows_are_responses_alone_with_a_mask_and_nan_where_there_is_nothing(engine):
    scores = engine.get_logprobs(PROMPTS, RESPONSES)
    assert scores.values.shape == scores.mask.shape == (5, 30)
    assert scores.mask.sum(axis=1).tolist() == [2, 30, 5, 2, 0]
    assert scores.mask[3, :3].tolist() == [False, True, True]  # nothing stands before the first
    assert (~scores.mask == [[math.isnan(value) for value in row] for row in scores.values.tolist()]).all()
    assert scores.token_ids == tuple(map(tuple, RESPONSES))
    assert scores.num_prompt_tokens == (3, 58, 1, 0, 2)
    assert [len(row) for row in scores.rows()] == [2, 30, 5, 3, 0]
    assert scores.rows()[3][0] is None
    assert scores.weight_version == "0"


@pytest.mark.parametrize("side", ["left", "right"])
def test_no_padding_changes_a_row(engine, side):
    engine.tokenizer.padding_side = side  # never asked: rows are padded by hand
    together = engine.get_logprobs(PROMPTS, RESPONSES)
    for i, (prompt_ids, response_ids) in enumerate(PAIRS):
        alone = engine.get_logprobs([prompt_ids], [response_ids])
        assert together.rows()[i] == pytest.approx(alone.rows()[0], abs=1e-5)
        if response_ids:
            wanted = gathered(plain_logits(engine, prompt_ids, response_ids).log_softmax(-1), response_ids).tolist()
            assert [value for value in together.rows()[i] if value is not None] == pytest.approx(wanted, abs=1e-5)


OTHER_KINDS = {
    "sliding window, capped logits": ("gemma2", {**LAYERS, **HEADS, "sliding_window": 8, "final_logit_softcapping": 5.0}),
    "no position ids": ("bloom", {"vocab_size": 100, "hidden_size": 32, "n_layer": 2, "n_head": 2}),
    "states in place of keys": ("mamba", LAYERS),
}


@pytest.mark.parametrize("kind, values", OTHER_KINDS.values(), ids=OTHER_KINDS)
@pytest.mark.filterwarnings("ignore")  # of models that miss their fast kernels
def test_rows_are_as_alone_in_models_of_other_kinds(kind, values):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values)).eval()
    rows = []
    for i, (prompt_ids, response_ids) in enumerate((([5, 6, 7], [8, 9]), ([*range(2, 42)], [*range(42, 50)]), ([], [3, 4, 5]))):
        asked = replace(prompt(i, prompt_ids), response_ids=tuple(response_ids))
        rows.append(row_to_score(Row(asked, asked.token_ids)))
    with torch.no_grad():
        for row, logits in zip(rows, logits_of_responses(model, rows), strict=True):
            alone = model(input_ids=torch.tensor([row.token_ids])).logits[0]
            torch.testing.assert_close(logits, alone[len(row.token_ids) - 1 - len(logits) : -1], atol=1e-5, rtol=0)


def test_nothing_is_kept_behind_the_end_of_a_row(engine):
    options = {"logprobs": True, "entropies": True}
    free = run(engine.backend, [prompt(i, [20 + i] * 8, stop_token_ids=(), **options) for i in range(2)])
    end = free[0].token_ids[3]
    outputs = run(engine.backend, [prompt(i, [20 + i] * 8, stop_token_ids=(end,), **options) for i in range(2)])
    for output in outputs.values():
        assert len(output.logprobs) == len(output.entropies) == len(output.token_ids)
    assert len(outputs[0].token_ids) <= 4
    assert PAD_ID not in outputs[0].token_ids


def test_neither_prompt_nor_response_is_a_row_without_values_among_others(engine):
    prompts, responses = [[], [5]], [[], [6, 7]]
    assert engine.get_logprobs(prompts, responses).mask.tolist() == [[False, False], [True, True]]
    assert engine.get_logprobs(prompts, responses, grad=True).mask.tolist() == [[False, False], [True, True]]
    assert engine.get_logits(prompts, responses).mask.tolist() == [[False, False], [True, True]]


def test_no_pairs_give_an_empty_array(engine):
    assert engine.get_logprobs([], []).values.shape == (0, 0)
    assert engine.get_logits([], []).values.shape == (0, 0)


def test_a_forced_token_has_processed_zero_its_raw_share_and_the_whole_entropy(torch):

    from evalharness.backends.hf.sampling import processors_for

    found = {}
    for kind in ("raw", "processed"):
        values = plan(temperature=1.0, top_p=0.4, logprobs=True, logprobs_kind=kind, entropies=True)
        processors, kept = processors_for(values, [[0]], [0], torch.ones(1, 1), ())
        scores = torch.tensor([[3.0, 2.0, 1.0, 0.0]])
        for processor in processors:
            scores = processor(torch.zeros(1, 1, dtype=torch.long), scores)
        assert scores.argmax().item() == 0
        found[kind] = (kept.logprobs[0].item(), kept.entropies[0].item())
    assert found["raw"] == pytest.approx((-0.4402, 0.9475), abs=1e-4)
    assert found["processed"] == (0.0, pytest.approx(0.9475, abs=1e-4))


def test_what_is_impossible_adds_nothing_to_an_entropy(torch):

    from evalharness.backends.hf.sampling import entropies_of

    logprobs = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0]]).log()
    assert entropies_of(logprobs).tolist() == [0.0, pytest.approx(math.log(2))]


def test_generated_tokens_are_raw_or_processed_as_asked(engine):
    raw, processed = (run(engine.backend, [prompt(0, [5, 6, 7], **HALF, logprobs_kind=kind)])[0] for kind in ("raw", "processed"))
    assert raw.token_ids == processed.token_ids
    logits = plain_logits(engine, [5, 6, 7], raw.token_ids)
    assert list(raw.logprobs) == pytest.approx(gathered(logits.log_softmax(-1), raw.token_ids).tolist(), abs=1e-4)
    assert list(processed.logprobs) == pytest.approx(gathered((logits / 0.5).log_softmax(-1), raw.token_ids).tolist(), abs=1e-4)


def test_given_tokens_are_raw_or_processed_as_asked(engine):
    logits = plain_logits(engine, [5, 6, 7], [8, 9])
    for kind, divisor in (("raw", 1.0), ("processed", 0.5)):
        scores = engine.get_logprobs([[5, 6, 7]], [[8, 9]], GenerationOptions(temperature=0.5, logprobs_kind=kind))
        assert scores.kind == kind
        assert scores.rows()[0] == pytest.approx(gathered((logits / divisor).log_softmax(-1), [8, 9]).tolist(), abs=1e-4)


def test_greedy_processed_values_are_those_after_penalties(engine):
    values = {"logprobs": True, "repetition_penalty": 1.5}
    raw, processed = (run(engine.backend, [prompt(0, [5, 6, 7], **values, logprobs_kind=kind)])[0] for kind in ("raw", "processed"))
    assert raw.token_ids == processed.token_ids
    assert raw.logprobs != processed.logprobs


def test_a_token_that_was_cut_away_is_minus_infinity_and_can_be_recorded(engine):
    options = GenerationOptions(temperature=1.0, logprobs_kind="processed", extra_generation_kwargs={"top_k": 1})
    worst = int(plain_logits(engine, [5, 6, 7], [8]).argmin())
    [(_, result)] = engine.stream([ScoringRequest([5, 6, 7], [worst])], options)
    assert result.logprobs == (-math.inf,)
    written = result.to_json()
    assert written["logprobs"] == ["-inf"]
    assert type(result).from_json(written) == result


def test_entropies_are_those_of_the_whole_raw_distribution(engine):
    logits = plain_logits(engine, [5, 6, 7], [8, 9]).log_softmax(-1)
    wanted = (-(logits.exp() * logits).sum(-1)).tolist()
    options = GenerationOptions(entropies=True, temperature=0.5, top_p=0.3, logprobs_kind="processed")
    assert engine.get_logprobs([[5, 6, 7]], [[8, 9]], options).entropies[0].tolist() == pytest.approx(wanted, abs=1e-4)
    made = run(engine.backend, [prompt(0, [5, 6, 7], **HALF, entropies=True, top_p=0.3)])[0]
    again = engine.get_logprobs([[5, 6, 7]], [made.token_ids], options)
    assert list(made.entropies) == pytest.approx(again.entropies[0].tolist(), abs=1e-4)


def test_without_asking_there_are_no_entropies(engine):
    assert run(engine.backend, [prompt(0, [5, 6, 7], logprobs=True)])[0].entropies is None
    assert engine.get_logprobs([[5]], [[6]]).entropies is None


def test_logits_are_raw_float32_and_masked(engine, torch):
    logits = engine.get_logits(PROMPTS, RESPONSES)
    assert logits.values.shape == (5, 30, 260)
    assert logits.values.dtype == torch.float32
    assert logits.mask.sum(dim=1).tolist() == [2, 30, 5, 2, 0]
    assert not logits.values[logits.mask].isnan().any()
    assert logits.values[~logits.mask].isnan().all()
    for i, (prompt_ids, response_ids) in enumerate(PAIRS[:4]):
        torch.testing.assert_close(logits.values[i][logits.mask[i]], plain_logits(engine, prompt_ids, response_ids), atol=1e-4, rtol=0)


def test_logits_that_would_not_fit_are_refused_with_their_size(engine):
    with pytest.raises(
        ConfigError, match=re.escape("the logits [5, 30, 260] in float32 would take 156,000 bytes, more than max_bytes=155,999")
    ):
        engine.get_logits(PROMPTS, RESPONSES, max_bytes=155_999)
    engine.get_logits(PROMPTS, RESPONSES, max_bytes=156_000)


def test_gradients_reach_every_weight_and_are_those_of_a_plain_forward_pass(engine, torch):
    model = engine.backend.model
    run(engine.backend, [prompt(0, [5, 6, 7])])  # what was generated in inference mode must leave nothing behind
    scores = engine.get_logprobs(PROMPTS, RESPONSES, grad=True)
    scores.values[scores.mask].sum().backward()
    grads = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.zero_grad()
    for prompt_ids, response_ids in PAIRS[:4]:
        logits = model(input_ids=torch.tensor([[*prompt_ids, *response_ids]])).logits[0].log_softmax(-1)
        gathered(logits[max(len(prompt_ids) - 1, 0) : -1], response_ids).sum().backward()
    for name, parameter in model.named_parameters():
        assert grads[name].abs().sum() > 0
        torch.testing.assert_close(grads[name], parameter.grad, atol=1e-3, rtol=1e-3)
    model.zero_grad()


def test_values_with_and_without_gradients_are_equal(engine):
    options = GenerationOptions(entropies=True, temperature=0.7, top_p=0.99, logprobs_kind="processed")
    with_grad, without = (engine.get_logprobs(PROMPTS[:3], RESPONSES[:3], options, grad=grad) for grad in (True, False))
    assert with_grad.values.requires_grad
    assert with_grad.kind == without.kind == "processed"
    assert with_grad.values[0, :2].tolist() == pytest.approx(without.values[0, :2].tolist(), abs=1e-5)
    assert with_grad.entropies[2, :5].tolist() == pytest.approx(without.entropies[2, :5].tolist(), abs=1e-5)
    assert with_grad.mask.tolist() == without.mask.tolist()


def test_many_rows_in_several_batches_stay_in_order(engine, monkeypatch):
    monkeypatch.setattr(engine.backend.batch_sizes, "row_cap", 2)
    prompts, responses = PROMPTS * 3, RESPONSES * 3
    values = engine.get_logprobs(prompts, responses, grad=True).values.detach()
    for i in range(5):
        assert values[i].tolist() == pytest.approx(values[i + 5].tolist(), abs=1e-5, nan_ok=True)


def test_gradients_that_nobody_could_take_are_refused(engine, torch):
    with torch.inference_mode(), pytest.raises(CapabilityError, match="inside torch.inference_mode"):
        engine.get_logprobs([[5]], [[6]], grad=True)
    engine.backend.model.requires_grad_(False)
    with pytest.raises(CapabilityError, match="every weight of the model has requires_grad=False"):
        engine.get_logprobs([[5]], [[6]], grad=True)
    engine.backend.model.requires_grad_(True)


def code_blocks(heading):
    """Return the code under a heading of docs/scoring.md."""
    section = DOCS.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    assert blocks
    return "\n".join(blocks)


@pytest.mark.parametrize("heading", ["Policy gradient", "KL to a reference"])
def test_the_loops_of_the_docs_run_and_their_loss_falls(hf_text_checkpoint, heading):
    values: dict[str, Any] = {"CHECKPOINT": str(hf_text_checkpoint)}
    exec(compile(code_blocks(heading), "docs/scoring.md", "exec"), values)
    assert len(values["losses"]) >= 3
    assert values["losses"][-1] < values["losses"][0]
    for name in ("engine", "reference"):
        if name in values:
            values[name].close()


def test_the_calls_of_the_docs_give_what_they_say(tiny_vlm_checkpoint):
    values: dict[str, Any] = {"CHECKPOINT": str(tiny_vlm_checkpoint)}
    for heading in ("Asking an engine", "What the numbers mean", "In evals"):
        exec(compile(code_blocks(heading), "docs/scoring.md", "exec"), values)
    assert values["scores"].kind == "processed"
    assert values["scores"].entropies.shape == values["scores"].values.shape
    values["engine"].close()


def test_options_that_depend_on_generated_text_are_refused(engine):
    request = [ScoringRequest([5], [6])]
    with pytest.raises(UnsupportedOption, match="cannot be scored after penalties"):
        list(engine.stream(request, GenerationOptions(logprobs_kind="processed", repetition_penalty=1.2)))
    bans = GenerationOptions(logprobs_kind="processed", extra_generation_kwargs={"suppress_tokens": [END_ID]})
    with pytest.raises(UnsupportedOption, match=r"cannot be scored with bans \(suppress_tokens\)"):
        list(engine.stream(request, bans))
    list(engine.stream(request, GenerationOptions(repetition_penalty=1.2, stop=StopOptions(("a",)))))  # raw: none of it counts


def test_plugins_are_refused(engine):
    with pytest.raises(CapabilityError, match="plugins act on what is generated"):
        list(engine.stream([ScoringRequest([5], [6])], GenerationOptions(), plugins=[SimpleNamespace(postprocess_text=str.upper)]))


def test_a_batch_that_does_not_fit_is_halved(hf_text_checkpoint, monkeypatch):
    backend = load(hf_text_checkpoint)
    forward, sizes = backend.model.forward, []

    def limited(*args, input_ids, **kwargs):
        sizes.append(len(input_ids))
        if len(input_ids) > 2:
            raise MemoryError("no room")
        return forward(*args, input_ids=input_ids, **kwargs)

    limited.__signature__ = inspect.signature(forward)  # type: ignore[attr-defined]
    monkeypatch.setattr(backend.model, "forward", limited)
    with Engine(backend) as engine:
        # Of rows with a beginning in common one batch would have one row.
        others = [[token_id + 100 for token_id in ids] for ids in PROMPTS[:2]] + [[201]]
        scores = engine.get_logprobs(PROMPTS[:3] + others, RESPONSES[:3] * 2)
        assert scores.mask.sum() == 2 * 37
        assert max(sizes) > 2
        for expected in (6, 1):  # what did not fit is not tried again; 6, then 3, of which half is 1
            sizes.clear()
            backend.batch_sizes.known_limit = None if expected == 6 else backend.batch_sizes.known_limit
            engine.get_logprobs([[first, 6, 7] for first in range(6)], RESPONSES[:1] * 6)
            assert max(sizes) == expected
        backend.batch_sizes.known_limit = None
