"""Stage-A: one structured summary per site photo. What an eval of it needs, in one import.

load_cases      a folder of work orders → one case per photo
request         case → chat with the photo
parse_summary   text → Summary, strict and tolerant
scores          Summary + reference → every metric as a number
details         Summary + case → plain data for the next three
aggregate       rows → metrics that are no mean
tables          rows → by category, mission and domain; why answers are not valid
outputs         rows → <mission>_stage_a.jsonl for Stage-B
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.api.images import why_unusable
from evalharness.api.requests import VlmGenerationRequest
from evalharness.tasks.shared import photo_within
from evalharness.tasks.stage_a.data import Group, StageACase, draw_groups, find_groups, reference_path
from evalharness.tasks.stage_a.files import (
    PhotoKey,
    outputs,
    read_rows,
    read_summaries,
    reference_rows,
    summaries_by_photo,
    tell_missing_references,
    with_named_photos,
    write_rows,
)
from evalharness.tasks.stage_a.metrics import (
    Overlap,
    aggregate,
    attribute_key_recall,
    attribute_path_recall,
    canonical_equal,
    category_f1,
    category_overlap,
    completeness,
    details,
    fact_f1,
    fact_overlap,
    notes_score,
    tables,
    text_recall,
    tversky,
)
from evalharness.tasks.stage_a.parse import IRRELEVANT, Summary, parse_summary, render_summary
from evalharness.tasks.stage_a.schema import MISSIONS, SCHEMA, Domain

__all__ = [
    "IRRELEVANT",
    "PIXEL_BUDGETS",
    "RUNAWAY_TOKENS",
    "StageACase",
    "Summary",
    "aggregate",
    "canonical_equal",
    "case_of",
    "category_f1",
    "completeness",
    "details",
    "fact_f1",
    "find_groups",
    "load_cases",
    "messages",
    "outputs",
    "parse_summary",
    "read_rows",
    "read_summaries",
    "render_summary",
    "request",
    "scores",
    "tables",
    "write_rows",
]

CONTRACT = "你是站点照片摘要助手。"
IRRELEVANT_RULE = f"与站点无关的图片只输出：{IRRELEVANT}。"
RUNAWAY_TOKENS = 1024
"""The longest real summaries have 421 tokens (BBU) and 200 (RRU)."""
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
    """Return one case per photo, laid out as `stage_a_data` says; `<root>/<mission>_stage_a.jsonl` holds the references.

    Ids read `rru-install/fail/QC-DEMO-20300101-0000001/image_2`. A photo that cannot be opened, or that a reference names and
    that is not there, is an `invalid` case. No photos at all, or a broken reference file, is an error. `max_pass` and
    `max_fail` draw groups, see `draw_groups`. `max_pixels` shrinks the photos of a domain to that area; see `PIXEL_BUDGETS`.
    """
    root, groups = find_groups(data_dir)
    references: dict[str, dict[PhotoKey, str]] = {}
    complete: list[Group] = []
    for mission in dict.fromkeys(group.mission for group in groups):
        rows, path = reference_rows(root, mission), reference_path(root, mission)
        references[mission] = summaries_by_photo(rows, path)
        complete += with_named_photos([group for group in groups if group.mission == mission], rows, path)
    cases = [
        case_of(group, index, references[group.mission], (max_pixels or {}).get(group.domain))
        for group in draw_groups(complete, max_pass=max_pass, max_fail=max_fail, seed=seed)
        for index in range(1, len(group.images) + 1)
    ]
    if not cases:
        raise ConfigError(f"no group of {data_dir} was drawn with max_pass={max_pass}, max_fail={max_fail}; take more")
    unknown: dict[str, list[str]] = {}
    for case in cases:
        if case.reference is None and references[case.mission]:
            unknown.setdefault(case.mission, []).append(case.image.name)
    tell_missing_references(unknown, root)
    return cases


def case_of(group: Group, index: int, references: Mapping[PhotoKey, str], max_pixels: int | None) -> StageACase:
    """Return the case of a group's photo, `index` from 1; `references` are summaries by group id, label and file name."""
    image = group.images[index - 1]
    reference = _reference(group, image, references)
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


