"""Stage-B on the summaries that the same checkpoint has just written in Stage-A: is the whole chain right?

A wrong verdict of the chain has one of two causes, and each calls for different training:

    could not see     Stage-A lost the evidence
    judged wrongly    the evidence was there, and the verdict is wrong all the same

Rules are free text, so no code can tell from them which evidence a verdict needs. Instead the checkpoint answers the same
question a second time, with the reference summaries in place of its own. A mistake that disappears with the reference
evidence was caused by the evidence; a mistake that stays is one of judgement, and so is a mistake on summaries that equal
the references. This costs one short text prompt per ticket; with greedy decoding it does not depend on chance.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from evalharness.analysis.statistics.overlap import Overlap
from evalharness.api.cases import Case, OutputTarget
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.runs.schema import Row
from evalharness.tasks import stage_a, stage_b
from evalharness.tasks.stage_a import StageACase
from evalharness.tasks.stage_a.data import LAYOUT, Label, find_missions
from evalharness.tasks.stage_a.metrics import canonical_equal, fact_overlap
from evalharness.tasks.stage_a.parse import Summary, parse_summary
from evalharness.tasks.stage_b.files import read_guidance, ticket_key

SUMMARY_OPTIONS = GenerationOptions(max_new_tokens=1024)

Cause: TypeAlias = Literal["right", "right by luck", "could not see", "judged wrongly", "unknown"]
CAUSES: tuple[Cause, ...] = ("right", "right by luck", "could not see", "judged wrongly", "unknown")
"""Right by luck: wrong with the references. Unknown: wrong, and there are no references to compare with."""


@dataclass(frozen=True, kw_only=True)
class ChainCase(Case):
    """One work order with its photos, each with its reference summary where that is known."""

    mission: str
    label: Label
    group_id: str
    photos: tuple[StageACase, ...]
    rules: Mapping[str, str]

    @property
    def references(self) -> tuple[Summary, ...] | None:
        """The reference summaries, None unless every photo has one."""
        references = tuple(photo.reference for photo in self.photos if photo.reference is not None)
        return references if len(references) == len(self.photos) else None


def load_cases(data_dir: Path | str | None) -> list[ChainCase]:
    """Return one case per work order: photos and references as in Stage-A, rules in `<root>/guidance.json`.

    A work order with a photo that cannot be opened is an `invalid` case: its verdict would rest on part of the evidence.
    """
    photos: dict[str, list[StageACase]] = {}
    for photo in stage_a.load_cases(data_dir):
        photos.setdefault(photo.id.rpartition("/")[0], []).append(photo)
    root, _ = find_missions(data_dir, lambda root: (), LAYOUT)
    guidance = read_guidance(root / "guidance.json")
    return [_case(case_id, tuple(group), stage_b.rules_of(guidance, group[0].mission, root)) for case_id, group in photos.items()]


def _case(case_id: str, photos: tuple[StageACase, ...], rules: Mapping[str, str]) -> ChainCase:
    first = photos[0]
    return ChainCase(
        id=case_id,
        group=first.group_id,
        tags={"mission": first.mission, "domain": first.domain, "label": first.label},
        reference=first.label,
        invalid=next((photo.invalid for photo in photos if photo.invalid is not None), None),
        mission=first.mission,
        label=first.label,
        group_id=first.group_id,
        photos=photos,
        rules=rules,
    )


def request(
    case: ChainCase,
) -> Generator[
    tuple[list[VlmGenerationRequest] | list[TextGenerationRequest], GenerationOptions], list[GenerationResult], TextGenerationRequest
]:
    """Ask for a summary of every photo, then for a verdict on the references; return the request on the written summaries."""
    written = yield [stage_a.request(photo) for photo in case.photos], SUMMARY_OPTIONS
    if case.references is not None:
        yield [_question(case, case.references)], stage_b.ONE_VOTE[0]
    return _question(case, _summaries(case, written))


def _question(case: ChainCase, summaries: Sequence[Summary]) -> TextGenerationRequest:
    return TextGenerationRequest(stage_b.messages(case.mission, [summary.text for summary in summaries], case.rules))


def _summaries(case: ChainCase, written: Sequence[GenerationResult]) -> tuple[Summary, ...]:
    return tuple(parse_summary(result.text, photo.domain) for result, photo in zip(written, case.photos, strict=True))


@dataclass(frozen=True, repr=False)
class JudgedChain:
    """A work order's verdict on the written summaries (`own`), and on its references; `by_references` is None without references."""

    own: stage_b.JudgedTicket
    by_references: stage_b.JudgedTicket | None
    summaries: tuple[Summary, ...]
    references: tuple[Summary, ...] | None

    def __repr__(self) -> str:
        return f"JudgedChain({self.cause!r}, {self.own!r})"

    @property
    def cause(self) -> Cause:
        """Why the chain's verdict is as it is."""
        if self.by_references is None or self.references is None:
            return "right" if self.own.is_right else "unknown"
        if self.own.is_right:
            return "right" if self.by_references.is_right else "right by luck"
        has_all_evidence = all(map(canonical_equal, self.summaries, self.references))
        return "could not see" if self.by_references.is_right and not has_all_evidence else "judged wrongly"

    @property
    def scores(self) -> dict[str, float]:
        """The ticket's metrics on the written summaries, its cause as numbers, and the share of the reference facts in the summaries."""
        scores = dict(self.own.scores)
        if self.references is not None and self.by_references is not None:
            scores |= {
                "could_not_see": float(self.cause == "could not see"),
                "judged_wrongly": float(self.cause == "judged wrongly"),
                "reference_accuracy": float(self.by_references.is_right),
                "evidence_recall": Overlap.sum(map(fact_overlap, self.summaries, self.references)).recall(empty=1.0),
            }
        return scores

    @property
    def details(self) -> dict[str, Any]:
        """Plain JSON for tables and output files."""
        other = self.by_references.ballot.prediction if self.by_references else None
        return {**self.own.details, "cause": self.cause, "reference_prediction": other}

    @property
    def problem(self) -> str:
        """What a failed assertion says."""
        return f"{self.cause}: {self.own.problem}"


