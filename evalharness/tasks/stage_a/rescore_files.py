"""Stage-A summaries on disk, scored against references without a model and without photos: `<mission>_stage_a.jsonl`.

Such a file has the cleaned summaries, not what the model wrote: form and header are gone, so `valid`, `header_match` and
`runaway` are not among the scores. All else is what the live eval computes, by the same functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalharness.api.errors import RecordError, did_you_mean
from evalharness.runs.schema import Row
from evalharness.tasks.stage_a import StageACase, case_of, details, parse_summary, scores
from evalharness.tasks.stage_a.data import Group, reference_path
from evalharness.tasks.stage_a.files import PhotoKey, read_rows, read_summaries
from evalharness.tasks.stage_a.schema import MISSIONS

__all__ = ["score_summaries", "unscored_photos"]

_ABOUT_FORM = ("valid", "header_match", "runaway")


def score_summaries(path: Path | str, data_dir: Path | str) -> list[Row]:
    """Return one row per photo of a file, as `aggregate`, `tables` and `outputs` take them: scored against the references in `data_dir`.

    `data_dir` is the folder of `<mission>_stage_a.jsonl` references. A photo without a reference has the scores that need none.
    Raises `RecordError` for a mission without references, and for what is no such file.
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
        scored += [_scored(case_of(group, number, references[mission], None), row, number) for number in range(1, len(images) + 1)]
    return scored


def unscored_photos(rows: list[Row], data_dir: Path | str) -> dict[str, int]:
    """Return, by mission of the rows, how many photos have a reference but no summary in the file; only those that lack some."""
    found: dict[str, int] = {}
    for mission in dict.fromkeys(row["tags"]["mission"] for row in rows):
        photos = [row["details"]["photo"] for row in rows if row["tags"]["mission"] == mission]
        said = {(photo["group_id"], photo["label"], photo["images"][photo["image_index"] - 1]) for photo in photos}
        num_missing = len(set(read_summaries(reference_path(Path(data_dir), mission))) - said)
        if num_missing:
            found[mission] = num_missing
    return found


def _references(mission: str, data_dir: Path, path: Path | str) -> dict[PhotoKey, str]:
    if mission not in MISSIONS:
        raise RecordError(f"{path} is of mission {mission!r}{did_you_mean(mission, MISSIONS) or '.'} Known: {', '.join(MISSIONS)}")
    references = reference_path(data_dir, mission)
    if not references.is_file():
        raise RecordError(f"{references} does not exist; give the folder of the reference summaries with --data")
    return read_summaries(references)


def _scored(case: StageACase, row: Mapping[str, Any], number: int) -> Row:
    text = row["per_image"][f"image_{number}"]
    summary = parse_summary(text, case.domain)
    # Headers were cleaned away, and what was wrong with the form, too: nothing is known of either. What is left is that nothing can
    # be read, the last of such a text's problems.
    cleaned = replace(summary, format_problems=() if summary.tolerant_valid else summary.format_problems[-1:])
    problem = "; ".join((*cleaned.format_problems, *cleaned.violations[:3]))
    return {
        "case_id": case.id,
        "group": case.group,
        "tags": dict(case.tags),
        "outcome": "miss" if problem else "pass",
        "problem": problem or None,
        "scores": {name: float(value) for name, value in scores(summary, case).items() if name not in _ABOUT_FORM},
        "details": details(cleaned, case),
        "generation": {"text": text, "raw_text": text, "finish_reason": None},
    }
