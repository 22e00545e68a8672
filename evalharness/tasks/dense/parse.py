"""A model's text → the objects of a dense dump: what can be read from it (tolerant), and whether it has the exact form (strict).

    <DOMAIN=BBU>, <TASK=DETECTION>
    {"object_1": {"desc": "类别=标签,文本=DEMO-01", "bbox_2d": [40, 60, 180, 120]}, "object_2": {"desc": "类别=电线,捆扎=整齐",
    "line_points": 2, "line": [[200, 300], [640, 910]]}}                                             (all of it in one line)

Tolerant reading takes each object alone: an unusable object is dropped, with its reason, and costs no other object.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.answers.json_text import tokens
from evalharness.api.json_schema import AnswerDecoder
from evalharness.api.wording import plural
from evalharness.tasks.dense.objects import NORM1000, TYPES, DenseObject, GeometryType, Space
from evalharness.tasks.shared import find_header, header_line, header_matches, header_problems
from evalharness.tasks.stage_a.schema import DOMAINS, check_domain


class Pairs(tuple[tuple[str, Any], ...]):
    """A JSON object as its keys and values in the order of the text, duplicate keys included."""

    def duplicates(self) -> Iterator[str]:
        """Yield the complaint about each duplicate key."""
        seen: set[str] = set()
        for key, _ in self:
            if key in seen:
                yield f"key {key[:40]!r} is written twice"
            seen.add(key)


@dataclass(frozen=True)
class Root:
    """The `Pairs` or list in a text; `repaired` says how it was read, "" if the text was JSON and nothing else.

    Unreadable values of a repaired root are None.
    """

    value: Any = None
    readable: bool = True
    truncated: bool = False
    repaired: str = ""


_DECODER = AnswerDecoder(object_pairs_hook=Pairs, parse_constant=float, parse_float=float)  # a NaN costs its own object only
_FIRST_BRACKET = re.compile(r"[{\[]")
# Inside a valid string the quotes would be escaped, so these are keys.
_DOUBLE_MARK = re.compile(r'"(object_[0-9]{1,9})"\s{0,8}:')
_SINGLE_MARK = re.compile(r"'(object_[0-9]{1,9})'\s{0,8}:")
MIN_OBJECT_CHARS = len('{"line":[1,2,3,4]}')
"""Shorter braces cannot hold an object, so a megabyte of `{},` is not read object by object."""
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*(?:"|\\?\Z))|,\s{0,64}(?=[}\]])', re.DOTALL)


def read_root(text: str) -> Root:
    """Return the JSON object or list in a text, cut off, wrapped or slightly broken; never raises, linear in its length."""
    text = text.strip()
    value = _loads(text)
    if _may_hold_objects(value):
        return Root(value)
    first = _FIRST_BRACKET.search(text)
    if first is None:
        return Root(readable=False)
    body = text[first.start() :]
    whole = _first_value(body)
    if whole is not None:
        return Root(whole, repaired="other text around it")
    return _salvaged(body)


def _loads(text: str) -> Any:
    try:
        return _DECODER.decode(text)
    except ValueError:
        return None


def _first_value(body: str) -> Any:
    """Return the JSON value at the start of a text, None if there is none or more objects follow it."""
    try:
        value, end = _DECODER.raw_decode(body)
    except ValueError:
        return None
    return value if _may_hold_objects(value) and "{" not in body[end:] else None


def _may_hold_objects(value: Any) -> bool:
    return isinstance(value, Pairs) or (isinstance(value, list) and (not value or any(isinstance(item, Pairs) for item in value)))


def _salvaged(body: str) -> Root:
    """Return the objects of a text that is not JSON as a whole, each read by itself."""
    marks = list(_DOUBLE_MARK.finditer(body)) or list(_SINGLE_MARK.finditer(body))
    if not marks:
        spans, is_open = _flat_objects(body)
        items = [_load_repaired(body[start:end]) for start, end in spans if end - start >= MIN_OBJECT_CHARS]
        return Root(items, "{" in body and (is_open or bool(items)), is_open, "cut off" if is_open else "broken JSON")
    entries: list[tuple[str, Any]] = []
    tail = body
    for place, mark in enumerate(marks):
        piece = body[mark.end() : marks[place + 1].start() if place + 1 < len(marks) else len(body)]
        if "}" not in piece:
            entries.append((mark[1], None))
            tail = ""
            continue
        value, tail = _marked_object(piece)
        entries.append((mark[1], value))
    # The end of the root, if any, follows the last object. An object with a lost quote hides it from the scan.
    truncated = "}" not in tail and "]" not in tail and not body.endswith("}}")
    return Root(Pairs(entries), True, truncated, "cut off" if truncated else "broken JSON")


def _marked_object(piece: str) -> tuple[Any, str]:
    """Return the object after its key, None if it cannot be read, and the rest of the piece."""
    start = piece.find("{")
    try:
        # As a whole: the scan for flat objects would take an object inside it.
        value, end = _DECODER.raw_decode(piece, start)
        return value, piece[end:]
    except ValueError:
        spans, is_open = _flat_objects(piece, only_first=True)
    value = _load_repaired(piece[slice(*spans[0])]) if spans else None
    return value, piece[spans[0][1] :] if spans else ("" if is_open else piece)


def _flat_objects(text: str, only_first: bool = False) -> tuple[list[tuple[int, int]], bool]:
    """Return the span of each `{…}` without braces inside (strings apart), and whether a brace or bracket stays open."""
    spans: list[tuple[int, int]] = []
    opened: list[str] = []
    start: int | None = None
    for begin, end in tokens(text):
        sign = text[begin]
        if sign in "{[":
            opened.append(sign)
            start = begin if sign == "{" else start
        elif sign in "}]":
            if opened:
                opened.pop()
            if sign == "}" and start is not None:
                spans.append((start, end))
                start = None
                if only_first:
                    break
        elif end == len(text) and not _is_closed(text[begin:end]):
            return spans, True
    return spans, bool(opened)


def _is_closed(string: str) -> bool:
    return len(string) > 1 and string.endswith('"') and (len(string) - 1 - len(string[:-1].rstrip("\\"))) % 2 == 0


def _load_repaired(text: str) -> Any:
    """Return the value of one object's text: as JSON, else without trailing commas, else with quotes swapped; None otherwise."""
    value = _loads(text)
    if value is None:
        value = _loads(_TRAILING_COMMA.sub(lambda match: match[1] or "", text))
    if value is None and '"' not in text:
        value = _loads(_TRAILING_COMMA.sub(lambda match: match[1] or "", text.replace("'", '"')))
    return value


