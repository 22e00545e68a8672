"""The rule proposer's answer: one JSON object with changes to a mission's rules, each accepted or refused with its reason.

    {"operations": [{"op": "upsert", "text": "若…，则判定不通过。", "rationale": "…"},
                    {"op": "remove", "target_signature": "若…则判定不通过", "rationale": "…"}]}

or, in the older form, `{"rules": [text or {"text": …, "rationale": …}, …]}`, all of them upserts.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from evalharness.api.errors import ContractValueError, RecordError
from evalharness.tasks.shared import balanced_spans, leftover_thinking, loads
from evalharness.tasks.stage_b.prompt import has_double_negation, has_verdict, plain, signature, third_states
from evalharness.tasks.stage_b.tickets import FOCUS, is_invariant

__all__ = [
    "Candidate",
    "Extracted",
    "Proposal",
    "Refusal",
    "check_proposal",
    "extract_object",
    "failure_row",
    "read_proposal",
    "record_failure",
    "text_problem",
]


# JSON out of a model's answer, and the record of answers that hold none. Never raises on any text, linear in its length

FAILURES = Path("reflection_cache") / "rule_search_proposer_failures.jsonl"
_FENCE = "```"


@dataclass(frozen=True)
class Extracted:
    """The JSON object that an answer holds, None with the `problem` where there is none.

    `source`: "fence" (a fenced block), "balanced" (the first balanced braces).
    `in_thinking`: it stood inside think tags, which a reader should know.
    """

    value: dict[str, Any] | None
    source: str | None
    in_thinking: bool
    problem: str


def extract_object(text: str) -> Extracted:
    """Return the object in a text: of a fenced block, else of the first balanced braces.

    The original then tries from the first brace to the last one. As braces in strings do not count here, whatever is JSON
    from there on is what the first balanced braces hold.
    """
    problem = "the answer holds no JSON object"
    for source, start, end in _spans(text):
        try:
            value = loads(text[start:end])
        except ValueError as error:
            problem = f"no JSON in the {source} part: {error}"
            continue
        if isinstance(value, dict):
            return Extracted(value, source, leftover_thinking(text[:start]) == "open", "")
        problem = f"the {source} part is no object, but {type(value).__name__}"
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


def failure_row(mission: str, step: int, text: str, problem: str) -> dict[str, Any]:
    """Return the row that records an answer without usable JSON; it counts as an answer without candidates."""
    return {"mission": mission, "step": step, "problem": problem, "response": text}


def record_failure(run_dir: Path | str, row: Mapping[str, Any]) -> Path:
    """Return the file of failures under a run's folder, the row added at its end. `RecordError` if it cannot be written."""
    path = Path(run_dir) / FAILURES
    line = f"{json.dumps(dict(row), allow_nan=False)}\n".encode()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(line)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error}") from error
    return path


Op: TypeAlias = Literal["upsert", "update", "merge", "remove"]
OPS: tuple[Op, ...] = ("upsert", "update", "merge", "remove")
_KEYS = ("op", "text", "rationale", "target_signature", "target_signatures")

# What only a Stage-A summary or the prompt around it says: a rule that quotes it was learnt by heart.
_LEAKAGE = re.compile(
    r"<DOMAIN=|<TASK=|[{}]|obj=|image_?[0-9]|图片[0-9]|QC-[A-Za-z]+-[0-9]|[\"']类别[\"']|类别[=:]|文本[=:]|站点[0-9]", re.IGNORECASE
)
_BRANDS = re.compile(r"品牌|华为|中兴|爱立信|诺基亚|大唐|烽火|厂家|厂商")
# Missing evidence, not a missing fault: 没有紧固件不合格 and 未见异常 may pass.
_NO_FAULT = "(?!不合格|不符合|错误|散乱|问题|异常|松动|缺失)"
_ABSENT_PASSES = re.compile(
    rf"(?:缺少|缺失|缺乏|没有|未见|看不到|未拍到|无法看到|不可见)(?:{_NO_FAULT}[^,。;；]){{0,40}}"
    rf",?(?:{_NO_FAULT}[^,。;；不未]){{0,12}}(?<![不未])通过"
)
_OPPOSITE = str.maketrans({"\ue000": "通过", "\ue001": "不通过"})


@dataclass(frozen=True)
class Candidate:
    """One accepted change. `targets` are rule ids that it changes or removes, () for a new rule."""

    op: Op
    text: str
    rationale: str
    targets: tuple[str, ...]
    id: str

    @property
    def signature(self) -> str:
        """What makes two rules the same."""
        return signature(self.text)


@dataclass(frozen=True)
class Refusal:
    """One change that was refused: its place in the answer (from 0), and why."""

    place: int
    problem: str


@dataclass(frozen=True)
class Proposal:
    """What an answer proposes. `problem` says why it proposes nothing at all, "" where it could be read."""

    candidates: tuple[Candidate, ...]
    refused: tuple[Refusal, ...]
    problem: str = ""


def read_proposal(text: str, rules: Mapping[str, str], rejected_ids: Collection[str] = ()) -> Proposal:
    """Return what a model's text proposes; never raises on any text: what cannot be read proposes nothing, and says why."""
    found = extract_object(text)
    if found.value is None:
        return Proposal((), (), found.problem)
    try:
        return check_proposal(found.value, rules, rejected_ids)
    except ContractValueError as error:
        return Proposal((), (), str(error))


