"""The search for better rules of one mission, as a generator of requests: whoever runs it sends the answers back.

    search = RuleSearch(mission, tickets, guidance, decode)
    steps = search.steps()
    asked = next(steps)                       # (requests, options), which go to the engine together
    asked = steps.send(outcomes)              # …until StopIteration; then search.guidance has the rules that were found

Every ticket is judged once under the given rules, unless the verdicts are known. Then, round by round: the most confident mistakes on
train tickets are shown to the model (`rule_prompts`), the changes that it proposes pass the guards (`rule_proposals`), and each is tried
on all tickets. The gate (`rule_gate`) compares the verdicts on train tickets; held-out tickets are judged as well, but decide nothing. A
promoted change is in force from then on, for the candidates after it, too.

Nothing here depends on chance or time: the same answers give the same search. So an eval judges its recorded steps by running the search
again, and a broken-off search goes on by the answers on disk.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeAlias, cast

from evalharness.api.errors import ContractValueError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationFailure, GenerationResult, Outcome, TextGenerationRequest
from evalharness.report.text import plural
from evalharness.runs.run_file import utc_now
from evalharness.runs.schema import Row
from evalharness.tasks import stage_b
from evalharness.tasks.shared import judged_text
from evalharness.tasks.stage_b.files import Guidance, Ticket, in_order, wrong_cases
from evalharness.tasks.stage_b.metrics import confusion, rates
from evalharness.tasks.stage_b.prompt import messages, signature
from evalharness.tasks.stage_b.rule_gate import GateLimits, GateResult, Judged, read_verdict, rule_gate
from evalharness.tasks.stage_b.rule_prompts import (
    decision_options,
    decision_request,
    hard_case_text,
    proposal_options,
    proposal_request,
    reflection_options,
    reflection_request,
)
from evalharness.tasks.stage_b.rule_proposals import Candidate, Refusal, as_candidate, read_decision, read_proposal, read_reflection

Asked: TypeAlias = "tuple[list[TextGenerationRequest], list[GenerationOptions]]"
Steps: TypeAlias = "Generator[Asked, Sequence[Outcome], Any]"
Verdicts: TypeAlias = "dict[str, Row]"
"""Judged tickets by key, each with `tags` and `details` as a row of samples.jsonl has them."""

CANDIDATES, BENCHMARKS, HARD_CASES = "rule_candidates.jsonl", "benchmarks.jsonl", "rule_search_hard_cases.jsonl"
REGRESSIONS, REFUSED = "rule_search_candidate_regressions.jsonl", "rule_search_refused_operations.jsonl"
FAILURES, DROPPED = "reflection_cache/rule_search_proposer_failures.jsonl", "dropped.jsonl"
LOGS = (CANDIDATES, BENCHMARKS, HARD_CASES, REGRESSIONS, REFUSED, FAILURES, DROPPED)
"""The files of a search, rows in the order in which they came about."""
_RATES = {"acc": "accuracy", "false_release": "false_release_rate", "false_block": "false_block_rate"}


@dataclass(frozen=True)
class SearchSettings:
    """How a search goes about it.

    It ends after `rounds`, or after `patience` rounds in a row that promoted nothing. A round shows at most `num_hard_cases`, of together
    about `max_evidence_chars` characters (one is always shown), and takes answers of up to `max_answer_tokens`. `held_out` is the share of
    each label's tickets that only audit, drawn with `seed`.
    """

    rounds: int = 3
    patience: int = 2
    num_hard_cases: int = 8
    max_evidence_chars: int = 12_000
    max_answer_tokens: int = 1024
    held_out: float = 0.25
    seed: int = 0
    limits: GateLimits = field(default_factory=GateLimits)

    def __post_init__(self) -> None:
        for name in ("rounds", "patience", "num_hard_cases", "max_evidence_chars", "max_answer_tokens"):
            if getattr(self, name) < 1:
                raise ContractValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.held_out < 1:
            raise ContractValueError(f"held_out must be a share from 0 to below 1, got {self.held_out}")


def split(tickets: Iterable[Ticket], held_out: float, seed: int) -> frozenset[str]:
    """Return the keys of the held-out tickets: that share of each label's, rounded, never all of them; the order does not matter."""
    by_label: dict[str, list[str]] = {}
    for ticket in tickets:
        by_label.setdefault(ticket.label, []).append(ticket.key)
    drawn: list[str] = []
    for label, keys in by_label.items():
        shuffled = sorted(keys)
        Random(f"{seed} {label}").shuffle(shuffled)
        drawn += shuffled[: min(round(len(keys) * held_out), len(keys) - 1)]
    return frozenset(drawn)


