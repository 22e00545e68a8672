"""Plain sentences about a run: its verdict, and everything that makes its numbers untrustworthy, most serious first.

The sentences are plain text that may hold hostile names: escape them for display.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from evalharness.analysis.gate_grammar import needs_baseline
from evalharness.api.errors import BROKEN
from evalharness.api.wording import part_of
from evalharness.report.tables import NUM_CASES_IN_REMARK, OUTCOMES, READ_AS_TOKENS, ProblemGroup, RunTables
from evalharness.report.text import one_line, plural, share_text
from evalharness.runs.partial import NOT_ASKED, how_drawn, part_texts
from evalharness.runs.samples import NOT_RUN
from evalharness.runs.schema import EvalEntry, GateVerdict, RunFile, entries_of, items_of, mapping, text_of

MAX_FINDINGS = 30
FEW_CASES = 10
"""Below this a score says little, whatever it is."""
SAME_TEXT_CASES = 3
"""From this many cases on, one and the same answer to all of them is worth a sentence."""
_REMARKS = ("chat template: ", "joined texts: ")
"""How the remarks begin that stand among ignored options and are about none."""
ERRORS = "ended in an error: not counted in any mean"
"""How the caveat about errors ends."""
_NOTABLE = {
    "length_cap": (0.05, "hit the length cap and may be cut off"),
    "empty": (0.0, "are empty"),
    "unclosed": (0.0, "never stop thinking and give no answer (--max-thinking-tokens limits that)"),
}
"""From which share of answers on a count is worth a sentence."""


def verdict(tables: RunTables) -> tuple[str, str]:
    """Return one word for the run (PASSED, FAILED, BROKEN, FINISHED, INTERRUPTED, EMPTY) and the sentence that explains it."""
    counts = {outcome: tables.total(outcome) for outcome in OUTCOMES}
    gates = gate_counts(tables.run)
    num_failed = gates["failed"]
    reasons = gate_words(gates) or ["gates were not judged" if _unfinished(tables) else "no gates were set"]
    if num_not_run := tables.not_run.total():
        reasons.insert(0, f"{tables.num_rows - num_not_run:,} of {plural(tables.num_rows, 'sample')} ran")
    for outcome, what in (("fail", "failed"), ("error", "ended in an error"), ("invalid", "could not be run")):
        if counts[outcome]:
            reasons.append(f"{plural(counts[outcome], 'sample')} {what}")
    exit_code = tables.run.get("exit_code")
    broken = bool(num_failed or counts["fail"] or counts["error"] or exit_code not in (None, 0))
    interrupted = tables.run.get("interrupted") or ("the run did not finish" if _unfinished(tables) else None)
    if exit_code not in (None, 0) and not (interrupted or num_failed or counts["fail"] or counts["error"]):
        reasons.append(_what_broke(tables.run) if exit_code == BROKEN else f"pytest ended with exit code {text_of(exit_code)}")
    sentence = "; ".join(reasons)
    if interrupted:
        return "INTERRUPTED", f"{one_line(text_of(interrupted), 200)}; {sentence}"
    if not tables.num_rows:
        return "EMPTY", f"no case was recorded; {sentence}"
    if exit_code == BROKEN and not (num_failed or counts["fail"] or counts["error"]):
        return "BROKEN", sentence
    return ("FAILED" if broken else "PASSED" if gates["passed"] else "FINISHED"), sentence


def _what_broke(run: RunFile) -> str:
    """Return why a run in which no sample failed has no verdict."""
    num = len(items_of(run.get("problems")))
    return "something other than a sample broke" + (f": {plural(num, 'problem')} of the run" if num else "")


def gate_state(gate: GateVerdict) -> Literal["passed", "failed", "not judged", "skipped"]:
    """Return what became of a gate, the same in every report.

    Not judged: its cases did not all run, or all ended in an error. Skipped: it needs a baseline, and none was given.
    """
    if gate.get("asked") is False:
        return "skipped"
    return "passed" if gate.get("passed") is True else "not judged" if gate.get("judged") is False else "failed"


def gate_counts(run: RunFile) -> Counter[str]:
    """Return how many gates of a run passed, failed, were not judged and were skipped."""
    return Counter(map(gate_state, entries_of(run.get("gates"))))


def gate_words(counts: Mapping[str, int]) -> list[str]:
    """Return what became of a run's gates, the same words everywhere: "3 of 10 gates failed", then how many were not judged or skipped.

    Those are none of the ten.
    """
    num_failed, num_judged = counts.get("failed", 0), counts.get("failed", 0) + counts.get("passed", 0)
    which = "the gate" if num_judged == 1 else share_text(num_failed or num_judged, num_judged, "gate")
    words = [f"{which} {'failed' if num_failed else 'passed'}"] if num_judged else []
    others = (("not judged", ""), ("skipped", ", as no baseline was given"))
    return words + [f"{plural(counts[state], 'gate')} {state}{why}" for state, why in others if counts.get(state)]


def is_on_mean(gate: GateVerdict) -> bool:
    """Return whether a gate compares the mean over all cases with a number: not a slice's, nor an interval's end or a difference."""
    return gate.get("threshold") is not None and not any(gate.get(name) for name in ("tag", "end", "measure"))


def _unfinished(tables: RunTables) -> bool:
    """Whether run.json is still the one that was written at the start."""
    return bool(tables.run) and not tables.run.get("finished_at")


def findings(tables: RunTables, *, capitals: bool = False) -> list[str]:
    """Return the caveats of a run, with `capitals` as sentences but for those that begin with a name; empty where there are none."""
    of_rows: tuple[Callable[[RunTables], Iterator[str]], ...] = (
        _coverage, _data, _idle_options, _malformed, _same_answers, _same_checkpoints, _unanswered, _cut_answers, _deviations, _few_cases,
    )  # fmt: skip
    # Three reports show them. Problems of the run may come while those are written; rows are what they are.
    if "findings" not in tables.derived:
        tables.derived["findings"] = [sentence for part in of_rows for sentence in part(tables)]
    caveats = [*_problems(tables), *tables.derived["findings"]]
    if len(caveats) > MAX_FINDINGS:
        left_out = len(caveats) - MAX_FINDINGS
        caveats = [*caveats[:MAX_FINDINGS], f"{left_out} more caveats are left out; report.csv has the counts of every line"]
    return [
        line[0].upper() + line[1:] if capitals and line.startswith(("all ", "both ", "the ", "not run: ")) else line for line in caveats
    ]


def _data(tables: RunTables) -> Iterator[str]:
    """Yield what the loaders of the cases warned of."""
    for entry in entries_of(tables.run.get("evals")):
        for notice in items_of(entry.get("notices")):
            yield one_line(f"{text_of(entry.get('name'))}: {text_of(notice)}", 400)


def _idle_options(tables: RunTables) -> Iterator[str]:
    """Yield the options of the command line that concerned nothing."""
    for sentence in items_of(tables.run.get("idle_options")):
        yield one_line(text_of(sentence), 400)


def _groups(tables: RunTables) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield "eval::test on engine" and the counts of each line of the score table."""
    for (eval_name, test, engine), counts in tables.counts.items():
        yield f"{eval_name}::{test} on {engine}", counts