def check_proposal(value: Mapping[str, Any], rules: Mapping[str, str], rejected_ids: Collection[str] = ()) -> Proposal:
    """Return the changes of a proposer's object, checked one by one against the mission's `rules` (by id).

    `ContractValueError` where the object as a whole is none: both `operations` and `rules`, neither of them, or no list.
    `rejected_ids` are ids of candidates that were turned down before.
    """
    given = [key for key in ("operations", "rules") if key in value]
    if len(given) != 1:
        raise ContractValueError(f"a proposal has either operations or rules, got {'both' if given else 'neither'}")
    entries = value[given[0]]
    if not isinstance(entries, list):
        raise ContractValueError(f"{given[0]} must be a list, got {type(entries).__name__}")
    if given[0] == "rules":
        entries = [{"op": "upsert", **(entry if isinstance(entry, Mapping) else {"text": entry})} for entry in entries]
    known = {signature(text): rule_id for rule_id, text in rules.items()}
    candidates: list[Candidate] = []
    refused = []
    for place, entry in enumerate(entries):
        made = _candidate(entry, rules, known)
        problem = made if isinstance(made, str) else _taken(made, candidates, rejected_ids)
        if problem:
            refused.append(Refusal(place, problem))
        elif isinstance(made, Candidate):
            candidates.append(made)
    return Proposal(tuple(candidates), tuple(refused))


def _taken(candidate: Candidate, earlier: Sequence[Candidate], rejected_ids: Collection[str]) -> str:
    if candidate.id in rejected_ids:
        return "was rejected before"
    if candidate.text and any(candidate.signature == other.signature for other in earlier if other.text):
        return "says the same as another candidate"
    changed = {target for other in earlier for target in other.targets}.intersection(candidate.targets)
    return f"another candidate changes {', '.join(sorted(changed))} already" if changed else ""


def _candidate(entry: Any, rules: Mapping[str, str], known: Mapping[str, str]) -> Candidate | str:
    """Return the candidate of an entry, or why it is none."""
    if not isinstance(entry, Mapping):
        return f"must be an object, got {type(entry).__name__}"
    unknown = [str(key) for key in entry if key not in _KEYS]
    if unknown:
        return f"has an unknown key {unknown[0][:40]!r}; known: {', '.join(_KEYS)}"
    op = next((op for op in OPS if op == entry.get("op")), None)
    if op is None:
        return f"op must be one of {', '.join(OPS)}, got {str(entry.get('op'))[:40]!r}"
    targets = _targets(op, entry, known)
    if isinstance(targets, str):
        return targets
    text = entry.get("text")
    text = text.strip() if isinstance(text, str) else ""
    if op == "remove":
        problem = "remove takes no text" if text else ""
    else:
        problem = text_problem(text, rules) or _duplicate(text, targets, rules, known)
    if problem:
        return problem
    rationale = entry.get("rationale")
    words = [op, *sorted(signature(rules[target]) for target in targets), signature(text)]
    name = hashlib.sha256("\0".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return Candidate(op, text, rationale.strip() if isinstance(rationale, str) else "", targets, name)


def _targets(op: Op, entry: Mapping[str, Any], known: Mapping[str, str]) -> tuple[str, ...] | str:
    one, several = entry.get("target_signature"), entry.get("target_signatures")
    if op == "upsert":
        return "upsert takes no target" if one is not None or several is not None else ()
    if op == "merge":
        wanted = several if isinstance(several, list) and one is None else []
        if len({signature(text) for text in wanted if isinstance(text, str)}) < 2:
            return "merge needs target_signatures of at least two different rules"
    else:
        wanted = [one]
        if not isinstance(one, str) or several is not None:
            return f"{op} needs one target_signature"
    targets = []
    for text in wanted:
        rule_id = known.get(signature(text)) if isinstance(text, str) else None
        if rule_id is None:
            return f"no rule has the signature {str(text)[:60]!r}"
        if is_invariant(rule_id):
            return f"{rule_id} is an invariant and cannot be changed"
        if rule_id == FOCUS and op != "update":
            return f"{FOCUS} is the mission's focus and cannot be removed"
        targets.append(rule_id)
    return tuple(dict.fromkeys(targets))


def _duplicate(text: str, targets: Sequence[str], rules: Mapping[str, str], known: Mapping[str, str]) -> str:
    same = known.get(signature(text))
    if same is None:
        return ""
    if same in targets:
        return f"changes nothing: {same} says so already" if len(targets) == 1 else ""
    return f"says the same as {same}"


def text_problem(text: str, rules: Mapping[str, str]) -> str:
    """Return why a text is no rule, "" if it is one; `rules` are those that it must not contradict."""
    return next(_text_problems(text, rules), "")


def _text_problems(text: str, rules: Mapping[str, str]) -> Iterator[str]:
    searched = plain(text)
    if not signature(text):
        yield "the text is empty"
    leaked = _LEAKAGE.search(searched)
    if leaked:
        yield f"quotes Stage-A: {leaked[0]!r}"
    found = third_states(text)
    if found:
        yield f"names a third state: {found[0]}"
    if has_double_negation(text):
        yield "says its verdict by double negation"
    if not has_verdict(text):
        yield "names neither 通过 nor 不通过"
    brand = _BRANDS.search(searched)
    if brand:
        yield f"judges by brand: {brand[0]}"
    if _ABSENT_PASSES.search(searched):
        yield "lets missing evidence pass, against the frame of all rules"
    invariants = {signature(rule): rule_id for rule_id, rule in rules.items() if is_invariant(rule_id)}
    opposed = invariants.get(_opposite(signature(text)))
    if opposed:
        yield f"says the opposite of {opposed}, which is an invariant"


def _opposite(words: str) -> str:
    """Return a signature with 通过 and 不通过 exchanged."""
    return words.replace("不通过", "\ue000").replace("未通过", "\ue000").replace("通过", "\ue001").translate(_OPPOSITE)
