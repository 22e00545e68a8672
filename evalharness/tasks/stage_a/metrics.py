"""How well Stage-A summaries agree with their references: scores of one photo, aggregates and tables of a run.

Order never matters; counts do. A *fact* is (category, attribute, value) with its count; a category without attributes is a
fact of its own. `无关图片` is a category and a fact, so a wrongly dismissed photo scores 0 and a rightly dismissed one 1. A text
from which nothing can be read scores 0. A metric is None where the reference has nothing that it could measure.

† marks metrics that are defined otherwise than the original's; docs/task_behaviours.md says how.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from evalharness.analysis.statistics.overlap import Overlap, macro_and_min
from evalharness.runs.schema import Row
from evalharness.tasks.stage_a.data import StageACase
from evalharness.tasks.stage_a.parse import IRRELEVANT, Summary
from evalharness.tasks.stage_a.schema import (
    CATEGORY_KEY,
    DISTANCE,
    GROUPS_KEY,
    MAX_COUNT,
    NOTES_KEY,
    OWN_TOP_KEY,
    SCHEMA,
    STATS_KEY,
    TEXT_KEY,
    Domain,
    items_of,
)

RUNAWAY_TOKENS = 1024
"""Tokens of an answer that does not end; the longest real summaries have 421 (BBU) and 200 (RRU)."""
# Weight of surplus facts; BBU photos show more small things that a reference leaves out.
TVERSKY_ALPHA: Mapping[Domain, float] = {"bbu": 0.3, "rru": 0.6}
TVERSKY_BETA = 1.0
MAX_STABLE_CHILD = 32
SPARE_TEXTS, TEXT_PENALTY = 2, 0.1
DRIFT_KEYS, DRIFT_CATEGORIES, DRIFT_TOP_KEYS, DRIFT_DISTANCE = 0.35, 0.25, 0.30, 0.60

Fact = tuple[str, str, str]


def _facts(summary: Summary) -> Counter[Fact]:
    facts: Counter[Fact] = Counter()
    if summary.is_irrelevant:
        facts[(IRRELEVANT, "", "")] = 1
    for item in items_of(summary.data or {}):
        category, attributes = _category(item), 0
        for key, value in item.items():
            if key != CATEGORY_KEY and isinstance(value, Mapping):
                for name, count in _counts(value).items():
                    facts[(category, key, _number(name) if key == DISTANCE else name)] += count
                    attributes += 1
        if not attributes:
            facts[(category, "", "")] += 1
    return facts


def _category(item: Mapping[str, Any]) -> str:
    """Return the category of an item; the whole item where it names none, so that items without one are not all alike."""
    category = item.get(CATEGORY_KEY)
    return category if isinstance(category, str) else json.dumps(item, sort_keys=True, ensure_ascii=False)


def _counts(value: Any) -> dict[str, int]:
    """Return the positive counts in `{value: count}`, {} for anything else."""
    named = value.items() if isinstance(value, Mapping) else ()
    return {name: count for name, count in named if isinstance(count, int) and not isinstance(count, bool) and 0 < count <= MAX_COUNT}


def _number(digits: str) -> str:
    """Return a distance without its leading zeros: 07 is 7."""
    return (digits.lstrip("0") or "0") if digits.isascii() and digits.isdecimal() else digits


def _categories(summary: Summary) -> frozenset[str]:
    if summary.is_irrelevant:
        return frozenset({IRRELEVANT})
    return frozenset(map(_category, items_of(summary.data or {})))


def category_overlap(summary: Summary, reference: Summary) -> Overlap:
    """Return how the sets of categories overlap."""
    predicted, expected = _categories(summary), _categories(reference)
    return Overlap(len(predicted & expected), len(predicted), len(expected))


def fact_overlap(summary: Summary, reference: Summary) -> Overlap:
    """Return how the facts overlap, each weighted by its count."""
    return _overlap(_facts(summary), _facts(reference))


def _overlap(predicted: Counter[Any], expected: Counter[Any]) -> Overlap:
    return Overlap((predicted & expected).total(), predicted.total(), expected.total())


def _without_texts(summary: Summary) -> Counter[Fact]:
    return Counter({fact: count for fact, count in _facts(summary).items() if fact[1] != TEXT_KEY})


def category_f1(summary: Summary, reference: Summary) -> float:
    """Return the F1 of the categories, each counted once, 0–1; 0 if nothing could be read."""
    return category_overlap(summary, reference).f1(empty=1.0) if summary.tolerant_valid else 0.0


def fact_f1(summary: Summary, reference: Summary) -> float:
    """Return the F1 of facts weighted by count, 0–1; 0 if nothing could be read."""
    return fact_overlap(summary, reference).f1(empty=1.0) if summary.tolerant_valid else 0.0


def tversky(summary: Summary, reference: Summary, domain: Domain, *, with_texts: bool = True) -> float:
    """Return hits / (hits + α·surplus + β·missed) over facts †, 0–1; α 0.3 for BBU and 0.6 for RRU, β 1.

    The original leaves out the texts of BBU's labels: `with_texts=False`.
    """
    if not summary.tolerant_valid:
        return 0.0
    overlap = fact_overlap(summary, reference) if with_texts else _overlap(_without_texts(summary), _without_texts(reference))
    surplus, missed = overlap.num_predicted - overlap.num_hit, overlap.num_reference - overlap.num_hit
    weight = overlap.num_hit + TVERSKY_ALPHA[domain] * surplus + TVERSKY_BETA * missed
    return overlap.num_hit / weight if weight else 1.0


def canonical_equal(summary: Summary, reference: Summary) -> bool:
    """Return whether summary and reference are equal but for order."""
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
        keys.setdefault(_category(item), set()).update(key for key in item if key not in (CATEGORY_KEY, TEXT_KEY))
    return keys


def attribute_key_recall(summary: Summary, reference: Summary) -> float | None:
    """Return the mean, over the reference's categories, of the share of attribute keys named; `文本` is left out."""
    predicted, expected = _keys(summary), {category: keys for category, keys in _keys(reference).items() if keys}
    if not expected:
        return None
    return sum(len(keys & predicted.get(category, set())) / len(keys) for category, keys in expected.items()) / len(expected)


