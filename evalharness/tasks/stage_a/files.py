"""`<mission>_stage_a.jsonl`: summaries and references on disk, one row per group, as Stage-B and other tools read them.

A group with a photo that failed, or that was not in the run, is left out as a whole, like in the original. Unlike there, each
such group is listed with its reason, and a run that could write no group at all fails.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.analysis.gates import was_judged
from evalharness.api.cases import OutputTarget
from evalharness.api.checks import check_instance, check_text, first_names
from evalharness.api.errors import ConfigError, ContractTypeError, RecordError
from evalharness.api.wording import plural
from evalharness.checkpoints.info import natural_key
from evalharness.runs.schema import Row
from evalharness.tasks import DataWarning
from evalharness.tasks.shared import read_lines, write_lines
from evalharness.tasks.stage_a.data import LABELS, Group, reference_path
from evalharness.tasks.stage_a.schema import MISSIONS

ROW_TYPES: Mapping[str, type] = {"group_id": str, "mission": str, "label": str, "images": list, "per_image": dict}


def check_row(row: Any, where: str = "row") -> dict[str, Any]:
    """Return the checked row: `RecordError` (a ValueError) for wrong keys and values, `ContractTypeError` for wrong types."""
    if not isinstance(row, Mapping):
        raise ContractTypeError(f"{where} must be an object, got {type(row).__name__}")
    for key, wanted in ROW_TYPES.items():
        if key not in row:
            raise RecordError(f"{where}.{key} is missing; a row has {', '.join(ROW_TYPES)}")
        check_instance(f"{where}.{key}", row[key], wanted)
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
        check_text(f"{where}.images[{position}]", name)
    wanted = [f"image_{number}" for number in range(1, len(images) + 1)]
    if set(per_image) != set(wanted):
        missing = [key for key in wanted if key not in per_image]
        extra = [str(key) for key in per_image if key not in wanted]
        raise RecordError(f"{where}.per_image must have the keys image_1..image_{len(images)}; missing: {missing}, not expected: {extra}")
    for key, summary in per_image.items():
        check_text(f"{where}.per_image.{key}", summary)
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
    write_lines(path, ({key: row[key] for key in ROW_TYPES} for row in checked))
    return len(checked)


@dataclass(frozen=True)
class GroupRows:
    """Complete groups as rows, in order, and why each other group is absent, by its place among the groups."""

    rows: tuple[dict[str, Any], ...]
    problems: Mapping[int, str]


def group_rows(groups: Sequence[Group], results: Iterable[Mapping[str, Any]]) -> GroupRows:
    """Return the rows of all groups whose images have exactly one summary each.

    `results` are rows per image, in any order: `group_seq` (place in `groups`, from 0), `image_index` (from 1), `ok`, and
    `summary` or `error`. A missing, duplicate, out-of-range or failed image leaves out its own group only.
    """
    summaries: list[dict[int, str]] = [{} for _ in groups]
    problems: dict[int, str] = {}
    for result in results:
        place, index = result.get("group_seq"), result.get("image_index")
        if type(place) is not int or place not in range(len(groups)):
            raise RecordError(f"group_seq must be 0..{len(groups) - 1}, got {place!r}")
        if type(index) is not int or index not in range(1, len(groups[place].images) + 1):
            problems.setdefault(place, f"image_index must be 1..{len(groups[place].images)}, got {index!r}")
        elif index in summaries[place]:
            problems.setdefault(place, f"image_{index} came twice")
        elif not result.get("ok") or not str(result.get("summary") or "").strip():
            problems.setdefault(place, f"image_{index} failed: {result.get('error') or 'blank summary'}")
        else:
            summaries[place][index] = str(result["summary"])
    rows = []
    for place, group in enumerate(groups):
        numbers = range(1, len(group.images) + 1)
        missing = [f"image_{number}" for number in numbers if number not in summaries[place]]
        if missing:
            problems.setdefault(place, f"{', '.join(missing)} missing")
        if place not in problems:
            row = {"group_id": group.group_id, "mission": group.mission, "label": group.label}
            images = {"images": [image.name for image in group.images]}
            rows.append({**row, **images, "per_image": {f"image_{number}": summaries[place][number] for number in numbers}})
    return GroupRows(tuple(rows), problems)


LEFT_OUT_FILE = "stage_a_left_out.jsonl"


@dataclass
class _Order:
    """The answers to one work order's photos; `name` is `<group id>::<label>`, `results` are rows for `group_rows` by photo number."""

    mission: str
    name: str
    group: Group | None = None
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    has_skipped: bool = False

    @property
    def not_in_run(self) -> list[str]:
        """The photos without a row (--limit, -k); [] where no answer says how many there are."""
        numbers = range(1, len(self.group.images) + 1) if self.group else ()
        return [f"image_{number}" for number in numbers if number not in self.results]

    @cached_property
    def problem(self) -> str:
        """Why the order is left out; of one that was asked whole, `group_rows` says it."""
        if self.not_in_run:
            return f"{', '.join(self.not_in_run)} not in this run"
        return "; ".join(f"image_{number} failed: {result['error']}" for number, result in self.results.items())