def _problems(tables: RunTables) -> Iterator[str]:
    yield from tables.notes
    yield from rescored_remarks(tables.run)
    yield from (one_line(text_of(problem), 300) for problem in items_of(tables.run.get("problems")))
    if tables.run.get("rebuilt") is True:
        missing = "aggregates, tables and output files are missing"
        yield f"the run did not finish: this report was made from its journal, no gate passes, and {missing}"
    elif _unfinished(tables):
        yield "the run did not finish: gates, counts and everything else that run.json gets at the end are missing"


def rescored_remarks(run: RunFile) -> Iterator[str]:
    """Yield that a run was scored again, and each way in which its cases or code differ from then; nothing for a live run."""
    origin = mapping(run.get("rescored"))
    if not origin:
        return
    if origin.get("dump"):
        yield one_line(f"scored from the file {text_of(origin['dump'])}: nothing was generated, no test ran and no gate was judged", 300)
        return
    tests = f" with the tests of {text_of(origin['tests'])}" if origin.get("tests") else ""
    when = f" of {text_of(origin['started_at'])}" if origin.get("started_at") else ""
    yield one_line(f"rescored{tests} from run {text_of(origin.get('run_id'))}{when}: no new generations", 300)
    yield from _code_changes(run, origin)
    for eval_name, what, cases, first in rescored_changes(origin):
        named = ", ".join(cases[:NUM_CASES_IN_REMARK]) + (", …" if len(cases) > NUM_CASES_IN_REMARK else "")
        detail = f" ({one_line(first, 150)})" if first else ""
        yield one_line(
            f"{eval_name}: since run {text_of(origin.get('run_id'))}, {plural(len(cases), 'case')}: {what}{detail}: {named}", 400
        )


