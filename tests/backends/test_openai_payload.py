"""Bodies of requests and answers of servers, behaviours 1 to 6 and 18 of the engine's breadth. No network."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evalharness.backends import SERVERS
from evalharness.backends.base import Completion, Prompt, SamplingPlan
from evalharness.backends.fake import FakeTokenizer
from evalharness.backends.max_seeds import max_seed
from evalharness.backends.openai_flavours import FLAVOURS, base_url
from evalharness.backends.openai_payload import check_plan, completion_body, completion_of
from evalharness.errors import BackendError, ConfigError, UnsupportedOption
from evalharness.structured_output import StructuredOutput
from tests.backends.plans import PLAN

PROMPT = Prompt(4, "abc", (1, 2, 3), 3, PLAN)
TOKENIZER = FakeTokenizer()


def body(flavour: str, plan: SamplingPlan = PLAN, *, as_text: bool = False) -> dict[str, Any]:
    return completion_body(replace(PROMPT, plan=plan), FLAVOURS[flavour], "m", as_text=as_text, tokenizer=TOKENIZER, eos_token_ids=(2,))


def read(answer: Any, *, plan: SamplingPlan = PLAN, exact: bool = True) -> Completion:
    return completion_of(answer, replace(PROMPT, plan=plan), tokenizer=TOKENIZER, eos_token_ids=(2,), exact_prompt=exact)


def choice(**values: Any) -> dict[str, Any]:
    return {"choices": [{"text": "x", "finish_reason": "length", "token_ids": [7], **values}]}


@pytest.mark.parametrize(
    ("flavour", "given", "url"),
    [
        ("vllm", None, "http://127.0.0.1:8000"),
        ("sglang", None, "http://127.0.0.1:30000"),
        ("trtllm", None, "http://127.0.0.1:31000"),
        ("mlx", None, "http://127.0.0.1:8080"),
        ("vllm", "http://h:1/", "http://h:1"),
        ("openai", "https://h/base/v1/", "https://h/base"),
    ],
)
def test_1_addresses(flavour: str, given: str | None, url: str) -> None:
    assert base_url(flavour, given) == url


@pytest.mark.parametrize(
    ("flavour", "given", "match"),
    [
        ("vlm", None, r"server 'vlm' is unknown; did you mean 'vllm'\? Known: vllm, sglang, trtllm, mlx, max, openai"),
        ("openai", None, "has no port of its own; give its address with --base-url"),
        ("vllm", "h:8000", "is no address"),
        ("vllm", "http://me:secret@h", "put the key into EVALHARNESS_API_KEY"),
        ("vllm", "http://h?x=1", "more than an address"),
    ],
)
def test_1_what_is_no_address_is_refused(flavour: str, given: str | None, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        base_url(flavour, given)
    assert "secret@" not in str(caught.value)


def test_1_every_kind_of_server_that_can_be_named_is_known() -> None:
    assert tuple(FLAVOURS) == SERVERS


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_2_ids_go_to_servers_that_take_them_and_texts_to_the_others(flavour: str) -> None:
    sent = body(flavour)
    takes_ids = flavour in ("vllm", "sglang", "max")
    assert sent["prompt"] == ([1, 2, 3] if takes_ids else "abc")
    assert sent.get("return_token_ids", False) is takes_ids
    assert (sent["n"], sent["max_tokens"], sent["temperature"], sent["top_p"]) == (1, 8, 0.0, 1.0)


def test_a_prompt_of_text_to_a_server_of_ids_gets_no_special_tokens_twice() -> None:
    sent = body("vllm", as_text=True)
    assert (sent["prompt"], sent["add_special_tokens"]) == ("abc", False)


def test_what_a_server_would_take_from_the_checkpoint_is_sent_although_it_is_off() -> None:
    assert {"top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0, "ignore_eos": True}.items() <= body("vllm").items()
    assert body("sglang")["top_k"] == -1


def test_a_seed_is_sent_where_tokens_are_drawn() -> None:
    assert body("vllm", replace(PLAN, temperature=1.0, seed=7))["seed"] == 7
    assert "seed" not in body("vllm", replace(PLAN, seed=7))


def test_stops_are_ids_and_strings_where_a_server_knows_both() -> None:
    [letter] = TOKENIZER.encode("x", add_special_tokens=False)
    plan = replace(PLAN, stop_token_ids=(2, letter), stop_strings=("end",))
    assert {"stop": ["end"], "stop_token_ids": [2, letter]}.items() <= body("vllm", plan).items()
    assert body("openai", plan)["stop"] == ["end", "x"]
    assert "stop_token_ids" not in body("openai", plan)


def test_max_is_told_ids_beside_its_own_eos_and_none_where_eos_ends_no_text() -> None:
    [letter] = TOKENIZER.encode("x", add_special_tokens=False)
    beside, without = (body("max", replace(PLAN, stop_token_ids=ids)) for ids in ((2, letter), (letter,)))
    assert (beside["stop_token_ids"], beside["ignore_eos"]) == ([2, letter], False)
    assert (without.get("stop_token_ids"), without["ignore_eos"]) == (None, True)  # it would forget the ids as well


def test_max_is_sent_no_field_that_it_does_not_know_and_no_seed_of_0() -> None:
    sent = body("max", replace(PLAN, temperature=1.0, seed=0))
    assert not {"skip_special_tokens", "add_generation_prompt", "continue_final_message"} & sent.keys()
    assert sent["seed"] == max_seed(0) != 0
    assert {"top_k": -1, "repetition_penalty": 1.0, "min_tokens": 0, "reasoning_split": False}.items() <= sent.items()


def test_extra_options_go_by_the_servers_own_names() -> None:
    assert body("vllm", replace(PLAN, extra=(("min_new_tokens", 3), ("top_k", 5))))["min_tokens"] == 3


@pytest.mark.parametrize(
    ("flavour", "changes", "match"),
    [
        ("vllm", {"temperature": 3.0}, "temperature=3.0"),
        ("vllm", {"temperature": 1e-7}, "take 0 or 0.01 to 2"),
        ("vllm", {"no_repeat_ngram_size": 3}, "no_repeat_ngram_size"),
        ("vllm", {"use_cache": False}, "use_cache"),
        ("openai", {"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ("openai", {"logprobs": True}, "belong to none"),
        ("max", {"extra": (("presence_penalty", 1.0),)}, "option 'presence_penalty' cannot be honoured by server 'max'"),
        ("openai", {"extra": (("top_k", 4),)}, "option 'top_k' cannot be honoured by server 'openai'"),
    ],
)
def test_18_what_a_server_cannot_honour_is_refused(flavour: str, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(UnsupportedOption, match=match):
        check_plan(replace(PLAN, **changes), FLAVOURS[flavour], flavour, (2,))


def test_4_ids_and_logprobs_of_the_choice_are_taken() -> None:
    answer = choice(token_ids=[101, 102], logprobs={"token_logprobs": [-0.5, -0.3]})
    got = read(answer, plan=replace(PLAN, logprobs=True))
    assert (got.token_ids, got.logprobs, got.stopped_by, got.exact_ids, got.index) == ((101, 102), (-0.5, -0.3), "length", True, 4)


def test_4_ids_and_logprobs_of_the_content_are_taken_as_numbers() -> None:
    content = [{"token_id": 701, "logprob": "-0.7"}, {"token_id": "702", "logprob": -0.2}]
    got = read(choice(token_ids=None, logprobs={"content": content}), plan=replace(PLAN, logprobs=True))
    assert (got.token_ids, got.logprobs) == ((701, 702), (-0.7, -0.2))


def test_5_a_text_without_ids_is_tokenised_again_and_says_so() -> None:
    answer = {
        **choice(text="hi", token_ids=None, logprobs={"tokens": [".", " I'm"], "token_logprobs": [-1, -2]}),
        "usage": {"completion_tokens": 9},
    }
    got = read(answer)
    assert got.token_ids == tuple(TOKENIZER.encode("hi", add_special_tokens=False))
    assert (got.exact_ids, got.logprobs, got.num_completion_tokens) == (False, None, 9)


def test_5_without_logprobs_there_are_none() -> None:
    assert read(choice()).logprobs is None


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ([None], "is no number"),
        ([float("nan")], "not finite"),
        ([float("-inf")], "not finite"),
        ([-1, -2], "2 log-probabilities for 1 tokens"),
        (None, "no log-probabilities for 1 tokens"),
    ],
)
def test_5_logprobs_that_are_none_are_an_error(values: Any, match: str) -> None:
    with pytest.raises(BackendError, match=match):
        read(choice(logprobs={"token_logprobs": values}), plan=replace(PLAN, logprobs=True))


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        ({"choices": []}, "expected 1, got 0"),
        ({"choices": [{}, {}]}, "expected 1, got 2"),
        ({"choices": {"0": {}}}, "no list of choices"),
        ({}, "no list of choices"),
        ([], "is no object"),
        ({"choices": ["x"]}, "choice is no object"),
        ({"choices": [{"finish_reason": "stop"}]}, "has no text"),
        ({"choices": [{"finish_reason": "stop", "message": {"content": None}}]}, "has no text"),
        ({"choices": [{"finish_reason": "tool_calls", "message": {"content": "", "tool_calls": [{}]}}]}, "took tool calls out"),
        (choice(finish_reason="abort"), "finish_reason 'abort'"),
        (choice(finish_reason=None), "finish_reason None"),
        (choice(token_ids=["x"]), "token ids are none"),
        (choice(token_ids=[-1]), "token ids are none"),
        (choice(token_ids=[7] * 9), "gave 9 tokens where 8 were allowed"),
    ],
)
def test_6_answers_that_are_none_are_errors(answer: Any, match: str) -> None:
    with pytest.raises(BackendError, match=match):
        read(answer)


def test_another_count_of_the_prompt_is_another_prompt() -> None:
    with pytest.raises(BackendError, match="made 4 tokens of a prompt that has 3"):
        read({**choice(), "usage": {"prompt_tokens": 4}})
    assert read({**choice(), "usage": {"prompt_tokens": 4}}, exact=False).num_prompt_tokens == 4


def test_an_end_at_a_stop_string_is_told_from_one_at_the_end_token() -> None:
    plan = replace(PLAN, stop_strings=("row",))
    got = read(choice(text="The b", token_ids=None, finish_reason="stop", stop_reason="row"), plan=plan)
    assert got.stopped_by == "string"
    assert TOKENIZER.decode(list(got.token_ids)) == "The brow"
    ended = read(choice(text="The b", token_ids=None, finish_reason="stop", stop_reason=None), plan=plan)
    assert (ended.stopped_by, ended.token_ids[-1]) == ("id", 2)


STRUCTURES = {
    "choice": (StructuredOutput(choice=("a", "b")), {"structured_outputs": {"choice": ["a", "b"]}}, None),
    "regex": (StructuredOutput(regex="a+"), {"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
    "json_schema": (
        StructuredOutput(json_schema={"type": "object"}),
        {"structured_outputs": {"json": {"type": "object"}}},
        {"json_schema": '{"type": "object"}'},
    ),
    "grammar": (StructuredOutput(grammar="root ::= [a]"), {"structured_outputs": {"grammar": "root ::= [a]"}}, {"ebnf": "root ::= [a]"}),
}


@pytest.mark.parametrize(("structured", "for_vllm", "for_sglang"), STRUCTURES.values(), ids=STRUCTURES)
def test_a_structure_is_sent_in_each_servers_way(
    structured: StructuredOutput, for_vllm: dict[str, object], for_sglang: dict[str, object] | None
) -> None:
    plan = replace(PLAN, structured=structured)
    assert for_vllm.items() <= body("vllm", plan).items()
    if for_sglang is None:
        assert structured.kind not in FLAVOURS["sglang"].structures
    else:
        assert for_sglang.items() <= body("sglang", plan).items()
    assert all(structured.kind not in FLAVOURS[name].structures for name in ("openai", "max", "mlx", "trtllm"))
