"""Dumps on disk: `gt_vs_pred.jsonl`, one row a picture, in the form of the original's tools; ours are read and written.

    {"image_path": "images/demo.jpg", "gt": [{"type": "bbox_2d", "points": [26, 29, 115, 58], "desc": "…"}], "gt_norm1000": […],
     "pred": […], "width": 640, "height": 480, "raw_text": "…", "clean_text": "…"}

`gt` is in pixels, `gt_norm1000` and `pred` on the 0..1000 grid. A row with `"summary": true` is an aggregate; it is skipped.
How our dumps are written, and what they say more, is in `dense_dump_writing`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError, RecordError
from evalharness.runs.schema import Row
from evalharness.tasks.dense.geometry import LINE_TOLERANCE, MODES, PRIMARY_THRESHOLD, THRESHOLDS
from evalharness.tasks.dense.metrics import (
    ALL,
    Counts,
    attribute_totals,
    by_category,
    by_type,
    counted_scores,
    details_of,
    mean_count_error,
    totals,
)
from evalharness.tasks.dense.objects import NORM1000, TYPES, DenseObject, Space, category_of, space_of, to_pixels
from evalharness.tasks.dense.parse import numbers_of, object_of
from evalharness.tasks.shared import json_lines, read_lines, write_whole
from evalharness.tasks.stage_a.schema import DISTANCE, DOMAINS, MISSIONS, NOTES_KEY, SCHEMA, TEXT_KEY, Domain

__all__ = ["DUMP_NAME", "DumpRow", "dump_rows", "offline_report", "read_dump", "write_dump", "write_json"]

DUMP_NAME = "gt_vs_pred.jsonl"


@dataclass(frozen=True)
class DumpRow:
    """One picture of a dump. `truth` is on the grid; `pixels` are its points in pixels, object by object.

    `domain` is None where nothing tells it: no mission's folder, no category of one domain only, nor the other rows.
    `predictions` are those of the file, without `num_unusable` ones that are no objects. `texts` are the model's answer, clean
    and raw; none where the file has only objects.
    `space` is the space of the texts' coordinates, None where the file does not say.
    """

    image_path: str
    size: tuple[int, int]
    domain: Domain | None
    truth: tuple[DenseObject, ...]
    pixels: tuple[tuple[int, ...], ...]
    predictions: tuple[DenseObject, ...]
    num_unusable: int
    texts: tuple[str, ...]
    space: Space | None
    finish_reason: str | None
    case_id: str | None


def read_dump(path: Path | str, predictions_in: str = "norm1000") -> list[DumpRow]:
    """Return the rows of a dump, the aggregate row left out; `RecordError` names the line that is wrong.

    `predictions_in` is the space of `pred`, for rows that do not say it themselves (`"pred_space"`).
    """
    rows = [(where, row) for where, row in _json_rows(path) if not row.get("summary")]
    domains = [_domain(row, where) for where, row in rows]
    known = Counter(domain for domain in domains if domain is not None)
    # A picture without objects says nothing about its domain; a dump of one domain does.
    common = next(iter(known)) if len(known) == 1 else None
    return [_dump_row(row, where, domain or common, predictions_in) for (where, row), domain in zip(rows, domains, strict=True)]


def _json_rows(path: Path | str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for where, row in read_lines(path):
        if not isinstance(row, Mapping):
            raise RecordError(f"{where} must be a JSON object, got {type(row).__name__}")
        yield where, row


def _domain(row: Mapping[str, Any], where: str) -> Domain | None:
    """Return the domain that a row names, or that its mission's folder or its true objects tell; None if nothing does."""
    if "domain" in row:
        named = str(row["domain"]).lower()
        for domain in DOMAINS:
            if domain == named:
                return domain
        raise RecordError(f"{where}.domain must be one of {', '.join(DOMAINS)}, got {row['domain']!r}")
    mission = MISSIONS.get(str(row.get("image_path", "")).replace("\\", "/").split("/")[0])
    if mission is not None:
        return mission.domain
    truth = _listed(row, "gt", where) or _listed(row, "gt_norm1000", where)
    categories = {_category(one) for one in truth} - {""}
    fitting = [domain for domain in DOMAINS if categories and categories <= set(SCHEMA[domain])]
    return fitting[0] if len(fitting) == 1 else None


def _category(one: Any) -> str:
    return category_of(str(one.get("desc", ""))) if isinstance(one, Mapping) else ""


