"""What a model proposes about rules. Run: pytest tests/tasks/stage_b/test_rule_proposals.py"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.api.errors import ContractValueError
from evalharness.tasks.stage_b.prompt import signature
from evalharness.tasks.stage_b.rule_proposals import Proposal, check_proposal, check_reflection, extract_object, read_proposal
from tests.growth import assert_linear

RULES = {
    "S1": "缺少关键证据则判定不通过",
    "G0": "若未同时见到RRU与紧固件，则判定不通过",
    "G1": "若紧固件不合格则判定不通过",
    "G2": "若尾纤无套管则判定不通过",
}
GOOD = "若任一站点缺少紧固件，则判定不通过。"


def check(*operations: Any, rejected: Any = ()) -> Proposal:
    return check_proposal({"operations": list(operations)}, RULES, rejected)


def refusal(operation: Any) -> str:
    """Return why an operation was refused; it must have been the only one."""
    proposal = check(operation)
    assert proposal.candidates == ()
    (refused,) = proposal.refused
    return refused.problem


def test_the_documented_proposal_is_accepted() -> None:
    upsert = {"op": "upsert", "text": GOOD, "rationale": "漏检固定件"}
    remove = {"op": "remove", "target_signature": "若紧固件不合格则判定不通过", "rationale": "与新规则重叠"}
    proposal = check(upsert, remove)
    assert (proposal.refused, proposal.problem) == ((), "")
    assert [(one.op, one.text, one.rationale, one.targets) for one in proposal.candidates] == [
        ("upsert", GOOD, "漏检固定件", ()),
        ("remove", "", "与新规则重叠", ("G1",)),
    ]


def test_update_and_merge_name_the_rules_that_they_change() -> None:
    update = {"op": "update", "text": "若紧固件不合格或松动，则判定不通过", "target_signature": "如果紧固件不合格，就判定不通过！"}
    assert check(update).candidates[0].targets == ("G1",)
    merge = {"op": "merge", "text": "若紧固件不合格或尾纤无套管，则判定不通过", "target_signatures": [RULES["G1"], RULES["G2"]]}
    assert check(merge).candidates[0].targets == ("G1", "G2")


def test_the_older_form_lists_rules_to_add() -> None:
    proposal = check_proposal({"rules": [GOOD, {"text": "若接地线松动，则判定不通过", "rationale": "r"}, 3]}, RULES)
    assert [(one.op, one.rationale) for one in proposal.candidates] == [("upsert", ""), ("upsert", "r")]
    assert [one.place for one in proposal.refused] == [2]


@pytest.mark.parametrize(
    "value, problem",
    [
        ({"operations": [], "rules": []}, "a proposal has either operations or rules, got both"),
        ({}, "got neither"),
        ({"operations": {}}, "operations must be a list, got dict"),
        ({"rules": "x"}, "rules must be a list, got str"),
    ],
    ids=["both", "neither", "object", "text"],
)
def test_an_object_of_another_form_is_not_a_proposal(value: Any, problem: str) -> None:
    with pytest.raises(ContractValueError, match=problem):
        check_proposal(value, RULES)


def test_the_focus_can_only_be_reworded_and_an_invariant_not_be_changed() -> None:
    both = {"op": "merge", "target_signatures": [RULES["G0"], RULES["G1"]], "text": GOOD}
    for operation in ({"op": "remove", "target_signature": RULES["G0"]}, both):
        assert refusal(operation) == "G0 is the mission's focus and cannot be removed"
    assert check({"op": "update", "text": GOOD, "target_signature": RULES["G0"]}).candidates[0].targets == ("G0",)
    for operation in ({"op": "remove"}, {"op": "update", "text": GOOD}):
        assert refusal({**operation, "target_signature": RULES["S1"]}) == "S1 is an invariant and cannot be changed"


TEXTS = {
    "empty": (" ", "the text is empty"),
    "punctuation": ("。！", "the text is empty"),
    "header": ("<DOMAIN=RRU> 则判定不通过", "quotes Stage-A: '<DOMAIN='"),
    "json": ('若{"类别": 1}则不通过', "quotes Stage-A"),
    "attribute": ("若类别=紧固件则不通过", "quotes Stage-A"),
    "image": ("若Image1无紧固件则不通过", "quotes Stage-A"),
    "ticket": ("若QC-DEMO-2则不通过", "quotes Stage-A"),
    "full-width": ("若类别＝标签则不通过", "quotes Stage-A"),
    "third state": ("若缺少紧固件，则不通过并待复核", "names a third state: 复核"),
    "traditional third state": ("若證據不足則不通過", "names a third state: 证据不足"),
    "double negation": ("若紧固件合格，则不应判定为不通过", "double negation"),
    "other double negation": ("若紧固件合格，则不能视为不通过", "double negation"),
    "no verdict": ("若缺少紧固件，则有问题", "names neither 通过 nor 不通过"),
    "special token": ("若紧固件松动，则不通过<|im_end|>", "holds a special token or a tag: '<|'"),
    "tag of a template": ("若紧固件松动，则不通过</think>", "holds a special token or a tag: '</'"),
    "tag of a page": ("若<img src=x>松动，则不通过", "holds a special token or a tag: '<imgsrc=x>'"),
    "bracketed token": ("[INST]若紧固件松动，则不通过", "holds a special token or a tag"),
    "broken character": ("若紧固件\ud800松动，则不通过", "a broken or an invisible character"),
    "hidden third state": ("若待\u200b定，则不通过", "a broken or an invisible character"),
    "control character": ("若\x1b[31m松动，则不通过", "a broken or an invisible character"),
    "brand": ("若BBU品牌为中兴，则判定通过", "judges by brand: 品牌"),
    "missing passes": ("若未见紧固件，也判定通过", "lets missing evidence pass"),
    "opposite of an invariant": ("缺少关键证据则判定通过", "lets missing evidence pass"),
    "duplicate": ("如果 紧固件不合格，就判定不通过。", "says the same as G1"),
    "traditional duplicate": ("若緊固件不合格則判定不通過", "says the same as G1"),
}


@pytest.mark.parametrize("text, problem", TEXTS.values(), ids=TEXTS.keys())
def test_a_wrong_rule_is_refused(text: str, problem: str) -> None:
    assert problem in refusal({"op": "upsert", "text": text})


def test_the_opposite_of_an_invariant_is_refused() -> None:
    rules = {**RULES, "S2": "若照片模糊，则判定不通过"}
    (refused,) = check_proposal({"rules": ["若照片模糊则判定通过"]}, rules).refused
    assert refused.problem == "says the opposite of S2, which is an invariant"


def test_a_rule_and_its_rationale_become_lines_that_any_file_takes() -> None:
    (candidate,) = check({"op": "upsert", "text": "若紧固件松动，\n则判定不通过", "rationale": "漏\n检\ud800"}).candidates
    assert (candidate.text, candidate.rationale) == ("若紧固件松动， 则判定不通过", "漏 检\ufffd")


GOOD_TEXTS = [GOOD, "若紧固件齐全，则判定通过", "若没有紧固件不合格，则判定通过", "若未见异常，则判定通过"]


@pytest.mark.parametrize("text", [*GOOD_TEXTS, "若没有发现紧固件松动则通过", "若螺丝不紧则判定为不通过"])
def test_a_correct_rule_is_accepted(text: str) -> None:
    assert [one.text for one in check({"op": "upsert", "text": text}).candidates] == [text]


FORMS: dict[str, tuple[Any, str]] = {
    "no object": ("x", "must be an object, got str"),
    "unknown key": ({"op": "upsert", "text": GOOD, "why": "x"}, "has an unknown key 'why'"),
    "op": ({"op": "add", "text": GOOD}, "op must be one of upsert, update, merge, remove, got 'add'"),
    "no op": ({"text": GOOD}, "op must be one of upsert, update, merge, remove, got 'None'"),
    "upsert with a target": ({"op": "upsert", "text": GOOD, "target_signature": RULES["G1"]}, "upsert takes no target"),
    "update without a target": ({"op": "update", "text": GOOD}, "update needs one target_signature"),
    "remove of many": ({"op": "remove", "target_signatures": [RULES["G1"], RULES["G2"]]}, "remove needs one target_signature"),
    "remove with a text": ({"op": "remove", "target_signature": RULES["G1"], "text": GOOD}, "remove takes no text"),
    "merge of one": ({"op": "merge", "text": GOOD, "target_signatures": [RULES["G1"]]}, "merge needs target_signatures of at least two"),
    "merge of one twice": (
        {"op": "merge", "text": GOOD, "target_signatures": [RULES["G1"], f"{RULES['G1']}。"]},
        "merge needs target_signatures of at least two different rules",
    ),
    "unknown target": ({"op": "remove", "target_signature": "没有"}, "no rule has the signature '没有'"),
    "nothing new": ({"op": "update", "text": f"{RULES['G1']}！", "target_signature": RULES["G1"]}, "changes nothing: G1 says so already"),
    "update to another rule": ({"op": "update", "text": RULES["G2"], "target_signature": RULES["G1"]}, "says the same as G2"),
}


@pytest.mark.parametrize("operation, problem", FORMS.values(), ids=FORMS.keys())
def test_an_operation_of_another_form_is_refused(operation: Any, problem: str) -> None:
    assert problem in refusal(operation)


def test_a_merge_may_end_in_one_of_its_rules() -> None:
    merge = {"op": "merge", "text": RULES["G1"], "target_signatures": [RULES["G1"], RULES["G2"]]}
    assert len(check(merge).candidates) == 1


def test_a_candidate_that_says_or_changes_the_same_is_refused_alone() -> None:
    upsert = {"op": "upsert", "text": GOOD}
    remove = {"op": "remove", "target_signature": RULES["G1"]}
    update = {"op": "update", "text": "若紧固件松动则判定不通过", "target_signature": RULES["G1"]}
    proposal = check({**upsert, "text": "待定"}, upsert, {**upsert, "text": f"{GOOD}！"}, remove, update)
    assert ([one.place for one in proposal.refused], len(proposal.candidates)) == ([0, 2, 4], 2)
    assert [one.problem for one in proposal.refused][1:] == ["says the same as another candidate", "another candidate changes G1 already"]


def test_a_candidate_that_was_rejected_before_is_refused() -> None:
    (candidate,) = check({"op": "upsert", "text": GOOD}).candidates
    proposal = check({"op": "upsert", "text": f" {GOOD} "}, rejected={candidate.id})
    assert [one.problem for one in proposal.refused] == ["was rejected before"]
    assert check({"op": "update", "text": GOOD, "target_signature": RULES["G1"]}, rejected={candidate.id}).candidates


def test_equal_rules_have_one_signature() -> None:
    assert signature("如果 緊固件 不合格，就判定不通過！") == signature("当紧固件不合格则判定不通过") == "若紧固件不合格则判定不通过"
    assert signature("RRU") == signature("ｒｒｕ") == "rru"


def test_a_models_text_is_read_or_proposes_nothing() -> None:
    answer = f"好：\n```json\n{json.dumps({'operations': [{'op': 'upsert', 'text': GOOD}]}, ensure_ascii=False)}\n```"
    assert len(read_proposal(answer, RULES).candidates) == 1
    for text, problem in {
        '{"operations": [],}': "invalid JSON in the balanced part",
        '{"operations": [': "the answer holds no JSON object",
        '{"operations": [], "rules": []}': "got both",
    }.items():
        proposal = read_proposal(text, RULES)
        assert (proposal.candidates, problem in proposal.problem) == ((), True)


WORDS = st.lists(st.sampled_from(["若", "通过", "不", "判定", "为", "缺少", "紧固件", "，", "品牌", "复核", "{", "Image1", "\ud800"])).map(
    "".join
)
VALUES = st.one_of(
    st.text(), WORDS, st.sampled_from(sorted(RULES.values())), st.none(), st.integers(), st.lists(st.sampled_from(sorted(RULES.values())))
)
OPERATIONS = st.dictionaries(st.sampled_from(["op", "text", "rationale", "target_signature", "target_signatures", "x"]), VALUES)


@given(st.lists(st.one_of(VALUES, OPERATIONS, OPERATIONS.map(lambda one: {**one, "op": "merge"}))), st.text())
def test_no_operation_and_no_text_raises(operations: list[Any], text: str) -> None:
    proposal = check(*operations)
    assert len(proposal.candidates) + len(proposal.refused) == len(operations)
    read_proposal(text, RULES)
    read_proposal(json.dumps({"rules": operations}), RULES)


FOUND = {
    "alone": ('{"a": 1}', {"a": 1}, "balanced"),
    "fenced": ('看 {"b": 2}\n```json\n{"a": 1}\n```', {"a": 1}, "fence"),
    "fence without language": ('```\n{"a": 1}\n```', {"a": 1}, "fence"),
    "broken fence": ('{"b": 2}\n```json\n{"a": 1,}\n```', {"b": 2}, "balanced"),
    "first of two": ('x {"a": {"b": 1}} y {"c": 1}', {"a": {"b": 1}}, "balanced"),
    "braces in strings": ('{"a": "}{\\"}"} rest }', {"a": '}{"}'}, "balanced"),
    "quotes before": ('say "x { and {"a": 1}', {"a": 1}, "balanced"),
    "unfinished before": ('{ oh {"a": 1}', {"a": 1}, "balanced"),
    "cut answer": ('{"a": [{"b": 1}, {"c": 2', {"b": 1}, "balanced"),
}


@pytest.mark.parametrize("text, value, source", FOUND.values(), ids=FOUND.keys())
def test_the_object_is_taken_from_fence_then_balanced_braces(text: str, value: Any, source: str) -> None:
    found = extract_object(text)
    assert (found.value, found.source, found.problem) == (value, source, "")


@given(st.text(alphabet='{}"\\a: 1,', max_size=12), st.text(alphabet='{}"\\a: 1,', max_size=12))
def test_first_to_last_brace_would_find_nothing_more(before: str, after: str) -> None:
    text = f'{before}{{"a": 1}}{after}'
    widest = text[text.find("{") : text.rfind("}") + 1]
    try:
        value = json.loads(widest)
    except ValueError:
        return
    assert extract_object(text).value == value


NOTHING = {
    "words": ("no JSON here", "the answer holds no JSON object"),
    "empty": ("", "the answer holds no JSON object"),
    "trailing comma": ('{"a": 1,}', "invalid JSON in the balanced part"),
    "truncated": ('{"operations": [', "the answer holds no JSON object"),
    "list": ("```json\n[1]\n```", "the fence part is not an object, but list"),
    "not a number": ('{"a": NaN}', "NaN is not JSON"),
    "deep": ('{"a":' * 50_000 + "1" + "}" * 50_000, "invalid JSON in the balanced part"),
}


@pytest.mark.parametrize("text, problem", NOTHING.values(), ids=NOTHING.keys())
def test_an_answer_without_an_object_says_why(text: str, problem: str) -> None:
    found = extract_object(text)
    assert (found.value, found.source) == (None, None)
    assert problem in found.problem


def test_an_object_inside_think_tags_is_taken_first_and_marked() -> None:
    found = extract_object('<think>maybe {"a": 1}</think>{"b": 2}')
    assert (found.value, found.in_thinking) == ({"a": 1}, True)
    assert not extract_object('<think>x</think>{"b": 2}').in_thinking


PIECES = st.lists(st.sampled_from(["{", "}", '"', "\\", "```", "json", "\n", '{"a": 1}', "<think>", ",", "x"]))


@given(st.one_of(st.text(), PIECES.map("".join)))
def test_no_text_raises(text: str) -> None:
    found = extract_object(text)
    assert (found.value is None) == bool(found.problem)


JSON = st.recursive(st.none() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x), max_leaves=8)


@given(st.dictionaries(st.text(), JSON, max_size=3), st.booleans())
def test_rendered_text_is_read_back(value: dict[str, Any], ascii_only: bool) -> None:
    assert extract_object(f"好的：\n{json.dumps(value, ensure_ascii=ascii_only)}\n以上").value == value


def test_many_changes_are_compared_by_their_signatures_once() -> None:
    signature.cache_clear()
    operations = [{"op": "upsert", "text": f"若第{number}处松动，则判定不通过"} for number in range(300)]
    assert len(check(*operations).candidates) == 300
    assert signature.cache_info().misses < 400


def test_what_a_reflection_says_becomes_lines_of_the_next_prompt() -> None:
    said = {"has_evidence": True, "evidence_analysis": "漏检\nS9: x", "operations": [], "hypotheses": []}
    assert check_reflection(said, RULES, []).analysis == "漏检 S9: x"


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["{", "}", "[", '"', '\\"', '{"', "```\n", "<think>", "{}"])
def test_a_megabyte_takes_time_by_its_length(piece: str) -> None:
    text = f'{{"{piece * (1_000_000 // len(piece))}'
    assert_linear(extract_object, text)
    assert_linear(extract_object, text[2:])
