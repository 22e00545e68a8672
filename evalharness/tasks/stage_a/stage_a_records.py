"""Stage-A summaries on disk: `<mission>_stage_a.jsonl`, one row per group, in the form that Stage-B and other tools read.

A row has exactly five keys: `group_id`, `mission`, `label`, `images` (file names) and `per_image` (`image_1`… → summary).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from evalharness.api.errors import ContractTypeError, RecordError
from evalharness.tasks.json_files import json_lines, read_lines, write_whole
from evalharness.tasks.stage_a.data import LABELS, Group

__all__ = ["GroupRows", "check_row", "group_rows", "read_rows", "write_rows"]

ROW_TYPES: Mapping[str, type] = {"group_id": str, "mission": str, "label": str, "images": list, "per_image": dict}


def check_row(row: Any, where: str = "row") -> dict[str, Any]:
    """Return the row if it is one: `RecordError` (a ValueError) for keys and values, `ContractTypeError` for types."""
    if not isinstance(row, Mapping):
        raise ContractTypeError(f"{where} must be an object, got {type(row).__name__}")
    for key, wanted in ROW_TYPES.items():
        if key not in row:
            raise RecordError(f"{where}.{key} is missing; a row has {', '.join(ROW_TYPES)}")
        if not isinstance(row[key], wanted):
            raise ContractTypeError(f"{where}.{key} must be a {wanted.__name__}, got {row[key]!r} ({type(row[key]).__name__})")
    unknown = [key for key in row if key not in ROW_TYPES]
    if unknown:
        raise RecordError(f"{where}.{unknown[0]} is unknown; a row has {', '.join(ROW_TYPES)}")
    if row["label"] not in LABELS:
        raise RecordError(f"{where}.label must be one of {', '.join(LABELS)}, got {row['label']!r}")
    for key in ("group_id", "mission"):
        if not row[key].strip():
            raise RecordError(f"{where}.{key} is empty")
    _check_images(row["images"], row["per_image"], where)
    return dict(row)


def _check_images(images: list[Any], per_image: Mapping[Any, Any], where: str) -> None:
    if not images:
        raise RecordError(f"{where}.images is empty; a group has at least one image")
    for position, name in enumerate(images):
        if not isinstance(name, str):
            raise ContractTypeError(f"{where}.images[{position}] must be a str, got {name!r} ({type(name).__name__})")
    wanted = [f"image_{number}" for number in range(1, len(images) + 1)]
    if set(per_image) != set(wanted):
        missing = [key for key in wanted if key not in per_image]
        extra = [str(key) for key in per_image if key not in wanted]
        raise RecordError(f"{where}.per_image must have the keys image_1..image_{len(images)}; missing: {missing}, not expected: {extra}")
    for key, summary in per_image.items():
        if not isinstance(summary, str):
            raise ContractTypeError(f"{where}.per_image.{key} must be a str, got {summary!r} ({type(summary).__name__})")
        if not summary.strip():
            raise RecordError(f"{where}.per_image.{key} is blank")


def read_rows(path: Path | str) -> list[dict[str, Any]]:
    """Return the checked rows of a file; errors name the line. Blank lines are skipped."""
    return [check_row(row, where) for where, row in read_lines(path)]


def write_rows(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of rows written; the file appears whole or not at all. No rows is a `RecordError`."""
    checked = [check_row(row, f"rows[{position}]") for position, row in enumerate(rows)]
    if not checked:
        raise RecordError(f"{path} was not written: no group is complete")
    write_whole(Path(path), json_lines({key: row[key] for key in ROW_TYPES} for row in checked))
    return len(checked)


@dataclass(frozen=True)
class GroupRows:
    """Complete groups as rows, in order, and why each other group is absent, by its place among the groups."""

    rows: tuple[dict[str, Any], ...]
    problems: Mapping[int, str]


def group_rows(groups: Sequence[Group], results: Iterable[Mapping[str, Any]]) -> GroupRows:
    """Return the rows of all groups whose images each have exactly one summary.

    `results` are rows per image, in any order: `group_seq` (place in `groups`, from 0), `image_index` (from 1), `ok`, and
    `summary` or `error`. A missing, duplicate, out-of-range or failed image leaves out its own group only.
    """
    summaries: list[dict[int, str]] = [{} for _ in groups]
    problems: dict[int, str] = {}
    for result in results:
        place, index = result.get("group_seq"), result.get("image_index")
        if not _in_range(place, 0, len(groups) - 1):
            raise RecordError(f"group_seq must be 0..{len(groups) - 1}, got {place!r}")
        if not _in_range(index, 1, len(groups[place].images)):
            problems.setdefault(place, f"image_index must be 1..{len(groups[place].images)}, got {index!r}")
        elif index in summaries[place]:
            problems.setdefault(place, f"image_{index} came twice")
        elif not result.get("ok") or not str(result.get("summary") or "").strip():
            problems.setdefault(place, f"image_{index} failed: {result.get('error') or 'blank summary'}")
        else:
            summaries[place][index] = str(result["summary"])
    rows = []
    for place, group in enumerate(groups):
        missing = [f"image_{number}" for number in range(1, len(group.images) + 1) if number not in summaries[place]]
        if missing:
            problems.setdefault(place, f"{', '.join(missing)} missing")
        if place not in problems:
            rows.append(_row(group, summaries[place]))
    return GroupRows(tuple(rows), problems)


def _in_range(number: object, low: int, high: int) -> TypeGuard[int]:
    return isinstance(number, int) and not isinstance(number, bool) and low <= number <= high


def _row(group: Group, summaries: Mapping[int, str]) -> dict[str, Any]:
    return {
        "group_id": group.group_id,
        "mission": group.mission,
        "label": group.label,
        "images": [image.name for image in group.images],
        "per_image": {f"image_{number}": summaries[number] for number in sorted(summaries)},
    }