TASK = "DETECTION"
MAX_REASONS = 20
MIN_POINTS: dict[GeometryType, int] = {"bbox_2d": 2, "poly": 3, "line": 2}
KNOWN_KEYS = frozenset({"desc", "line_points", *TYPES})

_OBJECT_KEY = re.compile(r"object_([0-9]{1,9})")
_WRAPPER_KEY = re.compile(r"(?:图片|image)_?[0-9]{0,6}")
_NUMBER = re.compile(r"\s{0,8}[-+]?[0-9]{1,18}(?:\.[0-9]{0,18})?\s{0,8}")


@dataclass(frozen=True, repr=False)
class Dump:
    """The contents of one text.

    `objects` come in the order of their numbers (2 before 10), without exact repetitions, which `num_duplicates` counts.
    `dropped` has the reason for each unusable object. `readable` is False where no JSON object or list was found; `truncated`
    is True where the JSON does not end. `format_problems` are the first 20 violations of the strict form.
    """

    objects: tuple[DenseObject, ...]
    header: tuple[str, str] | None
    header_match: bool
    readable: bool
    truncated: bool
    num_duplicates: int
    dropped: tuple[str, ...]
    format_problems: tuple[str, ...]
    space: Space = NORM1000

    def __repr__(self) -> str:
        # Short: pytest shows it below every failed assertion about a dump.
        return f"Dump({plural(len(self.objects), 'object')}{', truncated' if self.truncated else ''})"

    @property
    def valid(self) -> bool:
        """Whether the text has the strict form."""
        return self.readable and not self.format_problems

    @property
    def problem(self) -> str:
        """The violations of the strict form in one line, "" for a valid dump."""
        return "; ".join(self.format_problems)


