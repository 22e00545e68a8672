"""Changes of a mission's rules that a model proposes as JSON: each change is accepted or refused with its reason.

The rule proposer answers with operations, or in the older form with texts or objects of rules, all of them upserts:

    {"operations": [{"op": "upsert", "text": "若…，则判定不通过。", "rationale": "…"},
                    {"op": "remove", "target_signature": "若…则判定不通过", "rationale": "…"}]}
    {"rules": [text or {"text": …, "rationale": …}, …]}

The older reflection protocol asks first which tickets lack evidence, then which rules to change. A bad operation is refused
alone; a bad hypothesis makes the whole answer invalid:

    {"no_evidence_group_ids": [ticket key, …], "decision_analysis": "…"}
    {"has_evidence": true, "evidence_analysis": "…", "operations": […], "hypotheses": […], "coverage": {…}}

No text makes a reader raise; extraction is linear in the length of the text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any, Literal, TypeAlias, TypeVar

from evalharness.answers.json_text import balanced_spans, loads
from evalharness.answers.thoughts import leftover_thinking
from evalharness.api.errors import ContractTypeError, ContractValueError
from evalharness.tasks.stage_b.files import FOCUS, is_invariant
from evalharness.tasks.stage_b.prompt import plain, signature, third_states

_FENCE = "```"


@dataclass(frozen=True)
class Extracted:
    """The JSON object in an answer, None with the `problem` where there is none.

    `source`: "fence" (a fenced block) or "balanced" (the first balanced braces). `in_thinking`: it stood inside think tags.
    """

    value: dict[str, Any] | None
    source: str | None
    in_thinking: bool
    problem: str


def extract_object(text: str) -> Extracted:
    """Return the object in a text: in a fenced block, else in the first balanced braces.

    The original then tries from the first brace to the last one. As braces in strings do not count here, that could find no more.
    """
    problem = "the answer holds no JSON object"
    for source, start, end in _spans(text):
        try:
            value = loads(text[start:end])
        except ValueError as error:
            problem = f"invalid JSON in the {source} part: {error}"
            continue
        if isinstance(value, dict):
            return Extracted(value, source, leftover_thinking(text[:start]) == "open", "")
        problem = f"the {source} part is not an object, but {type(value).__name__}"
    return Extracted(None, None, False, problem)


def _spans(text: str) -> Iterator[tuple[str, int, int]]:
    fence = text.find(_FENCE)
    if fence >= 0:
        start = text.find("\n", fence)
        end = text.find(_FENCE, start) if start >= 0 else -1
        if end >= 0:
            yield "fence", start + 1, end
    balanced = next(balanced_spans(text), None)
    if balanced is not None:
        yield "balanced", *balanced


Guard: TypeAlias = Literal[
    "form", "target", "protected rule", "empty text", "too long", "Stage-A text", "third state", "double negation", "no verdict", "brand",
    "missing evidence passes", "against an invariant", "duplicate", "conflict", "rejected before",
]  # fmt: skip
"""What may refuse a change; `form` covers keys and types."""


class GuardError(ContractValueError):
    """A change that a guard refuses."""

    def __init__(self, guard: Guard, problem: str) -> None:
        super().__init__(problem)
        self.guard = guard


ProposalOp: TypeAlias = Literal["upsert", "update", "merge", "remove"]
PROPOSAL_OPS: tuple[ProposalOp, ...] = ("upsert", "update", "merge", "remove")
_KEYS = ("op", "text", "rationale", "target_signature", "target_signatures")

# What only a Stage-A summary or the prompt around it contains: a rule that quotes it was memorised.
_LEAKAGE = re.compile(
    r"<DOMAIN=|<TASK=|[{}]|obj=|image_?[0-9]|图片[0-9]|QC-[A-Za-z]+-[0-9]|[\"']类别[\"']|类别[=:]|文本[=:]|站点[0-9]", re.IGNORECASE
)
# What a chat template or a page gives a meaning of its own: <|im_end|>, </think>, <image>, [INST].
_MARKUP = re.compile(r"<[|/]|<[a-z_][^<>]*>|\[/?inst\]", re.IGNORECASE)
_SURROGATE = re.compile(r"[\ud800-\udfff]")
_BRANDS = re.compile(r"品牌|华为|中兴|爱立信|诺基亚|大唐|烽火|厂家|厂商")
# Missing evidence, not a missing fault: 没有紧固件不合格 and 未见异常 may pass.
_NO_FAULT = "(?!不合格|不符合|错误|散乱|问题|异常|松动|缺失)"
_ABSENT_PASSES = re.compile(
    rf"(?:缺少|缺失|缺乏|没有|未见|看不到|未拍到|无法看到|不可见)(?:{_NO_FAULT}[^,。;；]){{0,40}}"
    rf",?(?:{_NO_FAULT}[^,。;；不未]){{0,12}}(?<![不未])通过"
)
# A rule that states its verdict by denying another, which readers and models misread.
_DOUBLE_NEGATION = re.compile(
    r"(?:不(?:应该|应当|应|该|能|可以|可|得|宜|要|必|需|会|予)?|无需|不用)被?(?:判定|判断|认定|视|判)(?:为|成|作)"
    r"|(?:并非|不是|不能|不得|不会|未必|绝非)不"
)
_OPPOSITE = str.maketrans({"\ue000": "通过", "\ue001": "不通过"})


@dataclass(frozen=True)
class Candidate:
    """One accepted change. `targets` are the ids of the rules that it changes or removes, () for a new rule."""

    op: ProposalOp
    text: str
    rationale: str
    targets: tuple[str, ...]
    id: str


@dataclass(frozen=True)
class Refusal:
    """One change that was refused: its place in the answer (from 0), why, and by which guard."""

    place: int
    problem: str
    guard: Guard


@dataclass(frozen=True)
class Proposal:
    """What an answer proposes. `problem` says why it proposes nothing at all, "" where it could be read."""

    candidates: tuple[Candidate, ...]
    refused: tuple[Refusal, ...]
    problem: str = ""


def read_proposal(text: str, rules: Mapping[str, str], rejected_ids: Collection[str] = ()) -> Proposal:
    """Return what a model's text proposes; an unreadable text proposes nothing and has a `problem`."""
    extracted = extract_object(text)
    if extracted.value is None:
        return Proposal((), (), extracted.problem)
    try:
        return check_proposal(extracted.value, rules, rejected_ids)
    except ContractValueError as error:
        return Proposal((), (), str(error))