def _code_changes(run: RunFile, origin: Mapping[str, Any]) -> Iterator[str]:
    now, then = mapping(run.get("git")), mapping(origin.get("git"))
    if now.get("commit") and then.get("commit") and now["commit"] != then["commit"]:
        yield f"the code is at commit {text_of(now['commit'])[:12]} now, and was at {text_of(then['commit'])[:12]} when they were generated"
    versions = mapping(run.get("versions")).get("evalharness"), mapping(origin.get("versions")).get("evalharness")
    if all(versions) and versions[0] != versions[1]:
        yield f"evalharness is {text_of(versions[0])} now, and was {text_of(versions[1])} when they were generated"


def rescored_changes(origin: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str], str]]:
    """Yield eval, what differs, the cases and the first one's detail, for each way in which cases of a rescored run changed."""
    for entry in entries_of(items_of(origin.get("changes"))):
        if cases := items_of(entry.get("cases")):
            yield text_of(entry.get("eval")), text_of(entry.get("what")), list(map(text_of, cases)), text_of(entry.get("first"))


def _coverage(tables: RunTables) -> Iterator[str]:
    evals = entries_of(tables.run.get("evals"))
    if mapping(tables.run.get("baseline")) and evals and not any(_asks_baseline(entry) for entry in evals):
        yield "a baseline was given, but no gate compares with it"
    drawn = how_drawn(tables.run)
    for name, part in part_texts(tables.run).items():
        if name in drawn:
            yield f"stopped when it was certain, after {part}, {drawn[name]}: other scores than its gates' are about these alone"
            continue
        yield f"only part of an eval was selected, {part}: its scores and gates are about these alone"
    for entry in () if "partial" in tables.run else evals:  # of an older version
        name, num_cases = text_of(entry.get("name")), entry.get("num_cases")
        present = tables.num_cases.get(name, 0)
        if isinstance(num_cases, int) and present < num_cases:
            yield f"{name}: {part_of(num_cases - present, num_cases, 'case')} not in this run (deselected, or never collected)"
    counted = [count for count in mapping(tables.run.get("counts")).values() if isinstance(count, int)]
    if counted and sum(counted) != tables.num_rows:
        yield f"run.json counts {plural(sum(counted), 'row')}, samples.jsonl holds {tables.num_rows:,}: the two files do not match"
    if tables.num_duplicates:
        rows = plural(tables.num_duplicates, "duplicate row")
        yield f"{rows} of a case × test × engine that has one already: counted anyway"
    for outcome, count in sorted(tables.unknown_outcomes.items()):
        yield f"{plural(count, 'row')} with the unknown outcome '{outcome}': counted as other, never scored"


def _asks_baseline(entry: EvalEntry) -> bool:
    tests = mapping(entry.get("tests")).values()
    return any(needs_baseline(text_of(gate)) for gates in tests for gate in items_of(gates))


def _malformed(tables: RunTables) -> Iterator[str]:
    for where, counts in _groups(tables):
        failed, judged = counts["malformed"], counts["form_judged"]
        if failed:
            most = ": its other scores may say little" if failed == judged else ": its scores may be mostly about form"
            are = "are" if failed > 1 or failed * 2 >= judged else "is"
            yield f"{share_text(failed, judged, 'answer')} of {where} {are} malformed (valid is 0){most if failed * 2 >= judged else ''}"


def _same_answers(tables: RunTables) -> Iterator[str]:
    for (eval_name, engine), answers in tables.answers.items():
        num_cases, num_texts = (len(set(column)) for column in zip(*answers, strict=True))
        if num_cases >= SAME_TEXT_CASES and num_texts == 1:
            yield f"{engine} gave one and the same answer to all {num_cases:,} cases of {eval_name}"


