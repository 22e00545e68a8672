"""The schema of Stage-A summaries: missions, categories with their attribute keys, and the check of a summary."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from evalharness.api.errors import ContractValueError

Domain: TypeAlias = Literal["bbu", "rru"]
DOMAINS: tuple[Domain, ...] = ("bbu", "rru")

STATS_KEY, NOTES_KEY, GROUPS_KEY = "统计", "备注", "分组统计"
CATEGORY_KEY, GROUP_KEY, TEXT_KEY, READABLE_KEY, DISTANCE = "类别", "组", "文本", "可读性", "站点距离"
UNREADABLE = "不可读"
MAX_COUNT = 1_000_000
"""Limit of a count of things in a photo."""


@dataclass(frozen=True)
class Mission:
    """What is inspected. `slug` is its ASCII name in case ids, as pytest shows and `-k` accepts it."""

    name: str
    domain: Domain
    slug: str


MISSIONS: Mapping[str, Mission] = {
    mission.name: mission
    for mission in (
        Mission("BBU安装方式检查（正装）", "bbu", "bbu-install"),
        Mission("BBU接地线检查", "bbu", "bbu-ground"),
        Mission("BBU线缆布放要求", "bbu", "bbu-cable"),
        Mission("挡风板安装检查", "bbu", "bbu-shield"),
        Mission("RRU安装检查", "rru", "rru-install"),
        Mission("RRU位置检查", "rru", "rru-position"),
        Mission("RRU线缆", "rru", "rru-cable"),
    )
}


@dataclass(frozen=True)
class CategoryRule:
    """The attribute keys of a category: at least one of each tuple in `required`, and `optional` ones."""

    required: tuple[tuple[str, ...], ...] = ()
    optional: tuple[str, ...] = ()

    @property
    def allowed(self) -> frozenset[str]:
        """All keys that an item of the category may have beside `类别`."""
        return frozenset(key for choice in self.required for key in choice) | frozenset(self.optional)

    def missing(self, keys: Mapping[str, Any]) -> list[tuple[str, ...]]:
        """Return the requirements that `keys` do not meet."""
        return [choice for choice in self.required if not any(key in keys for key in choice)]


def _rule(*required: str | tuple[str, ...], optional: tuple[str, ...] = ()) -> CategoryRule:
    return CategoryRule(tuple((choice,) if isinstance(choice, str) else choice for choice in required), optional)


_SEEN_AND_COMPLIANT = _rule("可见性", "符合性")
_STATE = _rule("安装状态")
_LABEL_CHOICE = (TEXT_KEY, READABLE_KEY)
_GROUPED = (GROUP_KEY,)

SCHEMA: Mapping[Domain, Mapping[str, CategoryRule]] = {
    "bbu": {
        "BBU设备": _rule("品牌", "可见性", "挡风板需求"),
        "挡风板": _rule("品牌", "可见性", "安装方向"),
        "BBU安装螺丝": _SEEN_AND_COMPLIANT,
        "BBU端光纤插头": _SEEN_AND_COMPLIANT,
        "ODF端光纤插头": _SEEN_AND_COMPLIANT,
        "机柜处接地螺丝": _SEEN_AND_COMPLIANT,
        "地排处接地螺丝": _SEEN_AND_COMPLIANT,
        "光纤": _rule("弯曲半径", ("保护措施", "套管保护", "保护")),
        "电线": _rule("捆扎"),
        "标签": _rule(_LABEL_CHOICE),
    },
    "rru": {
        DISTANCE: _rule(DISTANCE, optional=_GROUPED),
        "RRU设备": _rule(),
        "紧固件": _STATE,
        "RRU接地端": _STATE,
        "地排接地端螺丝": _STATE,
        "尾纤": _rule("套管保护", "标签", optional=_GROUPED),
        "接地线": _rule("标签", optional=_GROUPED),
        "标签": _rule(_LABEL_CHOICE, optional=_GROUPED),
    },
}
OWN_TOP_KEY: Mapping[Domain, str] = {"bbu": NOTES_KEY, "rru": GROUPS_KEY}

# Exact values: 合格 is an observed state of a screw, 审核通过 is a verdict on the work order.
VERDICT_WORDS = frozenset({"通过", "不通过", "审核通过", "审核不通过", "需复核"})
PLACEHOLDERS = frozenset({"未知", "无法判断", "无法确认", "不确定", "待确认", "看不清"})
_COORDINATES = re.compile(r"\[\s*\d+\s*,\s*\d+")
_DIGITS = re.compile(r"[0-9]+")


def check_domain(domain: str) -> Domain:
    """Return the domain in lower case; `ContractValueError` unless it is bbu or rru."""
    lowered = domain.lower()
    for known in DOMAINS:
        if lowered == known:
            return known
    raise ContractValueError(f"domain must be one of {', '.join(DOMAINS)}, got {domain!r}")


def items_of(data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries of `统计` that are objects; a single object instead of a list counts as one entry."""
    stats = data.get(STATS_KEY)
    if isinstance(stats, Mapping):
        return [stats] if CATEGORY_KEY in stats else []
    return [item for item in stats if isinstance(item, Mapping)] if isinstance(stats, list) else []