def _paths(summary: Summary) -> frozenset[Fact]:
    paths: set[Fact] = set()
    for category, key, name in _facts(summary):
        if key:
            stable = not (name.isdigit() or "=" in name or len(name) > MAX_STABLE_CHILD)
            paths |= {(category, key, "")} | ({(category, key, name)} if stable else set())
    return frozenset(paths)


def attribute_path_recall(summary: Summary, reference: Summary) -> float | None:
    """Return the share of the reference's paths category/attribute and category/attribute/value that were named †.

    Values that are digits only, hold `=` or are longer than 32 characters count by their parent alone.
    """
    expected = _paths(reference)
    return len(expected & _paths(summary)) / len(expected) if expected else None


def _texts(summary: Summary) -> frozenset[str]:
    # NFKC makes full-width letters and digits half-width.
    return frozenset(_folded(name) for _, key, name in _facts(summary) if key == TEXT_KEY)


def _folded(text: str) -> str:
    return unicodedata.normalize("NFKC", text).upper()


def text_recall(summary: Summary, reference: Summary) -> float | None:
    """Return the share of the reference's label texts that were read †, less 0.1 for each unique text beyond two spare ones; 0–1."""
    predicted, expected = _texts(summary), _texts(reference)
    if not expected:
        return None
    num_surplus = max(0, len(predicted) - len(expected) - SPARE_TEXTS)
    return max(0.0, len(predicted & expected) / len(expected) - TEXT_PENALTY * num_surplus)


def notes_score(summary: Summary, reference: Summary) -> float | None:
    """Return 1 for notes where the reference has some, 0 for missing ones, −1 for spurious ones, None if neither has any.

    The original's: what the notes say is not compared. `notes_f1` does that.
    """
    has_notes = bool((summary.data or {}).get(NOTES_KEY))
    if (reference.data or {}).get(NOTES_KEY):
        return float(has_notes)
    return -1.0 if has_notes else None


def notes_f1(summary: Summary, reference: Summary) -> float | None:
    """Return the F1 of the notes †, each counted once, in any order, width and case; None if neither has any, 0 if unreadable."""
    predicted, expected = (_notes(each) for each in (summary, reference))
    return Overlap(len(predicted & expected), len(predicted), len(expected)).f1(None) if summary.tolerant_valid else 0.0


def _notes(summary: Summary) -> frozenset[str]:
    notes = (summary.data or {}).get(NOTES_KEY)
    listed = notes if isinstance(notes, list) else [] if notes is None else [notes]
    return frozenset(" ".join(_folded(note if isinstance(note, str) else json.dumps(note, sort_keys=True)).split()) for note in listed)


