"""Stage-B on the summaries that the same checkpoint just wrote in Stage-A: does the whole chain get it right?

A wrong verdict of the chain has one of two causes, and each asks for other training:

    could not see     Stage-A lost the evidence
    judged wrongly    the evidence was there, and the verdict is wrong all the same

Rules are free text, so nothing here could judge by them which evidence a verdict needs. The checkpoint itself is asked
instead: the same question with only the evidence exchanged, reference summaries in the place of its own. A mistake that
goes away when the evidence is right came from the evidence; one that stays is the judge's. Own summaries that say all
that the references say settle it without asking: then nothing was lost. This costs one short text prompt per ticket, and
is as sure as the decoding is: greedy, it is no matter of luck.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from evalharness.api.cases import Case
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.tasks import stage_a, stage_b
from evalharness.tasks.stage_a import StageACase
from evalharness.tasks.stage_a.data import LAYOUT, Label, find_missions
from evalharness.tasks.stage_a.metrics import canonical_equal, fact_overlap
from evalharness.tasks.stage_a.parse import Summary, parse_summary
from evalharness.tasks.stage_b.files import Target
from evalharness.tasks.stage_b.tickets import read_guidance, ticket_key

__all__ = ["CAUSES", "ChainCase", "JudgedChain", "judge", "load_cases", "request", "tables", "write_outputs"]

SUMMARY_OPTIONS = GenerationOptions(max_new_tokens=1024)

Cause: TypeAlias = Literal["right", "right by luck", "could not see", "judged wrongly", "unknown"]
CAUSES: tuple[Cause, ...] = ("right", "right by luck", "could not see", "judged wrongly", "unknown")
"""Right by luck: wrong with the references. Unknown: wrong, and there are no references to ask with."""


@dataclass(frozen=True, kw_only=True)
class ChainCase(Case):
    """One work order with its photos; each photo's reference summary is in it, where one is known."""

    mission: str
    label: Label
    group_id: str
    photos: tuple[StageACase, ...]
    rules: Mapping[str, str]

    @property
    def references(self) -> tuple[Summary, ...] | None:
        """The reference summaries, None unless every photo has one."""
        found = tuple(photo.reference for photo in self.photos if photo.reference is not None)
        return found if len(found) == len(self.photos) else None


def load_cases(data_dir: Path | str | None) -> list[ChainCase]:
    """Return one case per work order: photos and references as in Stage-A, rules in `<root>/guidance.json`.

    A work order with a photo that cannot be opened is an `invalid` case: its verdict would rest on half of the evidence.
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
    """Ask for a summary of every photo, then for the verdict on the references; return the question about the own summaries."""
    written = yield [stage_a.request(photo) for photo in case.photos], SUMMARY_OPTIONS
    if case.references is not None:
        yield [_question(case, case.references)], stage_b.ONE_VOTE[0]
    return _question(case, own_summaries(case, [result.text for result in written]))


def _question(case: ChainCase, summaries: Sequence[Summary]) -> TextGenerationRequest:
    return TextGenerationRequest(stage_b.messages(case.mission, [summary.text for summary in summaries], case.rules))


def own_summaries(case: ChainCase, texts: Sequence[str]) -> list[Summary]:
    """Return the texts that were written for the photos, read as Stage-A reads them."""
    return [parse_summary(text, photo.domain) for text, photo in zip(texts, case.photos, strict=True)]


@dataclass(frozen=True, repr=False)
class JudgedChain:
    """A work order's verdict on own summaries beside the one on references. `by_references` is None without references."""

    own: stage_b.JudgedTicket
    by_references: stage_b.JudgedTicket | None
    summaries: tuple[Summary, ...]
    references: tuple[Summary, ...] | None

    def __repr__(self) -> str:
        return f"JudgedChain({self.cause!r}, {self.own!r})"

    @property
    def says_all(self) -> bool:
        """Whether the own summaries say exactly what the references say."""
        return self.references is not None and all(map(canonical_equal, self.summaries, self.references))

    @property
    def cause(self) -> Cause:
        """Why the chain's verdict is as it is."""
        if self.by_references is None:
            return "right" if self.own.is_right else "unknown"
        if self.own.is_right:
            return "right" if self.by_references.is_right else "right by luck"
        return "could not see" if self.by_references.is_right and not self.says_all else "judged wrongly"

    @property
    def scores(self) -> dict[str, float]:
        """The ticket's metrics on own summaries, its cause as shares, and how much of the references the summaries say."""
        found = dict(self.own.scores)
        if self.references is not None and self.by_references is not None:
            overlaps = [fact_overlap(*pair) for pair in zip(self.summaries, self.references, strict=True)]
            true = sum(overlap.num_true for overlap in overlaps)
            found |= {
                "could_not_see": float(self.cause == "could not see"),
                "judged_wrongly": float(self.cause == "judged wrongly"),
                "reference_accuracy": float(self.by_references.is_right),
                "evidence_recall": sum(overlap.num_hit for overlap in overlaps) / true if true else 1.0,
            }
        return found

    @property
    def details(self) -> dict[str, Any]:
        """Return what tables and output files need, as plain JSON."""
        other = self.by_references.ballot.prediction if self.by_references else None
        return {**self.own.details, "cause": self.cause, "reference_prediction": other}

    @property
    def problem(self) -> str:
        """What a failed assertion says."""
        return f"{self.cause}: {self.own.problem}"


def judge(case: ChainCase, steps: Sequence[Sequence[GenerationResult]], texts: Sequence[str]) -> JudgedChain:
    """Return the case's answers, read; `steps` are those of `request`, `texts` its verdicts on own summaries."""
    key, num_images = ticket_key(case.group_id, case.label), len(case.photos)
    own = stage_b.judge_votes(texts, case.label, key, num_images)
    summaries = tuple(own_summaries(case, [result.text for result in steps[0]]))
    if case.references is None:
        return JudgedChain(own, None, summaries, None)
    by_references = stage_b.judge_votes([result.text for result in steps[1]], case.label, key, num_images)
    return JudgedChain(own, by_references, summaries, case.references)


def tables(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """Return Stage-B's tables, and before them where verdicts of the chain go wrong, by mission and over all."""
    judged = [row for row in rows if row.get("details")]
    lines = [
        {"mission": mission, **_causes([row for row in judged if row["tags"]["mission"] == mission])}
        for mission in dict.fromkeys(row["tags"]["mission"] for row in judged)
    ]
    return {"Where verdicts go wrong": [*lines, {"mission": "all", **_causes(judged)}], **stage_b.tables(rows)}


def _causes(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    recalls = [row["scores"]["evidence_recall"] for row in rows if "evidence_recall" in row["scores"]]
    counts: dict[str, int] = {cause: sum(row["details"]["cause"] == cause for row in rows) for cause in CAUSES}
    return {"tickets": len(rows), **counts, "evidence recall": sum(recalls) / len(recalls) if recalls else None}


def write_outputs(rows: Sequence[Mapping[str, Any]], target: Target) -> None:
    """Write the files of `stage_b_outputs`, of verdicts on own summaries, below `stage_b_chain/`."""
    stage_b.write_outputs(rows, target, "stage_b_chain")
