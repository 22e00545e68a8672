"""`<mission>_stage_a.jsonl` of a run, one per mission, as Stage-B and other tools read it; and the list of groups left out.

A group with one photo that failed, or that was not in the run, is left out as a whole, like in the original. Unlike there,
each such group is listed with its reason, and a run that could write none at all fails.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.analysis.gates import was_judged
from evalharness.api.errors import RecordError
from evalharness.api.outputs import OutputTarget
from evalharness.tasks.stage_a.data import Group, reference_path
from evalharness.tasks.stage_a.schema import MISSIONS
from evalharness.tasks.stage_a.stage_a_records import group_rows, write_rows

__all__ = ["LEFT_OUT_FILE", "outputs"]

LEFT_OUT_FILE = "stage_a_left_out.jsonl"

Row: TypeAlias = "Mapping[str, Any]"


@dataclass
class _Answers:
    """The rows of one group, by photo number; `group` is `<group id>::<label>`."""

    mission: str
    group: str
    photo: Mapping[str, Any] | None = None
    by_number: dict[int, dict[str, Any]] = field(default_factory=dict)
    problem: str | None = None
    has_skipped: bool = False

    @property
    def not_in_run(self) -> list[int]:
        """Numbers of the photos that no row is about (--limit, -k); [] where no answer says how many there are."""
        num = len(self.photo["images"]) if self.photo is not None else 0
        return [number for number in range(1, num + 1) if number not in self.by_number]

    @property
    def asked_whole(self) -> bool:
        """Whether every photo was asked, as far as is known: a run that was cut short is no failure of its groups."""
        return not self.not_in_run and not self.has_skipped


def outputs(rows: Sequence[Row], target: OutputTarget) -> None:
    """Write the summaries of all complete groups, mission by mission, and `stage_a_left_out.jsonl` if any is left out.

    `rows` carry what `details` gave, and case ids as `load_cases` makes them. Raises `RecordError` where groups were asked
    whole and none of them is complete.
    """
    left_out: list[dict[str, str]] = []
    num_written = num_failed = 0
    by_mission: dict[str, list[_Answers]] = {}
    for answers in _groups(rows).values():
        by_mission.setdefault(answers.mission, []).append(answers)
    for mission, groups in by_mission.items():
        complete = _complete_rows(groups)
        if complete:
            num_written += write_rows(reference_path(target.folder, mission), complete)
        for answers in groups:
            if answers.problem is not None:
                num_failed += answers.asked_whole
                left_out.append({"mission": mission, "group": answers.group, "problem": answers.problem})
    if left_out:
        lines = "".join(f"{json.dumps(entry)}\n" for entry in left_out)
        (target.folder / LEFT_OUT_FILE).write_text(lines, encoding="ascii")
    if num_failed and not num_written:
        raise RecordError(f"no group is complete, so no Stage-A file was written; the first of {num_failed}: {left_out[0]['problem']}")


def _groups(rows: Sequence[Row]) -> dict[str, _Answers]:
    """Return the answers of each group, in the order of the rows; of several tests of a photo the first that has a summary."""
    found: dict[str, _Answers] = {}
    for row in rows:
        place, _, number = str(row["case_id"]).rpartition("/image_")
        if not (place and number.isdecimal()):
            raise RecordError(f"{row['case_id']!r} is no case of Stage-A; ids end in /image_1, /image_2, …")
        answers = found.setdefault(place, _Answers(row["tags"]["mission"], f"{row['group']}::{row['tags']['label']}"))
        answers.has_skipped |= row["outcome"] == "skip"
        kept = row.get("details") or {}
        ok = was_judged(row) and "summary" in kept
        if "photo" in kept:
            answers.photo = kept["photo"]
        if ok or int(number) not in answers.by_number:
            result = {"ok": ok, "summary": kept.get("summary"), "error": None if ok else row.get("problem") or row["outcome"]}
            answers.by_number[int(number)] = {"image_index": int(number), **result}
    return found


def _complete_rows(groups: Sequence[_Answers]) -> tuple[dict[str, Any], ...]:
    """Return the rows of the groups that are complete, and note at each other one why it is not."""
    whole = [answers for answers in groups if answers.photo is not None and not answers.not_in_run]
    found = group_rows([_group(answers) for answers in whole], _results(whole))
    for answers in groups:
        answers.problem = _why_not_whole(answers)
    for place, answers in enumerate(whole):
        answers.problem = found.problems.get(place)
    return found.rows


def _group(answers: _Answers) -> Group:
    assert answers.photo is not None
    images = tuple(Path(name) for name in answers.photo["images"])
    mission = MISSIONS[answers.mission]
    return Group(mission.name, mission.domain, answers.photo["label"], answers.photo["group_id"], images)


def _results(groups: Sequence[_Answers]) -> list[dict[str, Any]]:
    return [{"group_seq": place, **result} for place, answers in enumerate(groups) for result in answers.by_number.values()]


def _why_not_whole(answers: _Answers) -> str:
    if answers.not_in_run:
        return f"{', '.join(f'image_{number}' for number in answers.not_in_run)} not in this run"
    return "; ".join(f"image_{number} failed: {result['error']}" for number, result in answers.by_number.items())
