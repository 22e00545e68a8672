"""What a whole run says about Stage-A: plain data of each photo, and the metrics and tables made from them.

Rows are those of samples.jsonl; those without scores (invalid, error) are in no number. A ratio of nothing by nothing is
left out (None in tables), not 0.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from evalharness.tasks.stage_a_metrics import Overlap, category_overlaps
from evalharness.tasks.stage_a_parse import Summary
from evalharness.tasks.stage_a_schema import SCHEMA

if TYPE_CHECKING:
    from evalharness.tasks.stage_a import StageACase

__all__ = ["MIN_SUPPORT", "aggregate", "details", "tables"]

MIN_SUPPORT = 10
"""In so many references a category must be for its F1 to count for `category_min_f1`: that of a rare one swings by chance."""
_MAX_NAME = 60
_NUM_REASONS = 50
_PLACE = re.compile(r"^统计\[\d+\]: ")
_MEANS = ("valid", "tolerant_valid", "category_f1", "fact_f1", "exact", "completeness", "runaway")

Row: TypeAlias = "Mapping[str, Any]"
Line: TypeAlias = "dict[str, str | int | float | None]"


def details(summary: Summary, case: StageACase) -> dict[str, Any]:
    """Return what tables and output files need of a photo: where it belongs, the cleaned summary, its reasons and categories.

    `categories` is {category: [hit, said, true]}, each 0 or 1, against the reference; absent where none is known.
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
        overlaps = category_overlaps(summary, case.reference)
        found["categories"] = {name[:_MAX_NAME]: list(overlap) for name, overlap in overlaps.items()}
    return found


def aggregate(rows: Sequence[Row]) -> dict[str, float]:
    """Return micro precision, recall and F1 of categories and facts, macro and lowest category F1, and `无关图片` apart.

    Micro: counts are added up over all photos, then divided. `category_macro_f1` is the mean of the F1 of all categories that
    are in a reference; `category_min_f1` the lowest of those in at least `MIN_SUPPORT` references, in a run too small for
    that of the most frequent ones.
    """
    scored = [(row["scores"], row.get("tags", {})) for row in rows if row.get("scores")]
    found: dict[str, float] = {}
    for name, singular in (("categories", "category"), ("facts", "fact")):
        found |= _ratios(f"{singular}_micro", _added_up(name, (score for score, _ in scored)))
    known = [(score.get("irrelevant", 0.0), tags["photo"] == "irrelevant") for score, tags in scored if "photo" in tags]
    irrelevant = Overlap(sum(said and true for said, true in known), sum(said for said, _ in known), sum(true for _, true in known))
    found |= {name: value for name, value in _ratios("irrelevant", irrelevant).items() if not name.endswith("f1")}
    true = {name: overlap for name, overlap in _by_category(rows).items() if overlap.num_true}
    if true:
        enough = min(MIN_SUPPORT, max(overlap.num_true for overlap in true.values()))
        found["category_macro_f1"] = sum(overlap.f1 for overlap in true.values()) / len(true)
        found["category_min_f1"] = min(overlap.f1 for overlap in true.values() if overlap.num_true >= enough)
    return found


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


def _by_category(rows: Iterable[Row]) -> dict[str, Overlap]:
    """Return the overlap of each category, photos counted once each: those of the schema in its order, then others."""
    order = [name for domain in SCHEMA.values() for name in domain]
    sums: dict[str, list[int]] = {name: [0, 0, 0] for name in order}
    for row in rows:
        for name, counts in row.get("details", {}).get("categories", {}).items():
            mine = sums.setdefault(name, [0, 0, 0])
            for place, count in enumerate(counts):
                mine[place] += count
    return {name: Overlap(*counts) for name, counts in sums.items() if any(counts)}


def tables(rows: Sequence[Row]) -> dict[str, list[Line]]:
    """Return the tables of the report: by category, by mission, by domain, and why answers are not strictly valid."""
    return {
        "by category": [_category_line(name, overlap) for name, overlap in _by_category(rows).items()],
        "by mission": list(_tag_lines(rows, "mission")),
        "by domain": list(_tag_lines(rows, "domain")),
        "why answers are not strictly valid": list(_reason_lines(rows)),
    }


def _category_line(name: str, overlap: Overlap) -> Line:
    return {
        "category": name,
        "in references": overlap.num_true,
        "said": overlap.num_said,
        "right": overlap.num_hit,
        "precision": overlap.precision if overlap.num_said else None,
        "recall": overlap.recall if overlap.num_true else None,
        "F1": overlap.f1,
    }


def _tag_lines(rows: Iterable[Row], tag: str) -> Iterator[Line]:
    """Yield one line per value of a tag: micro precision, recall and F1 of its categories, and means of scores."""
    groups: defaultdict[str, list[Mapping[str, float]]] = defaultdict(list)
    for row in rows:
        if row.get("scores") and tag in row.get("tags", {}):
            groups[row["tags"][tag]].append(row["scores"])
    for value, scores in groups.items():
        ratios = _ratios("category", _added_up("categories", scores))
        micro = {name: ratios.get(f"category_{name}") for name in ("precision", "recall")}
        yield {tag: value, "photos": len(scores), **micro, **{name: _mean(scores, name) for name in _MEANS}}


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
