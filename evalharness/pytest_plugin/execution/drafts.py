"""Which recorded answers are drafts for this run's: `--draft-from`, resolved once, and looked up for each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import ConfigError, RecordError
from evalharness.config import RunConfig
from evalharness.config.checks import possible_backends
from evalharness.runs.measured import DraftFacts, Throughput
from evalharness.runs.run_file import find_latest, is_latest, read_run
from evalharness.runs.schema import entries_of, mapping, text_of

if TYPE_CHECKING:
    from evalharness.runs.drafts import RecordedAnswers

NONE = "none"
_TAKE_DRAFTS = {"hf", "vllm"}
SHORTEST = 16
"""Tokens of an answer, on average, from which drafts can pay: most of a shorter one's time goes into its prompt."""


def resolve_drafts(run: RunConfig, *, is_resumed: bool = False) -> tuple[RunConfig, DraftFacts | None]:
    """Return the run with the path of the run that drafts come from, and what run.json says of it; `ConfigError` for no such run.

    `latest` stays where no run is complete: drafts then come from this run's own answers. A resumed run goes on without drafts where the
    run that it took them from is gone.
    """
    asked = run.draft_from
    if asked is None or asked == NONE or not _TAKE_DRAFTS & set(possible_backends(run)):
        return run, None  # of a backend that takes none the check of options tells, with what was asked
    facts: DraftFacts = {"asked": asked, "run": None, "rate_without": None, "why_off": ""}
    try:
        path = find_latest(asked, Path(run.report_dir), whole=True) if is_latest(asked) else _named(asked, Path(run.report_dir))
    except RecordError as error:
        if is_resumed and not is_latest(asked):
            return replace(run, draft_from=NONE), {**facts, "run": Path(asked).name, "why_off": "it is not there any more"}
        if not is_latest(asked):
            raise ConfigError(f"--draft-from {asked}: {error}") from error
        return replace(run, draft_from="latest"), facts
    earlier = read_run(path)
    facts["run"] = str(earlier.get("run_id") or path.name)
    entries = entries_of(earlier.get("throughput"))
    alike = [entry for entry in entries if text_of(entry.get("engine")).partition(":")[0] in run.backend]
    rate, had_drafts = _rate(alike), any(entry.get("drafts") for entry in alike)
    facts["rate_without"] = mapping(earlier.get("drafts")).get("rate_without") if had_drafts else rate
    facts["why_off"] = _why_off(entries, rate if had_drafts else None, facts["rate_without"])
    return replace(run, draft_from=NONE if facts["why_off"] else str(path.absolute())), facts


def _why_off(entries: Sequence[Throughput], rate: float | None, rate_without: object) -> str:
    """Return why the drafts of a run with these figures would not pay, "" where they may; `rate`: its tokens/s with drafts."""
    num_made = _total(entries, "num_generations")
    mean = _total(entries, "num_completion_tokens") / num_made if num_made else SHORTEST
    if mean < SHORTEST:
        return f"its answers have {mean:.1f} tokens on average, too few for drafts to pay (from {SHORTEST} on)"
    if rate is not None and isinstance(rate_without, (int, float)) and rate < rate_without:
        return f"drafts brought it {rate:,.0f} tokens/s a worker, where there were {rate_without:,.0f} without; the next run tries again"
    return ""


def _rate(entries: Sequence[Throughput]) -> float | None:
    """Return the tokens of answers per worker-second, None where nothing was timed."""
    seconds = _total(entries, "generation_s")
    return round(_total(entries, "num_completion_tokens") / seconds, 1) if seconds else None


def _total(entries: Sequence[Mapping[str, Any]], name: str) -> float:
    """Return the sum of a number over entries; others may have written them."""
    values = [entry.get(name) for entry in entries]
    return sum(value for value in values if isinstance(value, (int, float)) and 0 <= value < 1e15)


def _named(asked: str, report_dir: Path) -> Path:
    path = next((path for path in (Path(asked), report_dir / asked) if (path / "journal").is_dir()), None)
    if path is None:
        raise RecordError(f"no run directory with a journal, neither {asked} nor {report_dir / asked}; give a run, latest or none")
    return path


class Drafts:
    """The drafts of one process's requests. `is_on`: whether engines are to check drafts at all."""

    def __init__(self, run: RunConfig, on_notice: Callable[[str], None]) -> None:
        self._asked = run.draft_from
        self._on_notice = on_notice
        self._own: RecordedAnswers | None = None
        self.is_on = self._asked is not None and self._asked != NONE

    @cached_property
    def _earlier(self) -> RecordedAnswers | None:
        return None if not self.is_on or self._asked is None or is_latest(self._asked) else self._read(Path(self._asked))

    def _read(self, run_dir: Path) -> RecordedAnswers | None:
        from evalharness.runs.drafts import RecordedAnswers  # few runs have any

        try:
            return RecordedAnswers(run_dir)
        except RecordError as error:  # drafts save time; nothing depends on them
            self._on_notice(f"no drafts from {run_dir.name}: {error}")
            return None

    def look_back(self, run_dir: Path) -> None:
        """Read the earlier run, once, and what other engines of this run have answered so far: its checkpoints resemble each other most."""
        self._own, _ = self._read(run_dir), self._earlier

    def of(self, engine: str, eval_name: str, case_id: str, place: tuple[int, ...]) -> Callable[[], Sequence[int]] | None:
        """Return what gives the recorded answer to a case when it is needed; `place`: its sample, or step and request."""
        sources = [source for source in (self._own, self._earlier) if source]
        return partial(_first, sources, engine, eval_name, case_id, place) if sources else None


def _first(sources: Sequence[RecordedAnswers], *case: Any) -> list[int]:
    return next(filter(None, (source.find(*case) for source in sources)), [])
