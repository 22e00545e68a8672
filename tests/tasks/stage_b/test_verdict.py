"""What counts as a verdict, and what is wrong with one. Run: pytest tests/tasks/stage_b/test_verdict.py"""

from __future__ import annotations

import sys

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import ContractValueError
from evalharness.tasks.stage_a.data import LABELS, Label
from evalharness.tasks.stage_b.verdict import Verdict, parse_verdict, render_verdict
from tests.growth import assert_linear

REASON = "Image1: 站点7有RRU但未见紧固件; Image2: 无关图片; 总结: 固定件证据缺失"
EXAMPLE = f"Verdict: 不通过\nReason: {REASON}"


def test_the_documented_answer_has_nothing_to_forgive_and_a_full_width_colon_is_not_strict() -> None:
    verdict = parse_verdict(EXAMPLE, num_images=2)
    assert (verdict.label, verdict.reason, verdict.valid, verdict.strict, verdict.problem) == ("fail", REASON, True, True, "")
    verdict = parse_verdict("Verdict：不通过\nReason：x")
    assert (verdict.label, verdict.reason, verdict.valid, verdict.strict) == ("fail", "x", True, False)
    assert "a line must begin with 'Verdict: '" in verdict.problem


SPELLED: dict[str, Label | None] = {
    **dict.fromkeys(("通過", "通过。", "pass", "PASS"), "pass"),
    **dict.fromkeys(("不通過", "未通过", "未通過", "不通过。", "不 通 过", "fail"), "fail"),
    **dict.fromkeys(("待定", "Pass.", "fail.", "通过了", "基本通过", "通过/不通过", "通过 或 不通过", "**通过**", "")),
}


@pytest.mark.parametrize("word, label", SPELLED.items(), ids=map(ascii, SPELLED))
def test_a_verdict_in_other_words_is_read_or_not(word: str, label: Label | None) -> None:
    verdict = parse_verdict(f"Verdict: {word}\nReason: {REASON}")
    assert (verdict.label, verdict.strict) == (label, False)


def test_traditional_characters_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zhconv", None)
    assert parse_verdict("Verdict: 不通過\nReason: 見圖").label == "fail"


REFUSED = {
    "third line": (f"{EXAMPLE}\n以上", "lines", "3 lines instead of two"),
    "one line": ("Verdict: 通过 Reason: x", "lines", "1 line instead of two"),
    "swapped": (f"Reason: {REASON}\nVerdict: 通过", "order", "the two lines are swapped"),
    "bold": (f"**Verdict:** 通过\n**Reason:** {REASON}", "markdown", "markdown stands around the answer"),
    "bold word": (f"Verdict: **通过**\nReason: {REASON}", "markdown", "must be 通过 or 不通过, got '**通过**'"),
    "code word": (f"Verdict: `不通过`\nReason: {REASON}", "markdown", "must be 通过 or 不通过, got '`不通过`'"),
    "other word": (f"Verdict: **好**\nReason: {REASON}", "word", "must be 通过 or 不通过, got '**好**'"),
    "heading": (f"# Verdict: 通过\nReason: {REASON}", "markdown", "markdown"),
    "think block": (f"<think>\n看图\n</think>\n\n{EXAMPLE}", "thinking", "a think block was written"),
    "empty think block": (f"<think></think>{EXAMPLE}", "thinking", "a think block was written"),
    "unfinished thinking": ("<think>\n看图", "thinking", "a think block was written"),
    "third state": ("Verdict: 待定\nReason: x", "third_state", "got '待定'"),
    "no reason": ("Verdict: 通过\nReason: ", "no_reason", "the reason is empty"),
    "no colon": ("Verdict 通过\nReason: x", "key", "line 1 has no colon"),
    "other words": ("结论: 通过\n理由: x", "key", "line 1 must begin with Verdict, got '结论: 通过'"),
    "empty": (" \n ", "empty", "the answer is empty"),
    "only a marker": ("Verdict: 通过\nReason: x\nassistant", "empty", "the answer is empty"),
}


@pytest.mark.parametrize("text, kind, problem", REFUSED.values(), ids=REFUSED.keys())
def test_an_answer_of_another_form_has_a_problem_instead_of_a_verdict(text: str, kind: str, problem: str) -> None:
    verdict = parse_verdict(text)
    assert (verdict.label, verdict.kinds) == (None, (kind,))
    assert problem in verdict.problem
    assert verdict.has_thinking == (kind == "thinking")


@pytest.mark.parametrize("reason", ["assistant 认为合格", "Image1: assistant; 总结: assistant", "assistant"])
def test_the_word_assistant_in_a_reason_spoils_nothing(reason: str) -> None:
    verdict = parse_verdict(f"Verdict: 通过\nReason: {reason}")
    assert (verdict.label, verdict.reason) == ("pass", reason)


