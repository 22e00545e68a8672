"""How well a Stage-A summary agrees with its reference. Order never matters; counts do.

A *fact* is (category, attribute, value) with its count; a category without attributes is a fact of its own. `无关图片` is a
category and fact of its own, so that a wrongly dismissed photo scores 0 and a rightly dismissed one 1. A text from which
nothing can be read scores 0. None means: the reference does not ask for it (no texts, no attributes), so it has no score.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from evalharness.runs.schema import Row
from evalharness.tasks.shared import macro_and_min
from evalharness.tasks.stage_a.data import StageACase
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
    "aggregate",
    "attribute_key_recall",
    "attribute_path_recall",
    "canonical_equal",
    "category_f1",
    "category_overlap",
    "category_overlaps",
    "completeness",
    "details",
    "fact_f1",
    "fact_overlap",
    "notes_score",
    "tables",
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


# What a whole run says about Stage-A: plain data of each photo, and the metrics and tables made from them

_MAX_NAME = 60
_NUM_REASONS = 50
_PLACE = re.compile(r"^统计\[\d+\]: ")
_MEANS = {
    "category_f1": "mean category F1",
    "fact_f1": "mean fact F1",
    "completeness": "mean completeness",
    "valid": "strictly valid",
    "tolerant_valid": "readable",
    "exact": "exact",
    "runaway": "runaway",
}
"""Scores whose means, or shares of photos, are in the tables by tag, with their headings."""

Line: TypeAlias = "dict[str, str | int | float | None]"


def details(summary: Summary, case: StageACase) -> dict[str, Any]:
    """Return what tables and output files need of a photo: where it belongs, the cleaned summary, its reasons and categories.

    `categories` is {category: [hit, said, true]}, each 0 or 1, against the reference, whose cleaned text is there too; both are
    absent where none is known.
    """
    photo = {
        "mission": case.mission,
        "group_id": case.group_id,
        "label": case.label,
        "image_index": case.image_index,
        "images": list(case.group_images or (case.image.name,)),
    }
    reasons = [_PLACE.sub("", reason) for reason in (*summary.format_problems, *summary.violations)]
    found: dict[str, Any] = {"photo": photo, "summary": summary.text, "reasons": reasons[:_NUM_REASONS]}
    if case.reference is not None:
        found["reference"] = case.reference.text
        overlaps = category_overlaps(summary, case.reference)
        found["categories"] = {name[:_MAX_NAME]: list(overlap) for name, overlap in overlaps.items()}
    return found


def aggregate(rows: Sequence[Row]) -> dict[str, float]:
    """Return micro precision, recall and F1 of categories and facts, macro and lowest category F1, and `无关图片` apart.

    Micro: counts are added up over all photos, then divided. `category_macro_f1` and `category_min_f1` are over the categories
    of each domain, see `category_f1`.
    """
    scored = [(row["scores"], row.get("tags", {})) for row in rows if row.get("scores")]
    found: dict[str, float] = {}
    for name, singular in (("categories", "category"), ("facts", "fact")):
        found |= _ratios(f"{singular}_micro", _added_up(name, (score for score, _ in scored)))
    known = [(bool(score.get("irrelevant", 0.0)), tags["photo"] == "irrelevant") for score, tags in scored if "photo" in tags]
    irrelevant = Overlap(sum(said and true for said, true in known), sum(said for said, _ in known), sum(true for _, true in known))
    found |= {name: value for name, value in _ratios("irrelevant", irrelevant).items() if not name.endswith("f1")}
    each = _by_category(rows)
    f1s, num_true = ({category: getattr(overlap, name) for category, overlap in each.items()} for name in ("f1", "num_true"))
    return found | macro_and_min(f1s, num_true)


def _added_up(name: str, scores: Iterable[Mapping[str, float]]) -> Overlap:
    hit = said = true = 0
    for score in scores:
        hit += int(score.get(f"num_{name}_hit", 0))
        said += int(score.get(f"num_{name}_said", 0))
        true += int(score.get(f"num_{name}_true", 0))
    return Overlap(hit, said, true)


def _ratios(name: str, overlap: Overlap) -> dict[str, float]:
    found = {f"{name}_precision": overlap.precision} if overlap.num_said else {}
    found |= {f"{name}_recall": overlap.recall} if overlap.num_true else {}
    return found | ({f"{name}_f1": overlap.f1} if overlap.num_said + overlap.num_true else {})


def _by_category(rows: Iterable[Row]) -> dict[tuple[str, str], Overlap]:
    """Return the overlap of each domain's categories, photos counted once each: those of the schema in its order, then others."""
    sums: dict[tuple[str, str], list[int]] = {(domain, name): [0, 0, 0] for domain, names in SCHEMA.items() for name in names}
    for row in rows:
        for name, counts in row.get("details", {}).get("categories", {}).items():
            mine = sums.setdefault((row["tags"].get("domain", ""), name), [0, 0, 0])
            for place, count in enumerate(counts):
                mine[place] += count
    return {category: Overlap(*counts) for category, counts in sums.items() if any(counts)}


def tables(rows: Sequence[Row]) -> dict[str, list[Line]]:
    """Return the tables of the report: by category, by mission, by domain, and why answers are not strictly valid."""
    return {
        "by category": [_category_line(*category, overlap) for category, overlap in _by_category(rows).items()],
        "by mission": list(_tag_lines(rows, "mission")),
        "by domain": list(_tag_lines(rows, "domain")),
        "why answers are not strictly valid": list(_reason_lines(rows)),
    }


def _category_line(domain: str, name: str, overlap: Overlap) -> Line:
    return {
        "domain": domain,
        "category": name,
        "in references": overlap.num_true,
        "said": overlap.num_said,
        "right": overlap.num_hit,
        "precision": overlap.precision if overlap.num_said else None,
        "recall": overlap.recall if overlap.num_true else None,
        "F1": overlap.f1,
    }


def _tag_lines(rows: Iterable[Row], tag: str) -> Iterator[Line]:
    """Yield one line per value of a tag: micro precision, recall and F1 of its categories, then means over its photos."""
    groups: defaultdict[str, list[Mapping[str, float]]] = defaultdict(list)
    for row in rows:
        if row.get("scores") and tag in row.get("tags", {}):
            groups[row["tags"][tag]].append(row["scores"])
    for value, scores in groups.items():
        ratios = _ratios("category", _added_up("categories", scores))
        micro = {f"micro {name}": ratios.get(f"category_{name.lower()}") for name in ("precision", "recall", "F1")}
        yield {tag: value, "photos": len(scores), **micro, **{title: _mean(scores, name) for name, title in _MEANS.items()}}


def _mean(scores: Iterable[Mapping[str, float]], name: str) -> float | None:
    values = [score[name] for score in scores if name in score]
    return sum(values) / len(values) if values else None


def _reason_lines(rows: Sequence[Row]) -> Iterator[Line]:
    """Yield every reason, the most frequent first: how many answers have it, and one of their cases."""
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}
    for row in rows:
        for reason in dict.fromkeys(row.get("details", {}).get("reasons", ())):
            counts[reason] += 1
            first.setdefault(reason, row["case_id"])
    for reason, count in sorted(counts.items(), key=lambda entry: -entry[1]):
        yield {"reason": reason, "answers": count, "share": count / len(rows), "first case": first[reason]}
