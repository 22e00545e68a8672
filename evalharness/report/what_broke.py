"""What broke, as lines for a terminal: failed gates with value, interval and limit, reasons, and commands that show the worst cases.

Names and texts are escaped; the lines may be wider than the terminal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from evalharness.analysis.statistics.intervals import mean_intervals
from evalharness.report.earlier_run import run_word, show_command
from evalharness.report.findings import gate_state, is_on_mean
from evalharness.report.noise import within_noise
from evalharness.report.tables import COUNTS, ProblemGroup, RunTables
from evalharness.report.text import figure_text, number_text, one_line, plural, terminal_text
from evalharness.report.weak_slices import weak_slices
from evalharness.report.worst import goals, worst_first
from evalharness.runs.schema import GateVerdict, entries_of, mapping, text_of

NUM_SINGLE_GATES = 6
"""Failed gates that get a line each; of more, those of one test and engine share one."""
NUM_GATE_LINES = 12
NUM_PASSED_GATES = 5
NUM_REASONS = 3
NUM_SLICES = 3
NUM_WORST = 3
_NUM_OF_LINE = 3
_REASON_CHARS, _CASES_CHARS = 160, 80
_ORDER = ("error", "fail", "other", "invalid", "miss")
LEGEND = {
    "malformed": "not of the form that the eval asks for (score valid is 0)",
    "length_cap": "ended by the token limit",
    "empty": "an answer without text",
    "unclosed": "thinking that never ends",
    "invalid": "the case could not be asked",
    "miss": "an assertion failed in a test whose gates decide",
    "fail": "an assertion failed in a test without gates",
}
"""What the titles of counts mean; `cut` is the title of `length_cap`."""


def legend(tables: RunTables, names: Sequence[str], titles: Mapping[str, str] = COUNTS) -> str:
    """Return what the counts mean that are not 0 in this run; "" where all are."""
    return "; ".join(f"{titles[name]}: {LEGEND[name]}" for name in names if name in LEGEND and tables.total(name))


def gate_lines(tables: RunTables) -> Iterator[str]:
    """Yield the gates that failed, those that could not be judged, once per reason, skipped ones, then passed ones with their value."""
    by_state: dict[str, list[GateVerdict]] = {}
    for gate in entries_of(tables.run.get("gates")):
        by_state.setdefault(gate_state(gate), []).append(gate)
    failed = by_state.get("failed", [])
    if len(failed) <= NUM_SINGLE_GATES:
        yield from (_single(tables, "GATE FAILED", gate) for gate in failed)
    else:
        yield from _grouped(tables, failed)
    yield from _not_judged(by_state.get("not judged", []))
    for state in ("skipped", "passed"):
        gates = by_state.get(state, [])
        yield from (_single(tables, f"gate {state}", gate) for gate in gates[:NUM_PASSED_GATES])
        if len(gates) > NUM_PASSED_GATES:
            yield f"{plural(len(gates) - NUM_PASSED_GATES, 'more gate')} {state}"


def slice_lines(tables: RunTables) -> Iterator[str]:
    """Yield the slice that lies farthest behind in each test whose gates failed, unless a gate on it has named it."""
    failed = [gate for gate in entries_of(tables.run.get("gates")) if gate_state(gate) == "failed"]
    named = {(*_test_of(gate), gate.get("tag")) for gate in failed}
    weakest = {
        found[:3]: found
        for found in reversed(weak_slices(tables, goals(tables)) if failed else [])
        if (*found[:3], None) in named and (*found[:3], found.tag) not in named
    }
    for found in sorted(weakest.values(), key=lambda found: -found.behind)[:NUM_SLICES]:
        numbers = f"{number_text(found.score.mean)} (n={found.score.n:,}), {number_text(found.mean)} over all cases"
        slice_ = f"{found.tag}={found.value or '(none)'}"
        yield terminal_text(f"weakest slice: {slice_} of {found.eval} on {found.engine}: {found.metric} {numbers}", 300)


def _test_of(gate: GateVerdict) -> tuple[str, str, str]:
    return text_of(gate.get("eval")), text_of(gate.get("test")), text_of(gate.get("engine"))


def _place(gate: GateVerdict) -> str:
    return f"{text_of(gate.get('eval'))}::{text_of(gate.get('test'))} on {text_of(gate.get('engine'))}"


def _single(tables: RunTables, mark: str, gate: GateVerdict) -> str:
    reason = _with_interval(tables, gate) or _what_it_is(gate)
    return terminal_text(f"{mark}: {text_of(gate.get('expression'))} ({_place(gate)}): {reason}", 600)


def _grouped(tables: RunTables, gates: Sequence[GateVerdict]) -> Iterator[str]:
    places: dict[str, list[GateVerdict]] = {}
    for gate in gates:
        places.setdefault(_place(gate), []).append(gate)
    for place, of_place in islice(places.items(), NUM_GATE_LINES):
        texts = [f"{text_of(gate.get('metric'))} {_with_interval(tables, gate)}" for gate in of_place[:_NUM_OF_LINE]]
        if len(of_place) > _NUM_OF_LINE:
            texts.append(f"and {len(of_place) - _NUM_OF_LINE} more")
        yield terminal_text(f"{'GATE' if len(of_place) == 1 else 'GATES'} FAILED: {place}: {'; '.join(texts)}", 600)
    left = [gate for of_place in islice(places.values(), NUM_GATE_LINES, None) for gate in of_place]
    if left:
        yield f"{plural(len(left), 'more gate')} FAILED: see report.md"


def not_judged(gates: Iterable[GateVerdict]) -> dict[str, list[GateVerdict]]:
    """Return the gates that were not judged by their reason; how many cases did not run is not part of it."""
    reasons: dict[str, list[GateVerdict]] = {}
    for gate in gates:
        reason = text_of(gate.get("reason")).removeprefix("not judged: ")
        what, ended, _ = reason.partition(" ended in an error")  # the reasons of errors have lines of their own
        reasons.setdefault("not all cases ran" if " cases were not run (" in reason else what + ended, []).append(gate)
    return reasons


def _not_judged(gates: Sequence[GateVerdict]) -> Iterator[str]:
    for reason, of_reason in not_judged(gates).items():
        where = f"{text_of(of_reason[0].get('expression'))} ({_place(of_reason[0])})" if len(of_reason) == 1 else ""
        yield terminal_text(f"{where or plural(len(of_reason), 'gate')} not judged: {one_line(reason, 300)}", 600)


def _with_interval(tables: RunTables, gate: GateVerdict) -> str:
    """Return why a gate did not pass; after the value the interval of what it is the mean of."""
    reason = one_line(text_of(gate.get("reason")), 400)
    value, needs, limit = reason.partition(", needs ")
    return f"{value}{_interval(tables, gate)}{needs}{limit}" if needs and is_on_mean(gate) else reason


def _interval(tables: RunTables, gate: GateVerdict) -> str:
    place = _test_of(gate)
    metric = text_of(gate.get("metric"))
    summary = tables.scores.get((*place, metric))
    low, high = (summary.low, summary.high) if summary is not None else (float("nan"),) * 2
    if summary is None and metric == "pass_rate":
        low, high = _of_pass_rate(tables, place)
    return f" [{figure_text(low, metric)} … {figure_text(high, metric)}]" if low == low else ""


def _of_pass_rate(tables: RunTables, place: tuple[str, ...]) -> tuple[float, float]:
    known = tables.evals.names, tables.tests.names, tables.engines.names
    codes = tuple(names.index(name) if name in names else -1 for names, name in zip(known, place, strict=True))
    judged = [
        (float(outcome == "pass"), group)
        for key, outcome, group in zip(tables.row_keys, tables.outcomes, tables.groups, strict=True)
        if key == codes and outcome in ("pass", "miss", "fail")
    ]
    if not judged:
        return float("nan"), float("nan")
    passed, groups = zip(*judged, strict=True)
    interval = mean_intervals(np.array(passed)[:, None], groups, is_rate=[True], is_bounded=[True])[0]
    return float(interval[0]), float(interval[1])


def _what_it_is(gate: GateVerdict) -> str:
    value, baseline = gate.get("value"), gate.get("baseline")
    noise = within_noise(gate)
    if baseline is None:
        return noise or figure_text(value, text_of(gate.get("metric")))
    if gate.get("measure"):  # a drop, which is a number of its own
        return f"{number_text(value)} against {one_line(text_of(baseline), 100)}{f'; {noise}' if noise else ''}"
    if proved := text_of(mapping(gate.get("certain")).get("proved")):
        return one_line(proved, 300)
    changed = "" if value is None else f", changed by {number_text(value)}"
    unseen = gate.get("could_have_shown")
    size = f"; a difference of {number_text(unseen)} could have gone unseen" if isinstance(unseen, float) else ""
    return f"no regression shown against {one_line(text_of(baseline), 100)}{changed}{size}{f'; {noise}' if noise else ''}"


def reason_groups(tables: RunTables) -> list[ProblemGroup]:
    """Return why cases did not pass, errors first, then by how many; those that did not run left out."""
    groups = [group for group in tables.problems.values() if group.outcome in _ORDER]
    return sorted(groups, key=lambda group: (group.outcome not in ("error", "fail"), -group.count, _ORDER.index(group.outcome)))


def reason_lines(tables: RunTables) -> Iterator[str]:
    """Yield the first reasons with their number of cases and their first ones."""
    groups = reason_groups(tables)
    for group in groups[:NUM_REASONS]:
        cases = _first_cases(group)
        what = plural(group.count, "error") if group.outcome == "error" else f"{group.count:,} {group.outcome}"
        where = terminal_text(f"{group.eval} on {group.engine}", 120)
        yield f"{what}: {group.reason(_REASON_CHARS)} ({where}: {cases})"
    if len(groups) > NUM_REASONS:
        num_cases = sum(group.count for group in groups[NUM_REASONS:])
        yield f"{plural(len(groups) - NUM_REASONS, 'more reason')} for {plural(num_cases, 'case')} in report.md"


def _first_cases(group: ProblemGroup) -> str:
    """Return the first case ids, as many as are short enough."""
    shown: list[str] = []
    for case_id in group.case_ids:
        if shown and len(", ".join([*shown, case_id])) > _CASES_CHARS:
            break
        shown.append(terminal_text(case_id, _CASES_CHARS))
    return ", ".join([*shown, "…"] if group.count > len(shown) else shown)


def worst_rows(tables: RunTables, most: int = NUM_WORST) -> list[int]:
    """Return the numbers of the worst rows that were judged and did not pass: one of each reason, then others, no case twice."""
    rows = [row for row in worst_first(tables) if tables.outcomes[row] in ("fail", "miss")]
    first: dict[int, int] = {}
    for row in rows:
        first.setdefault(tables.row_problems[row], row)
    chosen: dict[str, int] = {}
    for row in (*first.values(), *rows):
        chosen.setdefault(tables.case_ids[row], row)
    return list(chosen.values())[:most]


def worst_lines(tables: RunTables) -> Iterator[str]:
    """Yield the commands that show the worst cases."""
    run = run_word(tables.run, tables.run_dir)
    rows = worst_rows(tables)
    title = "worst case: " if len(rows) == 1 else "worst cases: "
    for number, row in enumerate(rows):
        command = show_command(run, tables.case_ids[row])
        yield f"{title if number == 0 else ' ' * len(title)}{terminal_text(command, 300)}"
