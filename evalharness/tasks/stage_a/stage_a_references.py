"""Reference summaries beside the photos: whose each is, and which photos they name that are not there."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.api.errors import ConfigError
from evalharness.tasks import DataWarning
from evalharness.tasks.stage_a.data import Group, natural_key, reference_path
from evalharness.tasks.stage_a.stage_a_records import read_rows

__all__ = ["PhotoKey", "read_summaries", "reference_rows", "summaries_by_photo", "tell_missing_references", "with_named_photos"]

PhotoKey: TypeAlias = "tuple[str, str, str]"
"""Group id, label, file name."""

_NUM_NAMED = 3


def reference_rows(root: Path, mission: str) -> list[dict[str, Any]]:
    """Return the rows of a mission's reference file; [] where it has none."""
    path = reference_path(root, mission)
    return read_rows(path) if path.exists() else []


def read_summaries(path: Path | str) -> dict[PhotoKey, str]:
    """Return the summaries of a file in the five-key form, ours or the original's, by photo."""
    return summaries_by_photo(read_rows(path), path)


def summaries_by_photo(rows: Iterable[Mapping[str, Any]], path: Path | str) -> dict[PhotoKey, str]:
    """Return the summaries of rows by photo; `ConfigError` where a photo has two."""
    found: dict[PhotoKey, str] = {}
    for number, row in enumerate(rows, start=1):
        for place, name in enumerate(row["images"], start=1):
            key = (row["group_id"], row["label"], name)
            if key in found:
                raise ConfigError(f"{path}: row {number} gives {name} of {row['group_id']}::{row['label']} a second summary")
            found[key] = row["per_image"][f"image_{place}"]
    return found


def with_named_photos(groups: Sequence[Group], rows: Iterable[Mapping[str, Any]], path: Path) -> list[Group]:
    """Return a mission's groups with the photos that its reference rows name and that are missing on disk, in natural order.

    Without them later photos would get their numbers: image_2 would become image_1. Each is a path that does not exist.
    Rows of groups of which nothing is there are said in a `DataWarning`.
    """
    completed = list(groups)
    places: dict[str, list[int]] = {}
    for place, group in enumerate(groups):
        places.setdefault(group.key, []).append(place)
    absent = []
    for row in rows:
        mine = places.get(f"{row['group_id']}::{row['label']}", [])
        missing = set(row["images"]).difference(*(_names(completed[place]) for place in mine))
        if not mine:
            absent.append(f"{row['group_id']}::{row['label']}")
        elif missing:
            # Of several folders of one order, the one that has most of the row's photos.
            place = max(mine, key=lambda place: len(_names(completed[place]).intersection(row["images"])))
            folder = completed[place].images[0].parent
            images = [*completed[place].images, *(folder / name for name in missing)]
            completed[place] = replace(completed[place], images=tuple(sorted(images, key=lambda image: natural_key(image.name))))
    if absent:
        warnings.warn(DataWarning(f"{path}: {len(absent)} groups have no photos here: {_shown(absent)}"), stacklevel=3)
    return completed


def tell_missing_references(photos: Mapping[str, Sequence[str]], root: Path) -> None:
    """Say in a `DataWarning` which photos, by mission, have no reference summary."""
    for mission, names in photos.items():
        path = reference_path(root, mission)
        warnings.warn(DataWarning(f"{path}: no reference summary for {len(names)} photos: {_shown(names)}"), stacklevel=3)


def _names(group: Group) -> set[str]:
    return {image.name for image in group.images}


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names[:_NUM_NAMED]) + (", …" if len(names) > _NUM_NAMED else "")
