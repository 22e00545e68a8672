"""Choice metrics, their aggregates and rolling log-likelihoods are those of lm-evaluation-harness's own code, on the same numbers."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api.errors import ContractValueError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import CompletionRequest, GenerationResult
from evalharness.api.scoring import ScoringRequest
from evalharness.engine.engine import Engine
from evalharness.scores import (
    choice_aggregates,
    choice_scores,
    document_request,
    perplexity_aggregates,
    perplexity_scores,
    target_aggregates,
    target_scores,
)
from tests.backends.hf_models import load

pytestmark = [
    pytest.mark.engine,  # lm-eval imports torch
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("torch_in_one_thread"),
]

METRICS = ("acc", "acc_norm", "acc_bytes", "brier_score", "mcc", "f1", "acc_mutual_info")
TEXTS = ["a", "bb", "čč", "no", "no", "a longer one", "數字"]


def lm_eval_scores(choices: list[str], sums: list[float], gold: int | list[int], told: Sequence[bool] = ()) -> dict[str, Any]:
    from lm_eval.api.task import ConfigurableTask

    task = SimpleNamespace(
        config=SimpleNamespace(process_results=None),
        OUTPUT_TYPE="multiple_choice",
        _metric_fn_list=dict.fromkeys([*(METRICS if len(sums) > len(choices) else METRICS[:-1]), "exact_match"]),
        doc_to_choice=lambda doc: choices,
        doc_to_target=lambda doc: gold,
        multiple_input=0,
        multiple_target=int(isinstance(gold, list)),
    )
    found: dict[str, Any] = ConfigurableTask.process_results(task, {}, list(zip(sums, told or [False] * len(sums), strict=True)))
    return found


def questions() -> list[tuple[list[str], list[float], int]]:
    draw = random.Random(0)
    made = []
    for _ in range(300):
        choices = [draw.choice(TEXTS) for _ in range(3)]
        sums = [draw.choice([-1.0, -2.0, -3.0, -4.0, -6.0, draw.uniform(-9, 0)]) for _ in range(3 * draw.choice([1, 2]))]
        made.append((choices, sums, draw.randrange(3)))
    return made


def test_each_question_has_lm_evals_scores() -> None:
    num_tied = 0
    for choices, sums, gold in questions():
        theirs, ours = lm_eval_scores(choices, sums, gold), choice_scores(sums, choices, gold)
        for name in ("acc", "acc_norm", "acc_bytes", "acc_mutual_info"):
            assert ours.scores.get(name) == theirs.get(name), (name, choices, sums, gold)
        num_tied += bool(ours.scores["tied"])
        several = sorted({gold, 0})
        plain = sums[:3]  # with mutual information lm-eval fails on several right ones
        assert choice_scores(plain, choices, several).scores["acc"] == lm_eval_scores(choices, plain, several)["acc"]
    assert num_tied > 10


def test_greedy_choices_and_targets_have_lm_evals_scores() -> None:
    from lm_eval.api.metrics import perplexity
    from lm_eval.api.task import ConfigurableTask

    draw, theirs, rows = random.Random(1), [], []
    for choices, sums, gold in questions()[:100]:
        told = [draw.random() < 0.4 for _ in choices]
        results = [GenerationResult(c, c, "scored", logprobs=(s,), is_greedy=g) for c, s, g in zip(choices, sums, told, strict=False)]
        for right in (gold, sorted({gold, 0})):
            assert (
                choice_scores(results, choices, right).scores["exact_match"]
                == lm_eval_scores(choices, sums[:3], right, told)["exact_match"]
            )
        task = SimpleNamespace(
            config=SimpleNamespace(process_results=None), OUTPUT_TYPE="loglikelihood", _metric_fn_list=dict.fromkeys(("perplexity", "acc"))
        )
        theirs.append(ConfigurableTask.process_results(task, {}, [(sums[0], told[0])]))
        rows.append({"scores": target_scores(results[0])})
        assert rows[-1]["scores"]["acc"] == theirs[-1]["acc"]
    assert target_aggregates(rows)["perplexity"] == pytest.approx(perplexity([each["perplexity"] for each in theirs]))
    with pytest.raises(ContractValueError, match=r"greedy=True"):
        target_scores(GenerationResult("", "", "scored", logprobs=(-1.0,)))
    impossible = target_scores(GenerationResult("", "", "scored", logprobs=(-math.inf,), is_greedy=False))
    assert impossible == {"acc": 0.0, "num_nats": None, "impossible": 1.0}
    assert target_aggregates([*rows, {"scores": impossible}]) == {}


def test_what_is_greedy_is_so_to_lm_eval(hf_text_checkpoint) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=str(hf_text_checkpoint), device="cpu", dtype="float32", batch_size=4)
    with Engine(load(hf_text_checkpoint)) as engine:
        made = engine.generate_text_batch([CompletionRequest("The river"), CompletionRequest("x y")], GenerationOptions(max_new_tokens=1))
        pairs = [(prompt, answer.raw_text) for prompt, answer in zip(("The river", "x y"), made, strict=True) if answer.raw_text.strip()]
        pairs += [("The river", " runs"), ("x y", " z")]
        results = dict(engine.stream([ScoringRequest(*pair, join="text", greedy=True) for pair in pairs], GenerationOptions()))
    theirs = model.loglikelihood([Instance("loglikelihood", {}, pair, 0) for pair in pairs], disable_tqdm=True)
    assert [(results[place].is_greedy) for place in range(len(pairs))] == [is_greedy for _, is_greedy in theirs]
    assert {is_greedy for _, is_greedy in theirs} == {True, False}


def test_the_aggregates_are_lm_evals() -> None:
    from lm_eval.api.metrics import brier_score, f1_score, matthews_corrcoef

    theirs, rows = [], []
    for choices, sums, gold in questions():
        theirs.append(lm_eval_scores(choices, sums, gold))
        judged = choice_scores(sums, choices, gold)
        rows.append({"scores": judged.scores, "details": judged.details})
    ours = choice_aggregates(rows)
    assert ours["mcc"] == pytest.approx(matthews_corrcoef([each["mcc"] for each in theirs]))
    brier = sum(row["scores"]["brier_score"] for row in rows) / len(rows)
    assert brier == pytest.approx(brier_score([each["brier_score"] for each in theirs]))
    binary = [(choices[:2], sums[:2], gold % 2) for choices, sums, gold in questions()]
    judged_pairs = [choice_scores(sums, choices, gold) for choices, sums, gold in binary]
    pairs = [lm_eval_scores(*each)["f1"] for each in binary]
    assert choice_aggregates([{"scores": each.scores, "details": each.details} for each in judged_pairs])["f1"] == pytest.approx(
        f1_score(pairs)
    )


@pytest.mark.parametrize("window", [7, 64])
def test_documents_roll_as_in_lm_eval(hf_text_checkpoint, window) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.api.metrics import bits_per_byte, weighted_perplexity
    from lm_eval.models.huggingface import HFLM

    texts = ["The river, and behind it:\n the valley. " * 2, "čas", "x " * 14]
    model = HFLM(pretrained=str(hf_text_checkpoint), device="cpu", dtype="float32", max_length=window, batch_size=2)
    theirs = model.loglikelihood_rolling([Instance("loglikelihood_rolling", {}, (text,), 0) for text in texts], disable_tqdm=True)
    with Engine(load(hf_text_checkpoint)) as engine:
        results = dict(engine.stream([document_request(text, window=window) for text in texts], GenerationOptions(entropies=True)))
    scores = [perplexity_scores(results[place], text) for place, text in enumerate(texts)]
    assert [-score["num_nats"] for score in scores] == pytest.approx(theirs, abs=1e-3)
    assert all(len(results[place].entropies) == len(results[place].token_ids) for place in range(3))
    metrics = perplexity_aggregates([{"scores": score} for score in scores])
    num_words, num_bytes = [score["num_words"] for score in scores], [score["num_bytes"] for score in scores]
    assert metrics["word_perplexity"] == pytest.approx(weighted_perplexity(list(zip(theirs, num_words, strict=True))), rel=1e-3)
    assert metrics["bits_per_byte"] == pytest.approx(bits_per_byte(list(zip(theirs, num_bytes, strict=True))))


def test_a_document_longer_than_the_context_is_scored_and_one_bad_window_fails_it_alone(hf_text_checkpoint, monkeypatch) -> None:
    with Engine(load(hf_text_checkpoint)) as engine:
        monkeypatch.setattr(engine.backend, "max_model_len", 34)
        long, short = "y" * 100, "z" * 5
        results = dict(engine.stream([document_request(long), document_request(short)], GenerationOptions()))
        assert len(results[0].logprobs) == 100
        assert results[0].text == long
        assert results[0].num_prompt_tokens == 1
        by_hand = dict(engine.stream([document_request(long, window=32)], GenerationOptions()))
        assert results[0].logprobs == pytest.approx(by_hand[0].logprobs, abs=1e-5)
        failed = dict(engine.stream([document_request(long, window=50), document_request(short)], GenerationOptions()))
        assert "exceed the context of 34" in failed[0].problem
        assert failed[1].logprobs == pytest.approx(results[1].logprobs, abs=1e-5)