def _reference(group: Group, image: Path, references: Mapping[PhotoKey, str]) -> Summary | None:
    text = references.get((group.group_id, group.label, image.name))
    if text is None:
        return None
    reference = parse_summary(text, group.domain)
    if not reference.tolerant_valid:
        raise ConfigError(f"the reference summary of {image} cannot be read ({reference.problem}): {text[:80]!r}")
    return reference


def typeable(group_id: str) -> str:
    """Return the id in characters that pytest neither escapes nor `-k` refuses; a hash keeps changed ones apart."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "", group_id)
    return plain if plain == group_id else f"{plain or 'group'}-{hashlib.sha256(group_id.encode('utf-8', 'surrogatepass')).hexdigest()[:6]}"


def messages(mission: str, image: Any, *, rules: str = "", scenario: str = "", detailed: bool = False) -> list[dict[str, Any]]:
    """Return the chat for one photo: contract, rule for other pictures and the mission's `rules` as system; header and photo as user.

    `scenario` is what the user part says last. `detailed` spells out the form and the domain's categories, for a model that was
    not trained on them.
    """
    domain = MISSIONS[mission].domain
    system = f"{CONTRACT}{IRRELEVANT_RULE}{rules}"
    user = f"<DOMAIN={domain.upper()}>, <TASK=SUMMARY> {mission}"
    if detailed:
        user = f"{user}\n{_format_reminder(domain)}\n{_domain_pack(domain)}"
    if scenario:
        user = f"{user}\n{scenario}"
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": user}]},
    ]


def _format_reminder(domain: Domain) -> str:
    return (
        f"只写照片中看得见的内容，不写判断，不写坐标。输出两行：第一行是 <DOMAIN={domain.upper()}>, <TASK=SUMMARY>；"
        '第二行是一行JSON：{"统计": [{"类别": 类别, 属性: {取值: 个数}}]}。文字原样抄写且不带空格，看不清写 可读性=不可读。'
    )


def _domain_pack(domain: Domain) -> str:
    rows = [
        f"{name}（{'、'.join('或'.join(choice) for choice in rule.required)}）" if rule.required else name
        for name, rule in SCHEMA[domain].items()
    ]
    own = "可加 备注：[说明]。" if domain == "bbu" else "第一项为站点距离，只写数字；可加 组 与 分组统计。"
    return f"类别（必写属性）：{'；'.join(rows)}。{own}"


def request(case: StageACase) -> VlmGenerationRequest:
    """Return the question about one photo."""
    return VlmGenerationRequest(messages=messages(case.mission, photo_within(case.image, case.max_pixels)))


def scores(summary: Summary, case: StageACase, num_tokens: int | None = None) -> dict[str, float]:
    """Return every metric that applies, by name; those against a reference only where there is one.

    `num_tokens` is the length of the answer, for `runaway`: no summary is as long as `RUNAWAY_TOKENS`. The counts
    `num_categories_*` and `num_facts_*` are there for `aggregate`, which makes micro averages of them.
    """
    found: dict[str, float | None] = {
        "valid": float(summary.valid),
        "tolerant_valid": float(summary.tolerant_valid),
        "header_match": float(summary.header_match),
        "irrelevant": float(summary.is_irrelevant),
        "completeness": completeness(summary, case.domain),
        "runaway": None if num_tokens is None else float(num_tokens >= RUNAWAY_TOKENS),
    }
    if case.reference is not None:
        found |= _against(summary, case.reference, case.domain)
    return {name: value for name, value in found.items() if value is not None}


def _against(summary: Summary, reference: Summary, domain: Domain) -> dict[str, float | None]:
    categories, facts = category_overlap(summary, reference), fact_overlap(summary, reference)
    return {
        "exact": float(canonical_equal(summary, reference)),
        "category_f1": category_f1(summary, reference),
        "attribute_key_recall": attribute_key_recall(summary, reference),
        "attribute_path_recall": attribute_path_recall(summary, reference),
        "fact_f1": fact_f1(summary, reference),
        "tversky": tversky(summary, reference, domain),
        "text_recall": text_recall(summary, reference),
        "notes_score": notes_score(summary, reference) if domain == "bbu" else None,
        **_counts("categories", categories),
        **_counts("facts", facts),
    }


def _counts(name: str, overlap: Overlap) -> dict[str, float]:
    return {f"num_{name}_hit": overlap.num_hit, f"num_{name}_said": overlap.num_said, f"num_{name}_true": overlap.num_true}