@pytest.mark.parametrize("marker", ["assistant", "<|im_start|>assistant", "system\nx\nassistant"])
def test_a_turn_of_the_chat_before_the_answer_is_forgiven(marker: str) -> None:
    verdict = parse_verdict(f"Verdict: 通过\nReason: 旧\n{marker}\n{EXAMPLE}")
    assert (verdict.label, verdict.reason, verdict.kinds) == ("fail", REASON, ("form",))


@pytest.mark.parametrize("phrase", ["待定", "证据不足", "需复核", "證據不足", "需 复 核"])
def test_a_third_state_in_the_reason_is_parsed_and_a_violation(phrase: str) -> None:
    verdict = parse_verdict(f"Verdict: 不通过\nReason: Image1: 无; 总结: {phrase}")
    assert (verdict.label, verdict.valid, verdict.strict, verdict.kinds) == ("fail", True, False, ("third_state",))


FORGIVEN = {
    "blank lines": "Verdict: 通过\n\nReason: {}",
    "case": "verdict: 通过\nREASON: {}",
    "longer words": "Verdicts: 通过\nReasoning: {}",
    "no space": "Verdict:通过\nReason:{}",
    "white space": "Verdict:  通过\nReason:  {}",
    "carriage return": "Verdict: 通过\r\nReason: {}",
}


@pytest.mark.parametrize("form", FORGIVEN.values(), ids=FORGIVEN.keys())
def test_a_tolerated_deviation_is_valid_and_named(form: str) -> None:
    verdict = parse_verdict(form.format(REASON), num_images=2)
    assert (verdict.label, verdict.reason, verdict.strict, verdict.kinds) == ("pass", REASON, False, ("form",))


WRONG_REASONS = {
    "length": ("Image1: " + "长" * 240 + "; 总结: 长", 1, "at most 240 are allowed"),
    "rule_id": ("Image1: 违反G1; 总结: 违反S2", 1, "the reason names rule G1; the reason names rule S2"),
    "language": ("Image1: all fine here; 总结: 好", 1, "the reason is not in Chinese"),
    "structure of images": ("总结: 缺少证据", 2, "says nothing about Image1, Image2"),
    "structure of too many": ("Image1: 有; Image3: 有; 总结: 好", 1, "names Image3, of 1 images"),
    "structure of the end": ("Image1: 有", 1, "the reason has no 总结"),
    "form": ("Image1: 有\u2028总结: 好", 1, "the reason must be one line"),
}


@pytest.mark.parametrize("kind", WRONG_REASONS)
def test_a_problem_of_the_reason_is_named_and_the_verdict_kept(kind: str) -> None:
    reason, num_images, problem = WRONG_REASONS[kind]
    verdict = parse_verdict(f"Verdict: 通过\nReason: {reason}", num_images)
    assert (verdict.label, verdict.kinds) == ("pass", (kind.split()[0],))
    assert problem in verdict.problem


@pytest.mark.parametrize(
    "reason", ["标签RG1有; 总结: 好", "见RRU设备G; 总结: BBU、ODF齐全", f"有; 总结: {'长' * (240 - len('Image1: 有; 总结: '))}"]
)
def test_other_letters_are_not_taken_for_rule_ids_and_240_characters_are_not_too_long(reason: str) -> None:
    assert parse_verdict(f"Verdict: 通过\nReason: Image1: {reason}", 1).strict


def test_a_verdict_has_a_short_repr_and_an_unknown_label_is_refused() -> None:
    assert repr(parse_verdict("Verdict: 通过\nReason: " + "长" * 80)) == f"Verdict(pass, {'长' * 60!r}…)"
    with pytest.raises(ContractValueError, match="label must be one of pass, fail, got 'maybe'"):
        render_verdict("maybe", "x")  # type: ignore[arg-type]


ANSWERS = st.lists(
    st.sampled_from(
        ["Verdict: ", "Reason: ", "通过", "不通过", "：", "\n", "assistant", "<think>", "</think>", "**", "待定", " ", "G1", "x", "\ud800"]
    )
)


@given(st.one_of(st.text(), ANSWERS.map("".join)))
def test_no_text_raises(text: str) -> None:
    verdict = parse_verdict(text, 2)
    assert isinstance(verdict, Verdict)
    assert verdict.valid == (verdict.label is not None)
    assert verdict.valid or verdict.problems
    assert verdict.strict <= verdict.valid


REASONS = st.text(min_size=1).map(lambda text: " ".join(text.split())).filter(lambda text: text and "think>" not in text)


@given(st.sampled_from(LABELS), REASONS)
def test_rendered_text_is_read_back(label: Label, reason: str) -> None:
    verdict = parse_verdict(render_verdict(label, reason))
    assert (verdict.label, verdict.reason) == (label, reason)
    assert "form" not in verdict.kinds


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["{", "\n", "Verdict: 通过\n", "assistant\n", "Image1", "<think", "：", "**", "复核"])
def test_a_megabyte_takes_time_by_its_length(piece: str) -> None:
    text = piece * (1_000_000 // len(piece))
    assert_linear(lambda part: parse_verdict(part, 3), text)
    assert_linear(lambda part: parse_verdict(f"Verdict: 通过\nReason: {part}", 3), text)
