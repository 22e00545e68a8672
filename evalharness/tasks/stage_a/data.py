"""Photos of work orders on disk: `<root>/<mission>/{审核通过|审核不通过}/<group>/*.{jpg,jpeg,png}`, found and grouped.

Unknown folders and empty groups are left out with a `DataWarning`; a folder without any group is an error.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from math import sqrt
from pathlib import Path
from random import Random
from typing import Literal, TypeAlias

from evalharness.api.cases import Case
from evalharness.api.checks import is_folder
from evalharness.api.errors import ConfigError
from evalharness.api.images import MadeImage, image_size, load_image
from evalharness.checkpoints.info import natural_key
from evalharness.tasks import DataWarning
from evalharness.tasks.stage_a.schema import MISSIONS, Domain, Mission

Label: TypeAlias = Literal["pass", "fail"]
# In the order in which they are read.
LABEL_DIRS: tuple[tuple[str, Label], ...] = (("审核不通过", "fail"), ("审核通过", "pass"))
LABELS: tuple[Label, ...] = ("pass", "fail")
SUMMARIES_SUFFIX = "_stage_a.jsonl"
SUFFIXES = (".jpg", ".jpeg", ".png")
SIZE_STEP = 32
"""Edges of a shrunken photo are multiples of this, so that the processors of Qwen-VL have nothing left to resize."""
LAYOUT = "<root>/<mission>/{审核通过|审核不通过}/<group>/*.{jpg,jpeg,png}"

_GROUP_ID = re.compile(r"QC-[A-Za-z]+-[0-9]{8}-[0-9]+")


@dataclass(frozen=True)
class Group:
    """One work order with its photos in natural order. `copy` counts groups of one id, mission and label from 1."""

    mission: str
    domain: Domain
    label: Label
    group_id: str
    images: tuple[Path, ...]
    copy: int = 1

    @property
    def key(self) -> str:
        """`<group id>::<label>`: a work order under both labels is two groups."""
        return f"{self.group_id}::{self.label}"


def group_id_of(photo: str, folder: str) -> str:
    """Return the id of a photo's work order: the `QC-…` at the start of its name, else its folder's name.

    It is `Case.group` in every task, so that statistics cluster the photos, tickets and dumps of one work order.
    """
    match = _GROUP_ID.match(photo)
    return match[0] if match else folder


def reference_path(root: Path, mission: str) -> Path:
    """Return the path of a mission's reference summaries, a JSONL file in the five-key form beside its folder."""
    return root / f"{mission}{SUMMARIES_SUFFIX}"


def find_groups(data_dir: Path | str | None) -> tuple[Path, list[Group]]:
    """Return the root and its groups: missions by name, fail before pass, groups by folder name.

    `data_dir` is the root or one mission's folder. Raises `ConfigError` where there are none.
    """
    root, missions = find_missions(data_dir, _folders, LAYOUT)
    groups: dict[tuple[str, str], list[Group]] = defaultdict(list)
    numbered = []
    for group in (group for mission in missions for group in _groups_of(root, mission)):
        copies = groups[group.mission, group.key]
        copies.append(replace(group, copy=len(copies) + 1))
        numbered.append(copies[-1])
        if len(copies) == 2:
            warnings.warn(DataWarning(f"{group.mission}: several folders hold group {group.key}; kept apart as …~2, …~3"), stacklevel=3)
    if not groups:
        raise ConfigError(f"no Stage-A photos in {data_dir}; expected {LAYOUT}, missions: {', '.join(MISSIONS)}")
    return root, numbered


def draw_groups(groups: Sequence[Group], *, max_pass: int | None = None, max_fail: int | None = None, seed: int = 0) -> list[Group]:
    """Return at most that many random groups per mission and label, order kept; None takes all, 0 none.

    `Random(seed)` samples those of label pass, `Random(seed + 1)` those of label fail, both anew for every mission.
    `ConfigError` for a number below 0.
    """
    for name, cap in (("max_pass", max_pass), ("max_fail", max_fail)):
        if cap is not None and cap < 0:
            raise ConfigError(f"{name} must be at least 0, or None for all, got {cap}")
    sampled: list[Group] = []
    for mission in dict.fromkeys(group.mission for group in groups):
        for label, cap, label_seed in (("fail", max_fail, seed + 1), ("pass", max_pass, seed)):
            candidates = [group for group in groups if (group.mission, group.label) == (mission, label)]
            if cap is not None and cap < len(candidates):
                candidates = [candidates[place] for place in sorted(Random(label_seed).sample(range(len(candidates)), cap))]
            sampled += candidates
    return sampled


