"""How well a Stage-A summary agrees with its reference. Order never matters; counts do.

A *fact* is (category, attribute, value) with its count; a category without attributes is a fact of its own. `无关图片` is a
category and fact of its own, so that a wrongly dismissed photo scores 0 and a rightly dismissed one 1. A text from which
nothing can be read scores 0. None means: the reference does not ask for it (no texts, no attributes), so it has no score.
"""

from __future__ import annotations

import json
import unicodedata
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from evalharness.tasks.stage_a.parse import IRRELEVANT, Summary
from evalharness.tasks.stage_a.schema import (
    CATEGORY_KEY,
    DISTANCE,
    MAX_COUNT,
    NOTES_KEY,
    OWN_TOP_KEY,
    SCHEMA,
    STATS_KEY,
    TEXT_KEY,
    Domain,
    items_of,
)

__all__ = [
    "Overlap",
    "attribute_key_recall",
    "attribute_path_recall",
    "canonical_equal",
    "category_f1",
    "category_overlap",
    "category_overlaps",
    "completeness",
    "fact_f1",
    "fact_overlap",
    "notes_score",
    "text_recall",
    "tversky",
]

# Weight of what was said too much; BBU photos show more small things that a reference leaves out.
TVERSKY_ALPHA: Mapping[Domain, float] = {"bbu": 0.3, "rru": 0.6}
TVERSKY_BETA = 1.0
MAX_STABLE_CHILD = 32
SPARE_TEXTS, TEXT_PENALTY = 2, 0.1
DRIFT_KEYS, DRIFT_CATEGORIES, DRIFT_TOP_KEYS, DRIFT_DISTANCE = 0.35, 0.25, 0.30, 0.60

Fact = tuple[str, str, str]


class Overlap(NamedTuple):
    """How many were right (`num_hit`), said, and true; ratios of nothing by nothing are 1."""

    num_hit: int
    num_said: int
    num_true: int

    @property
    def precision(self) -> float:
        """Share of what was said that is true."""
        return self.num_hit / self.num_said if self.num_said else float(not self.num_true)

    @property
    def recall(self) -> float:
        """Share of what is true that was said."""
        return self.num_hit / self.num_true if self.num_true else float(not self.num_said)

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        total = self.num_said + self.num_true
        return 2 * self.num_hit / total if total else 1.0


def _facts(summary: Summary) -> Counter[Fact]:
    facts: Counter[Fact] = Counter()
    if summary.is_irrelevant:
        facts[(IRRELEVANT, "", "")] = 1
    for item in items_of(summary.data or {}):
        category, attributes = str(item.get(CATEGORY_KEY)), 0
        for key, value in item.items():
            if key != CATEGORY_KEY and isinstance(value, Mapping):
                for name, count in value.items():
                    if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= MAX_COUNT:
                        facts[(category, key, name)] += count
                        attributes += 1
        if not attributes:
            facts[(category, "", "")] += 1
    return facts


def _categories(summary: Summary) -> frozenset[str]:
    if summary.is_irrelevant:
        return frozenset({IRRELEVANT})
    return frozenset(str(item.get(CATEGORY_KEY)) for item in items_of(summary.data or {}))


def category_overlap(summary: Summary, reference: Summary) -> Overlap:
    """Return how the sets of categories overlap."""
    said, true = _categories(summary), _categories(reference)
    return Overlap(len(said & true), len(said), len(true))


def category_overlaps(summary: Summary, reference: Summary) -> dict[str, Overlap]:
    """Return the overlap of each category that either names, `无关图片` among them: of one photo, so counts are 0 or 1."""
    said, true = _categories(summary), _categories(reference)
    return {name: Overlap(int(name in said and name in true), int(name in said), int(name in true)) for name in sorted(said | true)}


def fact_overlap(summary: Summary, reference: Summary) -> Overlap:
    """Return how the facts overlap, each weighted by its count."""
    said, true = _facts(summary), _facts(reference)
    return Overlap((said & true).total(), said.total(), true.total())


def category_f1(summary: Summary, reference: Summary) -> float:
    """Return the F1 of the categories named, 0–1; 0 if nothing could be read."""
    return category_overlap(summary, reference).f1 if summary.tolerant_valid else 0.0


def fact_f1(summary: Summary, reference: Summary) -> float:
    """Return the F1 of facts weighted by count, 0–1; 0 if nothing could be read."""
    return fact_overlap(summary, reference).f1 if summary.tolerant_valid else 0.0


def tversky(summary: Summary, reference: Summary, domain: Domain) -> float:
    """Return hits / (hits + α·too much + β·missed) over facts, 0–1; α 0.3 for BBU and 0.6 for RRU, β 1."""
    if not summary.tolerant_valid:
        return 0.0
    overlap = fact_overlap(summary, reference)
    too_much, missed = overlap.num_said - overlap.num_hit, overlap.num_true - overlap.num_hit
    weight = overlap.num_hit + TVERSKY_ALPHA[domain] * too_much + TVERSKY_BETA * missed
    return overlap.num_hit / weight if weight else 1.0