def check_proposal(value: Mapping[str, Any], rules: Mapping[str, str], rejected_ids: Collection[str] = ()) -> Proposal:
    """Return the changes of a proposer's object, checked one by one against the mission's `rules` (by id).

    `ContractValueError` where the object has both `operations` and `rules`, neither of them, or not a list. `rejected_ids` are
    ids of candidates that were rejected before.
    """
    forms = [key for key in ("operations", "rules") if key in value]
    if len(forms) != 1:
        raise ContractValueError(f"a proposal has either operations or rules, got {'both' if forms else 'neither'}")
    entries = value[forms[0]]
    if not isinstance(entries, list):
        raise ContractValueError(f"{forms[0]} must be a list, got {type(entries).__name__}")
    if forms[0] == "rules":
        entries = [{"op": "upsert", **(entry if isinstance(entry, Mapping) else {"text": entry})} for entry in entries]
    known = {signature(text): rule_id for rule_id, text in rules.items()}

    def read(entry: Any, earlier: Sequence[Candidate]) -> tuple[Candidate, Collection[str]]:
        candidate = _candidate(entry, rules, known)
        if candidate.id in rejected_ids:
            raise GuardError("rejected before", "was rejected before")
        if candidate.text and any(signature(candidate.text) == signature(other.text) for other in earlier if other.text):
            raise GuardError("duplicate", "says the same as another candidate")
        return candidate, candidate.targets

    return Proposal(*_accepted(entries, read, "candidate"))


Change = TypeVar("Change")


def _accepted(
    entries: Sequence[Any], read: Callable[[Any, Sequence[Change]], tuple[Change, Collection[str]]], noun: str
) -> tuple[tuple[Change, ...], tuple[Refusal, ...]]:
    """Return the changes of entries, and why others are refused; a rule is changed once.

    `read` takes an entry and the changes before it. It returns a change and the ids of the rules that it changes, or raises.
    """
    changes: list[Change] = []
    refused: list[Refusal] = []
    changed: set[str] = set()
    for place, entry in enumerate(entries):
        try:
            change, rule_ids = read(entry, changes)
            if not changed.isdisjoint(rule_ids):
                raise GuardError("conflict", f"another {noun} changes {', '.join(sorted(changed.intersection(rule_ids)))} already")
        except (ContractTypeError, ContractValueError) as error:
            refused.append(Refusal(place, str(error), error.guard if isinstance(error, GuardError) else "form"))
        else:
            changed.update(rule_ids)
            changes.append(change)
    return tuple(changes), tuple(refused)


