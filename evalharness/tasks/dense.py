"""Dense dumps: every object of a site photo with its geometry. What an eval of it needs, in one import.

load_cases      a folder with gt_vs_pred.jsonl and its photos → one case per photo
request         case → chat with the photo
read            generation + case → Dump, strict and tolerant, on the 0..1000 grid
judge           Dump + case → every metric as a number, and what tables and reports are made of
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.cases import Case
from evalharness.contracts import GenerationResult, VlmGenerationRequest
from evalharness.errors import ConfigError
from evalharness.images import why_unusable
from evalharness.tasks.dense_coordinates import patch_size, space_of
from evalharness.tasks.dense_dump import DUMP_NAME, DumpRow, read_dump
from evalharness.tasks.dense_metrics import Judgement, judge_dump, judge_objects
from evalharness.tasks.dense_objects import DenseObject
from evalharness.tasks.dense_parse import Dump, parse_dump, render_dump
from evalharness.tasks.stage_a_data import LABEL_DIRS
from evalharness.tasks.stage_a_schema import MISSIONS, Domain, check_domain

__all__ = [
    "DenseCase",
    "DenseObject",
    "Dump",
    "Judgement",
    "judge",
    "judge_objects",
    "load_cases",
    "messages",
    "parse_dump",
    "read",
    "read_dump",
    "render_dump",
    "request",
]

CONTRACT = "你是站点照片检测助手。第一行写任务头，第二行写一行JSON，列出全部物体。"
COORDINATE_RULES: Mapping[str, str] = {
    "norm1000": "坐标为0到1000的整数",
    "unit": "坐标为0到1的小数",
    "pixels": "坐标为图片的像素",
}


@dataclass(frozen=True, kw_only=True)
class DenseCase(Case):
    """One photo. `reference` are its true objects on the grid, `pixels` their points in pixels of the upright photo.

    `size` is (width, height) of the upright photo; `coordinates` the space in which the model answers, see `dense_coordinates`.
    """

    image: Path
    image_path: str
    domain: Domain
    size: tuple[int, int]
    pixels: tuple[tuple[int, ...], ...]
    coordinates: str = "norm1000"


def load_cases(data_dir: Path | str | None, *, coordinates: str = "norm1000") -> list[DenseCase]:
    """Return one case per row of `<data_dir>/gt_vs_pred.jsonl`; its `image_path` is relative to the folder.

    Ids read `rru-install/fail/QC-DEMO-20300101-0000001/image_2` in folders of work orders, else the path. A photo that
    cannot be opened is an `invalid` case. `coordinates` is the space in which the models answer.
    """
    patch_size(coordinates)
    if data_dir is None:
        raise ConfigError(f"no data folder was given; give one with --data that holds {DUMP_NAME} and its photos")
    path = Path(data_dir) / DUMP_NAME
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; dense cases are made of the true objects in it")
    return [_case(row, Path(data_dir), coordinates) for row in read_dump(path)]


def _case(row: DumpRow, root: Path, coordinates: str) -> DenseCase:
    image = root / row.image_path
    case_id, tags = _place(row.image_path)
    return DenseCase(
        id=case_id,
        group=row.image_path.rpartition("/")[0] or None,
        tags={**tags, "domain": row.domain},
        reference=row.truth,
        invalid=why_unusable(image),
        image=image,
        image_path=row.image_path,
        domain=row.domain,
        size=row.size,
        pixels=row.pixels,
        coordinates=coordinates,
    )


def _place(image_path: str) -> tuple[str, dict[str, str]]:
    """Return the case's id, and mission and label where the path is that of a work order's photo."""
    parts = image_path.replace("\\", "/").split("/")
    labels = dict(LABEL_DIRS)
    if len(parts) == 4 and parts[0] in MISSIONS and parts[1] in labels:
        mission, label, group = MISSIONS[parts[0]], labels[parts[1]], parts[2]
        stem = parts[3].rpartition(".")[0]
        number = stem.removeprefix(f"{group}_")
        name = f"image_{number}" if number.isdecimal() else stem
        return f"{mission.slug}/{label}/{group}/{name}", {"mission": mission.name, "label": label}
    # Other characters pytest escapes and `-k` refuses; the hash keeps paths apart that differ in nothing else.
    plain = re.sub(r"[^A-Za-z0-9._/-]+", "", image_path)
    return plain if plain == image_path else f"{plain}-{hashlib.sha256(image_path.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}", {}


def messages(domain: str, image: Any = None, *, coordinates: str = "norm1000") -> list[dict[str, Any]]:
    """Return the chat for one photo; without `image` a bare placeholder stands for it.

    The words for `norm1000` are those that the trained checkpoints know.
    """
    part = {"type": "image"} if image is None else {"type": "image", "image": image}
    rule = COORDINATE_RULES["pixels" if patch_size(coordinates) else coordinates]
    user = (
        f"<DOMAIN={check_domain(domain).upper()}>, <TASK=DETECTION> 按从上到下、从左到右列出每个物体的desc与bbox_2d、poly或line，{rule}。"
    )
    return [
        {"role": "system", "content": CONTRACT},
        {"role": "user", "content": [part, {"type": "text", "text": user}]},
    ]


def request(case: DenseCase) -> VlmGenerationRequest:
    """Return the question about one photo."""
    # Only a verified request tells the patch grid, and with it the size at which the model saw the photo.
    verify = patch_size(case.coordinates) is not None
    return VlmGenerationRequest(messages=messages(case.domain, str(case.image), coordinates=case.coordinates), verify=verify)


def read(generation: GenerationResult, case: DenseCase) -> Dump:
    """Return what a generation says, its coordinates converted to the grid."""
    grid = generation.images[0].get("grid") if generation.images else None
    patches = (int(grid[2]), int(grid[1])) if grid else None
    return parse_dump(generation.text, case.domain, space_of(case.coordinates, case.size, patches))


def judge(dump: Dump, case: DenseCase, finish_reason: str) -> Judgement:
    """Return the scores of one dump against its case, and the details that tables, dumps and pictures are made of."""
    judged = judge_dump(dump, case.reference)
    truth = [{**one, "pixels": list(points)} for one, points in zip(judged.details["truth"], case.pixels, strict=True)]
    image = {"path": case.image_path, "width": case.size[0], "height": case.size[1]}
    scores = {**judged.scores, "cap_hit": float(finish_reason == "length")}
    return Judgement(scores, {**judged.details, "truth": truth, "image": image})