def violations(data: Mapping[str, Any], domain: Domain) -> list[str]:
    """Return every violation of the domain's rules in a summary, in reading order."""
    reasons = list(_top_level(data, domain))
    stats = data.get(STATS_KEY)
    if isinstance(stats, list):
        for position, item in enumerate(stats, start=1):
            reasons += [f"{STATS_KEY}[{position}]: {reason}" for reason in _item(item, domain)]
        if domain == "rru":
            reasons += _distance(stats)
    return reasons


def _top_level(data: Mapping[str, Any], domain: Domain) -> Iterator[str]:
    own = OWN_TOP_KEY[domain]
    for key in data:
        if key not in (STATS_KEY, own):
            yield f"top-level key {key!r} is not allowed for {domain.upper()}; allowed: {STATS_KEY}, {own}"
    if not isinstance(data.get(STATS_KEY), list):
        yield f"{STATS_KEY} must be a list, got {type(data[STATS_KEY]).__name__}" if STATS_KEY in data else f"{STATS_KEY} is missing"
    if domain == "bbu" and NOTES_KEY in data:
        yield from (f"{NOTES_KEY} {reason}" for reason in _notes(data[NOTES_KEY]))
    if domain == "rru" and GROUPS_KEY in data:
        yield from (f"{GROUPS_KEY}: {reason}" for reason in _counts(data[GROUPS_KEY]))


def _notes(notes: Any) -> Iterator[str]:
    if not isinstance(notes, list) or not all(isinstance(note, str) and note.strip() for note in notes):
        yield "must be a list of non-empty strings"
        return
    if len(set(notes)) < len(notes):
        yield "says something twice"
    for note in notes:
        yield from (f"says more than was seen: {reason}" for reason in _not_observed(note.strip()))


def _item(item: Any, domain: Domain) -> Iterator[str]:
    if not isinstance(item, Mapping):
        yield f"must be an object, got {type(item).__name__}"
        return
    category = item.get(CATEGORY_KEY)
    rule = SCHEMA[domain].get(category) if isinstance(category, str) else None
    if rule is None:
        yield f"{CATEGORY_KEY} {category!r} is unknown for {domain.upper()}"
        return
    for choice in rule.missing(item):
        yield f"{category} lacks {' or '.join(choice)}"
    for key, value in item.items():
        if key == CATEGORY_KEY:
            continue
        if key not in rule.allowed:
            yield f"{category} may not have {key!r}"
            continue
        yield from (f"{category}.{key}: {reason}" for reason in (*_counts(value), *_values(key, value)))


def _counts(value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping) or not value:
        yield f"must be an object {{value: count}}, got {str(value)[:40]!r}"
        return
    for name, count in value.items():
        if isinstance(count, bool) or not isinstance(count, int) or not 0 < count <= MAX_COUNT:
            yield f"count of {name!r} must be a positive integer, got {str(count)[:40]}"


def _values(key: str, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        return
    for name in value:
        if not name.strip():
            yield "a value is empty"
        elif key == TEXT_KEY:
            if any(character.isspace() for character in name):
                yield f"text {name!r} must be written without spaces"
        elif key == READABLE_KEY and name != UNREADABLE:
            yield f"only {UNREADABLE} is allowed, got {name!r}"
        else:
            yield from _not_observed(name)


def _not_observed(words: str) -> Iterator[str]:
    if words in PLACEHOLDERS:
        yield f"{words!r} is not an observed value"
    elif words in VERDICT_WORDS:
        yield f"{words!r} is a verdict"
    elif _COORDINATES.search(words):
        yield f"{words[:40]!r} holds coordinates"


def _distance(stats: list[Any]) -> Iterator[str]:
    places = [place for place, item in enumerate(stats) if isinstance(item, Mapping) and item.get(CATEGORY_KEY) == DISTANCE]
    if len(places) != 1:
        yield f"exactly one {DISTANCE} is needed, got {len(places)}"
    elif places[0] != 0:
        yield f"{DISTANCE} must come first"
    for place in places:
        value = stats[place].get(DISTANCE)
        keys = list(value) if isinstance(value, Mapping) else []
        if len(keys) > 1:
            yield f"{DISTANCE} must be one number, got {len(keys)}"
        for key in keys:
            if not _DIGITS.fullmatch(key):
                yield f"{DISTANCE} must be digits only, got {key[:40]!r}"