def _same_checkpoints(tables: RunTables) -> Iterator[str]:
    """Pairs of checkpoints in which every common case got the same answer: most often one checkpoint under two names."""
    checkpoints = tables.checkpoints
    first: dict[tuple[str, frozenset[tuple[str, int]]], str] = {}
    for (eval_name, engine), answers in tables.answers.items():
        by_case = dict(reversed(answers))  # of a case that was answered twice, the first
        if len(set(by_case.values())) < SAME_TEXT_CASES:
            continue  # one answer to everything has its own sentence; so few cases can agree by chance
        other = first.setdefault((eval_name, frozenset(by_case.items())), engine)
        if checkpoints.get(other) != checkpoints.get(engine):
            yield f"{other} and {engine} gave the same answer to every case of {eval_name}: are they the same weights?"


def _unanswered(tables: RunTables) -> Iterator[str]:
    for where, counts in _groups(tables):
        for name, what in (("error", ERRORS), ("invalid", "could not be run (invalid): not counted in any mean")):
            if counts[name]:
                yield f"{share_text(counts[name], counts['cases'], 'case')} of {where} {what}"
    not_run: dict[str, list[ProblemGroup]] = {}
    for group in tables.problems.values():
        if group.problem.startswith(NOT_RUN):
            not_run.setdefault(group.problem.removeprefix(NOT_RUN), []).append(group)
        elif group.outcome == "skip" and not group.problem.startswith(NOT_ASKED):  # a caveat of its own
            yield f"{plural(group.count, 'case')} of {group.eval} on {group.engine} skipped: {group.reason(200)}"
    for reason, groups in not_run.items():
        places = [f"{group.eval} on {group.engine} ({group.count:,})" for group in groups[:NUM_CASES_IN_REMARK]]
        more = f" and {plural(len(groups) - len(places), 'more eval')}" if len(groups) > len(places) else ""
        yield f"not run: {', '.join(places)}{more}: {one_line(reason, 300)}"


def _cut_answers(tables: RunTables) -> Iterator[str]:
    for where, counts in _groups(tables):
        for name, (least, what) in _NOTABLE.items():
            if counts[name] and counts[name] >= least * counts["answered"]:
                yield f"{share_text(counts[name], counts['answered'], 'answer')} of {where} {what}"


def _deviations(tables: RunTables) -> Iterator[str]:
    names = tables.engines.names
    for engine, count in tables.cached.items():
        yield f"{plural(count, 'answer')} of {names[engine]} came from the cache of earlier answers, so their times mean nothing"
    for (engine, backend), count in tables.fallbacks.items():
        yield f"{plural(count, 'answer')} of {names[engine]} came from the fallback backend {backend}, not from the one requested"
    for (engine, option), count in tables.ignored_options.items():
        if option.endswith(" kept as text"):
            continue  # as asked
        first = tables.first_ignored[engine, option]
        cases = f" ({one_line(', '.join(first), 120)}{', …' if count > NUM_CASES_IN_REMARK == len(first) else ''})"
        if option == READ_AS_TOKENS:
            read = f"special tokens in the data of {plural(count, 'answer')}{cases}, {one_line(', '.join(tables.data_tokens[engine]), 120)}"
            yield f"{names[engine]} read {read}; --special-tokens-as-text keeps them text"
        elif option.startswith(_REMARKS):
            yield f"{names[engine]}: {option} in {plural(count, 'answer')}{cases}"
        else:
            yield f"{names[engine]} ignored the option {option} in {plural(count, 'answer')}"
    for entry in entries_of(tables.run.get("engines")):
        if not_taken := items_of(entry.get("options_not_taken")):
            options = ", ".join("--" + text_of(name).replace("_", "-") for name in not_taken)
            yield f"{text_of(entry.get('id'))} was run without {one_line(options, 300)}: its backend does not support it"


def _few_cases(tables: RunTables) -> Iterator[str]:
    for eval_name, count in tables.num_cases.items():
        if count < FEW_CASES:
            yield f"{eval_name} has only {plural(count, 'case')}: scores may differ by chance alone"
