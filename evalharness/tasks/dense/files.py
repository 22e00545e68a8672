"""Dumps on disk: `gt_vs_pred.jsonl`, one row per image, in the form of the original's tools; read and written.

    {"image_path": "images/demo.jpg", "gt": [{"type": "bbox_2d", "points": [26, 29, 115, 58], "desc": "…"}], "gt_norm1000": […],
     "pred": […], "width": 640, "height": 480, "raw_text": "…", "clean_text": "…"}

`gt` is in pixels, `gt_norm1000` and `pred` on the 0..1000 grid. A row with `"summary": true` is an aggregate; it is skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError, RecordError
from evalharness.runs.schema import Row
from evalharness.tasks.dense.metrics import ALL, totals
from evalharness.tasks.dense.objects import NORM1000, PRIMARY_THRESHOLD, TYPES, DenseObject, Space, category_of, space_of, to_pixels
from evalharness.tasks.dense.parse import numbers_of, object_of
from evalharness.tasks.shared import read_lines
from evalharness.tasks.stage_a.schema import DOMAINS, MISSIONS, SCHEMA, Domain

DUMP_NAME = "gt_vs_pred.jsonl"


@dataclass(frozen=True)
class DumpRow:
    """One image of a dump. `truth` is on the grid; `pixels` are its points in pixels, object by object.

    `domain` is None where neither the row, nor its mission's folder, nor its categories, nor the other rows tell it.
    `predictions` are those of the file, without `num_unusable` entries that are not objects. `texts` are the model's answer,
    clean and raw; () where the file has only objects. `space` is that of the texts' coordinates, None where the file does not say.
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
    """Return the rows of a dump without the aggregate row; `RecordError` names the line that is wrong.

    `predictions_in` is the space of `pred`, for rows that do not say it themselves (`"pred_space"`).
    """
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for where, row in read_lines(path):
        if not isinstance(row, Mapping):
            raise RecordError(f"{where} must be a JSON object, got {type(row).__name__}")
        if not row.get("summary"):
            rows.append((where, row))
    domains = [_domain(row, where) for where, row in rows]
    known = Counter(domain for domain in domains if domain is not None)
    # An image without objects says nothing about its domain; a dump of one domain does.
    common = next(iter(known)) if len(known) == 1 else None
    return [_dump_row(row, where, domain or common, predictions_in) for (where, row), domain in zip(rows, domains, strict=True)]


def _domain(row: Mapping[str, Any], where: str) -> Domain | None:
    """Return the domain that a row names, or that its mission's folder or its reference objects tell; None if none does."""
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
    categories = {category_of(str(item.get("desc", ""))) for item in truth if isinstance(item, Mapping)} - {""}
    fitting = [domain for domain in DOMAINS if categories and categories <= set(SCHEMA[domain])]
    return fitting[0] if len(fitting) == 1 else None


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
    predictions = [_object(item, space) for item in _listed(row, "pred", where)]
    texts = tuple(str(row[key]) for key in ("clean_text", "raw_text") if row.get(key))
    if not texts and "parse_failed" in row:
        texts = ("",)  # only our dumps say so; an empty answer is an answer, too
    usable = tuple(item for item in predictions if isinstance(item, DenseObject))
    return DumpRow(
        image_path,
        size,
        domain,
        truth,
        pixels,
        usable,
        len(predictions) - len(usable),
        texts,
        _text_space(row, where),
        row["finish_reason"] if isinstance(row.get("finish_reason"), str) else None,
        row["case_id"] if isinstance(row.get("case_id"), str) else None,
    )


def _text_space(row: Mapping[str, Any], where: str) -> Space | None:
    edges = row.get("text_space")
    if edges is None:
        return None
    if not isinstance(edges, list) or len(edges) != 2 or not all(isinstance(edge, (int, float)) and edge > 0 for edge in edges):
        raise RecordError(f"{where}.text_space must be [width, height], got {edges!r}")
    return Space(*edges)


