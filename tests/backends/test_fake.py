"""The scripted backend: scripts, their errors, and that what it does is what real ones do. Run: pytest tests/backends/test_fake.py"""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import CheckpointError, ConfigError, ContractValueError
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.backends.base import Completion, Prompt
from evalharness.backends.fake import FakeAnswer, FakeBackend, FakeTokenizer
from tests.backends.plans import PLAN

TOKENIZER = FakeTokenizer()
END = TOKENIZER.eos_token_id


def prompt(text: str = "question", index: int = 0, load_images: Any = None, **changes: Any) -> Prompt:
    """Return a greedy prompt that ends on the fake's end token; `changes` go to its plan."""
    ids = tuple(TOKENIZER.encode(text))
    plan = replace(PLAN, **{"max_new_tokens": 100, "stop_token_ids": (END,), **changes})
    return Prompt(index, text, ids, len(ids), plan, load_images)


def rendered(messages: list[dict[str, Any]], *, add_generation_prompt: bool = False) -> str:
    """Return the chat as a prompt."""
    options = {"tokenize": False, "continue_final_message": False, "enable_thinking": False}
    return str(TOKENIZER.apply_chat_template(messages, add_generation_prompt=add_generation_prompt, **options))


def script(tmp_path: Path, text: str) -> FakeBackend:
    """Return a backend on a script of this text."""
    path = tmp_path / "answers.jsonl"
    path.write_bytes(text.encode("utf-8"))
    return FakeBackend(ModelLoadConfig(str(path)), VlmPreprocessOptions())


def answer(backend: FakeBackend, asked: Prompt | None = None) -> Any:
    """Return the only output: a completion's text without its end token, or a failure."""
    (output,) = backend.generate([asked or prompt()])
    return TOKENIZER.decode(output.token_ids, skip_special_tokens=True) if isinstance(output, Completion) else output[1]


def test_the_first_row_that_is_contained_in_the_prompt_answers(tmp_path: Path) -> None:
    rows = [{"contains": "BBU", "text": "one"}, {"contains": "B", "text": "two"}, {"text": "rest"}]
    backend = script(tmp_path, "\n".join(json.dumps(row) for row in rows))
    assert [answer(backend, prompt(text)) for text in ("a BBU", "a B", "a")] == ["one", "two", "rest"]


def test_a_row_may_fail_in_either_way(tmp_path: Path) -> None:
    backend = script(tmp_path, '{"contains": "x", "error": "network down"}\n{"invalid": "cannot be asked"}')
    assert (answer(backend, prompt("x")).kind, answer(backend, prompt("x")).problem) == ("error", "network down")
    assert (answer(backend).kind, answer(backend).problem) == ("invalid", "cannot be asked")


def test_a_prompt_that_no_row_answers_is_an_error_not_an_empty_text(tmp_path: Path) -> None:
    failure = answer(script(tmp_path, '{"contains": "x", "text": "y"}'))
    assert failure.kind == "error"
    assert "no row of answers.jsonl answers this prompt; add a row without 'contains'" in failure.problem


def test_blank_lines_and_other_line_ends_inside_texts_are_no_rows(tmp_path: Path) -> None:
    backend = script(tmp_path, '\n{"text": "a\u2028b\x85c"}\r\n\n')
    assert answer(backend) == "a\u2028b\x85c"


BAD_ROWS = {
    "no JSON": ("{text: 1}", "is not a script row"),
    "list": ("[1]", "is not a script row"),
    "number": ("5", "is not a script row"),
    "unknown key": ('{"txt": "a"}', r"unexpected keyword argument 'txt'.*\); known keys: contains, text, error, invalid, delay_s, ends"),
    "text type": ('{"text": 5}', r"answer\.text must be a str, got 5 \(int\)"),
    "text null": ('{"text": null}', r"answer\.text must be a str, got None"),
    "error type": ('{"error": true}', r"answer\.error must be a str, got True"),
    "contains type": ('{"contains": 5, "text": "a"}', "contains must be a text, got 5"),
    "delay": ('{"text": "a", "delay_s": "long"}', r"answer\.delay_s must be a number, got 'long'"),
    "ends": ('{"text": "a", "ends": 1}', r"answer\.ends must be a bool, got 1"),
    "two failures": ('{"error": "a", "invalid": "b"}', r"answer\.error and answer\.invalid exclude each other"),
}


