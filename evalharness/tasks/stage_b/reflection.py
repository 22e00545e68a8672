"""The older reflection protocol: which tickets lack evidence (decision), and which rules to change (operations).

    {"no_evidence_group_ids": [ticket key, …], "decision_analysis": "…"}
    {"has_evidence": true, "evidence_analysis": "…", "operations": […], "hypotheses": […], "coverage": {…}}

A bad operation is left out and told; a bad hypothesis spoils the whole answer.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal, TypeAlias

from evalharness.api.errors import ContractTypeError, ContractValueError
from evalharness.tasks.stage_b.prompt import signature
from evalharness.tasks.stage_b.rule_search import Refusal, extract_object, text_problem
from evalharness.tasks.stage_b.tickets import FOCUS, is_invariant

__all__ = ["Decision", "Hypothesis", "Operation", "Reflection", "check_decision", "check_reflection", "read_reflection"]

Op: TypeAlias = Literal["add", "update", "delete", "merge", "none"]
OPS: tuple[Op, ...] = ("add", "update", "delete", "merge", "none")
MAX_RULE_CHARS = 160
SAME_RULE = 0.9
"""From this similarity on, an added rule is a new wording of an old one."""
_RULE_ID = re.compile(r"G(0|[1-9][0-9]{0,8})\Z")


@dataclass(frozen=True)
class Decision:
    """The tickets that the model says cannot be decided from their summaries."""

    no_evidence: tuple[str, ...]
    analysis: str


@dataclass(frozen=True)
class Operation:
    """One accepted change; `key` is None for a new rule, `merged_from` the rules that a merge replaces."""

    op: Op
    key: str | None
    text: str
    merged_from: tuple[str, ...]
    rationale: str
    evidence: tuple[str, ...]


@dataclass(frozen=True)
class Hypothesis:
    """Something to look for; `falsifier` says what would disprove it."""

    text: str
    falsifier: str
    evidence: tuple[str, ...]
    dimension: str | None


@dataclass(frozen=True)
class Reflection:
    """What an answer says; `problem` says why it says nothing, "" where it could be read."""

    has_evidence: bool
    analysis: str
    operations: tuple[Operation, ...]
    refused: tuple[Refusal, ...]
    hypotheses: tuple[Hypothesis, ...]
    coverage: Any = None
    problem: str = ""


def check_decision(value: Mapping[str, Any], ticket_keys: Collection[str]) -> Decision:
    """Return a decision object, checked: ContractValueError (ContractTypeError) for a missing key, a wrong type, an unknown ticket."""
    _known(value, ("no_evidence_group_ids", "decision_analysis"), ())
    keys = _evidence(value["no_evidence_group_ids"], ticket_keys, "no_evidence_group_ids", minimum=0)
    return Decision(keys, _text(value["decision_analysis"], "decision_analysis", may_be_empty=True))


def read_reflection(text: str, rules: Mapping[str, str], ticket_keys: Collection[str]) -> Reflection:
    """Return what a model's text says; never raises on any text: what cannot be read says nothing, and why."""
    found = extract_object(text)
    try:
        if found.value is not None:
            return check_reflection(found.value, rules, ticket_keys)
        problem = found.problem
    except (ContractTypeError, ContractValueError) as error:
        problem = str(error)
    return Reflection(False, "", (), (), (), problem=problem)


def check_reflection(value: Mapping[str, Any], rules: Mapping[str, str], ticket_keys: Collection[str]) -> Reflection:
    """Return an operations object, checked against the mission's `rules` (by id) and the tickets that were shown.

    Bad operations are left out and listed. `ContractValueError` (`ContractTypeError`) for a bad hypothesis or whole.
    """
    _known(value, ("has_evidence", "evidence_analysis", "operations", "hypotheses"), ("coverage",))
    if not isinstance(value["has_evidence"], bool):
        raise ContractTypeError(f"has_evidence must be a bool, got {str(value['has_evidence'])[:40]!r}")
    analysis = _text(value["evidence_analysis"], "evidence_analysis", may_be_empty=True)
    operations: list[Operation] = []
    refused = []
    touched: set[str] = set()
    for place, entry in enumerate(_list(value["operations"], "operations")):
        made = _operation(entry, rules, ticket_keys)
        if isinstance(made, Operation):
            mine = {*made.merged_from, *((made.key,) if made.key else ())}
            made = f"another operation changes {', '.join(sorted(mine & touched))} already" if mine & touched else made
        if isinstance(made, str):
            refused.append(Refusal(place, made))
        else:
            touched |= {*made.merged_from, *((made.key,) if made.key else ())}
            operations.append(made)
    hypotheses = [_hypothesis(entry, place, ticket_keys) for place, entry in enumerate(_list(value["hypotheses"], "hypotheses"))]
    return Reflection(value["has_evidence"], analysis, tuple(operations), tuple(refused), tuple(hypotheses), value.get("coverage"))


