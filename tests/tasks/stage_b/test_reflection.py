"""The reflection protocol. Run: pytest tests/tasks/stage_b/test_reflection.py"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import ContractTypeError, ContractValueError
from evalharness.tasks.stage_b.rule_proposals import Reflection, check_decision, check_reflection, read_reflection

RULES = {
    "S1": "若照片模糊，则判定不通过",
    "G0": "若缺少紧固件则判定不通过",
    "G1": "若紧固件不合格则判定不通过",
    "G2": "若尾纤无套管则判定不通过",
}
KEYS = {"a::fail", "b::pass"}
SEEN = {"evidence": ["a::fail"]}
HYPOTHESIS = {"text": "套管被遮挡", "falsifier": "重拍后仍不可见", "evidence": ["b::pass"]}


def reflect(*operations: Any, hypotheses: Any = (), **changes: Any) -> Reflection:
    whole = {"has_evidence": True, "evidence_analysis": "有", "operations": list(operations), "hypotheses": list(hypotheses), **changes}
    return check_reflection(whole, RULES, KEYS)


BAD_DECISIONS: dict[str, tuple[Any, str]] = {
    "missing": ({"decision_analysis": ""}, "no_evidence_group_ids is missing"),
    "no list": ({"no_evidence_group_ids": "a::fail", "decision_analysis": ""}, "must be a list, got str"),
    "unknown ticket": ({"no_evidence_group_ids": ["c::fail"], "decision_analysis": ""}, "'c::fail', which is not a ticket"),
    "unknown key": ({"no_evidence_group_ids": [], "decision_analysis": "", "x": 1}, "'x' is unknown"),
    "no text": ({"no_evidence_group_ids": [], "decision_analysis": 1}, "decision_analysis must be a text"),
    "no object": ([], "must be an object, got list"),
}


@pytest.mark.parametrize("value, problem", BAD_DECISIONS.values(), ids=BAD_DECISIONS.keys())
def test_a_decision_lists_tickets_without_evidence_and_another_form_is_refused(value: Any, problem: str) -> None:
    decision = check_decision({"no_evidence_group_ids": ["a::fail", "a::fail"], "decision_analysis": "缺图"}, KEYS)
    assert (decision.no_evidence, decision.analysis) == (("a::fail",), "缺图")
    with pytest.raises(ContractTypeError if " must be a" in f" {problem}" else ContractValueError, match=problem):
        check_decision(value, KEYS)


def test_each_kind_of_operation_is_taken() -> None:
    reflection = reflect(
        {"op": "add", "text": "若接地线松动则判定不通过", "rationale": "r", **SEEN},
        {"op": "update", "key": "G0", "text": "若缺少紧固件或RRU则判定不通过", **SEEN},
        {"op": "merge", "merged_from": ["G1", "G2"], "text": "若紧固件不合格或尾纤无套管则判定不通过", **SEEN},
        {"op": "none", "rationale": "够了"},
    )
    assert reflection.refused == ()
    assert [(one.op, one.key, one.merged_from) for one in reflection.operations] == [
        ("add", None, ()),
        ("update", "G0", ()),
        ("merge", None, ("G1", "G2")),
        ("none", None, ()),
    ]
    assert [one.op for one in reflect({"op": "delete", "key": "G2", **SEEN}).operations] == ["delete"]
    # An added rule that is nearly an old one becomes its update.
    (made,) = reflect({"op": "add", "text": "若紧固件均不合格则判定不通过", **SEEN}).operations
    assert (made.op, made.key) == ("update", "G1")


BAD: dict[str, tuple[Any, str]] = {
    "no object": (1, "must be an object, got int"),
    "op": ({"op": "upsert", **SEEN}, "op must be one of add, update, delete, merge, none, got 'upsert'"),
    "no op": ({}, "op is missing"),
    "unknown key": ({"op": "none", "x": 1}, "'x' is unknown"),
    "no evidence": ({"op": "delete", "key": "G1"}, "evidence names no ticket"),
    "unknown ticket": ({"op": "delete", "key": "G1", "evidence": ["z"]}, "'z', which is not a ticket that was shown"),
    "without key": ({"op": "update", "text": "若松动则不通过", **SEEN}, "update needs the key of a rule"),
    "unknown rule": ({"op": "delete", "key": "G9", **SEEN}, "there is no rule 'G9'"),
    "key is no id": ({"op": "delete", "key": ["G1"], **SEEN}, "there is no rule"),
    "invariant": ({"op": "delete", "key": "S1", **SEEN}, "S1 is an invariant and cannot be changed"),
    "focus": ({"op": "delete", "key": "G0", **SEEN}, "G0 is the mission's focus and cannot be removed"),
    "merged focus": ({"op": "merge", "merged_from": ["G0", "G1"], "text": "若松动则不通过", **SEEN}, "G0 is the mission's focus"),
    "merge of one": (
        {"op": "merge", "merged_from": ["G1", "G1"], "text": "若松动则不通过", **SEEN},
        "merge needs merged_from of at least two",
    ),
    "merged add": ({"op": "add", "merged_from": ["G1"], "text": "若松动则不通过", **SEEN}, "add takes no merged_from"),
    "long": ({"op": "add", "text": f"若{'长' * 160}则不通过", **SEEN}, "has 165 characters, at most 160 are allowed"),
    "third state": ({"op": "add", "text": "若松动则不通过待定", **SEEN}, "names a third state: 待定"),
    "delete with text": ({"op": "delete", "key": "G1", "text": "x", **SEEN}, "delete takes no text"),
    "same rule": ({"op": "add", "text": f"{RULES['G1']}。", **SEEN}, "says the same as G1"),
    "nearly an invariant": ({"op": "add", "text": "若照片较模糊，则判定不通过", **SEEN}, "nearly the same as S1, which is an invariant"),
}


@pytest.mark.parametrize("operation, problem", BAD.values(), ids=BAD.keys())
def test_a_bad_operation_is_left_out_with_its_reason(operation: Any, problem: str) -> None:
    reflection = reflect(operation)
    assert (reflection.operations, problem in reflection.refused[0].problem) == ((), True)


def test_a_rule_is_changed_by_one_operation_only() -> None:
    reflection = reflect({"op": "delete", "key": "G1", **SEEN}, {"op": "update", "key": "G1", "text": "若松动则不通过", **SEEN})
    assert [one.problem for one in reflection.refused] == ["another operation changes G1 already"]


BAD_HYPOTHESES: dict[str, tuple[Any, str]] = {
    "no object": ("x", r"hypotheses\[1\]: must be an object"),
    "no falsifier": ({"text": "x", "evidence": ["a::fail"]}, r"hypotheses\[1\]: falsifier is missing"),
    "empty": ({**HYPOTHESIS, "text": " "}, r"hypotheses\[1\]: text is empty"),
    "no evidence": ({**HYPOTHESIS, "evidence": []}, r"hypotheses\[1\]: evidence names no ticket"),
    "dimension": ({**HYPOTHESIS, "dimension": 3}, r"hypotheses\[1\]: dimension must be a text"),
}


@pytest.mark.parametrize("bad, problem", BAD_HYPOTHESES.values(), ids=BAD_HYPOTHESES.keys())
def test_hypotheses_are_taken_and_a_bad_one_is_an_error(bad: Any, problem: str) -> None:
    (made,) = reflect(hypotheses=[{**HYPOTHESIS, "dimension": "可见性"}]).hypotheses
    assert (made.text, made.falsifier, made.evidence, made.dimension) == ("套管被遮挡", "重拍后仍不可见", ("b::pass",), "可见性")
    with pytest.raises(ValueError, match=problem):
        reflect(hypotheses=[HYPOTHESIS, bad])


@pytest.mark.parametrize(
    "changes, problem",
    [({"has_evidence": 1}, "has_evidence must be a bool"), ({"operations": {}}, "operations must be a list"), ({"x": 1}, "'x' is unknown")],
    ids=["bool", "list", "key"],
)
def test_an_object_of_another_form_is_not_a_reflection(changes: Any, problem: str) -> None:
    with pytest.raises((ContractTypeError, ContractValueError), match=problem):
        reflect(**changes)


def test_a_models_text_is_read_or_says_nothing() -> None:
    whole = {"has_evidence": False, "evidence_analysis": "", "operations": [], "hypotheses": [HYPOTHESIS], "coverage": {"n": 1}}
    read = read_reflection(f"```json\n{json.dumps(whole)}\n```", RULES, KEYS)
    assert (len(read.hypotheses), read.coverage, read.problem) == (1, {"n": 1}, "")
    for text in ("", "{", '{"has_evidence": true}', json.dumps({**whole, "hypotheses": [1]})):
        assert read_reflection(text, RULES, KEYS).problem


VALUES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.text(), st.sampled_from(["add", "update", "merge", "delete", "none", "G0", "G1", "S1", "a::fail"])
    ),
    lambda x: st.lists(x, max_size=3),
)
OPERATIONS = st.dictionaries(st.sampled_from(["op", "key", "merged_from", "text", "rationale", "evidence"]), VALUES)


@given(st.lists(st.one_of(VALUES, OPERATIONS, OPERATIONS.map(lambda one: {**one, **SEEN})), max_size=4), st.text())
def test_no_operation_and_no_text_raises(operations: list[Any], text: str) -> None:
    reflection = reflect(*operations)
    assert len(reflection.operations) + len(reflection.refused) == len(operations)
    read_reflection(text, RULES, KEYS)