@pytest.mark.parametrize("line, problem", BAD_ROWS.values(), ids=BAD_ROWS.keys())
def test_a_bad_row_is_refused_with_its_place(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(CheckpointError, match=rf"answers\.jsonl:2 is not a script row \(.*|{problem}") as raised:
        script(tmp_path, '{"text": "good"}\n' + line)
    raised.match(problem)


@pytest.mark.parametrize("text", ["", "\n \n"], ids=["empty", "blank"])
def test_a_script_without_answers_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(CheckpointError, match=r"answers\.jsonl has no answers; give a JSONL file"):
        script(tmp_path, text)


def test_a_script_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CheckpointError, match=r"model\.bin is not a script \(.*utf-8"):
        FakeBackend(ModelLoadConfig(str(path)), VlmPreprocessOptions())


@pytest.mark.parametrize("make", [lambda path: path, lambda path: path / "absent.jsonl"], ids=["folder", "absent"])
def test_a_model_that_is_no_file_says_what_is_legal(tmp_path: Path, make: Any) -> None:
    with pytest.raises(CheckpointError, match=r"backend 'fake' got --model .*; give 'echo' or a JSONL file with rows"):
        FakeBackend(ModelLoadConfig(str(make(tmp_path))), VlmPreprocessOptions())


def test_echo_repeats_the_last_user_turn() -> None:
    backend = FakeBackend(ModelLoadConfig("echo"), VlmPreprocessOptions())
    messages = [{"role": "user", "content": "first"}, {"role": "assistant", "content": "x"}, {"role": "user", "content": "second"}]
    assert answer(backend, prompt(rendered(messages, add_generation_prompt=True))) == "second"


def test_answers_go_by_request_order_and_the_last_repeats() -> None:
    outputs = FakeBackend.from_answers(["a", FakeAnswer("b")]).generate([prompt(index=index) for index in range(4)])
    assert [TOKENIZER.decode(output.token_ids, skip_special_tokens=True) for output in outputs] == ["a", "b", "b", "b"]  # type: ignore[union-attr]


def test_answers_may_be_computed_from_the_prompt() -> None:
    assert answer(FakeBackend.from_answers(lambda asked: asked.text.upper())) == "QUESTION"


def test_no_answers_are_refused() -> None:
    with pytest.raises(ConfigError, match="needs at least one answer"):
        FakeBackend.from_answers([])


@pytest.mark.parametrize("delay_s", [-1, math.inf, math.nan], ids=str)
def test_a_delay_must_be_a_time(delay_s: float) -> None:
    with pytest.raises(ContractValueError, match=r"answer\.delay_s must be (finite|at least 0), got"):
        FakeAnswer("a", delay_s=delay_s)


def test_a_delay_is_waited() -> None:
    started = time.monotonic()
    answer(FakeBackend.from_answers([FakeAnswer("a", delay_s=0.05)]))
    assert time.monotonic() - started >= 0.05


def complete(text: str, *, ends: bool = True, **changes: Any) -> Completion:
    (output,) = FakeBackend.from_answers([FakeAnswer(text, ends=ends)]).generate([prompt(**changes)])
    assert isinstance(output, Completion)
    return output


@pytest.mark.parametrize("cap, stopped_by", [(3, "length"), (4, "id"), (1, "length")])
def test_the_length_cap_counts_the_end_token(cap: int, stopped_by: str) -> None:
    done = complete("abc", max_new_tokens=cap)
    assert (len(done.token_ids), done.stopped_by) == (cap, stopped_by)


def test_logprobs_come_one_per_token() -> None:
    assert complete("ab", logprobs=True).logprobs == (0.0, 0.0, 0.0)
    assert complete("ab").logprobs is None


@given(st.lists(st.one_of(st.text(), st.sampled_from(TOKENIZER.all_special_tokens))).map("".join))
def test_a_text_comes_back_from_its_tokens(text: str) -> None:
    assert TOKENIZER.decode(TOKENIZER.encode(text)) == text


def test_special_tokens_are_one_token_and_can_be_skipped() -> None:
    ids = TOKENIZER.encode("a<|im_end|>\ud800<|")
    assert len(ids) == 5
    assert TOKENIZER.decode(ids, skip_special_tokens=True) == "a\ud800<|"


def test_an_image_is_one_placeholder() -> None:
    content = [{"type": "image"}, {"type": "text", "text": "what?"}, {"type": "image"}]
    assert rendered([{"role": "user", "content": content}]) == "<|im_start|>user\n<|image_pad|>what?<|image_pad|><|im_end|>\n"
