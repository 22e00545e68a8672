"""Stage-A: one structured summary per site photo. Everything that an eval of it needs.

load_cases      a folder of work orders → one case per photo
request         case → chat with the photo
parse_summary   text → Summary, strict and tolerant
scores          Summary + case → every metric as a number
details         Summary + case → plain data for the next three
aggregate       rows → metrics that are not means
tables          rows → by category, mission and domain; why answers are not valid
outputs         rows → <mission>_stage_a.jsonl for Stage-B
score_summaries a <mission>_stage_a.jsonl on disk → rows, without a model
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError, RecordError, did_you_mean
from evalharness.api.images import why_unusable
from evalharness.api.requests import VlmGenerationRequest
from evalharness.runs.schema import Row
from evalharness.tasks.stage_a.data import Group, StageACase as StageACase, draw_groups, find_groups, photo_within, reference_path
from evalharness.tasks.stage_a.files import (
    PhotoKey,
    outputs as outputs,
    read_rows as read_rows,
    read_summaries as read_summaries,
    summaries_by_photo,
    warn_of_missing_references,
    with_named_photos,
    write_rows as write_rows,
)
from evalharness.tasks.stage_a.metrics import (
    aggregate as aggregate,
    category_f1 as category_f1,
    details as details,
    scores as scores,
    tables as tables,
)
from evalharness.tasks.stage_a.parse import (
    IRRELEVANT as IRRELEVANT,
    Summary as Summary,
    parse_summary as parse_summary,
    render_summary as render_summary,
)
from evalharness.tasks.stage_a.schema import MISSIONS, SCHEMA, Domain

CONTRACT = "你是站点照片摘要助手。"
FORM = (
    "只写照片中看得见的内容，不写判断，不写坐标。输出两行：第一行是 <DOMAIN={domain}>, <TASK=SUMMARY>；"
    '第二行是一行JSON：{{"统计": [{{"类别": 类别, 属性: {{取值: 个数}}}}]}}。文字原样抄写且不带空格，看不清写 可读性=不可读。'
)
IRRELEVANT_RULE = f"与站点无关的图片只输出：{IRRELEVANT}。"
PIXEL_BUDGETS: Mapping[Domain, int] = {"bbu": 2_097_152, "rru": 1_048_576}
"""Areas, in pixels, that full-size checkpoints are run with: `cases=partial(load_cases, max_pixels=PIXEL_BUDGETS)`."""


def load_cases(
    data_dir: Path | str | None,
    *,
    max_pass: int | None = None,
    max_fail: int | None = None,
    seed: int = 0,
    max_pixels: Mapping[Domain, int] | None = None,
) -> list[StageACase]:
    """Return one case per photo, laid out as `stage_a/data.py` says; `<root>/<mission>_stage_a.jsonl` holds the references.

    Ids read `rru-install/fail/QC-DEMO-20300101-0000001/image_2`. A photo that cannot be opened, or that a reference names but
    that does not exist, is an `invalid` case. No photos at all, or a broken reference file, is an error. `max_pass` and
    `max_fail` sample groups, see `draw_groups`. `max_pixels` shrinks the photos of a domain to that area; see `PIXEL_BUDGETS`.
    """
    root, groups = find_groups(data_dir)
    references: dict[str, dict[PhotoKey, str]] = {}
    complete: list[Group] = []
    for mission in dict.fromkeys(group.mission for group in groups):
        path = reference_path(root, mission)
        rows = read_rows(path) if path.exists() else []
        references[mission] = summaries_by_photo(rows, path)
        complete += with_named_photos([group for group in groups if group.mission == mission], rows, path)
    cases = [
        _case(group, index, references[group.mission], (max_pixels or {}).get(group.domain))
        for group in draw_groups(complete, max_pass=max_pass, max_fail=max_fail, seed=seed)
        for index in range(1, len(group.images) + 1)
    ]
    if not cases:
        raise ConfigError(f"no group of {data_dir} was drawn with max_pass={max_pass}, max_fail={max_fail}; take more")
    unknown: dict[str, list[str]] = {}
    for case in cases:
        if case.reference is None and references[case.mission]:
            unknown.setdefault(case.mission, []).append(case.image.name)
    warn_of_missing_references(unknown, root)
    return cases


def _case(group: Group, index: int, references: Mapping[PhotoKey, str], max_pixels: int | None) -> StageACase:
    """Return the case of a group's photo, `index` from 1; `references` are summaries by group id, label and file name."""
    image = group.images[index - 1]
    reference = None
    text = references.get((group.group_id, group.label, image.name))
    if text is not None:
        reference = parse_summary(text, group.domain)
        if not reference.tolerant_valid:
            raise ConfigError(f"the reference summary of {image} cannot be read ({reference.problem}): {text[:80]!r}")
    tags = {"mission": group.mission, "domain": group.domain, "label": group.label}
    if reference is not None:
        tags["photo"] = "irrelevant" if reference.is_irrelevant else "site"
    copy = f"~{group.copy}" if group.copy > 1 else ""
    return StageACase(
        id=f"{MISSIONS[group.mission].slug}/{group.label}/{typeable(group.group_id)}{copy}/image_{index}",
        group=group.group_id,
        tags=tags,
        reference=reference,
        invalid=why_unusable(image),
        image=image,
        mission=group.mission,
        domain=group.domain,
        label=group.label,
        group_id=group.group_id,
        image_index=index,
        group_images=tuple(path.name for path in group.images),
        max_pixels=max_pixels,
    )