def changed_rules(rules: Mapping[str, str], candidate: Candidate) -> dict[str, str]:
    """Return the rules after a change; a new rule gets the next free number, a merged one the first id of its targets."""
    kept = {rule_id: text for rule_id, text in rules.items() if rule_id not in candidate.targets}
    if candidate.op != "remove":
        number = 1 + max(int(rule_id[1:]) for rule_id in rules if rule_id.startswith("G"))
        kept[in_order(candidate.targets)[0] if candidate.targets else f"G{number}"] = candidate.text
    return {rule_id: kept[rule_id] for rule_id in in_order(kept)}


class RuleSearch:
    """One mission's search: `guidance` as it stands, rows by file (`logs`), and why it `ended`, "" while it goes on.

    `decode` has the options of every ticket's answers, by its key. `known` are verdicts under the given rules, such as those of a run;
    tickets without one are left out and listed. `stamp(file, place)` gives the time of a row.
    """

    def __init__(
        self,
        mission: str,
        tickets: Sequence[Ticket],
        guidance: Guidance,
        decode: Mapping[str, Sequence[GenerationOptions]],
        settings: SearchSettings | None = None,
        *,
        known: Verdicts | None = None,
        stamp: Callable[[str, int], str] = lambda file, place: utc_now(),
    ) -> None:
        self.mission = mission
        self.guidance = guidance
        self.logs: dict[str, list[dict[str, Any]]] = {name: [] for name in LOGS}
        self.ended = ""
        self.first: Verdicts = {}
        """The verdicts under the given rules."""
        self._tickets = {ticket.key: ticket for ticket in tickets if known is None or ticket.key in known}
        self._unjudged = [ticket.key for ticket in tickets if ticket.key not in self._tickets]
        self._decode = decode
        self._settings = settings or SearchSettings()
        self._known = known
        self._stamp = stamp
        self.held_out = split(self._tickets.values(), self._settings.held_out, self._settings.seed)
        self._verdicts: Verdicts = {}
        self._rejected: dict[str, str] = {}

    def steps(self) -> Steps:
        """Yield the requests of the search, to be answered in their order."""
        for key in self._unjudged:
            self._log(DROPPED, {"round": 0, "ticket_key": key, "problem": "there is no verdict to start from"})
        self._verdicts = self._known if self._known is not None else (yield from self._judge(self.guidance.experiences, 0))
        self.first = self._verdicts
        self._benchmark(0)
        without_gain = num_shown = 0
        for number in range(1, self._settings.rounds + 1):
            hard = self.hard_cases(num_shown)
            if not hard:
                self.ended = "no train ticket is judged wrongly"
                return
            promoted = yield from self._round(number, hard)
            self._benchmark(number)
            without_gain, num_shown = (0, 0) if promoted else (without_gain + 1, num_shown + len(hard))
            if without_gain >= self._settings.patience:
                self.ended = f"{plural(without_gain, 'round')} in a row promoted nothing"
                return
        self.ended = f"{plural(self._settings.rounds, 'round')} {'was' if self._settings.rounds == 1 else 'were'} asked for"

    def hard_cases(self, num_shown: int = 0) -> list[dict[str, Any]]:
        """Return the wrong verdicts on train tickets under the rules in force, the most confident first, as many as a round may show.

        `num_shown` were shown in vain: the next ones come first.
        """
        wrong = wrong_cases([row for key, row in self._verdicts.items() if key not in self.held_out])
        start = num_shown % len(wrong) if wrong else 0
        shown: list[dict[str, Any]] = []
        num_chars = 0
        for case in [*wrong[start:], *wrong[:start]][: self._settings.num_hard_cases]:
            num_chars += len(self._text(case))
            if shown and num_chars > self._settings.max_evidence_chars:
                break
            shown.append(case)
        return shown

    def _text(self, case: Mapping[str, Any]) -> str:
        return hard_case_text(self.mission, self._tickets[case["ticket_key"]], case)

    def _judge(self, rules: Mapping[str, str], number: int) -> Generator[Asked, Sequence[Outcome], Verdicts]:
        """Return every ticket's verdict under these rules; tickets that cannot be asked are left out and listed."""
        requests: list[TextGenerationRequest] = []
        options: list[GenerationOptions] = []
        for ticket in self._tickets.values():
            question = TextGenerationRequest(messages(self.mission, ticket.summaries, rules))
            requests += [question] * len(self._decode[ticket.key])
            options += self._decode[ticket.key]
        outcomes = iter((yield requests, options))
        verdicts: Verdicts = {}
        for ticket in self._tickets.values():
            answers = [next(outcomes) for _ in self._decode[ticket.key]]
            failure = next((answer for answer in answers if isinstance(answer, GenerationFailure)), None)
            if failure is not None:
                self._log(DROPPED, {"round": number, "ticket_key": ticket.key, "problem": failure.problem})
                continue
            texts = [judged_text(answer) for answer in answers if isinstance(answer, GenerationResult)]
            judged = stage_b.judge_votes(texts, ticket.label, ticket.key, len(ticket.summaries))
            verdicts[ticket.key] = cast("Row", {"tags": {"label": ticket.label}, "details": judged.details})
        return verdicts

    def _round(self, number: int, hard: Sequence[dict[str, Any]]) -> Generator[Asked, Sequence[Outcome], bool]:
        """Ask for changes and try each; return whether one was promoted."""
        for case in hard:
            self._log(HARD_CASES, {"round": number, "step": self.guidance.step, **case})
        proposed, keys = yield from self._proposed(number, hard)
        promoted = False
        for source, candidate in self._untried(number, proposed):
            promoted |= yield from self._try(candidate, source, number, keys)
        return promoted

    def _proposed(
        self, number: int, hard: Sequence[dict[str, Any]]
    ) -> Generator[Asked, Sequence[Outcome], tuple[list[tuple[str, Candidate]], list[str]]]:
        """Return the changes that passed the guards, each with its source, and the keys of the tickets that were reflected on."""
        mission, rules, limit = self.mission, dict(self.guidance.experiences), self._settings.max_answer_tokens
        keys, texts = [case["ticket_key"] for case in hard], [*map(self._text, hard)]
        text = yield from self._ask("decision", decision_request(mission, rules, texts), decision_options(keys, limit), number)
        decision, problem = read_decision(text, keys)
        self._note_failure("decision", number, text, problem)
        hard = [case for case in hard if case["ticket_key"] not in decision.no_evidence]
        if not hard:
            return [], []  # no rule could have helped
        keys, texts = [case["ticket_key"] for case in hard], [*map(self._text, hard)]
        options = reflection_options(rules, keys, limit)
        text = yield from self._ask("reflection", reflection_request(mission, rules, texts), options, number)
        reflection = read_reflection(text, rules, keys)
        self._note_failure("reflection", number, text, reflection.problem)
        self._note_refused("reflection", number, reflection.refused)
        request = proposal_request(mission, rules, texts, reflection, [*self._rejected.values()])
        text = yield from self._ask("proposal", request, proposal_options(rules, limit), number)
        proposal = read_proposal(text, rules, self._rejected)
        self._note_failure("proposal", number, text, proposal.problem)
        self._note_refused("proposal", number, proposal.refused)
        operations = [operation for operation in reflection.operations if operation.op != "none"]
        reflected = [("reflection", as_candidate(operation, rules)) for operation in operations]
        return [*reflected, *(("proposal", candidate) for candidate in proposal.candidates)], keys

    def _ask(
        self, question: str, request: TextGenerationRequest, options: GenerationOptions, number: int
    ) -> Generator[Asked, Sequence[Outcome], str]:
        """Return the answer to one question, "" where it could not be asked."""
        (outcome,) = yield [request], [options]
        text, problem = ("", outcome.problem) if isinstance(outcome, GenerationFailure) else (outcome.answer, "the answer is empty")
        if not text:
            self._log(FAILURES, {"round": number, **self._place(), "question": question, "problem": problem, "response": ""})
        return text

    def _untried(self, number: int, proposed: Iterable[tuple[str, Candidate]]) -> list[tuple[str, Candidate]]:
        """Return the candidates of both answers that were not rejected before, and that do not say or change what an earlier one does."""
        kept: list[tuple[str, Candidate]] = []
        for place, (source, candidate) in enumerate(proposed):
            if candidate.id in self._rejected:
                refusal = Refusal(place, "was rejected before", "rejected before")
            elif any(candidate.text and signature(candidate.text) == signature(other.text) for _, other in kept):
                refusal = Refusal(place, "says the same as another candidate", "duplicate")
            elif any(not set(candidate.targets).isdisjoint(other.targets) for _, other in kept):
                refusal = Refusal(place, f"another candidate changes {', '.join(candidate.targets)} already", "conflict")
            else:
                kept.append((source, candidate))
                continue
            self._note_refused(source, number, [refusal])
        return kept

    def _try(self, candidate: Candidate, source: str, number: int, keys: Sequence[str]) -> Generator[Asked, Sequence[Outcome], bool]:
        """Judge every ticket with the change; return whether it was promoted."""
        rules = changed_rules(self.guidance.experiences, candidate)
        before, after = self._verdicts, (yield from self._judge(rules, number))
        base, tried = (_judged(verdicts, verdicts.keys() - self.held_out) for verdicts in (before, after))
        gate = rule_gate(base, tried, op=candidate.op, limits=self._settings.limits)
        if lost := before.keys() - after.keys():  # the gate knows only tickets that both have
            lost_with_it = {"dropped": f"with it {plural(len(lost), 'ticket')} cannot be asked, such as {min(lost)}"}
            gate = replace(gate, failed={**gate.failed, **lost_with_it})
        audited = self.held_out & before.keys() & after.keys()
        audit = {
            f"eval_{side}{short}": value
            for side, verdicts in (("base_", before), ("", after))
            for short, value in _shares(verdicts[key] for key in audited).items()
        }
        row = {
            "round": number,
            **self._place(),
            "timestamp": self._stamp(CANDIDATES, len(self.logs[CANDIDATES])),
            "source": source,
            "id": candidate.id,
            "op": candidate.op,
            "targets": list(candidate.targets),
            "signature": signature(candidate.text),
            "text": candidate.text,
            "rationale": candidate.rationale,
            **gate.to_json(),
            "eval_n": len(audited),
            **audit,
        }
        self._log(CANDIDATES, row)
        num_right = self._note_regressions(candidate, number, gate.passed, after)
        if not gate.passed:
            self._rejected[candidate.id] = candidate.text or f"删除 {', '.join(candidate.targets)}"
            return False
        self._promote(candidate, rules, after, row, gate, keys, num_right)
        return True

    def _promote(
        self,
        candidate: Candidate,
        rules: Mapping[str, str],
        after: Verdicts,
        row: Mapping[str, Any],
        gate: GateResult,
        keys: Sequence[str],
        num_right: tuple[int, int],
    ) -> None:
        known = {
            rule_id: values
            for rule_id, values in self.guidance.metadata.items()
            if rules.get(rule_id) == self.guidance.experiences[rule_id]
        }
        for rule_id, text in rules.items():
            if text == candidate.text:
                known[rule_id] = {
                    "updated_at": row["timestamp"],
                    "reflection_id": f"round-{row['round']}-{candidate.id}",
                    "sources": list(keys),
                    "rationale": candidate.rationale,
                    "hit_count": num_right[0],
                    "miss_count": num_right[1],
                    "confidence": gate.probability,
                }
        self.guidance = Guidance(self.guidance.step + 1, str(row["timestamp"]), rules, known)
        self._verdicts = after

    def _note_regressions(self, candidate: Candidate, number: int, promoted: bool, after: Verdicts) -> tuple[int, int]:
        """List the tickets that the change makes wrong; return how many train tickets it makes right, and how many wrong."""
        counts = {True: 0, False: 0}
        for key, row in self._verdicts.items():
            label, before = row["tags"]["label"], row["details"]["prediction"]
            now = after[key]["details"]["prediction"] if key in after else before
            if (before == label) == (now == label):
                continue
            counts[now == label] += key not in self.held_out
            if now != label:
                regression = {"ticket_key": key, "pool": "eval" if key in self.held_out else "train", "gt_label": label}
                about = {"round": number, **self._place(), "id": candidate.id, "decision": "promoted" if promoted else "rejected"}
                self._log(REGRESSIONS, {**about, **regression, "base_pred": before, "cand_pred": now})
        return counts[True], counts[False]

    def _note_failure(self, question: str, number: int, text: str, problem: str) -> None:
        if text and problem:  # that there is none was noted when it was asked
            self._log(FAILURES, {"round": number, **self._place(), "question": question, "problem": problem, "response": text})

    def _note_refused(self, source: str, number: int, refused: Iterable[Refusal]) -> None:
        for refusal in refused:
            about = {"round": number, **self._place(), "source": source, "place": refusal.place}
            self._log(REFUSED, {**about, "guard": refusal.guard, "problem": refusal.problem})

    def hardest(self) -> Ticket:
        """Return the ticket of the most confident mistake under the given rules, the first of all where none is wrong."""
        wrong = wrong_cases([*self.first.values()])
        return self._tickets[wrong[0]["ticket_key"]] if wrong else next(iter(self._tickets.values()))

    def _benchmark(self, number: int) -> None:
        """Record the rates under the rules in force after a round; round 0 is before the first."""
        held_out = [row for key, row in self._verdicts.items() if key in self.held_out]
        train = [row for key, row in self._verdicts.items() if key not in self.held_out]
        row = {
            "round": number,
            **self._place(),
            "timestamp": self._stamp(BENCHMARKS, len(self.logs[BENCHMARKS])),
            "n": len(train),
            **_shares(train),
            "eval_n": len(held_out),
            **{f"eval_{short}": value for short, value in _shares(held_out).items()},
            "hard_cases": sum(entry["round"] == number for entry in self.logs[HARD_CASES]),
            "candidates": sum(entry["round"] == number for entry in self.logs[CANDIDATES]),
            "promoted": sum(entry["round"] == number and entry["decision"] == "promoted" for entry in self.logs[CANDIDATES]),
        }
        self._log(BENCHMARKS, row)

    def _place(self) -> dict[str, Any]:
        return {"mission": self.mission, "step": self.guidance.step}

    def _log(self, file: str, row: Mapping[str, Any]) -> None:
        self.logs[file].append(dict(row))


def _judged(verdicts: Verdicts, keys: Iterable[str]) -> dict[str, Judged]:
    return {key: read_verdict(verdicts[key]) for key in keys}


def _shares(rows: Iterable[Row]) -> dict[str, float]:
    shares = rates(confusion((row["tags"]["label"], row["details"]["prediction"]) for row in rows))
    return {short: shares[name] for short, name in _RATES.items()}
