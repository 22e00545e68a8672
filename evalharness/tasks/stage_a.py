"""Stage-A: one structured summary per site photo. What an eval of it needs, in one import.

load_cases      a folder of work orders → one case per photo
request         case → chat with the photo
parse_summary   text → Summary, strict and tolerant
scores          Summary + reference → every metric as a number
aggregate       rows → metrics that are no mean
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.cases import Case
from evalharness.contracts import VlmGenerationRequest
from evalharness.errors import BackendError, ConfigError, ImageError
from evalharness.images import image_size
from evalharness.tasks import DataWarning
from evalharness.tasks.stage_a_data import Group, Label, find_groups, reference_path
from evalharness.tasks.stage_a_metrics import (
    Overlap,
    attribute_key_recall,
    attribute_path_recall,
    canonical_equal,
    category_f1,
    category_overlap,
    completeness,
    fact_f1,
    fact_overlap,
    notes_score,
    text_recall,
    tversky,
)
from evalharness.tasks.stage_a_parse import IRRELEVANT, Summary, parse_summary, render_summary
from evalharness.tasks.stage_a_records import read_rows, write_rows
from evalharness.tasks.stage_a_schema import MISSIONS, SCHEMA, Domain

__all__ = [
    "IRRELEVANT",
    "StageACase",
    "Summary",
    "aggregate",
    "canonical_equal",
    "category_f1",
    "completeness",
    "fact_f1",
    "find_groups",
    "load_cases",
    "messages",
    "parse_summary",
    "read_rows",
    "render_summary",
    "request",
    "scores",
    "write_rows",
]

CONTRACT = "你是站点照片摘要助手。"
IRRELEVANT_RULE = f"与站点无关的图片只输出：{IRRELEVANT}。"


@dataclass(frozen=True, kw_only=True)
class StageACase(Case):
    """One photo of a work order. `reference` is the summary that is right, a `Summary`, or None where none is known."""

    image: Path
    mission: str
    domain: Domain
    label: Label
    group_id: str
    image_index: int


def load_cases(data_dir: Path | str | None, *, max_pass: int | None = None, max_fail: int | None = None, seed: int = 0) -> list[StageACase]:
    """Return one case per photo, laid out as `stage_a_data` says; `<root>/<mission>_stage_a.jsonl` holds the references.

    Ids read `rru-install/fail/QC-DEMO-20300101-0000001/image_2`. A photo that cannot be opened is an `invalid` case. No
    photos at all, or a broken reference file, is an error. `max_pass` and `max_fail` draw groups, see `find_groups`.
    """
    root, groups = find_groups(data_dir, max_pass=max_pass, max_fail=max_fail, seed=seed)
    references = {mission: _references(root, mission) for mission in dict.fromkeys(group.mission for group in groups)}
    cases = [_case(group, index, references[group.mission]) for group in groups for index in range(1, len(group.images) + 1)]
    _tell_missing_references(root, [case for case in cases if case.reference is None and references[case.mission]])
    return cases


def _tell_missing_references(root: Path, cases: Sequence[StageACase]) -> None:
    for mission in dict.fromkeys(case.mission for case in cases):
        photos = [case.image.name for case in cases if case.mission == mission]
        shown = ", ".join(photos[:3]) + (", …" if len(photos) > 3 else "")
        path = reference_path(root, mission)
        warnings.warn(DataWarning(f"{path}: no reference summary for {len(photos)} photos: {shown}"), stacklevel=3)


def _references(root: Path, mission: str) -> dict[tuple[str, str, str], str]:
    """Return summaries by (group id, label, file name); {} where the mission has no reference file."""
    path = reference_path(root, mission)
    if not path.exists():
        return {}
    found: dict[tuple[str, str, str], str] = {}
    for number, row in enumerate(read_rows(path), start=1):
        for place, name in enumerate(row["images"], start=1):
            key = (row["group_id"], row["label"], name)
            if key in found:
                raise ConfigError(f"{path}: row {number} gives {name} of {row['group_id']}::{row['label']} a second reference")
            found[key] = row["per_image"][f"image_{place}"]
    return found


def _case(group: Group, index: int, references: Mapping[tuple[str, str, str], str]) -> StageACase:
    image = group.images[index - 1]
    reference = _reference(group, image, references)
    tags = {"mission": group.mission, "domain": group.domain, "label": group.label}
    if reference is not None:
        tags["photo"] = "irrelevant" if reference.is_irrelevant else "site"
    copy = f"~{group.copy}" if group.copy > 1 else ""
    return StageACase(
        id=f"{MISSIONS[group.mission].slug}/{group.label}/{_typeable(group.group_id)}{copy}/image_{index}",
        group=group.key,
        tags=tags,
        reference=reference,
        invalid=_why_unreadable(image),
        image=image,
        mission=group.mission,
        domain=group.domain,
        label=group.label,
        group_id=group.group_id,
        image_index=index,
    )


def _reference(group: Group, image: Path, references: Mapping[tuple[str, str, str], str]) -> Summary | None:
    text = references.get((group.group_id, group.label, image.name))
    if text is None:
        return None
    reference = parse_summary(text, group.domain)
    if not reference.tolerant_valid:
        raise ConfigError(f"the reference summary of {image} cannot be read ({reference.problem}): {text[:80]!r}")
    return reference


def _typeable(group_id: str) -> str:
    """Return the id in characters that pytest neither escapes nor `-k` refuses; a hash keeps changed ones apart."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "", group_id)
    return (
        plain if plain == group_id else f"{plain or 'group'}-{hashlib.sha256(group_id.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"
    )