def typeable(group_id: str) -> str:
    """Return the id in characters that pytest does not escape and `-k` accepts; a hash keeps changed ids apart."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "", group_id)
    return plain if plain == group_id else f"{plain or 'group'}-{hashlib.sha256(group_id.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"


def messages(mission: str, image: Any, *, rules: str = "", scenario: str = "", detailed: bool = False) -> list[dict[str, Any]]:
    """Return the chat for one photo: contract, rule for irrelevant images and the mission's `rules` as system; header and photo as user.

    `scenario` ends the user turn. `detailed` spells out the form and the domain's categories, for models not trained on them.
    """
    domain = MISSIONS[mission].domain
    system = f"{CONTRACT}{IRRELEVANT_RULE}{rules}"
    user = f"<DOMAIN={domain.upper()}>, <TASK=SUMMARY> {mission}"
    if detailed:
        rows = [
            f"{name}（{'、'.join('或'.join(choice) for choice in rule.required)}）" if rule.required else name
            for name, rule in SCHEMA[domain].items()
        ]
        own = "可加 备注：[说明]。" if domain == "bbu" else "第一项为站点距离，只写数字；可加 组 与 分组统计。"
        user = f"{user}\n{FORM.format(domain=domain.upper())}\n类别（必写属性）：{'；'.join(rows)}。{own}"
    if scenario:
        user = f"{user}\n{scenario}"
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": user}]},
    ]


def request(case: StageACase) -> VlmGenerationRequest:
    """Return the request for a summary of one photo."""
    return VlmGenerationRequest(messages=messages(case.mission, photo_within(case.image, case.max_pixels)))


def score_summaries(path: Path | str, data_dir: Path | str) -> list[Row]:
    """Return one row per photo of a `<mission>_stage_a.jsonl`, as `aggregate`, `tables` and `outputs` take them.

    They are scored against the references in `data_dir`, the folder of `<mission>_stage_a.jsonl` references; photos need not
    exist. The file has cleaned summaries, without their form and header, so `valid`, `header_match` and `runaway` are not among
    the scores; a photo without a reference has only the scores that need none. Raises `RecordError` for a mission without
    references, and for a file of another kind.
    """
    rows = read_rows(path)
    if not rows:
        raise RecordError(f"{path} holds no summaries")
    references: dict[str, dict[PhotoKey, str]] = {}
    copies: dict[tuple[str, str, str], int] = {}
    scored: list[Row] = []
    for row in rows:
        mission = row["mission"]
        if mission not in references:
            references[mission] = _references(mission, Path(data_dir), path)
        key = (mission, row["group_id"], row["label"])
        copies[key] = copies.get(key, 0) + 1
        images = tuple(Path(data_dir) / name for name in row["images"])
        group = Group(mission, MISSIONS[mission].domain, row["label"], row["group_id"], images, copies[key])
        for index in range(1, len(images) + 1):
            scored.append(_scored_row(_case(group, index, references[mission], None), row["per_image"][f"image_{index}"]))
    return scored


def _references(mission: str, data_dir: Path, path: Path | str) -> dict[PhotoKey, str]:
    if mission not in MISSIONS:
        raise RecordError(f"{path} is of mission {mission!r}{did_you_mean(mission, MISSIONS) or '.'} Known: {', '.join(MISSIONS)}")
    references = reference_path(data_dir, mission)
    if not references.is_file():
        raise RecordError(f"{references} does not exist; give the folder of the reference summaries with --data")
    return read_summaries(references)


def _scored_row(case: StageACase, text: str) -> Row:
    summary = parse_summary(text, case.domain)
    # The form was cleaned away, so only the last problem of an unreadable text, that nothing can be read, still says something.
    cleaned = replace(summary, format_problems=() if summary.tolerant_valid else summary.format_problems[-1:])
    problem = "; ".join((*cleaned.format_problems, *cleaned.violations[:3]))
    return {
        "case_id": case.id,
        "group": case.group,
        "tags": dict(case.tags),
        "outcome": "miss" if problem else "pass",
        "problem": problem or None,
        "scores": {name: float(value) for name, value in scores(summary, case).items() if name not in ("valid", "header_match", "runaway")},
        "details": details(cleaned, case),
        "generation": {"text": text, "raw_text": text, "finish_reason": None},
    }


def unscored_photos(rows: list[Row], data_dir: Path | str) -> dict[str, int]:
    """Return, by mission of the rows, how many photos have a reference but no summary in the file; only missions with such photos."""
    unscored: dict[str, int] = {}
    for mission in dict.fromkeys(row["tags"]["mission"] for row in rows):
        photos = [row["details"]["photo"] for row in rows if row["tags"]["mission"] == mission]
        scored = {(photo["group_id"], photo["label"], photo["images"][photo["image_index"] - 1]) for photo in photos}
        num_unscored = len(set(read_summaries(reference_path(Path(data_dir), mission))) - scored)
        if num_unscored:
            unscored[mission] = num_unscored
    return unscored
