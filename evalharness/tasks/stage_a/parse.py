"""A model's text → a Stage-A summary: what can be read from it (tolerant), and whether it has the exact form (strict)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evalharness.api.json_schema import AnswerDecoder
from evalharness.tasks.shared import find_header, header_line, header_matches, header_problems, is_header
from evalharness.tasks.stage_a.schema import GROUPS_KEY, NOTES_KEY, STATS_KEY, check_domain, violations

IRRELEVANT = "无关图片"
TASK = "SUMMARY"
KEY_ORDER = (STATS_KEY, NOTES_KEY, GROUPS_KEY)
MAX_REPR = 60
LEGACY_KEYS = ("image_1", "图片_1")

# Half-width only. A detection prompt makes some checkpoints write it.
_ASSIGNMENT = re.compile(rf"(?:(?:(?<!分组){STATS_KEY}|{NOTES_KEY}) {{0,4}}[=:] {{0,4}}(?=\[)|{GROUPS_KEY} {{0,4}}[=:] {{0,4}}(?=\{{))")


@dataclass(frozen=True, repr=False)
class Summary:
    """The contents of one text.

    `text` is the cleaned text that Stage-B reads: canonical JSON, `无关图片`, or the text itself where it is unreadable. `data` is
    the JSON object, None for `无关图片` and unreadable texts. `header` is (domain, task) as written. `format_problems` and
    `violations` are all violations of the strict form and of the domain's schema.
    """

    text: str
    data: Mapping[str, Any] | None
    is_irrelevant: bool
    header: tuple[str, str] | None
    header_match: bool
    format_problems: tuple[str, ...]
    violations: tuple[str, ...]

    def __repr__(self) -> str:
        # Short and escaped: pytest shows it below every failed assertion about a summary.
        return f"Summary({self.text[:MAX_REPR]!r}{'…' if len(self.text) > MAX_REPR else ''})"

    @property
    def tolerant_valid(self) -> bool:
        """Whether a summary could be read at all, whatever surrounds it or is wrong in it."""
        return self.is_irrelevant or self.data is not None

    @property
    def valid(self) -> bool:
        """Whether the text has the strict form and keeps the schema."""
        return self.tolerant_valid and not self.format_problems and not self.violations

    @property
    def problem(self) -> str:
        """All violations in one line, "" for a valid summary."""
        return "; ".join((*self.format_problems, *self.violations))


@dataclass(frozen=True)
class _Loaded:
    value: Any
    duplicates: tuple[str, ...]


def parse_summary(text: str, domain: str) -> Summary:
    """Return the summary in `text`; never raises on any text, linear in its length."""
    wanted = check_domain(domain)
    text = text.strip()
    header, _ = find_header(text)
    header_match = header_matches(header, wanted, TASK)
    lines = [line for line in text.split("\n") if not is_header(line)]
    body = "\n".join(lines).strip()
    if body.startswith(IRRELEVANT):
        alone = () if text == IRRELEVANT else (f"{IRRELEVANT} must stand alone",)
        return Summary(IRRELEVANT, None, True, header, header_match or header is None, alone, ())
    loaded, how = _read(body)
    data = _canonical(loaded.value) if loaded else None
    problems = header_problems(header, wanted, TASK, text)
    if loaded is None or data is None:
        return Summary(text, None, False, header, header_match, (*problems, _unreadable(body)), ())
    problems = (*problems, *_form_problems(text, loaded, how))
    duplicates = [f"key {key!r} is written twice" for key in loaded.duplicates[:20]]
    return Summary(_dumps(data), data, False, header, header_match, problems, (*duplicates, *violations(data, wanted)))


def render_summary(data: Mapping[str, Any] | None, domain: str) -> str:
    """Return the strict text of a summary: header and one line of JSON; `无关图片` for None."""
    if data is None:
        return IRRELEVANT
    return f"{header_line(check_domain(domain), TASK)}\n{_dumps(_canonical(data))}"


def _form_problems(text: str, loaded: _Loaded, how: str) -> tuple[str, ...]:
    if how != "whole":
        return (f"not one line of JSON after the header: {how}",)
    line = text.split("\n", 1)[-1]
    # Both ways to write Chinese in JSON are one line with ", " and ": ". A duplicate key is a violation, not a matter of form.
    if not loaded.duplicates and line not in (_dumps(loaded.value), _dumps(loaded.value, ascii_only=True)):
        return ('the JSON must be one line with ", " and ": " between its parts',)
    return ()


def _unreadable(body: str) -> str:
    if not body:
        return "the answer is empty"
    if "{" in body and body.count("{") > body.count("}"):
        return "the JSON is not closed"
    return f"no JSON object with {STATS_KEY} in it"


def _read(body: str) -> tuple[_Loaded | None, str]:
    """Return the object in a text without header lines, and how it was read: whole, or what surrounded it."""
    loaded = _loads(body)
    if loaded and _is_summary(loaded.value):
        return loaded, "whole"
    if loaded and isinstance(loaded.value, dict):
        return _legacy(loaded.value), "a legacy wrapper"
    for line in reversed(body.split("\n")):
        line = line.strip()
        # Looking for the key first keeps a megabyte of "{}" lines cheap; the second form is 统 as JSON escapes it.
        if line.startswith("{") and line.endswith("}") and (STATS_KEY in line or "\\u7edf" in line):
            loaded = _loads(line)
            if loaded and _is_summary(loaded.value):
                return loaded, "other lines around it"
    start, end = body.find("{"), body.rfind("}")
    loaded = _loads(body[start : end + 1]) if -1 < start < end else None
    if loaded and _is_summary(loaded.value):
        return loaded, "other text around it"
    return _assigned(body), f"{STATS_KEY}= instead of an object"


def _legacy(value: dict[str, Any]) -> _Loaded | None:
    for key in LEGACY_KEYS:
        inner = value.get(key)
        loaded = _loads(inner) if isinstance(inner, str) else _Loaded(inner, ())
        if loaded and _is_summary(loaded.value):
            return loaded
    return None


def _assigned(body: str) -> _Loaded | None:
    """Return the object whose keys a text assigns one after the other; None where a value is cut off or not JSON."""
    duplicates: list[str] = []
    reading = _decoder(duplicates)
    assigned: dict[str, Any] = {}
    position = 0
    while (match := _ASSIGNMENT.search(body, position)) is not None:
        key = match[0].rstrip(" =:")
        try:
            value, position = reading.raw_decode(body, match.end())
        except ValueError:
            return None
        duplicates += [key] if key in assigned else []
        assigned[key] = value
    return _Loaded(assigned, tuple(duplicates)) if STATS_KEY in assigned else None


def _is_summary(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get(STATS_KEY), (list, dict))


def _decoder(duplicates: list[str]) -> json.JSONDecoder:
    """Return a decoder that appends duplicate keys to a list."""

    def object_of(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value: dict[str, Any] = {}
        for key, child in pairs:
            if key in value:
                duplicates.append(key)
            value[key] = child
        return value

    return AnswerDecoder(object_pairs_hook=object_of)


def _loads(text: str) -> _Loaded | None:
    """Return the JSON value of a text and its duplicate keys, of which the last counts; None if it is not JSON."""
    duplicates: list[str] = []
    try:
        return _Loaded(_decoder(duplicates).decode(text), tuple(duplicates))
    except ValueError:
        return None


def _canonical(value: Any) -> dict[str, Any]:
    first = {key: value[key] for key in KEY_ORDER if key in value}
    return {**first, **{key: child for key, child in value.items() if key not in first}}


def _dumps(value: Any, ascii_only: bool = False) -> str:
    return json.dumps(value, ensure_ascii=ascii_only)
