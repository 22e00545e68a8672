"""Stage-B: one verdict per work order, from its photos' summaries. Everything that an eval of it needs.

load_cases     `<mission>_stage_a.jsonl` and `guidance.json` → one case per ticket
request        case → chat with rules and summaries, never the label
ONE_VOTE       greedy, one answer; THREE_VOTES samples three
judge          a ticket's answers → votes, scores, details
aggregate      rows → rates that are not means
tables         rows → tables by mission and domain, and of the problems of answers
write_outputs  rows → the files that the original's tools read

`chain` judges a checkpoint's own summaries. `rules` is the eval that searches for better rules: `rule_search` is the search itself,
`rule_prompts` what a model is asked about its mistakes, `rule_proposals` checks the changes that it proposes, `rule_gate` decides whether
new rules are better, `rule_folder` and `rule_report` write what came of it; `files` reads and writes guidance.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.cases import Case
from evalharness.api.errors import ConfigError
from evalharness.api.requests import TextGenerationRequest
from evalharness.runs.schema import Row
from evalharness.tasks import DataWarning
from evalharness.tasks.stage_a import typeable
from evalharness.tasks.stage_a.data import SUMMARIES_SUFFIX, Label, find_missions, reference_path
from evalharness.tasks.stage_a.schema import MISSIONS, Domain
from evalharness.tasks.stage_b.files import Guidance, read_guidance, read_tickets, ticket_key, write_outputs as write_outputs
from evalharness.tasks.stage_b.metrics import Ballot as Ballot, Confusion, cast, confusion, decode_grid as decode_grid, rates
from evalharness.tasks.stage_b.prompt import messages as messages
from evalharness.tasks.stage_b.verdict import Verdict as Verdict, parse_verdict as parse_verdict, render_verdict as render_verdict

LAYOUT = f"<root>/<mission>{SUMMARIES_SUFFIX} and <root>/guidance.json"
# Two lines need no more tokens, and an endless answer shows by its length; prompt and answer fit a context of 4096 tokens.
_LIMITS = {"max_new_tokens": 320, "max_prompt_tokens": 3776}
ONE_VOTE = decode_grid([{"temperature": 0.0, "top_p": 1.0, **_LIMITS}])
THREE_VOTES = decode_grid(
    [{"temperature": heat, "top_p": 0.9, "repetition_penalty": 1.05, "seed": 43, **_LIMITS} for heat in (0.3, 0.5, 0.7)]
)


@dataclass(frozen=True, kw_only=True)
class StageBCase(Case):
    """One ticket: a work order under one label, the summaries of its photos, and the rules of its mission by id."""

    mission: str
    domain: Domain
    label: Label
    group_id: str
    summaries: tuple[str, ...]
    rules: Mapping[str, str]

    @property
    def ticket_key(self) -> str:
        """`<group id>::<label>`, the ticket's name in every file."""
        return ticket_key(self.group_id, self.label)


def load_cases(data_dir: Path | str | None) -> list[Case]:
    """Return one case per ticket of a folder, or of one mission's folder in it; ids read `rru-install/fail/QC-…-0000001`.

    A row that is not a ticket is named in a `DataWarning` and becomes an `invalid` case, `rru-install/line_7`. No tickets
    at all, or no rules for a mission, is an error.
    """

    def names_in(root: Path) -> Iterator[str]:
        return (path.name.removesuffix(SUMMARIES_SUFFIX) for path in root.glob(f"*{SUMMARIES_SUFFIX}"))

    root, missions = find_missions(data_dir, names_in, LAYOUT)
    if not missions:
        raise ConfigError(f"no Stage-A summaries in {root}; expected {LAYOUT}, missions: {', '.join(MISSIONS)}")
    guidance = read_guidance(root / "guidance.json")
    cases: list[Case] = []
    for mission in missions:
        path = reference_path(root, mission.name)
        tickets, bad_lines = read_tickets(path, mission.name)
        tags = {"mission": mission.name, "domain": mission.domain}
        rules = rules_of(guidance, mission.name, root)
        for ticket in tickets:
            case_id = f"{mission.slug}/{ticket.label}/{typeable(ticket.group_id)}"
            about: dict[str, Any] = {"group": ticket.group_id, "tags": {**tags, "label": ticket.label}, "reference": ticket.label}
            cases.append(StageBCase(id=case_id, **about, **vars(ticket), domain=mission.domain, rules=rules))
        for line, problem in bad_lines.items():
            warnings.warn(DataWarning(f"{path}:{line} is not a ticket: {problem}"), stacklevel=2)
            cases.append(Case(id=f"{mission.slug}/line_{line}", tags=tags, invalid=f"{path.name}:{line}: {problem}"))
    return cases


def rules_of(guidance: Mapping[str, Guidance], mission: str, root: Path) -> Mapping[str, str]:
    """Return a mission's rules by id; `ConfigError` where the guidance of `root` has none for it."""
    if mission not in guidance:
        raise ConfigError(f"{root / 'guidance.json'} has no rules for {mission}; it has some for {', '.join(guidance)}")
    return guidance[mission].experiences


