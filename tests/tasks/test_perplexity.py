"""Perplexity of references: rows, what a response costs, totals. Run: pytest tests/tasks/test_perplexity.py"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from evalharness.api.errors import ConfigError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.api.scoring import ScoringRequest
from evalharness.backends.fake import FakeAnswer, FakeBackend
from evalharness.engine.engine import Engine
from evalharness.engine.request_images import images_of
from evalharness.tasks import perplexity, stage_a
from fixtures.make_given_text import make_given_text

FIXTURES = Path(__file__).parents[2] / "fixtures"


def load(folder, *rows):
    (folder / "perplexity.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return perplexity.load_cases(folder)


def scored(text, *logprobs):
    return GenerationResult(text, text, "scored", token_ids=tuple(range(len(logprobs))), logprobs=logprobs, logprobs_kind="raw")


def test_an_answer_to_a_chat_has_its_end_and_a_bare_text_has_none(tmp_path):
    chat, text, document = load(
        tmp_path,
        {"id": "a", "prompt": "Hi", "response": "Hello."},
        {"id": "b", "text": "The sky is", "response": " blue"},
        {"id": "c", "text": "", "response": "A document.", "ends": True},
    )
    prompt = TextGenerationRequest([{"role": "user", "content": "Hi"}])
    assert perplexity.request(chat) == ScoringRequest(prompt, "Hello.", True)
    assert perplexity.request(text) == ScoringRequest("The sky is", " blue", False)
    assert perplexity.request(document) == ScoringRequest("", "A document.", True)


@pytest.mark.parametrize("response", ["", None, 5])
def test_a_response_must_be_a_text(tmp_path, response):
    with pytest.raises(ConfigError, match="perplexity.jsonl:1: response must be a text, got"):
        load(tmp_path, {"id": "a", "prompt": "Hi", "response": response})


def test_a_response_costs_what_its_tokens_cost():
    judged = perplexity.judge(scored("grün", None, -1.0, -3.0))
    sums = {"num_nats": 4.0, "num_tokens": 2.0, "num_bytes": 5.0}
    assert judged.scores == {"nats_per_token": 2.0, "worst_token": 3.0, "impossible": 0.0, **sums}
    scores = perplexity.judge(scored("ab", -1.0, -math.inf)).scores
    assert (scores["impossible"], scores["nats_per_token"], scores["num_nats"], scores["worst_token"]) == (1.0, None, None, None)
    assert perplexity.judge(scored("a", None)).scores["nats_per_token"] is None


def test_perplexity_is_that_of_all_tokens_together_and_there_is_none_with_an_impossible_token():
    rows = [{"scores": perplexity.judge(scored("a" * size, *logprobs)).scores} for size, logprobs in ((4, [-1.0]), (12, [-3.0] * 3))]
    rows.append({"scores": {"impossible": 0.0}})  # a row that could not be judged has no numbers
    together = {"perplexity": pytest.approx(math.exp(10 / 4)), "bits_per_byte": pytest.approx(10 / math.log(2) / 16)}
    assert perplexity.aggregate(rows) == together
    assert perplexity.aggregate([]) == {}
    rows.append({"scores": perplexity.judge(scored("ab", -1.0, -math.inf)).scores})
    assert perplexity.aggregate(rows) == {}  # so that a gate on it does not pass


def test_photos_of_stage_a_are_asked_as_stage_a_asks_and_answered_by_their_reference():
    cases = perplexity.stage_a_cases(FIXTURES / "site_photos")
    originals = {case.id: case for case in stage_a.load_cases(FIXTURES / "site_photos")}
    assert len(cases) == len(originals) == 182
    for case in cases[::20]:
        asked, original = perplexity.request(case), stage_a.request(originals[case.id])
        assert isinstance(asked.prompt, VlmGenerationRequest)
        assert images_of(asked.prompt).sources == tuple(map(str, images_of(original).sources))
        assert stage_a.parse_summary(case.reference, originals[case.id].domain).valid
        assert [part.get("text") for part in asked.prompt.messages[1]["content"]] == [
            part.get("text") for part in original.messages[1]["content"]
        ]
        assert case.ends


def test_the_script_makes_the_shipped_rows(tmp_path):
    made = make_given_text(tmp_path)
    for name in ("choices.jsonl", "perplexity.jsonl"):
        assert (made / name).read_bytes() == (FIXTURES / "given_text" / name).read_bytes()
    assert len(perplexity.load_cases(FIXTURES / "given_text")) == 36


@pytest.mark.parametrize(("prompt", "num_bytes"), [("", 4), ("A", 7)], ids=["no prompt", "a prompt"])
def test_bits_are_spread_over_the_bytes_of_the_tokens_that_have_a_value(prompt, num_bytes):
    engine = Engine(FakeBackend.from_answers([FakeAnswer(logprobs=-math.log(2))]))
    [(_, result)] = engine.stream([ScoringRequest(prompt, "中 ok!")], GenerationOptions())  # of 3 + 4 bytes, 5 tokens
    scores = perplexity.judge(result).scores
    assert (scores["num_bytes"], scores["num_tokens"]) == (num_bytes, 4 if num_bytes == 4 else 5)
    assert perplexity.aggregate([{"scores": scores}])["bits_per_byte"] == pytest.approx(scores["num_tokens"] / num_bytes)


def test_a_value_that_is_no_number_does_not_take_its_row_out_of_the_score():
    rows = [{"scores": perplexity.judge(scored("ab", -1.0, value)).scores} for value in (-0.5, math.nan)]
    assert rows[1]["scores"]["impossible"] == 1.0
    assert perplexity.aggregate(rows) == {}
