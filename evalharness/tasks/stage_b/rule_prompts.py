"""What a model is asked about its own mistakes: which cannot be decided, why the others happened, and which rules to change.

Three questions, each answered with one JSON object (read by `rule_proposals`):

    decision     which hard cases lack the evidence for any verdict; the later questions leave these out
    reflection   why the others went wrong: an analysis, operations on rules by their id, hypotheses
    proposal     operations on rules by their signature, after the reflection

Where the backend can, the answer is held to its schema. The hard cases are shown with their labels, as nothing is judged here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from evalharness.api.options import GenerationOptions
from evalharness.api.requests import TextGenerationRequest
from evalharness.api.structured_output import StructuredOutput
from evalharness.tasks.stage_a.schema import MISSIONS
from evalharness.tasks.stage_b.files import FOCUS, Ticket, is_invariant
from evalharness.tasks.stage_b.prompt import THIRD_STATES, image_lines, rule_lines, signature
from evalharness.tasks.stage_b.rule_proposals import MAX_RULE_CHARS, Reflection
from evalharness.tasks.stage_b.verdict import MAX_REASON_CHARS, WORDS

MAX_CHANGES = 3
"""How many operations and hypotheses one answer may hold, where its form is held."""
NUM_REJECTED_SHOWN = 8
_SYSTEM = "你是{domain}工单审核规则的改进助手。根据错判的工单改进审核规则。只输出一个JSON对象，不要任何其他文字。"
_RULE_FORM = (
    f"每条规则写成一句“若…，则判定不通过”或“若…，则判定通过”，不超过{MAX_RULE_CHARS}字；只写通用条件，不引用工单号、图片编号或摘要原文；"
    f"不得出现{THIRD_STATES[0]}、{THIRD_STATES[1]}等第三种结论，不得按品牌判定，不得让缺少证据的工单通过；S开头的规则不可修改，G0不可删除。"
)


def hard_case_text(mission: str, ticket: Ticket, case: Mapping[str, Any]) -> str:
    """Return a hard case (a row of `wrong_cases`) as the questions show it, with the summaries of its ticket."""
    said = {"pass": WORDS["pass"], "fail": WORDS["fail"], None: "无有效结论"}[case["majority_pred"]]
    votes = f"{case['pass_count']}票通过, {case['fail_count']}票不通过, {case['invalid_count']}票无效"
    reason = next((entry["reason"][:MAX_REASON_CHARS] for entry in case["reason_counts"]), "无")
    head = f"工单 {ticket.key}: 正确结论 {WORDS[ticket.label]}, 模型结论 {said} ({votes}), 模型理由: {reason}"
    return "\n".join([head, *image_lines(mission, ticket.summaries)])


def decision_request(mission: str, rules: Mapping[str, str], hard_cases: Sequence[str]) -> TextGenerationRequest:
    """Return the question which of these hard cases no rule could decide."""
    return _request(
        mission,
        rules,
        hard_cases,
        "哪些工单仅凭图片摘要没有足够信息得出正确结论？",
        '{"no_evidence_group_ids": ["工单"], "decision_analysis": "一句话"}，没有则列表为空。',
    )


def reflection_request(mission: str, rules: Mapping[str, str], hard_cases: Sequence[str]) -> TextGenerationRequest:
    """Return the question why the verdicts on these hard cases are wrong."""
    return _request(
        mission,
        rules,
        hard_cases,
        "分析这些工单为何被错判，并提出规则操作与可证伪的假设。" + _RULE_FORM,
        '{"has_evidence": true, "evidence_analysis": "一句话", "operations": [{"op": "add|update|delete|merge|none", "key": "G1", '
        '"merged_from": ["G1", "G2"], "text": "规则", "rationale": "理由", "evidence": ["工单"]}], '
        '"hypotheses": [{"text": "假设", "falsifier": "何种情况能否定它", "evidence": ["工单"]}]}',
    )


def proposal_request(
    mission: str, rules: Mapping[str, str], hard_cases: Sequence[str], reflection: Reflection, rejected: Sequence[str] = ()
) -> TextGenerationRequest:
    """Return the question which rules to change, after a reflection; `rejected` are texts that were tried without success."""
    known = [f"分析: {reflection.analysis}"] if reflection.analysis else []
    known += [f"假设: {hypothesis.text}" for hypothesis in reflection.hypotheses]
    known += [f"已被否决: {text}" for text in rejected[-NUM_REJECTED_SHOWN:]]
    return _request(
        mission,
        rules,
        [*hard_cases, *known],
        "提出能纠正这些工单、又不影响其他工单的规则修改。" + _RULE_FORM + "target_signature写被改规则的全文。",
        '{"operations": [{"op": "upsert", "text": "新规则", "rationale": "理由"}, '
        '{"op": "update", "target_signature": "旧规则", "text": "新规则", "rationale": "理由"}, '
        '{"op": "merge", "target_signatures": ["旧规则", "旧规则"], "text": "新规则", "rationale": "理由"}, '
        '{"op": "remove", "target_signature": "旧规则", "rationale": "理由"}]}',
    )


def _request(mission: str, rules: Mapping[str, str], evidence: Sequence[str], task: str, form: str) -> TextGenerationRequest:
    lines = [f"任务: {mission}", *rule_lines(rules), "错判工单:", *evidence, f"要求: {task}", f"格式: {form}"]
    system = _SYSTEM.format(domain=MISSIONS[mission].domain.upper())
    return TextGenerationRequest([{"role": "system", "content": system}, {"role": "user", "content": "\n".join(lines)}])


def decision_options(ticket_keys: Collection[str], max_new_tokens: int) -> GenerationOptions:
    """Return the options of a decision on these tickets."""
    keys = {**_array({"enum": list(ticket_keys)}), "maxItems": len(ticket_keys)}
    return _options({"no_evidence_group_ids": keys, "decision_analysis": _TEXT}, max_new_tokens)


def reflection_options(rules: Mapping[str, str], ticket_keys: Collection[str], max_new_tokens: int) -> GenerationOptions:
    """Return the options of a reflection on these tickets."""
    evidence = {**_array({"enum": list(ticket_keys)}), "minItems": 1, "maxItems": len(ticket_keys)}
    changes = {"text": _RULE, "rationale": _TEXT, "evidence": evidence}
    operations = [_object({"op": {"const": "add"}, **changes})]
    changeable = [rule_id for rule_id in rules if not is_invariant(rule_id)]
    removable = [rule_id for rule_id in changeable if rule_id != FOCUS]
    operations.append(_object({"op": {"const": "update"}, "key": {"enum": changeable}, **changes}))
    if removable:
        operations.append(_object({"op": {"const": "delete"}, "key": {"enum": removable}, "rationale": _TEXT, "evidence": evidence}))
    if len(removable) > 1:
        merged = {**_array({"enum": removable}), "minItems": 2, "maxItems": len(removable)}
        operations.append(_object({"op": {"const": "merge"}, "merged_from": merged, **changes}))
    operations.append(_object({"op": {"const": "none"}, "rationale": _TEXT}))
    return _options(
        {
            "has_evidence": {"type": "boolean"},
            "evidence_analysis": _TEXT,
            "operations": _array({"anyOf": operations}),
            "hypotheses": _array(_object({"text": _RULE, "falsifier": _TEXT, "evidence": evidence})),
        },
        max_new_tokens,
    )


def proposal_options(rules: Mapping[str, str], max_new_tokens: int) -> GenerationOptions:
    """Return the options of a proposal for these rules."""
    changes = {"text": _RULE, "rationale": _TEXT}
    operations = [_object({"op": {"const": "upsert"}, **changes})]
    signatures = {rule_id: signature(text) for rule_id, text in rules.items() if not is_invariant(rule_id)}
    removable = list(dict.fromkeys(text for rule_id, text in signatures.items() if rule_id != FOCUS))
    changeable = list(dict.fromkeys(signatures.values()))
    operations.append(_object({"op": {"const": "update"}, "target_signature": {"enum": changeable}, **changes}))
    if removable:
        operations.append(_object({"op": {"const": "remove"}, "target_signature": {"enum": removable}, "rationale": _TEXT}))
    if len(removable) > 1:
        targets = {**_array({"enum": removable}), "minItems": 2, "maxItems": len(removable)}
        operations.append(_object({"op": {"const": "merge"}, "target_signatures": targets, **changes}))
    return _options({"operations": _array({"anyOf": operations})}, max_new_tokens)


_TEXT = {"type": "string", "maxLength": MAX_RULE_CHARS}
_RULE = {"type": "string", "minLength": 1, "maxLength": MAX_RULE_CHARS}


def _object(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "required": list(properties), "additionalProperties": False}


def _array(items: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": dict(items), "maxItems": MAX_CHANGES}


def _options(properties: Mapping[str, Any], max_new_tokens: int) -> GenerationOptions:
    form = StructuredOutput(json_schema=_object(properties), optional=True)
    return GenerationOptions(max_new_tokens=max_new_tokens, structured=form)
