"""What a whole run says about Stage-A: plain data of each photo, and the metrics and tables made from them.

Rows are those of samples.jsonl; those without scores (invalid, error) are in no number. A ratio of nothing by nothing is
left out (None in tables), not 0.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from evalharness.tasks.category_f1 import macro_and_min
from evalharness.tasks.stage_a.data import StageACase
from evalharness.tasks.stage_a.metrics import Overlap, category_overlaps
from evalharness.tasks.stage_a.parse import Summary
from evalharness.tasks.stage_a.schema import SCHEMA

__all__ = ["aggregate", "details", "tables"]

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

Row: TypeAlias = "Mapping[str, Any]"
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
    known = [(score.get("irrelevant", 0.0), tags["photo"] == "irrelevant") for score, tags in scored if "photo" in tags]
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
