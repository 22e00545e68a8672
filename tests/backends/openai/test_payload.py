"""Bodies of requests. No network. Answers: test_answers.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from evalharness.api.errors import ConfigError, UnsupportedOption
from evalharness.api.structured_output import StructuredOutput
from evalharness.backends import SERVERS
from evalharness.backends.base import Prompt, SamplingPlan
from evalharness.backends.fake import FakeTokenizer
from evalharness.backends.max.backend import max_seed
from evalharness.backends.openai.flavours import FLAVOURS, base_url
from evalharness.backends.openai.payload import RequestWriter
from tests.backends.plans import PLAN

PROMPT = Prompt(4, "abc", (1, 2, 3), 3, PLAN)
TOKENIZER = FakeTokenizer()
[PIECE] = TOKENIZER.encode("\ufffd")  # as a tokenizer shows a part of a character
PROCESSED = {"logprobs": True, "logprobs_kind": "processed"}


def body(flavour: str, plan: SamplingPlan = PLAN, *, as_text: bool = False) -> dict[str, Any]:
    return RequestWriter(flavour, TOKENIZER, (2,)).completion_body(replace(PROMPT, plan=plan), "m", as_text=as_text)


def check(flavour: str, **changes: Any) -> None:
    RequestWriter(flavour, TOKENIZER, (2,)).check_plan(replace(PLAN, **changes))


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
def test_addresses(flavour: str, given: str | None, url: str) -> None:
    assert base_url(flavour, given) == url


@pytest.mark.parametrize(
    ("flavour", "given", "match"),
    [
        ("vlm", None, r"server 'vlm' is unknown; did you mean 'vllm'\? Known: vllm, sglang, trtllm, mlx, max, openai"),
        ("openai", None, "has no default port; give its address with --base-url"),
        ("vllm", "h:8000", "is not an address"),
        ("vllm", "http://me:secret@h", "put the key into EVALHARNESS_API_KEY"),
        ("vllm", "htp://me:secret@h", "is not an address"),
        ("vllm", "http://h?x=1", "more than an address"),
        ("vllm", "http://h?api_key=secret@", "more than an address"),
        ("vllm", "http://h:port", "is not an address"),
        ("vllm", "http://h:99999", "is not an address"),
        ("vllm", "http://[::1", "is not an address"),
    ],
)
def test_what_is_no_address_is_refused(flavour: str, given: str | None, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as caught:
        base_url(flavour, given)
    assert "secret@" not in str(caught.value)


def test_every_kind_of_server_that_can_be_named_is_known() -> None:
    assert tuple(FLAVOURS) == SERVERS


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_ids_go_to_servers_that_take_them_and_texts_to_the_others(flavour: str) -> None:
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


@pytest.mark.parametrize("flavour", ["max", "sglang"])
def test_servers_that_forget_ids_get_them_beside_their_own_eos_and_none_where_eos_ends_no_text(flavour: str) -> None:
    [letter] = TOKENIZER.encode("x", add_special_tokens=False)
    beside, without = (body(flavour, replace(PLAN, stop_token_ids=ids)) for ids in ((2, letter), (letter,)))
    assert (beside["stop_token_ids"], beside["ignore_eos"]) == ([2, letter], False)
    assert (without.get("stop_token_ids"), without["ignore_eos"]) == (None, True)  # it would forget the ids as well


def test_max_is_sent_no_field_that_it_does_not_know_and_no_seed_of_0() -> None:
    sent = body("max", replace(PLAN, temperature=1.0, seed=0))
    assert not {"skip_special_tokens", "add_generation_prompt", "continue_final_message"} & sent.keys()
    assert sent["seed"] == max_seed(0) != 0
    assert {"top_k": -1, "repetition_penalty": 1.0, "min_tokens": 0, "reasoning_split": False}.items() <= sent.items()


def test_extra_options_go_by_the_servers_own_names() -> None:
    assert body("vllm", replace(PLAN, extra=(("min_new_tokens", 3), ("top_k", 5))))["min_tokens"] == 3


@pytest.mark.parametrize(("flavour", "off"), [("vllm", 0), ("sglang", -1), ("max", -1), ("mlx", 0)])
def test_top_k_is_off_in_each_servers_way_however_it_is_written(flavour: str, off: int) -> None:
    for value in (0, -1):
        assert body(flavour, replace(PLAN, extra=(("top_k", value),)))["top_k"] == off
    unset = body(flavour, replace(PLAN, extra=(("top_k", None), ("min_p", None))))
    assert unset == body(flavour)  # null would bring in what the checkpoint's generation_config says


@pytest.mark.parametrize(
    ("flavour", "changes", "match"),
    [
        ("openai", {"repetition_penalty": 1.1}, "repetition_penalty=1.1"),
        ("openai", {"logprobs": True}, "belong to none"),
        ("openai", {"stop_token_ids": ()}, "ends texts at the checkpoint's end tokens, told or not; leave options.eos_token_id unset"),
        ("mlx", {"stop_token_ids": (2, PIECE)}, f"token {PIECE} has none of its own; stop at a text"),
        ("vllm", {"logprobs": True, "structured": StructuredOutput(regex="a")}, "after the mask of options.structured"),
        ("sglang", {"logprobs": True, "temperature": 0.5}, "raw ones only at temperature 0 or 1 without"),
        ("sglang", {"logprobs": True, "repetition_penalty": 1.1}, "raw ones only at temperature 0 or 1 without"),
        ("sglang", {"logprobs": True, "extra": (("min_new_tokens", 2),)}, "raw ones only at temperature 0 or 1 without"),
        ("sglang", {"logprobs": True, "structured": StructuredOutput(regex="a")}, "raw ones only at temperature 0 or 1 without"),
        ("sglang", {**PROCESSED, "temperature": 0.5, "top_p": 0.9}, "before top_p, top_k and min_p"),
        ("sglang", {**PROCESSED, "temperature": 0.5, "extra": (("top_k", 4),)}, "before top_p, top_k and min_p"),
    ],
)
def test_what_a_server_cannot_honour_is_refused(flavour: str, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(UnsupportedOption, match=match):
        check(flavour, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": True, "temperature": 1.0, "top_p": 0.9, "extra": (("top_k", 4), ("min_p", 0.1), ("presence_penalty", 0.0))},
        {"logprobs": True},
        {**PROCESSED, "temperature": 0.5, "repetition_penalty": 1.1, "extra": (("top_k", -1),)},
        {**PROCESSED, "top_p": 0.9, "repetition_penalty": 1.1},
    ],
    ids=["raw drawn", "raw greedy", "processed drawn", "processed greedy"],
)
def test_sglangs_logprobs_are_given_where_they_are_of_the_kind_that_is_asked_for(changes: dict[str, Any]) -> None:
    check("sglang", **changes)


STRUCTURES = {
    "choice": (StructuredOutput(choice=("a", "b")), {"structured_outputs": {"choice": ["a", "b"]}}, None),
    "regex": (StructuredOutput(regex="a+"), {"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
    "json_schema": (
        StructuredOutput(json_schema={"type": "object"}, optional=True),
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