def canonical_equal(summary: Summary, reference: Summary) -> bool:
    """Return whether both say the same, in whatever order."""
    if not summary.tolerant_valid or summary.is_irrelevant != reference.is_irrelevant:
        return False
    return summary.is_irrelevant or _canonical(summary) == _canonical(reference)


def _canonical(summary: Summary) -> str:
    data = dict(summary.data or {})
    for key in (STATS_KEY, NOTES_KEY):
        if isinstance(data.get(key), list):
            data[key] = sorted(json.dumps(entry, sort_keys=True) for entry in data[key])
    return json.dumps(data, sort_keys=True)


def _keys(summary: Summary) -> dict[str, set[str]]:
    keys: dict[str, set[str]] = {}
    for item in items_of(summary.data or {}):
        keys.setdefault(str(item.get(CATEGORY_KEY)), set()).update(key for key in item if key not in (CATEGORY_KEY, TEXT_KEY))
    return keys


def attribute_key_recall(summary: Summary, reference: Summary) -> float | None:
    """Return the mean, over the reference's categories, of the share of attribute keys named; `文本` is left out."""
    said, true = _keys(summary), {category: keys for category, keys in _keys(reference).items() if keys}
    if not true:
        return None
    return sum(len(keys & said.get(category, set())) / len(keys) for category, keys in true.items()) / len(true)


def _paths(summary: Summary) -> frozenset[Fact]:
    paths: set[Fact] = set()
    for category, key, name in _facts(summary):
        if key:
            stable = not (name.isdigit() or "=" in name or len(name) > MAX_STABLE_CHILD)
            paths |= {(category, key, "")} | ({(category, key, name)} if stable else set())
    return frozenset(paths)


def attribute_path_recall(summary: Summary, reference: Summary) -> float | None:
    """Return the share of the reference's paths category/attribute and category/attribute/value that were named.

    Values that are digits only, hold `=` or are longer than 32 characters count by their parent alone.
    """
    true = _paths(reference)
    return len(true & _paths(summary)) / len(true) if true else None


def _texts(summary: Summary) -> frozenset[str]:
    # NFKC makes full-width letters and digits half-width.
    return frozenset(unicodedata.normalize("NFKC", name).upper() for _, key, name in _facts(summary) if key == TEXT_KEY)


def text_recall(summary: Summary, reference: Summary) -> float | None:
    """Return the share of the reference's label texts that were read, less 0.1 for each unique text beyond two spare ones; 0–1."""
    said, true = _texts(summary), _texts(reference)
    if not true:
        return None
    too_many = max(0, len(said) - len(true) - SPARE_TEXTS)
    return max(0.0, len(said & true) / len(true) - TEXT_PENALTY * too_many)


def notes_score(summary: Summary, reference: Summary) -> float | None:
    """Return 1 if notes are where the reference has some, 0 if they are missing, −1 if they are spurious, None without any."""
    said, true = bool((summary.data or {}).get(NOTES_KEY)), bool((reference.data or {}).get(NOTES_KEY))
    if true:
        return float(said)
    return -1.0 if said else None


def completeness(summary: Summary, domain: Domain) -> float | None:
    """Return the mean, over the items, of the share of required keys that are there, less what drifts from the schema; 0–1.

    Drift costs 0.35 × the share of items with keys unknown for their category, 0.25 × the share of items of unknown
    categories, 0.30 for unknown top-level keys, 0.60 for a distance that is not digits only. None for `无关图片`, 0 if
    nothing could be read.
    """
    if summary.is_irrelevant:
        return None
    items = items_of(summary.data or {})
    if summary.data is None or not items:
        return 0.0
    rules = [SCHEMA[domain].get(str(item.get(CATEGORY_KEY))) for item in items]
    met = [1 - len(rule.missing(item)) / max(1, len(rule.required)) if rule else 0.0 for item, rule in zip(items, rules, strict=True)]
    drifting = [
        bool(rule and any(key != CATEGORY_KEY and key not in rule.allowed for key in item)) for item, rule in zip(items, rules, strict=True)
    ]
    penalty = DRIFT_KEYS * sum(drifting) / len(items) + DRIFT_CATEGORIES * rules.count(None) / len(items)
    if any(key not in (STATS_KEY, OWN_TOP_KEY[domain]) for key in summary.data):
        penalty += DRIFT_TOP_KEYS
    if domain == "rru" and not all(key.isdecimal() and key.isascii() for key in _distances(items)):
        penalty += DRIFT_DISTANCE
    return max(0.0, sum(met) / len(items) - penalty)


def _distances(items: list[Mapping[str, Any]]) -> list[str]:
    values = [item.get(DISTANCE) for item in items if item.get(CATEGORY_KEY) == DISTANCE]
    return [key for value in values if isinstance(value, Mapping) for key in value]