def parse_dump(text: str, domain: str | None, space: Space = NORM1000) -> Dump:
    """Return the dump in `text`, whose coordinates are in `space`; never raises on any text, linear in its length.

    `domain` None accepts a header of either domain.
    """
    text = text.strip()
    header, end = find_header(text)
    named = header.domain.lower() if header and header.domain.lower() in DOMAINS else DOMAINS[0]
    wanted = check_domain(domain) if domain is not None else named
    root = read_root(text if "{" in text[:end] else text[end:])
    entries = list(_entries(root.value))
    objects, dropped = _objects(entries, space)
    unique = tuple(dict.fromkeys(objects))
    problems = [*header_problems(header, wanted, TASK, text), *_root_problems(root, text)]
    if not problems:
        problems = list(_entry_problems(root.value, space))
    return Dump(
        objects=unique,
        header=header,
        header_match=header_matches(header, wanted, TASK),
        readable=root.readable,
        truncated=root.truncated,
        num_duplicates=len(objects) - len(unique),
        dropped=tuple(dropped),
        format_problems=tuple(problems[:MAX_REASONS]),
        space=space,
    )


def render_dump(objects: Sequence[DenseObject], domain: str) -> str:
    """Return the strict text of objects on the grid: header and one line of JSON."""
    rendered: dict[str, dict[str, Any]] = {}
    for number, item in enumerate(objects, start=1):
        pairs = [list(pair) for pair in zip(item.points[::2], item.points[1::2], strict=True)]
        count = {"line_points": len(pairs)} if item.type == "line" else {}
        rendered[f"object_{number}"] = {"desc": item.desc, **count, item.type: list(item.points) if item.type == "bbox_2d" else pairs}
    return f"{header_line(check_domain(domain), TASK)}\n{json.dumps(rendered, ensure_ascii=False)}"