def _candidate(entry: Any, rules: Mapping[str, str], known: Mapping[str, str]) -> Candidate:
    if not isinstance(entry, Mapping):
        raise ContractTypeError(f"must be an object, got {type(entry).__name__}")
    unknown = [str(key) for key in entry if key not in _KEYS]
    if unknown:
        raise ContractValueError(f"has an unknown key {unknown[0][:40]!r}; known: {', '.join(_KEYS)}")
    op = _op(entry, PROPOSAL_OPS)
    targets = _targets(op, entry, known)
    text = _one_line(entry.get("text"))
    if op != "remove":
        _check_text(text, rules)
        same = known.get(signature(text))
        if same is not None and same not in targets:
            raise GuardError("duplicate", f"says the same as {same}")
        if same is not None and len(targets) == 1:
            raise GuardError("duplicate", f"changes nothing: {same} says so already")
    elif text:
        raise ContractValueError("remove takes no text")
    return _named(op, text, entry.get("rationale"), targets, rules)


def _named(op: ProposalOp, text: str, rationale: Any, targets: tuple[str, ...], rules: Mapping[str, str]) -> Candidate:
    """Return the candidate with its id, which equal changes of equal rules share."""
    words = [op, *sorted(signature(rules[target]) for target in targets), signature(text)]
    name = hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return Candidate(op, text, _one_line(rationale), targets, name)


AnyOp = TypeVar("AnyOp", bound=str)


def _op(entry: Mapping[str, Any], ops: Sequence[AnyOp]) -> AnyOp:
    op = next((op for op in ops if op == entry.get("op")), None)
    if op is None:
        raise ContractValueError(f"op must be one of {', '.join(ops)}, got {str(entry.get('op'))[:40]!r}")
    return op


def _one_line(text: Any) -> str:
    """Return a text as one line that can be written as UTF-8, "" for anything else: a rule is a line of every prompt."""
    return " ".join(_SURROGATE.sub("\ufffd", text).split()) if isinstance(text, str) else ""


def _targets(op: ProposalOp, entry: Mapping[str, Any], known: Mapping[str, str]) -> tuple[str, ...]:
    single, several = entry.get("target_signature"), entry.get("target_signatures")
    if op == "upsert":
        if single is not None or several is not None:
            raise ContractValueError("upsert takes no target")
        return ()
    if op == "merge":
        texts = several if isinstance(several, list) and single is None else []
        if len({signature(text) for text in texts if isinstance(text, str)}) < 2:
            raise ContractValueError("merge needs target_signatures of at least two different rules")
    else:
        texts = [single]
        if not isinstance(single, str) or several is not None:
            raise ContractValueError(f"{op} needs one target_signature")
    targets = []
    for text in texts:
        rule_id = known.get(signature(text)) if isinstance(text, str) else None
        if rule_id is None:
            raise GuardError("target", f"no rule has the signature {str(text)[:60]!r}")
        targets.append(_changeable(rule_id, op))
    return tuple(dict.fromkeys(targets))


def _changeable(rule_id: str, op: str) -> str:
    if is_invariant(rule_id):
        raise GuardError("protected rule", f"{rule_id} is an invariant and cannot be changed")
    if rule_id == FOCUS and op != "update":
        raise GuardError("protected rule", f"{FOCUS} is the mission's focus and cannot be removed")
    return rule_id


def _check_text(text: str, rules: Mapping[str, str]) -> None:
    """Raise `GuardError` for a text that is not a rule; `rules` are those that it must not contradict."""
    for guard, problem in _text_problems(text, rules):
        raise GuardError(guard, problem)


def _text_problems(text: str, rules: Mapping[str, str]) -> Iterator[tuple[Guard, str]]:
    searched = plain(text)
    if not signature(text):
        yield "empty text", "the text is empty"
    if "\ufffd" in text or not text.isprintable():
        yield "form", "holds a broken or an invisible character"
    leaked = _LEAKAGE.search(searched)
    if leaked:
        yield "Stage-A text", f"quotes Stage-A: {leaked[0]!r}"
    if markup := _MARKUP.search(searched):
        yield "form", f"holds a special token or a tag: {markup[0][:40]!r}"
    states = third_states(text)
    if states:
        yield "third state", f"names a third state: {states[0]}"
    if _DOUBLE_NEGATION.search(searched):
        yield "double negation", "says its verdict by double negation"
    if "通过" not in searched:
        yield "no verdict", "names neither 通过 nor 不通过"
    brand = _BRANDS.search(searched)
    if brand:
        yield "brand", f"judges by brand: {brand[0]}"
    if _ABSENT_PASSES.search(searched):
        yield "missing evidence passes", "lets missing evidence pass, against the frame of all rules"
    invariants = {signature(rule): rule_id for rule_id, rule in rules.items() if is_invariant(rule_id)}
    opposite = signature(text).replace("不通过", "\ue000").replace("未通过", "\ue000").replace("通过", "\ue001").translate(_OPPOSITE)
    if opposite in invariants:
        yield "against an invariant", f"says the opposite of {invariants[opposite]}, which is an invariant"