def _operation(entry: Any, rules: Mapping[str, str], ticket_keys: Collection[str]) -> Operation | str:
    """Return the operation of an entry, or why it is left out."""
    try:
        _known(entry, ("op",), ("key", "merged_from", "text", "rationale", "evidence"))
        op = next((op for op in OPS if op == entry["op"]), None)
        if op is None:
            return f"op must be one of {', '.join(OPS)}, got {str(entry['op'])[:40]!r}"
        rationale = _text(entry.get("rationale", ""), "rationale", may_be_empty=True)
        if op == "none":
            return Operation(op, None, "", (), rationale, ())
        key = _rule(entry["key"], rules, op) if op in ("update", "delete") or (entry.get("key") and op == "merge") else None
        merged = tuple(dict.fromkeys(_rule(one, rules, op) for one in _list(entry.get("merged_from", []), "merged_from")))
        evidence = _evidence(entry.get("evidence", []), ticket_keys, "evidence", minimum=1)
    except KeyError:
        return f"{entry['op']} needs the key of a rule"
    except (ContractTypeError, ContractValueError) as error:
        return str(error)
    if op == "merge" and len(merged) < 2:
        return "merge needs merged_from of at least two rules"
    if op != "merge" and merged:
        return f"{op} takes no merged_from"
    text = entry.get("text")
    text = text.strip() if isinstance(text, str) else ""
    if op == "delete":
        return "delete takes no text" if text else Operation(op, key, "", (), rationale, evidence)
    problem = f"the text has {len(text)} characters, at most {MAX_RULE_CHARS} are allowed" if len(text) > MAX_RULE_CHARS else ""
    problem = problem or text_problem(text, rules)
    if problem:
        return problem
    return _add(text, rules, rationale, evidence) if op == "add" else Operation(op, key, text, merged, rationale, evidence)


def _add(text: str, rules: Mapping[str, str], rationale: str, evidence: tuple[str, ...]) -> Operation | str:
    """Return a new rule; where an old one is nearly the same, an update of that one."""
    words = signature(text)
    similarity = {rule_id: SequenceMatcher(None, words, signature(rule), autojunk=False).ratio() for rule_id, rule in rules.items()}
    nearest = max(similarity, key=lambda rule_id: similarity[rule_id], default=None)
    if nearest is None or similarity[nearest] < SAME_RULE:
        return Operation("add", None, text, (), rationale, evidence)
    if is_invariant(nearest):
        return f"nearly the same as {nearest}, which is an invariant and cannot be changed"
    if similarity[nearest] == 1:
        return f"says the same as {nearest}"
    return Operation("update", nearest, text, (), rationale, evidence)


def _rule(rule_id: Any, rules: Mapping[str, str], op: Op) -> str:
    if isinstance(rule_id, str) and is_invariant(rule_id) and rule_id in rules:
        raise ContractValueError(f"{rule_id} is an invariant and cannot be changed")
    if not isinstance(rule_id, str) or not _RULE_ID.match(rule_id) or rule_id not in rules:
        raise ContractValueError(f"there is no rule {str(rule_id)[:40]!r}")
    if rule_id == FOCUS and op != "update":
        raise ContractValueError(f"{FOCUS} is the mission's focus and cannot be removed")
    return rule_id


def _hypothesis(entry: Any, place: int, ticket_keys: Collection[str]) -> Hypothesis:
    where = f"hypotheses[{place}]"
    try:
        _known(entry, ("text", "falsifier", "evidence"), ("dimension",))
        evidence = _evidence(entry["evidence"], ticket_keys, "evidence", minimum=1)
        dimension = entry.get("dimension")
        dimension = None if dimension is None else _text(dimension, "dimension")
        return Hypothesis(_text(entry["text"], "text"), _text(entry["falsifier"], "falsifier"), evidence, dimension)
    except (ContractTypeError, ContractValueError) as error:
        raise ContractValueError(f"{where}: {error}") from error


def _known(value: Any, required: Sequence[str], optional: Sequence[str]) -> None:
    if not isinstance(value, Mapping):
        raise ContractTypeError(f"must be an object, got {type(value).__name__}")
    missing = [key for key in required if key not in value]
    if missing:
        raise ContractValueError(f"{missing[0]} is missing; needed: {', '.join(required)}")
    unknown = [str(key) for key in value if key not in (*required, *optional)]
    if unknown:
        raise ContractValueError(f"{unknown[0][:40]!r} is unknown; known: {', '.join((*required, *optional))}")


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise ContractTypeError(f"{name} must be a list, got {type(value).__name__}")
    return value


def _text(value: Any, name: str, *, may_be_empty: bool = False) -> str:
    if not isinstance(value, str):
        raise ContractTypeError(f"{name} must be a text, got {type(value).__name__}")
    if not value.strip() and not may_be_empty:
        raise ContractValueError(f"{name} is empty")
    return value.strip()


def _evidence(value: Any, ticket_keys: Collection[str], name: str, *, minimum: int) -> tuple[str, ...]:
    keys = _list(value, name)
    if len(keys) < minimum:
        raise ContractValueError(f"{name} names no ticket")
    for key in keys:
        if not isinstance(key, str) or key not in ticket_keys:
            raise ContractValueError(f"{name} names {str(key)[:60]!r}, which is no ticket that was shown")
    return tuple(dict.fromkeys(keys))
