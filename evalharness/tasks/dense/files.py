"""Dumps on disk: `gt_vs_pred.jsonl`, one row a picture, in the form of the original's tools; ours are read and written.

    {"image_path": "images/demo.jpg", "gt": [{"type": "bbox_2d", "points": [26, 29, 115, 58], "desc": "…"}], "gt_norm1000": […],
     "pred": […], "width": 640, "height": 480, "raw_text": "…", "clean_text": "…"}

`gt` is in pixels, `gt_norm1000` and `pred` on the 0..1000 grid. A row with `"summary": true` is an aggregate; it is skipped.
How our dumps are written, and what they say more, is in `dense_dump_writing`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError, RecordError
from evalharness.tasks.dense.dense_coordinates import NORM1000, Space, space_of, to_pixels
from evalharness.tasks.dense.objects import TYPES, DenseObject, category_of
from evalharness.tasks.dense.parse import numbers_of, object_of
from evalharness.tasks.json_files import read_lines
from evalharness.tasks.stage_a.schema import DOMAINS, MISSIONS, SCHEMA, Domain

__all__ = ["DUMP_NAME", "DumpRow", "read_dump"]

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