def _edge(row: Mapping[str, Any], key: str, where: str) -> int:
    value = row.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise RecordError(f"{where}.{key} must be a size in pixels, got {value!r}")
    return value


def _truth(row: Mapping[str, Any], size: tuple[int, int], where: str) -> tuple[tuple[DenseObject, ...], tuple[tuple[int, ...], ...]]:
    """Return the reference objects on the grid and their points in pixels, each made from the other where the row has only one."""
    in_pixels = _checked(row, "gt", Space(*size), where)
    on_grid = _checked(row, "gt_norm1000", NORM1000, where)
    if in_pixels and on_grid and len(in_pixels) != len(on_grid):
        raise RecordError(f"{where}: gt has {len(in_pixels)} objects, gt_norm1000 has {len(on_grid)}")
    truth = tuple(on_grid or in_pixels)
    pixels = [numbers_of(item["points"]) or () for item in _listed(row, "gt", where)]
    points = [[round(value) for value in item] for item in pixels] if pixels else [to_pixels(item.points, size) for item in truth]
    return truth, tuple(map(tuple, points))


def _checked(row: Mapping[str, Any], key: str, space: Space, where: str) -> list[DenseObject]:
    objects = []
    for place, item in enumerate(_listed(row, key, where)):
        read = _object(item, space)
        if isinstance(read, str):
            raise RecordError(f"{where}.{key}[{place}]: {read}")
        objects.append(read)
    return objects


def _object(item: Any, space: Space) -> DenseObject | str:
    """Return one stored object, or why it cannot be used."""
    kind = item.get("type") if isinstance(item, Mapping) else None
    if kind not in TYPES:
        return f"type must be one of {', '.join(TYPES)}, got {kind!r}"
    desc = item.get("desc")
    return object_of(kind, item.get("points"), desc if isinstance(desc, str) else "", space)


def _listed(row: Mapping[str, Any], key: str, where: str) -> Sequence[Any]:
    value = row.get(key) or ()
    if not isinstance(value, (list, tuple)):
        raise RecordError(f"{where}.{key} must be a list of objects, got {type(value).__name__}")
    return value


def dump_rows(rows: Sequence[Row]) -> Iterator[dict[str, Any]]:
    """Yield the dump's rows of an eval's rows, the aggregate last; rows without details (not run, not answered) are left out."""
    judged = [row for row in rows if row.get("details")]
    for row in judged:
        details, generation = row["details"], row.get("generation") or {}
        image = details["image"]
        size = (image["width"], image["height"])
        predictions = [{"desc": item["desc"], "type": item["type"], "points": item["points"]} for item in details["predictions"]]
        dump_row = {
            "image_path": image["path"],
            "gt": [{"type": item["type"], "points": item["pixels"], "desc": item["desc"]} for item in details["truth"]],
            "gt_norm1000": [{"type": item["type"], "points": item["points"], "desc": item["desc"]} for item in details["truth"]],
            "pred": predictions,
            "width": image["width"],
            "height": image["height"],
            "raw_text": generation.get("raw_text") or "",
            "clean_text": generation.get("text") or "",
            "pred_pixels": [{**item, "points": to_pixels(item["points"], size)} for item in predictions],
            "case_id": row["case_id"],
            **({"domain": row["tags"]["domain"]} if "domain" in row["tags"] else {}),
        }
        if "form" in details:
            form, finish_reason = details["form"], generation.get("finish_reason")
            dump_row |= {
                "text_space": details["space"],
                "parse_failed": not form["readable"],
                "truncated": form["truncated"],
                "cap_hit": finish_reason == "length",
                "num_duplicates": form["num_duplicates"],
                "dropped": form["dropped"],
                "finish_reason": finish_reason,
            }
        yield dump_row
    counted = totals([row["details"] for row in judged], "localization").at(PRIMARY_THRESHOLD, ALL)
    yield {
        "summary": True,
        "num_samples": len(judged),
        "total_gt": counted.num_reference,
        "total_pred": counted.num_predicted,
        "total_matched": counted.num_hit,
        "total_missing": counted.num_reference - counted.num_hit,
    }
