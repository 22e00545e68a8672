"""Which recorded answers are drafts for this run's: `--draft-from`, resolved once, and looked up for each request."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import ConfigError, RecordError
from evalharness.config import RunConfig
from evalharness.runs.run_file import find_latest, is_latest, read_run
from evalharness.runs.schema import DraftFacts, Throughput, entries_of, mapping, text_of

if TYPE_CHECKING:
    from evalharness.runs.drafts import RecordedAnswers

NONE = "none"
SHORTEST = 16
"""Tokens of an answer, on average, from which drafts can pay: most of a shorter one's time goes into its prompt."""
FEWEST_A_STEP = 2.0
"""Tokens that a row must gain in a step. Without drafts vLLM plans a step while the one before runs: its steps take half as long."""


def resolve_drafts(run: RunConfig) -> tuple[RunConfig, DraftFacts | None]:
    """Return the run with the path of the run that drafts come from, and what run.json says of it; `ConfigError` for no such run.

    `latest` stays where no run is complete: drafts then come from this run's own answers.
    """
    asked = run.draft_from
    if asked is None or asked == NONE:
        return run, None
    facts: DraftFacts = {"asked": asked, "run": None, "rate_without": None, "why_off": ""}
    try:
        path = find_latest(asked, Path(run.report_dir), whole=True) if is_latest(asked) else _named(asked, Path(run.report_dir))
    except RecordError as error:
        if not is_latest(asked):
            raise ConfigError(f"--draft-from {asked}: {error}") from error
        return replace(run, draft_from="latest"), facts
    earlier = read_run(path)
    facts["run"] = str(earlier.get("run_id") or path.name)
    entries = entries_of(earlier.get("throughput"))
    facts["rate_without"] = rate_without_drafts(entries)
    facts["why_off"] = _why_off(entries)
    return replace(run, draft_from=NONE if facts["why_off"] else str(path.absolute())), facts


def _why_off(entries: Sequence[Throughput]) -> str:
    """Return why the drafts of a run with these figures would not pay, "" where they may."""
    num_made = _total(entries, "num_generations")
    mean = _total(entries, "num_completion_tokens") / num_made if num_made else SHORTEST
    if mean < SHORTEST:
        return f"its answers have {mean:.1f} tokens on average, too few for drafts to pay (from {SHORTEST} on)"
    drafts = [mapping(entry.get("drafts")) for entry in entries if text_of(entry.get("engine")).startswith("vllm:")]
    num_steps = _total(drafts, "num_row_steps")
    gained = _total(drafts, "num_tokens") / num_steps if num_steps else FEWEST_A_STEP
    if gained < FEWEST_A_STEP:
        return f"drafts brought it {gained:.1f} tokens a step, too few to pay (from {FEWEST_A_STEP:g} on); the next run tries again"
    return ""


def rate_without_drafts(entries: Sequence[Throughput]) -> float | None:
    """Return the tokens of answers per worker-second of a run's engines; None if it had drafts, or nothing was timed."""
    seconds = _total(entries, "generation_s")
    if not seconds or any(entry.get("drafts") for entry in entries):
        return None
    return round(_total(entries, "num_completion_tokens") / seconds, 1)


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