def groups_f1(summary: Summary, reference: Summary) -> float | None:
    """Return the F1 of the groups in `分组统计` †, weighted by count; None if neither has any, 0 if unreadable."""
    predicted, expected = (Counter(_counts((each.data or {}).get(GROUPS_KEY))) for each in (summary, reference))
    return _overlap(predicted, expected).f1(None) if summary.tolerant_valid else 0.0


def completeness(summary: Summary, domain: Domain) -> float | None:
    """Return the mean share of required keys that an item has, less a penalty for drift from the schema; 0–1.

    Drift costs 0.35 × the share of items with keys unknown for their category, 0.25 × the share of items of unknown
    categories, 0.30 for unknown top-level keys, 0.60 for a distance that is not digits only. None for `无关图片`, 0 if
    nothing could be read.
    """
    if summary.is_irrelevant:
        return None
    items = items_of(summary.data or {})
    if summary.data is None or not items:
        return 0.0
    rules = [(item, SCHEMA[domain].get(str(item.get(CATEGORY_KEY)))) for item in items]
    met = [1 - len(rule.missing(item)) / max(1, len(rule.required)) if rule else 0.0 for item, rule in rules]
    drifting = [bool(rule and item.keys() - rule.allowed - {CATEGORY_KEY}) for item, rule in rules]
    penalty = DRIFT_KEYS * sum(drifting) / len(items) + DRIFT_CATEGORIES * sum(rule is None for _, rule in rules) / len(items)
    if any(key not in (STATS_KEY, OWN_TOP_KEY[domain]) for key in summary.data):
        penalty += DRIFT_TOP_KEYS
    values = [item.get(DISTANCE) for item in items if item.get(CATEGORY_KEY) == DISTANCE]
    distances = [key for value in values if isinstance(value, Mapping) for key in value]
    if domain == "rru" and not all(key.isdecimal() and key.isascii() for key in distances):
        penalty += DRIFT_DISTANCE
    return max(0.0, sum(met) / len(items) - penalty)


def scores(summary: Summary, case: StageACase, num_tokens: int | None = None) -> dict[str, float]:
    """Return every metric that applies, by name; those against a reference only where the case has one.

    `num_tokens` is the length of the answer, for `runaway`. The counts `num_categories_*` and `num_facts_*` are for
    `aggregate`, which makes micro averages of them.
    """
    values: dict[str, float | None] = {
        "valid": float(summary.valid),
        "tolerant_valid": float(summary.tolerant_valid),
        "header_match": float(summary.header_match),
        "irrelevant": float(summary.is_irrelevant),
        "completeness": completeness(summary, case.domain),
        "runaway": None if num_tokens is None else float(num_tokens >= RUNAWAY_TOKENS),
    }
    if case.reference is not None:
        values |= {
            "exact": float(canonical_equal(summary, case.reference)),
            "category_f1": category_f1(summary, case.reference),
            "attribute_key_recall": attribute_key_recall(summary, case.reference),
            "attribute_path_recall": attribute_path_recall(summary, case.reference),
            "fact_f1": fact_f1(summary, case.reference),
            "tversky": tversky(summary, case.reference, case.domain),
            "text_recall": text_recall(summary, case.reference),
        }
        if case.domain == "bbu":
            values |= {
                "tversky_original": tversky(summary, case.reference, case.domain, with_texts=False),
                "notes_score": notes_score(summary, case.reference),
                "notes_f1": notes_f1(summary, case.reference),
            }
        else:
            values["groups_f1"] = groups_f1(summary, case.reference)
        if summary.is_irrelevant and not case.reference.is_irrelevant:
            values["completeness"] = 0.0
        elif summary.data is not None and not items_of(summary.data) and not items_of(case.reference.data or {}):
            values["completeness"] = None  # rightly nothing
        for name, overlap_of in (("categories", category_overlap), ("facts", fact_overlap)):
            overlap = overlap_of(summary, case.reference)
            values[f"num_{name}_hit"] = overlap.num_hit
            values |= {f"num_{name}_predicted": overlap.num_predicted, f"num_{name}_reference": overlap.num_reference}
    return {name: value for name, value in values.items() if value is not None}


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
_OLD_COUNTS = {"predicted": "said", "reference": "true"}
"""How rows of older versions end the names of their counts."""

Line: TypeAlias = "dict[str, str | int | float | None]"