def _why_unreadable(image: Path) -> str | None:
    try:
        image_size(image)
    except ImageError as error:
        return str(error)
    except BackendError:
        return None  # the machine's fault: asked all the same, and an `error` row if the photo still cannot be read then
    return None


def messages(mission: str, image: Any, *, rules: str = "", detailed: bool = False) -> list[dict[str, Any]]:
    """Return the chat for one photo: contract, rule for other pictures and `rules` as system; header, mission, photo as user.

    `detailed` spells out the form and the domain's categories, for a model that was not trained on them.
    """
    domain = MISSIONS[mission].domain
    system = f"{CONTRACT}{IRRELEVANT_RULE}{rules}"
    user = f"<DOMAIN={domain.upper()}>, <TASK=SUMMARY> {mission}"
    if detailed:
        user = f"{user}\n{_format_reminder(domain)}\n{_domain_pack(domain)}"
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
    return VlmGenerationRequest(messages=messages(case.mission, str(case.image)))


def scores(summary: Summary, case: StageACase) -> dict[str, float]:
    """Return every metric that applies, by name; those against a reference only where there is one.

    The counts `num_categories_*` and `num_facts_*` are there for `aggregate`, which makes micro averages of them.
    """
    found: dict[str, float | None] = {
        "valid": float(summary.valid),
        "tolerant_valid": float(summary.tolerant_valid),
        "header_match": float(summary.header_match),
        "irrelevant": float(summary.is_irrelevant),
        "completeness": completeness(summary, case.domain),
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


def aggregate(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return micro precision, recall and F1 of categories and facts, and precision and recall of `无关图片`.

    Rows without scores (invalid, error) are left out. A ratio whose denominator is 0 is left out, not 0.
    """
    scored = [(row["scores"], row.get("tags", {})) for row in rows if row.get("scores")]
    found: dict[str, float] = {}
    for name, singular in (("categories", "category"), ("facts", "fact")):
        hit, said, true = (sum(score.get(f"num_{name}_{part}", 0) for score, _ in scored) for part in ("hit", "said", "true"))
        found |= _ratios(f"{singular}_micro", hit, said, true)
        if said + true:
            found[f"{singular}_micro_f1"] = 2 * hit / (said + true)
    known = [(score.get("irrelevant", 0.0), tags["photo"] == "irrelevant") for score, tags in scored if "photo" in tags]
    found |= _ratios(
        "irrelevant", sum(said for said, true in known if true), sum(said for said, _ in known), sum(true for _, true in known)
    )
    return found


def _ratios(name: str, hit: float, said: float, true: float) -> dict[str, float]:
    found = {f"{name}_precision": hit / said} if said else {}
    return found | ({f"{name}_recall": hit / true} if true else {})