def outputs(rows: Sequence[Row], target: OutputTarget) -> None:
    """Write the summaries of all complete groups, mission by mission, and `stage_a_left_out.jsonl` if any is left out.

    `rows` have the details of `stage_a.details` and the case ids of `load_cases`. Raises `RecordError` where groups were run
    whole and none of them is complete.
    """
    left_out: list[dict[str, str]] = []
    num_written = num_failed = 0
    orders = _orders(rows)
    for mission in dict.fromkeys(order.mission for order in orders):
        asked = [order for order in orders if order.mission == mission]
        whole = [order for order in asked if order.group and not order.not_in_run]
        results = [{"group_seq": place, **result} for place, order in enumerate(whole) for result in order.results.values()]
        collected = group_rows([order.group for order in whole if order.group], results)
        for place, order in enumerate(whole):
            order.problem = collected.problems.get(place, "")
        if collected.rows:
            num_written += write_rows(reference_path(target.folder, mission), collected.rows)
        for order in asked:
            if order.problem:
                # A run that was cut short is not a failure of its groups.
                num_failed += not order.not_in_run and not order.has_skipped
                left_out.append({"mission": mission, "group": order.name, "problem": order.problem})
    if left_out:
        lines = "".join(f"{json.dumps(entry)}\n" for entry in left_out)
        (target.folder / LEFT_OUT_FILE).write_text(lines, encoding="ascii")
    if num_failed and not num_written:
        raise RecordError(f"no group is complete, so no Stage-A file was written; the first of {num_failed}: {left_out[0]['problem']}")


def _orders(rows: Sequence[Row]) -> list[_Order]:
    """Return the answers by work order, in the order of the rows; of several tests of a photo, the first that has a summary."""
    orders: dict[str, _Order] = {}
    for row in rows:
        place, _, number = str(row["case_id"]).rpartition("/image_")
        if not (place and number.isdecimal()):
            raise RecordError(f"{row['case_id']!r} is not a case of Stage-A; ids end in /image_1, /image_2, …")
        order = orders.setdefault(place, _Order(row["tags"]["mission"], f"{row['group']}::{row['tags']['label']}"))
        order.has_skipped |= row["outcome"] == "skip"
        details = row.get("details") or {}
        ok = was_judged(row) and "summary" in details
        if "photo" in details:
            photo = details["photo"]
            images = tuple(map(Path, photo["images"]))
            order.group = Group(order.mission, MISSIONS[order.mission].domain, photo["label"], photo["group_id"], images)
        if ok or int(number) not in order.results:
            result = {"ok": ok, "summary": details.get("summary"), "error": None if ok else row.get("problem") or row["outcome"]}
            order.results[int(number)] = {"image_index": int(number), **result}
    return list(orders.values())


PhotoKey: TypeAlias = "tuple[str, str, str]"
"""Group id, label, file name."""

_NUM_NAMED = 3


def read_summaries(path: Path | str) -> dict[PhotoKey, str]:
    """Return the summaries of a file in the five-key form by photo."""
    return summaries_by_photo(read_rows(path), path)


def summaries_by_photo(rows: Iterable[Mapping[str, Any]], path: Path | str) -> dict[PhotoKey, str]:
    """Return the summaries of rows by photo; `ConfigError` where a photo has two."""
    summaries: dict[PhotoKey, str] = {}
    for number, row in enumerate(rows, start=1):
        for place, name in enumerate(row["images"], start=1):
            key = (row["group_id"], row["label"], name)
            if key in summaries:
                raise ConfigError(f"{path}: row {number} gives {name} of {row['group_id']}::{row['label']} a second summary")
            summaries[key] = row["per_image"][f"image_{place}"]
    return summaries


def with_named_photos(groups: Sequence[Group], rows: Iterable[Mapping[str, Any]], path: Path) -> list[Group]:
    """Return a mission's groups with the photos that its reference rows name but that are missing on disk, in natural order.

    Without those paths, which do not exist, image_2 would become image_1. Rows of groups without any photo on disk are named in
    a `DataWarning`.
    """
    completed = list(groups)
    places: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group.key, []).append(place)
    absent = []
    for row in rows:
        copies = places.get(f"{row['group_id']}::{row['label']}", [])
        missing = set(row["images"]).difference(*(_names(completed[place]) for place in copies))
        if not copies:
            absent.append(f"{row['group_id']}::{row['label']}")
        elif missing:
            # Of several folders of one order, take the folder with most of the row's photos.
            place = max(copies, key=lambda place: len(_names(completed[place]).intersection(row["images"])))
            folder = completed[place].images[0].parent
            images = [*completed[place].images, *(folder / name for name in missing)]
            completed[place] = replace(completed[place], images=tuple(sorted(images, key=natural_key)))
    if absent:
        warnings.warn(
            DataWarning(f"{path}: {plural(len(absent), 'group')} without photos here: {first_names(absent, _NUM_NAMED)}"), stacklevel=3
        )
    return completed


def warn_of_missing_references(photos: Mapping[str, Sequence[str]], root: Path) -> None:
    """Name the photos without a reference summary in a `DataWarning` per mission."""
    for mission, names in photos.items():
        path = reference_path(root, mission)
        warnings.warn(
            DataWarning(f"{path}: no reference summary for {plural(len(names), 'photo')}: {first_names(names, _NUM_NAMED)}"), stacklevel=3
        )


def _names(group: Group) -> set[str]:
    return {image.name for image in group.images}
