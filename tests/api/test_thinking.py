"""Thoughts: budgets, and where the answer begins. Run: pytest tests/api/test_thinking.py"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness import ChatTemplateOptions, GenerationOptions, GenerationResult, StopOptions, StructuredOutput
from evalharness.api.errors import ConfigError, ContractValueError
from evalharness.api.thinking import Thinking, ThinkingBudget, ThinkingRow, within_budget
from evalharness.backends.fake import FakeAnswer, FakeBackend, FakeTokenizer
from evalharness.engine.backend_contract import ask
from evalharness.engine.engine import Engine
from evalharness.engine.prompts import PromptBuilder

OPEN, CLOSE = 90, 91
BUDGET = ThinkingBudget((OPEN,), (CLOSE,), 2)


@pytest.mark.parametrize(
    ("prompt", "written", "kept"),
    [
        ([], [OPEN, 1, 2, 3, 4, CLOSE, 5], [OPEN, 1, 2, CLOSE, 5]),
        ([], [OPEN, 1, CLOSE, 5, 6, 7], [OPEN, 1, CLOSE, 5, 6, 7]),
        ([], [1, 2, 3, 4], [1, 2, 3, 4]),
        ([OPEN], [1, 2, 3, CLOSE, 5], [1, 2, CLOSE, 5]),
        ([OPEN, 8, 9], [1, 2, CLOSE, 5], [CLOSE, 5]),
        ([OPEN, CLOSE], [1, 2, 3], [1, 2, 3]),
        ([], [OPEN, 1, 2, 3], [OPEN, 1, 2, CLOSE]),
        ([], [OPEN, 1, CLOSE, 5, OPEN, 1, 2, 3, CLOSE, 6], [OPEN, 1, CLOSE, 5, OPEN, 1, 2, CLOSE, 6]),
    ],
    ids=["cut", "short", "none", "begun", "used up", "over", "never ends", "twice"],
)
def test_a_thought_is_cut_at_its_budget(prompt: list[int], written: list[int], kept: list[int]) -> None:
    assert within_budget(written, BUDGET, prompt) == kept


@given(
    st.lists(st.sampled_from([1, 2, OPEN, CLOSE]), max_size=20), st.lists(st.sampled_from([1, OPEN, CLOSE]), max_size=4), st.integers(0, 4)
)
def test_no_thought_is_longer_than_its_budget_and_answers_are_untouched(written: list[int], prompt: list[int], most: int) -> None:
    kept = within_budget(written, replace(BUDGET, max_tokens=most), prompt)
    started = len(prompt) - 1 - prompt[::-1].index(OPEN) if OPEN in prompt else -1
    num = len(prompt) - 1 - started if started >= 0 and CLOSE not in prompt[started:] else None
    for token_id in kept:
        if num is None:
            num = 0 if token_id == OPEN else None
        else:
            num = None if token_id == CLOSE else num + 1
        assert num is None or num <= max(most, len(prompt))
    if OPEN not in prompt + written:
        assert kept == written


PIECES = ["</", "think", ">", ">{", ">\n\n", "<", "></", "x", "{}", "<think>", "</think>", "é", ">é"]


def decode(token_ids: Sequence[int]) -> str:
    return "".join(PIECES[i] for i in token_ids)


def spelt(*pieces: str) -> list[int]:
    return [PIECES.index(piece) for piece in pieces]


PLAIN = ThinkingBudget(tuple(spelt("<", "think", ">")), tuple(spelt("</", "think", ">")), 3, ("<think>", "</think>"))


@pytest.mark.parametrize(
    ("prompt", "written", "forced_at"),
    [
        (["<", "think", ">"], ["x", "x", "x"], 3),
        (["<", "think", ">\n\n"], ["x", "x", "x"], 3),
        (["<", "think", ">", "x", "x"], ["x"], 1),
        (["<think>"], ["</", "think", ">{", "x", "x", "x", "x"], None),
        (["<think>"], ["</", "think", ">\n\n", "x", "x", "x", "x"], None),
        (["<think>"], ["</think>", "x", "x", "x", "x"], None),
        (["x"], ["<", "think", "></", "think", ">", "x", "x", "x"], None),
        (["<think>"], ["</", "think", ">é", "<", "think", ">é", "x", "x", "x"], 9),
        (["<think>", "</", "think", ">{"], ["x", "x", "x", "x"], None),
        (["x"], ["<", "think", ">\n\n", "x", "x", "x"], 6),
        (["<think>"], ["</", "think", "x"], 3),
    ],
    ids=["plain", "begun and glued", "begun", "answer", "space", "token", "empty", "twice", "over", "opened", "nearly"],
)
def test_marks_of_plain_text_are_found_across_tokens(prompt: list[str], written: list[str], forced_at: int | None) -> None:
    row, forced = ThinkingRow(PLAIN, spelt(*prompt), decode), []
    for token_id in spelt(*written):
        forced.append(row.forced)
        row.push(token_id)
    forced.append(row.forced)
    assert [position for position, token_id in enumerate(forced) if token_id is not None] == ([] if forced_at is None else [forced_at])


@given(st.lists(st.sampled_from(PIECES[:9]), max_size=30), st.integers(0, 5))
def test_a_thought_in_plain_text_is_never_longer_than_its_budget(written: list[str], most: int) -> None:
    row = ThinkingRow(replace(PLAIN, max_tokens=most), spelt("<", "think", ">"), decode)
    kept: list[int] = []
    for token_id in spelt(*written, *["x"] * 8):
        while (forced := row.forced) is not None:
            row.push(forced)
            kept.append(forced)
        row.push(token_id)
        kept.append(token_id)
    num_behind = next(n for n in range(len(kept) + 1) if "</think>" in decode(kept[:n]))
    assert num_behind <= most + 3


def test_the_texts_of_marks_are_given_where_they_are_no_tokens_of_their_own() -> None:
    class Tokens(FakeTokenizer):
        def get_added_vocab(self) -> dict[str, int]:
            return {"<think>": 1, "</think>": 2}

    backend = FakeBackend.from_answers(["x"])
    assert budget_of(backend).texts == ("<think>", "</think>")
    backend.tokenizer = Tokens()
    assert budget_of(backend).texts is None


def budget_of(backend: FakeBackend) -> ThinkingBudget:
    builder = PromptBuilder(backend, ChatTemplateOptions(enable_thinking=True))
    budget = builder.sampling_plan(GenerationOptions(max_thinking_tokens=4)).thinking
    assert budget is not None
    return budget


def answered(script: str, *, thinks: bool = True, marks: tuple[str, str] = ("<think>", "</think>"), **options: Any) -> GenerationResult:
    """Return what the engine makes of a scripted answer."""
    template = ChatTemplateOptions(enable_thinking=thinks, thinking_marks=marks)
    engine = Engine(FakeBackend.from_answers([FakeAnswer(script)]), chat_template=template, on_notice=lambda notice: None)
    (result,) = engine.generate_text_batch([ask("hi")], GenerationOptions(**options))
    return result


def test_thought_and_answer_are_told_apart() -> None:
    result = answered("<think>\n2 and 2\n</think>\n\n4")
    assert result.thinking == Thinking("2 and 2", "4", True, len("<think>\n2 and 2\n</think>"))
    assert (result.answer, result.text) == ("4", "<think>\n2 and 2\n</think>\n\n4")
    assert GenerationResult.from_json(result.to_json()) == result
    budget = ThinkingBudget((7, 8), (7, 9), 2)
    assert within_budget([7, 8, 1, 2, 3, 7, 9, 5], budget, []) == [7, 8, 1, 2, 7, 9, 5]


def test_a_thought_without_end_or_beginning_is_told_from_the_answer() -> None:
    result = answered("<think>on and on", max_new_tokens=12)
    assert result.thinking == Thinking("on an", "", False, 12)
    assert (result.answer, result.finish_reason) == ("", "length")
    assert answered("hm</think>yes").thinking == Thinking("hm", "yes", True, 10)
    result = answered("yes")
    assert (result.thinking, result.answer) == (None, "yes")
    result = answered("<think>a</think>b", thinks=False)
    assert (result.thinking, result.answer) == (Thinking("a", "b", True, 16, is_expected=False), "b")
    assert answered("<thought>a<end>b", marks=("<thought>", "<end>")).thinking == Thinking("a", "b", True, 15)


@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize(
    ("script", "answer", "is_closed"),
    [
        ("<think>maybe the answer is 42 but", "", False),
        ("\n <think>maybe the answer is 42 but", "", False),
        ("<think>a</think>\n<think>maybe 42", "", False),
        ("<think>a</think><think>b</think>42", "42", True),
        ("<think></think>42", "42", True),
        ("<think>a <think>b</think>42", "42", True),
        ("<think>a</think>the mark </think> is mine", "the mark </think> is mine", True),
    ],
)
def test_what_opens_with_the_mark_is_a_thought_in_every_mode(script: str, answer: str, is_closed: bool, thinks: bool) -> None:
    result = answered(script, thinks=thinks)
    assert (result.answer, result.text) == (answer, script.strip())
    assert result.thinking is not None
    assert (result.thinking.is_closed, result.thinking.is_expected) == (is_closed, thinks)


@pytest.mark.parametrize("script", ["42", "Use <think> and </think>.", '{"a": "</think>"}', "a</think>b"])
def test_marks_amid_an_answer_are_its_own_with_thinking_off(script: str) -> None:
    result = answered(script, thinks=False)
    assert (result.thinking, result.answer) == (None, script)


def test_a_template_that_always_begins_a_thought_is_believed() -> None:
    class AlwaysThinks(FakeTokenizer):
        def apply_chat_template(self, messages: Any, **options: Any) -> Any:
            return super().apply_chat_template(messages, **options) + "<think>\n"

    backend = FakeBackend.from_answers(["a</think>b", "on and on"])
    backend.tokenizer = AlwaysThinks()
    closed, unclosed = Engine(backend).generate_text_batch([ask("x"), ask("y")], GenerationOptions())
    assert (closed.thinking.text, closed.answer) == ("a", "b")
    assert (unclosed.thinking.is_closed, unclosed.answer) == (False, "")


@pytest.mark.parametrize(("glued", "answer"), [(">{", '{"a": 1}'), (">\n\n", "yes")], ids=["answer", "space"])
def test_a_token_that_closes_the_thought_and_begins_the_answer_is_shared_out(glued: str, answer: str) -> None:
    class Gluing(FakeTokenizer):
        def encode(self, text: str, add_special_tokens: bool = False, **_: Any) -> list[int]:
            return super().encode(text.replace(glued, "\ue000"))

        def decode(self, token_ids: Any, skip_special_tokens: bool = False, clean_up_tokenization_spaces: bool = False) -> str:
            return super().decode(token_ids, skip_special_tokens).replace("\ue000", glued)

    backend = FakeBackend.from_answers(["<why>a</why" + glued + answer.removeprefix("{")])
    backend.tokenizer = Gluing()
    template = ChatTemplateOptions(enable_thinking=True, thinking_marks=("<why>", "</why>"))
    [result] = Engine(backend, chat_template=template, on_notice=lambda notice: None).generate_text_batch([ask("x")], GenerationOptions())
    assert (result.thinking.text, result.answer) == ("a", answer)


@pytest.mark.parametrize("marks", [("<think>",), ("<think>", ""), ("a", 3)], ids=str)
def test_marks_must_be_two_texts(marks: Any) -> None:
    with pytest.raises(ContractValueError, match="must be two texts such as"):
        ChatTemplateOptions(thinking_marks=marks)


def test_a_stop_string_or_a_budget_ends_the_thought_or_the_answer() -> None:
    result = answered("<think>a</think>b;c", stop=StopOptions((";",)))
    assert (result.answer, result.stop_reason) == ("b", ";")
    result = answered("<think>long thought</think>4", max_thinking_tokens=4)
    assert (result.thinking.text, result.answer, result.thinking.is_closed) == ("long", "4", True)
    with pytest.raises(ConfigError, match="holds from the first token on, so that nothing could be thought; turn thinking off"):
        answered("yes", structured=StructuredOutput(choice=("yes",)))


def test_a_template_that_cannot_be_told_is_noticed_once_and_recorded() -> None:
    told: list[str] = []
    template = ChatTemplateOptions(enable_thinking=True)
    engine = Engine(FakeBackend.from_answers(["a"]), chat_template=template, on_notice=told.append)
    for _ in range(2):
        engine.generate_text_batch([ask("hi")], GenerationOptions())
    assert told == ["thinking was asked for, but the chat template does not know enable_thinking: the prompts are as without it"]
    facts = engine.describe()
    assert (facts["enable_thinking"], facts["template_knows_enable_thinking"]) == (True, False)