def _dump_row(row: Mapping[str, Any], where: str, domain: Domain | None, predictions_in: str) -> DumpRow:
    image_path = row.get("image_path")
    if not isinstance(image_path, str) or not image_path:
        raise RecordError(f"{where}.image_path must be a path, got {image_path!r}")
    size = (_edge(row, "width", where), _edge(row, "height", where))
    truth, pixels = _truth(row, size, where)
    try:
        space = space_of(str(row.get("pred_space", predictions_in)), size)
    except ConfigError as error:
        raise RecordError(f"{where}.pred: {error}") from error
    said = [_object(one, space) for one in _listed(row, "pred", where)]
    return DumpRow(
        image_path,
        size,
        domain,
        truth,
        pixels,
        tuple(one for one in said if isinstance(one, DenseObject)),
        sum(not isinstance(one, DenseObject) for one in said),
        _texts(row),
        _text_space(row, where),
        row["finish_reason"] if isinstance(row.get("finish_reason"), str) else None,
        row["case_id"] if isinstance(row.get("case_id"), str) else None,
    )


def _texts(row: Mapping[str, Any]) -> tuple[str, ...]:
    texts = tuple(str(row[key]) for key in ("clean_text", "raw_text") if row.get(key))
    # Only ours say so; an empty answer is an answer, too.
    return texts or (("",) if "parse_failed" in row else ())


def _text_space(row: Mapping[str, Any], where: str) -> Space | None:
    given = row.get("text_space")
    if given is None:
        return None
    if not isinstance(given, list) or len(given) != 2 or not all(isinstance(edge, (int, float)) and edge > 0 for edge in given):
        raise RecordError(f"{where}.text_space must be [width, height], got {given!r}")
    return Space(*given)


def _edge(row: Mapping[str, Any], key: str, where: str) -> int:
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RecordError(f"{where}.{key} must be a size in pixels, got {value!r}")
    return value


def _truth(row: Mapping[str, Any], size: tuple[int, int], where: str) -> tuple[tuple[DenseObject, ...], tuple[tuple[int, ...], ...]]:
    """Return the true objects on the grid and their points in pixels, each from the other where the row has only one."""
    in_pixels = [_checked(one, Space(*size), f"{where}.gt[{place}]") for place, one in enumerate(_listed(row, "gt", where))]
    on_grid = [_checked(one, NORM1000, f"{where}.gt_norm1000[{place}]") for place, one in enumerate(_listed(row, "gt_norm1000", where))]
    if in_pixels and on_grid and len(in_pixels) != len(on_grid):
        raise RecordError(f"{where}: gt has {len(in_pixels)} objects, gt_norm1000 has {len(on_grid)}")
    truth = tuple(on_grid or in_pixels)
    given = [numbers_of(one["points"]) or () for one in _listed(row, "gt", where)]
    points = [[round(value) for value in one] for one in given] if given else [to_pixels(one.points, size) for one in truth]
    return truth, tuple(map(tuple, points))


def _checked(one: Any, space: Space, where: str) -> DenseObject:
    read = _object(one, space)
    if isinstance(read, str):
        raise RecordError(f"{where}: {read}")
    return read


def _object(one: Any, space: Space) -> DenseObject | str:
    """Return one stored object, or why it cannot be used."""
    kind = one.get("type") if isinstance(one, Mapping) else None
    if kind not in TYPES:
        return f"type must be one of {', '.join(TYPES)}, got {kind!r}"
    desc = one.get("desc")
    return object_of(kind, one.get("points"), desc if isinstance(desc, str) else "", space)


def _listed(row: Mapping[str, Any], key: str, where: str) -> Sequence[Any]:
    value = row.get(key) or ()
    if not isinstance(value, (list, tuple)):
        raise RecordError(f"{where}.{key} must be a list of objects, got {type(value).__name__}")
    return value


# Our dumps: `gt_vs_pred.jsonl` in the original's form, and the offline report that its evaluator makes of one

MATCHING = "greedy one to one: IoU descending, then gt, then pred; geometry exact, not rastered"
MAX_CATEGORIES = 25