def request(case: StageBCase) -> TextGenerationRequest:
    """Return the request for a verdict on one ticket."""
    return TextGenerationRequest(messages(case.mission, case.summaries, case.rules))


@dataclass(frozen=True, repr=False)
class JudgedTicket:
    """A ticket's answers, parsed and counted."""

    label: Label
    ticket_key: str
    num_images: int
    verdicts: tuple[Verdict, ...]
    ballot: Ballot

    def __repr__(self) -> str:
        # Short and escaped: pytest shows it below every failed assertion about a ticket.
        return f"JudgedTicket({self.ticket_key!r}, {self.ballot})"

    @property
    def is_right(self) -> bool:
        """Whether the majority is right; no vote at all is wrong."""
        return self.ballot.prediction == self.label

    @property
    def scores(self) -> dict[str, float]:
        """Every metric of the ticket; shares are over its answers. A `valid` answer carries a vote, a `strict` one has no problems."""
        num_answers = len(self.verdicts)
        return {
            "valid": self.ballot.num_valid / num_answers,
            "strict": sum(verdict.strict for verdict in self.verdicts) / num_answers,
            "accuracy": float(self.is_right),
            "agreement": self.ballot.agreement,
            "difficulty": self.ballot.difficulty,
            "hard_wrong": self.ballot.hard_wrong(self.label),
            "thinking": sum(verdict.has_thinking for verdict in self.verdicts) / num_answers,
            "third_state": sum("third_state" in verdict.kinds for verdict in self.verdicts) / num_answers,
        }

    @property
    def details(self) -> dict[str, Any]:
        """Plain JSON for tables and output files."""
        ballot = self.ballot
        return {
            "ticket_key": self.ticket_key,
            "num_images": self.num_images,
            "prediction": ballot.prediction,
            "votes": {"pass": ballot.num_pass, "fail": ballot.num_fail, "invalid": ballot.num_invalid},
            "verdicts": [verdict.label for verdict in self.verdicts],
            "reasons": [verdict.reason for verdict in self.verdicts],
            "problems": sorted({kind for verdict in self.verdicts for kind in verdict.kinds}),
        }

    @property
    def problem(self) -> str:
        """The message of a failed assertion: the wrong prediction, its votes, and the first answer's problems or (quoted) reason."""
        votes = f"{self.ballot.num_pass} pass, {self.ballot.num_fail} fail, {self.ballot.num_invalid} invalid"
        first = self.verdicts[0]
        judged = f"judged {self.ballot.prediction}, should be {self.label}" if self.ballot.prediction else "no verdict"
        return f"{judged} ({votes}): {first.problem or f'“{first.reason}”'}"


def judge(texts: Sequence[str], case: StageBCase) -> JudgedTicket:
    """Return the answers to a ticket, parsed and counted; their order changes no number."""
    return judge_votes(texts, case.label, case.ticket_key, len(case.summaries))


def judge_votes(texts: Sequence[str], label: Label, key: str, num_images: int) -> JudgedTicket:
    """Return the answers to the ticket `key` with that many images, parsed and counted."""
    verdicts = tuple(parse_verdict(text, num_images) for text in texts)
    return JudgedTicket(label, key, num_images, verdicts, cast(verdict.label for verdict in verdicts))


def _cells(rows: Sequence[Row]) -> Confusion:
    return confusion((row["tags"]["label"], row["details"]["prediction"]) for row in rows if "prediction" in (row.get("details") or {}))


def aggregate(rows: Sequence[Row]) -> dict[str, float]:
    """Return the rates of `stage_b/metrics.py` over the judged rows, without accuracy, which is a mean."""
    return {name: value for name, value in rates(_cells(rows)).items() if name != "accuracy"}


def tables(rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Return the tickets by mission and by domain, and how many tickets had which problem."""
    problems = Counter(kind for row in rows for kind in (row.get("details") or {}).get("problems", ()))
    made: dict[str, list[dict[str, Any]]] = {}
    for tag in ("mission", "domain"):
        values = dict.fromkeys(row["tags"][tag] for row in rows)
        made[f"Verdicts by {tag}"] = [{tag: value, **_line([row for row in rows if row["tags"][tag] == value])} for value in values]
    if problems:
        made["What was wrong with answers"] = [{"problem": kind, "tickets": count} for kind, count in problems.most_common()]
    return made


def _line(rows: Sequence[Row]) -> dict[str, float]:
    cells = _cells(rows)
    shares = rates(cells)
    return {
        "tickets": cells.num_tickets,
        "released rightly": cells.tp,
        "blocked rightly": cells.tn,
        "released wrongly": cells.fp,
        "blocked wrongly": cells.fn,
        "no verdict": cells.num_unparsed,
        **{name.replace("_", " "): shares[name] for name in ("accuracy", "false_release_rate", "false_block_rate")},
    }