Op: TypeAlias = Literal["add", "update", "delete", "merge", "none"]
OPS: tuple[Op, ...] = ("add", "update", "delete", "merge", "none")
MAX_RULE_CHARS = 160
SAME_RULE = 0.9
"""Similarity from which an added rule counts as a new wording of an old rule."""


@dataclass(frozen=True)
class Decision:
    """The tickets that cannot be decided from their summaries, according to the model."""

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
    """A hypothesis; `falsifier` says what would disprove it."""

    text: str
    falsifier: str
    evidence: tuple[str, ...]
    dimension: str | None


@dataclass(frozen=True)
class Reflection:
    """The contents of an answer; `problem` says why it could not be read, "" where it could."""

    has_evidence: bool
    analysis: str
    operations: tuple[Operation, ...]
    refused: tuple[Refusal, ...]
    hypotheses: tuple[Hypothesis, ...]
    coverage: Any = None
    problem: str = ""


_PROPOSAL_OP: Mapping[Op, ProposalOp] = {"add": "upsert", "update": "update", "delete": "remove", "merge": "merge"}


def as_candidate(operation: Operation, rules: Mapping[str, str]) -> Candidate:
    """Return what an operation other than none proposes, as the rule proposer would have proposed it."""
    targets = tuple(dict.fromkeys([*filter(None, [operation.key]), *operation.merged_from]))
    return _named(_PROPOSAL_OP[operation.op], operation.text, operation.rationale, targets, rules)


def read_decision(text: str, ticket_keys: Collection[str]) -> tuple[Decision, str]:
    """Return what a model's text decides, and why it could not be read, "" where it could; an unreadable text decides nothing."""
    extracted = extract_object(text)
    try:
        if extracted.value is not None:
            return check_decision(extracted.value, ticket_keys), ""
        problem = extracted.problem
    except (ContractTypeError, ContractValueError) as error:
        problem = str(error)
    return Decision((), ""), problem


def check_decision(value: Mapping[str, Any], ticket_keys: Collection[str]) -> Decision:
    """Return a checked decision; `ContractValueError` or `ContractTypeError` for a missing key, a wrong type, an unknown ticket."""
    _check_keys(value, ("no_evidence_group_ids", "decision_analysis"), ())
    keys = _evidence(value["no_evidence_group_ids"], ticket_keys, "no_evidence_group_ids", minimum=0)
    return Decision(keys, _text(value["decision_analysis"], "decision_analysis", may_be_empty=True))


def read_reflection(text: str, rules: Mapping[str, str], ticket_keys: Collection[str]) -> Reflection:
    """Return what a model's text says; an unreadable text is an empty reflection with a `problem`."""
    extracted = extract_object(text)
    try:
        if extracted.value is not None:
            return check_reflection(extracted.value, rules, ticket_keys)
        problem = extracted.problem
    except (ContractTypeError, ContractValueError) as error:
        problem = str(error)
    return Reflection(False, "", (), (), (), problem=problem)


def check_reflection(value: Mapping[str, Any], rules: Mapping[str, str], ticket_keys: Collection[str]) -> Reflection:
    """Return a reflection, checked against the mission's `rules` (by id) and the tickets that were shown.

    Bad operations are refused one by one. `ContractValueError` or `ContractTypeError` for a bad hypothesis or a bad object.
    """
    _check_keys(value, ("has_evidence", "evidence_analysis", "operations", "hypotheses"), ("coverage",))
    if not isinstance(value["has_evidence"], bool):
        raise ContractTypeError(f"has_evidence must be a bool, got {str(value['has_evidence'])[:40]!r}")
    analysis = _text(value["evidence_analysis"], "evidence_analysis", may_be_empty=True)

    def read(entry: Any, earlier: Sequence[Operation]) -> tuple[Operation, Collection[str]]:
        operation = _operation(entry, rules, ticket_keys)
        return operation, (*operation.merged_from, *filter(None, [operation.key]))

    accepted = _accepted(_list(value["operations"], "operations"), read, "operation")
    hypotheses = [_hypothesis(entry, place, ticket_keys) for place, entry in enumerate(_list(value["hypotheses"], "hypotheses"))]
    return Reflection(value["has_evidence"], analysis, *accepted, tuple(hypotheses), value.get("coverage"))