def judge(case: ChainCase, steps: Sequence[Sequence[GenerationResult]], texts: Sequence[str]) -> JudgedChain:
    """Return the judged answers to a case; `steps` are those of `request`, `texts` the verdicts on the written summaries."""
    key, num_images = ticket_key(case.group_id, case.label), len(case.photos)
    own = stage_b.judge_votes(texts, case.label, key, num_images)
    by_references = None
    if case.references is not None:
        by_references = stage_b.judge_votes([result.text for result in steps[1]], case.label, key, num_images)
    return JudgedChain(own, by_references, _summaries(case, steps[0]), case.references)


def tables(rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Return where verdicts of the chain go wrong, by mission and over all, then Stage-B's tables."""
    judged = [row for row in rows if row.get("details")]
    lines = [
        {"mission": mission, **_causes([row for row in judged if row["tags"]["mission"] == mission])}
        for mission in dict.fromkeys(row["tags"]["mission"] for row in judged)
    ]
    return {"Where verdicts go wrong": [*lines, {"mission": "all", **_causes(judged)}], **stage_b.tables(rows)}


def _causes(rows: Sequence[Row]) -> dict[str, Any]:
    recalls = [row["scores"]["evidence_recall"] for row in rows if "evidence_recall" in row["scores"]]
    counts: dict[str, int] = {cause: sum(row["details"]["cause"] == cause for row in rows) for cause in CAUSES}
    return {"tickets": len(rows), **counts, "evidence recall": sum(recalls) / len(recalls) if recalls else None}


def write_outputs(rows: Sequence[Row], target: OutputTarget) -> None:
    """Write the files of `stage_b/files.py` below `stage_b_chain/`."""
    stage_b.write_outputs(rows, target, "stage_b_chain")