def dump_rows(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the dump's rows of an eval's rows, the aggregate last; rows without details (not asked, not answered) are not in it."""
    found = [row for row in rows if row.get("details")]
    for row in found:
        yield _row_of_dump(row)
    counted = totals([row["details"] for row in found], "localization").at(PRIMARY_THRESHOLD, ALL)
    yield {
        "summary": True,
        "num_samples": len(found),
        "total_gt": counted.num_true,
        "total_pred": counted.num_said,
        "total_matched": counted.num_true_hit,
        "total_missing": counted.num_true - counted.num_true_hit,
    }


def _row_of_dump(row: Row) -> dict[str, Any]:
    details, generation = row["details"], row.get("generation") or {}
    image = details["image"]
    size = (image["width"], image["height"])
    predictions = [{"desc": one["desc"], "type": one["type"], "points": one["points"]} for one in details["predictions"]]
    return {
        "image_path": image["path"],
        "gt": [{"type": one["type"], "points": one["pixels"], "desc": one["desc"]} for one in details["truth"]],
        "gt_norm1000": [{"type": one["type"], "points": one["points"], "desc": one["desc"]} for one in details["truth"]],
        "pred": predictions,
        "width": image["width"],
        "height": image["height"],
        "raw_text": generation.get("raw_text") or "",
        "clean_text": generation.get("text") or "",
        "pred_pixels": [{**one, "points": to_pixels(one["points"], size)} for one in predictions],
        "case_id": row["case_id"],
        **({"domain": row["tags"]["domain"]} if "domain" in row["tags"] else {}),
        **(_about_answer(details, generation.get("finish_reason")) if "form" in details else {}),
    }


def _about_answer(details: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
    form = details["form"]
    return {
        "text_space": details["space"],
        "parse_failed": not form["readable"],
        "truncated": form["truncated"],
        "cap_hit": finish_reason == "length",
        "num_duplicates": form["num_duplicates"],
        "dropped": form["dropped"],
        "finish_reason": finish_reason,
    }


def write_dump(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, one line each; the file appears whole or not at all."""
    write_whole(Path(path), json_lines(rows))


def write_json(path: Path | str, value: Mapping[str, Any]) -> None:
    """Write one JSON object, indented; the file appears whole or not at all."""
    write_whole(Path(path), f"{json.dumps(value, allow_nan=False, indent=2)}\n".encode())


def offline_report(rows: Sequence[Row], path: str) -> dict[str, Any]:
    """Return the report that the original's evaluator makes of the dump at `path`; pictures without any objects are not in it.

    A ratio that would divide by 0 is 0.0 here, as its readers expect numbers; the counts beside it tell.
    """
    found = details_of(rows)
    return {
        "path": path,
        "images": len(found),
        "params": {
            "primary_threshold": PRIMARY_THRESHOLD,
            "coco_thresholds": list(THRESHOLDS),
            "line_tol": LINE_TOLERANCE,
            "modes": list(MODES),
            "matching": MATCHING,
        },
        "count_diagnostics": _count_diagnostics(rows),
        "modes": {mode: _mode(found, mode) for mode in MODES},
        "category_breakdown_primary": _categories(found),
        "attribute_diagnostics_primary": _attributes(found),
    }


def _count_diagnostics(rows: Sequence[Row]) -> dict[str, Any]:
    scores = counted_scores(rows)
    shares = {"over_rate": "num_surplus", "under_rate": "num_lacking", "equal_rate": "equal"}
    return {
        "total_gt": int(sum(score["num_true"] for score in scores)),
        "total_pred": int(sum(score["num_said"] for score in scores)),
        "mae": mean_count_error(rows) or 0.0,
        **{name: sum(score[key] > 0 for score in scores) / len(scores) if scores else 0.0 for name, key in shares.items()},
        "duplicates": int(sum(score.get("num_duplicates", 0) for score in scores)),
        "inverted": int(sum(score["num_inverted"] for score in scores)),
        "out_of_range": int(sum(score["num_out_of_range"] for score in scores)),
        "parse_failures": sum(row["scores"].get("tolerant_valid") == 0 for row in rows),
        "cap_hits": sum(row["scores"].get("cap_hit") == 1 for row in rows),
    }


def _mode(found: Sequence[Mapping[str, Any]], mode: Any) -> dict[str, Any]:
    together, typed = totals(found, mode), totals(found, mode, by_type)
    return {
        "by_threshold": {f"{threshold:.2f}": _counts(together.at(threshold, ALL)) for threshold in THRESHOLDS},
        "by_threshold_by_type": {
            kind: {f"{threshold:.2f}": _counts(typed.at(threshold, kind)) for threshold in THRESHOLDS} for kind in sorted(typed.names)
        },
        "mean_f1": together.mean_f1(ALL) or 0.0,
    }


def _counts(counts: Counts) -> dict[str, Any]:
    return {
        "gt": counts.num_true,
        "pred": counts.num_said,
        "matched": counts.num_true_hit,
        "precision": counts.precision or 0.0,
        "recall": counts.recall or 0.0,
        "f1": counts.f1 or 0.0,
    }


def _categories(found: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    counted = totals(found, "category", by_category)
    return [{"category": name, **_counts(counted.at(PRIMARY_THRESHOLD, name))} for name in counted.names[:MAX_CATEGORIES]]


def _attributes(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    counted = attribute_totals(found)
    return {
        "attribute_recall": counted.recall or 0.0,
        "text_accuracy": counted.accuracy(TEXT_KEY) or 0.0,
        "notes_accuracy": counted.accuracy(NOTES_KEY) or 0.0,
        "site_distance_accuracy": counted.accuracy(DISTANCE) or 0.0,
        "by_attribute": {
            key: {"compared": number, "right": counted.right[key], "weight": counted.weights[key]}
            for key, number in sorted(counted.compared.items())
        },
    }