def _operation(entry: Any, rules: Mapping[str, str], ticket_keys: Collection[str]) -> Operation:
    _check_keys(entry, ("op",), ("key", "merged_from", "text", "rationale", "evidence"))
    op = _op(entry, OPS)
    rationale = _text(entry.get("rationale", ""), "rationale", may_be_empty=True)
    if op == "none":
        return Operation(op, None, "", (), rationale, ())
    needs_key = op in ("update", "delete")
    if needs_key and "key" not in entry:
        raise ContractValueError(f"{op} needs the key of a rule")
    key = _rule(entry["key"], rules, op) if needs_key or (entry.get("key") and op == "merge") else None
    merged = tuple(dict.fromkeys(_rule(rule_id, rules, op) for rule_id in _list(entry.get("merged_from", []), "merged_from")))
    evidence = _evidence(entry.get("evidence", []), ticket_keys, "evidence", minimum=1)
    if op == "merge" and len(merged) < 2:
        raise ContractValueError("merge needs merged_from of at least two rules")
    if op != "merge" and merged:
        raise ContractValueError(f"{op} takes no merged_from")
    text = _one_line(entry.get("text"))
    if op == "delete":
        if text:
            raise ContractValueError("delete takes no text")
        return Operation(op, key, "", (), rationale, evidence)
    if len(text) > MAX_RULE_CHARS:
        raise GuardError("too long", f"the text has {len(text)} characters, at most {MAX_RULE_CHARS} are allowed")
    _check_text(text, rules)
    if op != "add":
        return Operation(op, key, text, merged, rationale, evidence)
    nearest = _nearly_the_same(text, rules)
    return Operation("update" if nearest else "add", nearest, text, (), rationale, evidence)


def _nearly_the_same(text: str, rules: Mapping[str, str]) -> str | None:
    """Return the old rule that an added one is a new wording of, if any."""
    words = signature(text)
    similarity = {rule_id: SequenceMatcher(None, words, signature(rule), autojunk=False).ratio() for rule_id, rule in rules.items()}
    nearest = max(similarity, key=lambda rule_id: similarity[rule_id], default=None)
    if nearest is None or similarity[nearest] < SAME_RULE:
        return None
    if is_invariant(nearest):
        raise GuardError("protected rule", f"nearly the same as {nearest}, which is an invariant and cannot be changed")
    if similarity[nearest] == 1:
        raise GuardError("duplicate", f"says the same as {nearest}")
    return nearest


def _rule(rule_id: Any, rules: Mapping[str, str], op: Op) -> str:
    if not isinstance(rule_id, str) or rule_id not in rules:
        raise GuardError("target", f"there is no rule {str(rule_id)[:40]!r}")
    return _changeable(rule_id, op)


def _hypothesis(entry: Any, place: int, ticket_keys: Collection[str]) -> Hypothesis:
    try:
        _check_keys(entry, ("text", "falsifier", "evidence"), ("dimension",))
        evidence = _evidence(entry["evidence"], ticket_keys, "evidence", minimum=1)
        dimension = entry.get("dimension")
        dimension = None if dimension is None else _text(dimension, "dimension")
        return Hypothesis(_text(entry["text"], "text"), _text(entry["falsifier"], "falsifier"), evidence, dimension)
    except (ContractTypeError, ContractValueError) as error:
        raise ContractValueError(f"hypotheses[{place}]: {error}") from error


def _check_keys(value: Any, required: Sequence[str], optional: Sequence[str]) -> None:
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
    return _one_line(value)


def _evidence(value: Any, ticket_keys: Collection[str], name: str, *, minimum: int) -> tuple[str, ...]:
    keys = _list(value, name)
    if len(keys) < minimum:
        raise ContractValueError(f"{name} names no ticket")
    for key in keys:
        if not isinstance(key, str) or key not in ticket_keys:
            raise ContractValueError(f"{name} names {str(key)[:60]!r}, which is not a ticket that was shown")
    return tuple(dict.fromkeys(keys))