def details(summary: Summary, case: StageACase) -> dict[str, Any]:
    """Return what tables and output files need of a photo: where it belongs, the cleaned summary, its reasons and categories.

    `categories` is {category: [hit, predicted, reference]}, each 0 or 1; the cleaned text of the reference is there too. Both
    are absent where no reference is known.
    """
    photo = {
        "mission": case.mission,
        "group_id": case.group_id,
        "label": case.label,
        "image_index": case.image_index,
        "images": list(case.group_images or (case.image.name,)),
    }
    reasons = [_PLACE.sub("", reason) for reason in (*summary.format_problems, *summary.violations)]
    record: dict[str, Any] = {"photo": photo, "summary": summary.text, "reasons": reasons[:_NUM_REASONS]}
    if case.reference is not None:
        predicted, expected = _categories(summary), _categories(case.reference)
        counts = {name: [int(name in predicted & expected), int(name in predicted), int(name in expected)] for name in predicted | expected}
        record["reference"] = case.reference.text
        record["categories"] = {name[:_MAX_NAME]: counts[name] for name in sorted(counts)}
    return record


def aggregate(rows: Sequence[Row]) -> dict[str, float]:
    """Return micro precision, recall and F1 of categories and facts, macro and lowest category F1, and `无关图片` apart.

    Micro: counts are added up over all photos, then divided. `category_macro_f1` and `category_min_f1` are over the categories
    of each domain, see `macro_and_min`.
    """
    scored = [(row["scores"], row.get("tags", {})) for row in rows if row.get("scores")]
    metrics: dict[str, float] = {}
    for name, singular in (("categories", "category"), ("facts", "fact")):
        metrics |= _ratios(f"{singular}_micro", _added_up(name, [score for score, _ in scored]))
    known = [(bool(score.get("irrelevant", 0.0)), tags["photo"] == "irrelevant") for score, tags in scored if "photo" in tags]
    irrelevant = Overlap.sum(Overlap(predicted and expected, predicted, expected) for predicted, expected in known)
    metrics |= {name: value for name, value in _ratios("irrelevant", irrelevant).items() if not name.endswith("f1")}
    return metrics | macro_and_min(_by_category(rows))


def _added_up(name: str, scores: Iterable[Mapping[str, float]]) -> Overlap:
    """Return the sums of the counts `num_<name>_…`."""

    def count(score: Mapping[str, float], kind: str) -> int:
        return int(score.get(f"num_{name}_{kind}", score.get(f"num_{name}_{_OLD_COUNTS.get(kind, kind)}", 0)))

    return Overlap.sum(Overlap(count(score, "hit"), count(score, "predicted"), count(score, "reference")) for score in scores)


def _ratios(name: str, overlap: Overlap) -> dict[str, float]:
    return {f"{name}_{ratio}": value for ratio, value in overlap.ratios(None).items() if value is not None}


def _by_category(rows: Iterable[Row]) -> dict[tuple[str, str], Overlap]:
    """Return the overlap by domain and category, photos counted once each: categories of the schema in its order, then others."""
    counts: dict[tuple[str, str], list[Overlap]] = {(domain, name): [] for domain, names in SCHEMA.items() for name in names}
    for row in rows:
        for name, count in row.get("details", {}).get("categories", {}).items():
            counts.setdefault((row["tags"].get("domain", ""), name), []).append(Overlap(*count))
    return {category: Overlap.sum(overlaps) for category, overlaps in counts.items() if overlaps}


def tables(rows: Sequence[Row]) -> dict[str, list[Line]]:
    """Return the tables of the report: by category, by mission, by domain, and why answers are not strictly valid."""
    return {
        "by category": [
            {"domain": domain, "category": name, **overlap.cells("right")} for (domain, name), overlap in _by_category(rows).items()
        ],
        "by mission": list(_tag_lines(rows, "mission")),
        "by domain": list(_tag_lines(rows, "domain")),
        "why answers are not strictly valid": list(_reason_lines(rows)),
    }


def _tag_lines(rows: Iterable[Row], tag: str) -> Iterator[Line]:
    """Yield one line per value of a tag: micro precision, recall and F1 of its categories, then means over its photos."""
    groups: defaultdict[str, list[Mapping[str, float]]] = defaultdict(list)
    for row in rows:
        if row.get("scores") and tag in row.get("tags", {}):
            groups[row["tags"][tag]].append(row["scores"])
    for value, scores in groups.items():
        overlap = _added_up("categories", scores)
        micro = {"micro precision": overlap.precision(None), "micro recall": overlap.recall(None), "micro F1": overlap.f1(None)}
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
