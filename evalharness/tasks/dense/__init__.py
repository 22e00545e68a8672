"""Dense dumps: every object of a site photo with its geometry. Everything that an eval of it needs.

load_cases      a folder with gt_vs_pred.jsonl and its photos → one case per photo
request         case → chat with the photo
read            generation + case → Dump, strict and tolerant, on the 0..1000 grid
judge           Dump + case → every metric as a number, and plain data for tables and reports
aggregate       rows → micro metrics over all photos; tables: rows → tables
outputs         rows → gt_vs_pred.jsonl, the offline report, drawings for spot checks
score_dump      a dump on disk → rows, without a model
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.cases import Case, OutputTarget, one_test_per_case
from evalharness.api.errors import ConfigError
from evalharness.api.images import why_unusable
from evalharness.api.requests import GenerationResult, VlmGenerationRequest
from evalharness.runs.schema import Row
from evalharness.tasks.dense.files import DUMP_NAME, DumpRow, dump_rows, read_dump as read_dump
from evalharness.tasks.dense.metrics import judge_dump, judge_objects as judge_objects
from evalharness.tasks.dense.objects import DenseObject as DenseObject, patch_size, patches_of, space_of
from evalharness.tasks.dense.parse import Dump as Dump, parse_dump as parse_dump, render_dump as render_dump
from evalharness.tasks.dense.spot_check import draw_rows, pick_rows
from evalharness.tasks.dense.tables import aggregate as aggregate, offline_report as offline_report, tables as tables
from evalharness.tasks.prompt_rows import Judgement as Judgement
from evalharness.tasks.shared import write_json, write_lines
from evalharness.tasks.stage_a import typeable
from evalharness.tasks.stage_a.data import LABEL_DIRS, group_id_of
from evalharness.tasks.stage_a.schema import MISSIONS, Domain, check_domain

REPORT_NAME = "dense_report.json"
CONTRACT = "你是站点照片检测助手。第一行写任务头，第二行写一行JSON，列出全部物体。"
COORDINATE_RULES: Mapping[str, str] = {"norm1000": "坐标为0到1000的整数", "unit": "坐标为0到1的小数", "pixels": "坐标为图片的像素"}


@dataclass(frozen=True, kw_only=True)
class DenseCase(Case):
    """One photo. `reference` are its objects on the grid, `pixels` their points in pixels of the upright photo.

    `size` is (width, height) of the upright photo; `coordinates` the space that is asked for, see `space_of`.
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
    cannot be opened is an `invalid` case. `coordinates` is the space that the request asks for.
    """
    patch_size(coordinates)
    if data_dir is None:
        raise ConfigError(f"no data folder was given; give one with --data that holds {DUMP_NAME} and its photos")
    path = Path(data_dir) / DUMP_NAME
    if not path.is_file():
        raise ConfigError(f"{path} does not exist; dense cases are made of the reference objects in it")
    return [_case(row, Path(data_dir), coordinates) for row in read_dump(path)]


def _case(row: DumpRow, root: Path, coordinates: str) -> DenseCase:
    if row.domain is None:
        raise ConfigError(f'{root / DUMP_NAME}: the domain of {row.image_path} cannot be told; add "domain": "bbu" or "rru" to its row')
    image, domain = root / row.image_path, row.domain
    case_id, group, tags = _place(row.image_path)
    return DenseCase(
        id=case_id,
        group=group,
        tags={**tags, "domain": domain},
        reference=row.truth,
        invalid=why_unusable(image),
        image=image,
        image_path=row.image_path,
        domain=domain,
        size=row.size,
        pixels=row.pixels,
        coordinates=coordinates,
    )


def _place(image_path: str) -> tuple[str, str | None, dict[str, str]]:
    """Return the case's id, and its group, mission and label where the path is that of a work order's photo."""
    parts = image_path.replace("\\", "/").split("/")
    labels = dict(LABEL_DIRS)
    if len(parts) == 4 and parts[0] in MISSIONS and parts[1] in labels:
        mission, label, folder = MISSIONS[parts[0]], labels[parts[1]], parts[2]
        stem = parts[3].rpartition(".")[0]
        number = stem.removeprefix(f"{folder}_")
        name = f"image_{number}" if number.isascii() and number.isdecimal() else typeable(stem)
        case_id = f"{mission.slug}/{label}/{typeable(folder)}/{name}"
        return case_id, group_id_of(parts[3], folder), {"mission": mission.name, "label": label}
    # pytest escapes other characters and `-k` refuses them; the hash keeps paths apart that differ in nothing else.
    plain = re.sub(r"[^A-Za-z0-9._/-]+", "", image_path)
    mark = hashlib.sha256(image_path.encode("utf-8", "surrogatepass")).hexdigest()[:6]
    return plain if plain == image_path else f"{plain}-{mark}", None, {}


def messages(domain: str, image: Any = None, *, coordinates: str = "norm1000") -> list[dict[str, Any]]:
    """Return the chat for one photo; without `image` with a bare placeholder. The trained checkpoints know the words for `norm1000`."""
    part = {"type": "image"} if image is None else {"type": "image", "image": image}
    rule = COORDINATE_RULES["pixels" if patch_size(coordinates) else coordinates]
    user = (
        f"<DOMAIN={check_domain(domain).upper()}>, <TASK=DETECTION> 按从上到下、从左到右列出每个物体的desc与bbox_2d、poly或line，{rule}。"
    )
    return [{"role": "system", "content": CONTRACT}, {"role": "user", "content": [part, {"type": "text", "text": user}]}]


def request(case: DenseCase) -> VlmGenerationRequest:
    """Return the request for a dump of one photo."""
    # Only a verified generation has the patch grid, and with it the size at which the model saw the photo.
    return VlmGenerationRequest(messages=messages(case.domain, str(case.image), coordinates=case.coordinates), verify=True)


def read(generation: GenerationResult, case: DenseCase, coordinates: str | None = None) -> Dump:
    """Return the dump in a generation, its coordinates converted to the grid.

    `coordinates` is the space in which this model answers, None for the space that the case asked for.
    """
    space = space_of(coordinates or case.coordinates, case.size, patches_of(generation))
    return parse_dump(generation.text, case.domain, space)


def judge(dump: Dump, case: DenseCase, finish_reason: str) -> Judgement:
    """Return the scores of one dump against its case, and the details that tables, dump files and drawings are made of."""
    judged = judge_dump(dump, case.reference)
    scores = {**judged.scores, "cap_hit": float(finish_reason == "length")}
    return Judgement(scores, _with_image(judged, case.image_path, case.size, case.pixels))


def _with_image(judged: Judgement, path: str, size: tuple[int, int], pixels: Sequence[Sequence[int]]) -> dict[str, Any]:
    truth = [{**item, "pixels": list(points)} for item, points in zip(judged.details["truth"], pixels, strict=True)]
    return {**judged.details, "truth": truth, "image": {"path": path, "width": size[0], "height": size[1]}}


def outputs(rows: Sequence[Row], target: OutputTarget) -> None:
    """Write `gt_vs_pred.jsonl`, `dense_report.json` and, with `target.spot`, that many drawings below `spot/`.

    Rows without details, those of unanswered cases, are left out; of several tests of a photo, the first that judged it counts.
    `ConfigError` for drawings without a data folder.
    """
    judged = [row for row in one_test_per_case(rows, "predictions") if "predictions" in (row.get("details") or {})]
    if not judged:
        return
    write_lines(target.folder / DUMP_NAME, dump_rows(judged))
    write_json(target.folder / REPORT_NAME, offline_report(judged, DUMP_NAME), ascii_only=True)
    if target.spot:
        if target.data_dir is None:
            raise ConfigError(f"--spot {target.spot} needs the photos; give their folder with --data")
        draw_rows(pick_rows(judged, target.spot, target.seed), target.folder / "spot", target.data_dir)


def score_dump(path: Path | str, *, coordinates: str = "norm1000") -> list[Row]:
    """Return the images of a dump as rows for `aggregate`, `tables`, `offline_report` and `outputs`: scored anew, without a model.

    Where a row has the model's text, its objects are read from there, in the space that the row names, else in `coordinates`, so
    that objects lost or dropped by the original are counted. Without a text, the stored predictions are scored, in the same
    space, without scores about the form of the answer. Only texts can be in `processed:14`: stored predictions are then taken
    to be on the grid.
    """
    predictions_in = "norm1000" if patch_size(coordinates) else coordinates
    return [_scored_row(row, coordinates) for row in read_dump(path, predictions_in)]


def _scored_row(row: DumpRow, coordinates: str) -> Row:
    case_id, group, tags = _place(row.image_path)
    problem = ""
    if row.texts:
        space = row.space or space_of(coordinates, row.size)
        dumps = (parse_dump(text, row.domain, space) for text in row.texts)  # of the clean text, then of the raw one
        first = next(dumps)
        dump = first if first.readable else next((dump for dump in dumps if dump.readable), first)
        judged, problem = judge_dump(dump, row.truth), dump.problem
    else:
        judged = judge_objects(row.predictions, row.truth)
    scores = dict(judged.scores)
    scores.setdefault("num_dropped", row.num_unusable)
    if row.finish_reason is not None:
        scores["cap_hit"] = float(row.finish_reason == "length")
    return {
        "case_id": row.case_id or case_id,
        "group": group,
        "tags": tags if row.domain is None else {**tags, "domain": row.domain},
        "outcome": "miss" if problem else "pass",
        "problem": problem or None,
        "scores": scores,
        "details": _with_image(judged, row.image_path, row.size, row.pixels),
        "generation": {"text": row.texts[0], "raw_text": row.texts[-1], "finish_reason": row.finish_reason} if row.texts else None,
    }