def _entries(value: Any, wrapped: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield name and value of each possible object in the order of the text; one legacy wrapper is opened."""
    if isinstance(value, Pairs):
        if not wrapped and value and all(_WRAPPER_KEY.fullmatch(key) and isinstance(inner, (Pairs, list)) for key, inner in value):
            for _, inner in value:
                yield from _entries(inner, wrapped=True)
        elif any(key in TYPES for key, _ in value):
            yield "object", value  # a single object without a number around it
        else:
            yield from value
    elif isinstance(value, list):
        yield from ((f"item {place}", item) for place, item in enumerate(value, start=1))


def _objects(entries: Sequence[tuple[str, Any]], space: Space) -> tuple[list[DenseObject], list[str]]:
    def number(entry: tuple[str, Any]) -> float:
        match = _OBJECT_KEY.fullmatch(entry[0])
        # Other names keep their places after the numbered objects.
        return int(match[1]) if match else float("inf")

    objects, dropped = [], []
    for name, value in sorted(entries, key=number):
        read = _read_object(value, space)
        if isinstance(read, str):
            dropped.append(f"{name[:40]}: {read}")
        else:
            objects.append(read)
    return objects, dropped


def _read_object(value: Any, space: Space) -> DenseObject | str:
    """Return the object, or why it cannot be used."""
    if not isinstance(value, Pairs):
        return "it is cut off or not JSON" if value is None else "it is not a JSON object"
    fields = dict(value)
    kind, problem = _geometry(fields)
    if kind is None:
        return problem
    desc = fields.get("desc")
    is_text = isinstance(desc, (str, int, float)) and not isinstance(desc, bool)
    read = object_of(kind, fields[kind], str(desc) if is_text else "", space)
    if kind == "line" and isinstance(read, DenseObject):
        num_points = len(read.points) // 2
        if numbers_of([fields.get("line_points"), 0]) != [num_points, 0]:
            return f"line_points says {str(fields.get('line_points'))[:20]}, the line has {plural(num_points, 'point')}"
    return read


def _geometry(fields: Mapping[str, Any]) -> tuple[GeometryType | None, str]:
    """Return the only geometry of an object, or None and why there is not exactly one."""
    kinds = [kind for kind in TYPES if kind in fields]
    if len(kinds) == 1:
        return kinds[0], ""
    return None, f"it has {' and '.join(kinds) or 'no geometry'}, exactly one of {', '.join(TYPES)} is needed"


def object_of(kind: GeometryType, points: Any, desc: str, space: Space) -> DenseObject | str:
    """Return the object with these points, flat or in pairs, on the grid, or why it is unusable."""
    numbers = numbers_of(points)
    if numbers is None:
        return f"{kind} must be numbers in pairs"
    num_points = len(numbers) // 2
    if num_points < MIN_POINTS[kind] or (kind == "bbox_2d" and num_points != 2):
        return f"{kind} has {plural(num_points, 'point')}"
    on_grid, outside = space.to_grid(numbers)
    inverted = kind == "bbox_2d" and (numbers[0] > numbers[2] or numbers[1] > numbers[3])
    return DenseObject(kind, tuple(on_grid), desc, inverted, outside)


def numbers_of(value: Any) -> list[float] | None:
    """Return flat numbers of flat or paired points; None if a number is missing, not finite, or without its pair."""
    if not isinstance(value, list):
        return None
    if value and all(isinstance(pair, list) for pair in value):
        if any(len(pair) != 2 for pair in value):
            return None
        value = [number for pair in value for number in pair]
    numbers = [_finite(number) for number in value]
    if len(numbers) % 2 or any(number is None for number in numbers):
        return None
    return [number for number in numbers if number is not None]


def _finite(value: Any) -> float | None:
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if isinstance(value, int) or (value == value and abs(value) != float("inf")) else None


def _root_problems(root: Root, text: str) -> Iterator[str]:
    if not root.readable:
        yield "the answer is empty" if not text else "no JSON object"
    elif root.truncated:
        yield "the JSON is cut off"
    elif root.repaired:
        yield f"not one line of JSON after the header: {root.repaired}"
    elif not isinstance(root.value, Pairs):
        yield "the JSON must be an object, got a list"
    elif text.count("\n") > 1:
        yield f"there must be exactly 2 lines, got {text.count(chr(10)) + 1}"


def _entry_problems(root: Pairs, space: Space) -> Iterator[str]:
    """Yield the violations of the strict form in the entries of a JSON object; coordinates may be of any size."""
    yield from root.duplicates()
    for key, value in root:
        if not _OBJECT_KEY.fullmatch(key):
            yield f"key {key[:40]!r} must be object_N"
        if not isinstance(value, Pairs):
            yield f"{key[:40]}: it is not a JSON object"
            continue
        yield from (f"{key[:40]}: {reason}" for reason in _object_problems(value, space))


def _object_problems(value: Pairs, space: Space) -> Iterator[str]:
    yield from value.duplicates()
    fields = dict(value)
    yield from (f"key {key[:40]!r} is not allowed" for key in fields if key not in KNOWN_KEYS)
    if not isinstance(fields.get("desc"), str) or not fields["desc"].strip():
        yield "desc must be a text that is not empty"
    kind, problem = _geometry(fields)
    if kind is None:
        yield problem
    elif not _is_strict(kind, fields[kind], space):
        yield f"{kind} must be {'[x1, y1, x2, y2]' if kind == 'bbox_2d' else f'{MIN_POINTS[kind]} or more pairs [x, y]'}"
    elif "line_points" in fields and (kind != "line" or fields["line_points"] != len(fields[kind])):
        yield f"line_points says {str(fields['line_points'])[:20]} of a {kind} of {len(fields[kind])}"


def _is_strict(kind: GeometryType, value: Any, space: Space) -> bool:
    if not isinstance(value, list):
        return False
    if kind == "bbox_2d":
        return len(value) == 4 and all(_is_coordinate(number, space) for number in value)
    return len(value) >= MIN_POINTS[kind] and all(
        isinstance(pair, list) and len(pair) == 2 and all(_is_coordinate(number, space) for number in pair) for pair in value
    )


def _is_coordinate(number: Any, space: Space) -> bool:
    return isinstance(number, int if space.whole else (int, float)) and not isinstance(number, bool) and _finite(number) is not None
