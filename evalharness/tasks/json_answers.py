"""Prompts of your own whose answers are JSON with known fields: one JSONL file of rows in, a score per field out.

    {"id": "invoice-7", "prompt": "Which total? Answer as JSON.", "images": ["7.png"], "expected": {"total": {"$number": 12.5}}}

`prompt` is one user turn, `messages` a whole chat instead; `images` are relative to the file, and stand before the prompt or
take the chat's `{"type": "image"}` parts in turn. `group` joins rows that belong together, `tags` are texts by name. What
`expected` may say is in `json_matching.py`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.tasks.json_matching import MISSING, check_expected, find, is_absent, matches, read_path
from evalharness.tasks.prompt_rows import Judgement, PromptCase, read_rows, request_of
from evalharness.tasks.shared import balanced_end, loads
from evalharness.tasks.thoughts import without_thoughts

__all__ = ["Answer", "JsonCase", "Judgement", "judge", "load_cases", "parse_answer", "request", "tables"]

FILE_NAME = "json_answers.jsonl"
MAX_EXTRA, MAX_KEY_CHARS = 20, 60
"""Keys of an answer that are kept in the details though nothing is expected of them; how many there were is a score."""
_OWN_KEYS = ("expected",)
_OBJECT = re.compile(r'\{(?=\s*["}])')  # not the brace of other texts
_LIST = re.compile(r"\[")
_LIST_OF_OBJECTS = re.compile(r"\[\s*[{\[]")
_FENCE = re.compile(r"```[A-Za-z0-9_-]{0,20}[ \t]{0,8}\n(.*?)(?:\n[ \t]{0,8}```|\Z)", re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class JsonCase(PromptCase):
    """One row; `reference` is what is expected, by path."""


@dataclass(frozen=True)
class Answer:
    """What JSON a text holds. `strict`: the text is JSON and nothing else. `found` tells no JSON from `null`."""

    value: Any
    found: bool
    strict: bool


def load_cases(data_dir: Path | str | None, *, name: str = FILE_NAME) -> list[JsonCase]:
    """Return one case per row of `<data_dir>/json_answers.jsonl`; `ConfigError` names the line of whatever is wrong."""
    cases = []
    for row in read_rows(data_dir, name, _OWN_KEYS):
        expected = row.values.get("expected")
        if not isinstance(expected, dict) or not expected:
            raise ConfigError(f"{row.where}: expected must be an object with at least one field, got {expected!r}")
        for path, value in expected.items():
            read_path(path, row.where)
            check_expected(value, f"{row.where}: expected {path!r}")
        cases.append(JsonCase(reference=expected, **row.asked()))
    return cases


request = request_of


def parse_answer(text: str) -> Answer:
    """Return the JSON of a text: the text itself, or else what stands in a code fence, or else the first object in it, or list.

    What a model thought, up to the last `</think>` or behind a `<think>` that never ends, is not its answer. Nor is a part of
    an object or list that is cut off. Never raises; linear in the text's length.
    """
    whole = _loads(text)
    if whole is not MISSING:
        return Answer(whole, True, True)
    text = without_thoughts(text)
    whole = _loads(text)
    if whole is not MISSING:
        return Answer(whole, True, False)
    for fence in _FENCE.finditer(text):
        value = _loads(fence[1])
        if value is not MISSING:
            return Answer(value, True, False)
    value = _first_root(text)
    return Answer(None if value is MISSING else value, value is not MISSING, False)


def _loads(text: str) -> Any:
    try:
        return loads(text)
    except ValueError:
        return MISSING


def _first_root(text: str) -> Any:
    """Return the first object in a text, or a list of objects around it; where there is no object, the first list."""
    first = _OBJECT.search(text)
    lists = []
    for start, value in _roots(text, _LIST):
        if first is not None and start > first.start():
            break
        if value is None and _LIST_OF_OBJECTS.match(text, start):
            return MISSING  # cut off: what it holds is no answer
        if isinstance(value, list):
            if any(isinstance(item, dict) for item in value):
                return value
            lists.append(value)
    found = next((value for _, value in _roots(text, _OBJECT) if isinstance(value, dict)), MISSING)
    return lists[0] if found is MISSING and lists else found


def _roots(text: str, opening: re.Pattern[str]) -> Iterator[tuple[int, Any]]:
    """Yield the start and value of every balanced root, `MISSING` for what is no JSON; None for one that never closes, the last."""
    position = 0
    while (match := opening.search(text, position)) is not None:
        end = balanced_end(text, match.start())
        if end is None:
            yield match.start(), None
            return  # nor does any later one end: they are all within this one
        yield match.start(), _loads(text[match.start() : end])
        position = end


def judge(text: str, expected: Mapping[str, Any]) -> Judgement:
    """Return how a text does against the expected fields.

    `valid`: there is JSON. `strict`: and nothing else. `fields_right`: share of expected fields that are right. `all_right`:
    all of them. `num_missing`, `num_extra`: fields that are not there, and keys of the answer that nothing is expected of.
    """
    answer = parse_answer(text)
    value = answer.value if answer.found else MISSING
    fields: dict[str, str] = {}
    for path, wanted in expected.items():
        found = find(value, read_path(path)) if answer.found else MISSING
        right = answer.found and matches(found, wanted)
        fields[path] = "right" if right else "missing" if found is MISSING and not is_absent(wanted) else "wrong"
    known = {read_path(path)[0] for path in expected}
    extra = [key for key in value if key not in known] if isinstance(value, dict) else []
    num_right = sum(state == "right" for state in fields.values())
    scores = {
        "valid": float(answer.found),
        "strict": float(answer.strict),
        "fields_right": num_right / len(fields),
        "all_right": float(num_right == len(fields)),
        "num_missing": float(sum(state == "missing" for state in fields.values())),
        "num_extra": float(len(extra)),
    }
    bad = ", ".join(f"{path} is {state}" for path, state in fields.items() if state != "right")
    details = {"fields": fields, "extra": [key[:MAX_KEY_CHARS] for key in extra[:MAX_EXTRA]]}
    return Judgement(scores, details, bad if answer.found else f"no JSON in {text[:80]!r}")


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return how often each field was right, wrong or missing, the worst first."""
    states: defaultdict[str, defaultdict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        for path, state in (row.get("details") or {}).get("fields", {}).items():
            states[path][state] += 1
    lines = [
        {"field": path, "cases": sum(each.values()), "accuracy": each["right"] / sum(each.values()), "wrong": each["wrong"],
         "missing": each["missing"]} for path, each in states.items()
    ]  # fmt: skip
    return {"fields": sorted(lines, key=lambda line: (line["accuracy"], line["field"]))} if lines else {}
