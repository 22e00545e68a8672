"""The search for rules as an eval: what a checkpoint learns from its own mistakes, one case per mission.

load_cases     tickets and rules as Stage-B has them → one case per mission
request        case → the steps of one search, and at last the verdict on its hardest ticket under the rules that were found
judge          recorded steps → the same search, scores, details
tables         rows → tables by mission, guard and condition, and the promoted rules
write_outputs  rows → the files of each search, as `evalharness rules` writes them
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.cases import Case, OutputTarget, one_test_per_case
from evalharness.api.errors import RecordError
from evalharness.api.requests import GenerationResult, Outcome, TextGenerationRequest
from evalharness.runs.schema import Row
from evalharness.tasks import stage_b
from evalharness.tasks.shared import write_lines
from evalharness.tasks.stage_a.data import find_missions
from evalharness.tasks.stage_a.schema import MISSIONS
from evalharness.tasks.stage_b.files import Guidance, Ticket, check_guidance, read_guidance, ticket_key, write_guidance
from evalharness.tasks.stage_b.rule_gate import GateLimits
from evalharness.tasks.stage_b.rule_report import summary, tables as tables_of
from evalharness.tasks.stage_b.rule_search import Asked, RuleSearch, SearchSettings

SETTINGS = SearchSettings(
    rounds=1, num_hard_cases=4, max_evidence_chars=2400, max_answer_tokens=512, limits=GateLimits(max_changed_fraction=0.5)
)
"""One short round, which fits a context of 4096 tokens. Of a dozen tickets a single one is more than the gate's 5 %."""


@dataclass(frozen=True, kw_only=True)
class RulesCase(Case):
    """A mission with its tickets and rules."""

    mission: str
    tickets: tuple[Ticket, ...]
    guidance: Guidance


def load_cases(data_dir: Path | str | None) -> list[Case]:
    """Return one case per mission of a folder that Stage-B reads; rows that are not tickets are left out with its `DataWarning`."""
    tickets: dict[str, list[Ticket]] = {}
    for case in stage_b.load_cases(data_dir):
        if isinstance(case, stage_b.StageBCase):
            ticket = Ticket(case.group_id, case.mission, case.label, case.summaries)
            tickets.setdefault(case.mission, []).append(ticket)
    root, _ = find_missions(data_dir, lambda root: (), stage_b.LAYOUT)
    guidance = read_guidance(root / "guidance.json")
    return [
        RulesCase(
            id=MISSIONS[mission].slug,
            tags={"mission": mission, "domain": MISSIONS[mission].domain},
            mission=mission,
            tickets=tuple(own),
            guidance=guidance[mission],
        )
        for mission, own in tickets.items()
    ]


def request(case: RulesCase, settings: SearchSettings = SETTINGS) -> Generator[Asked, Sequence[Outcome], TextGenerationRequest]:
    """Ask for all that a search needs; return the request for a verdict on its hardest ticket under the rules that were found."""
    search = _search(case, settings)
    yield from search.steps()
    return TextGenerationRequest(stage_b.messages(case.mission, search.hardest().summaries, search.guidance.experiences))


def _search(case: RulesCase, settings: SearchSettings) -> RuleSearch:
    decode = dict.fromkeys((ticket.key for ticket in case.tickets), stage_b.ONE_VOTE)
    return RuleSearch(case.mission, case.tickets, case.guidance, decode, settings)


@dataclass(frozen=True, repr=False)
class JudgedSearch:
    """A search and the verdict on its hardest ticket under the rules that were found."""

    search: RuleSearch
    hardest: stage_b.JudgedTicket

    def __repr__(self) -> str:
        return f"JudgedSearch({self.search.mission!r}, {self.search.ended!r})"

    @property
    def summary(self) -> dict[str, Any]:
        """The search in numbers, see `rule_report.summary`."""
        return summary(self.search.mission, self.search.logs)

    @property
    def scores(self) -> dict[str, float]:
        """Accuracy under the given rules, what the promoted rules gained, and how many hard cases, promoted rules and usable proposals.

        `usable` is missing where nothing was asked for, as there were no hard cases.
        """
        one = self.summary
        scores = {
            "hard_cases": float(one["hard_cases"]),
            "promoted": float(len(one["promoted"])),
            "accuracy": one["before"]["acc"],
            "gain": one["after"]["acc"] - one["before"]["acc"],
            "held_out_gain": one["after"]["eval_acc"] - one["before"]["eval_acc"],
            "hardest_right": float(self.hardest.is_right),
        }
        return scores if one["usable"] is None else {**scores, "usable": one["usable"]}

    @property
    def details(self) -> dict[str, Any]:
        """Plain JSON for tables and output files."""
        guidance = {self.search.mission: self.search.guidance.to_json()}
        return {"summary": self.summary, "ended": self.search.ended, "logs": self.search.logs, "guidance": guidance}


def judge(case: RulesCase, steps: Sequence[Sequence[GenerationResult]], text: str, settings: SearchSettings = SETTINGS) -> JudgedSearch:
    """Return the search that these steps were asked for, and the judged verdict `text`; `RecordError` where they belong to another."""
    search = _search(case, settings)
    asking, answers = search.steps(), iter(steps)
    try:
        asked = next(asking)
        while True:
            given = next(answers, None)
            if given is None or len(given) != len(asked[0]):
                raise RecordError(f"the recorded steps of {case.id} are those of another search; run the eval again")
            asked = asking.send(given)
    except StopIteration:
        ticket = search.hardest()
    return JudgedSearch(search, stage_b.judge_votes([text], ticket.label, ticket_key(ticket.group_id, ticket.label), len(ticket.summaries)))


def tables(rows: Sequence[Row]) -> dict[str, list[dict[str, Any]]]:
    """Return the tables of `rule_report` over the searches of these rows."""
    return tables_of([row["details"]["summary"] for row in rows if row.get("details")])


def write_outputs(rows: Sequence[Row], target: OutputTarget) -> None:
    """Write the files of every search below `<target.folder>/stage_b_rules/<mission>/`, and the rules of all beside them."""
    found: dict[str, Guidance] = {}
    for row in one_test_per_case(rows, "logs"):
        details: Mapping[str, Any] = row.get("details") or {}
        if "logs" in details:
            folder = target.folder / "stage_b_rules" / details["summary"]["mission"]
            for name, lines in details["logs"].items():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                write_lines(folder / name, lines)
            guidance = check_guidance(details["guidance"])
            write_guidance(folder / "guidance.json", guidance)
            found |= guidance
    if found:
        write_guidance(target.folder / "stage_b_rules" / "guidance.json", found)