def find_missions(data_dir: Path | str | None, names_in: Callable[[Path], Iterable[str]], layout: str) -> tuple[Path, list[Mission]]:
    """Return the root and the missions that it has data for, by name; a single one where `data_dir` is that mission's folder.

    `names_in` returns the names in a root that may be missions; others are named in a `DataWarning`. Raises `ConfigError`, with
    the expected `layout`, where there is no folder.
    """
    if data_dir is None:
        raise ConfigError(f"no data folder was given; give one with --data, laid out as {layout}")
    root = Path(data_dir)
    # resolve() for `--data .` inside a mission's folder
    if root.resolve().name in MISSIONS:
        return root.resolve().parent, [MISSIONS[root.resolve().name]]
    if not root.is_dir():
        raise ConfigError(f"data folder {root} {'is not a folder' if root.exists() else 'does not exist'}; expected {layout}")
    names = sorted(names_in(root))
    unknown = [name for name in names if name not in MISSIONS]
    if unknown:
        warnings.warn(DataWarning(f"{root}: not missions, left out: {', '.join(unknown)}; known: {', '.join(MISSIONS)}"), stacklevel=4)
    return root, [MISSIONS[name] for name in names if name in MISSIONS]


def _folders(parent: Path) -> list[str]:
    return sorted(entry.name for entry in os.scandir(parent) if is_folder(entry) and not entry.name.startswith("."))


def _groups_of(root: Path, mission: Mission) -> Iterator[Group]:
    parent = root / mission.name
    if not parent.is_dir():
        raise ConfigError(f"data folder {parent} {'is not a folder' if parent.exists() else 'does not exist'}; expected {LAYOUT}")
    labels = dict(LABEL_DIRS)
    unknown = [name for name in _folders(parent) if name not in labels]
    if unknown:
        warnings.warn(DataWarning(f"{parent}: not labels, left out: {', '.join(unknown)}; known: {', '.join(labels)}"), stacklevel=5)
    for folder, label in LABEL_DIRS:
        if not (parent / folder).is_dir():
            continue
        for name in _folders(parent / folder):
            directory = parent / folder / name
            names = [entry.name for entry in os.scandir(directory) if entry.name.lower().endswith(SUFFIXES) and not is_folder(entry)]
            # macOS writes files with a leading dot beside the real ones.
            images = sorted((directory / photo for photo in names if not photo.startswith(".")), key=natural_key)
            if images:
                yield Group(mission.name, mission.domain, label, group_id_of(images[0].name, name), tuple(images))
            else:
                warnings.warn(DataWarning(f"{directory}: no photos, group left out"), stacklevel=5)


@dataclass(frozen=True, kw_only=True)
class StageACase(Case):
    """One photo of a work order. `reference` is its `Summary`, None where it is not known.

    `image_index` is its place, from 1, among `group_images`, the file names of its order. `max_pixels` is the area that it is
    shrunk to, None leaves that to the checkpoint.
    """

    image: Path
    mission: str
    domain: Domain
    label: Label
    group_id: str
    image_index: int
    group_images: tuple[str, ...] = ()
    max_pixels: int | None = None


def photo_within(path: Path, max_pixels: int | None) -> str | bytes:
    """Return the photo's path if its area is at most `max_pixels` or that is None, otherwise a shrunken copy as PNG bytes.

    The copy is upright RGB and stays in memory until its request has been answered. Raises `ImageError`, or `BackendError`
    where the machine fails.
    """
    width, height = (0, 0) if max_pixels is None else image_size(path)
    if max_pixels is None or width * height <= max_pixels:
        return str(path)
    from PIL.Image import Resampling

    scale = sqrt(max_pixels / (width * height))
    size = tuple(max(SIZE_STEP, int(edge * scale) // SIZE_STEP * SIZE_STEP) for edge in (width, height))
    with BytesIO() as file:
        load_image(path).resize((size[0], size[1]), Resampling.BICUBIC).save(file, "PNG")
        return MadeImage(file.getvalue(), path)
