"""Judges the gates of a run; above all "no_regression": this run's rows of one test and one engine against a baseline.

It passes if the comparison shows no regression, neither over all cases nor in a slice; its verdict states the smallest detectable
difference. It fails, with the reason, if the baseline is absent, unreadable or of another kind, or if too few cases could be paired to show
a difference. Without --baseline it is skipped. Knows nothing about pytest; loads numpy when it judges.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from evalharness.analysis.gate_flips import flips_of_comparison, flips_of_threshold
from evalharness.analysis.gate_grammar import Gate, RegressionGate, parse_gate
from evalharness.analysis.gates import Floor
from evalharness.analysis.noise import noises_of
from evalharness.analysis.reasons import normalised, shared_reason
from evalharness.analysis.slice_gates import judge_gate
from evalharness.analysis.speed_gates import is_on_speed, judge_speed
from evalharness.api.checks import first_names
from evalharness.api.errors import BaselineError, EvalHarnessError, RecordError, did_you_mean
from evalharness.api.wording import number_text, part_of, plural
from evalharness.runs.measured import EngineSpeed, NoiseFacts
from evalharness.runs.partial import parts_of_evals, was_left_out
from evalharness.runs.run_file import LATEST, find_latest, is_latest, read_run
from evalharness.runs.samples import ENDED, NOT_RUN, count_outcomes, eval_entries
from evalharness.runs.schema import Aggregate, EngineEntry, EvalLine, GateVerdict, Row, RunFile

if TYPE_CHECKING:
    from evalharness.analysis.comparison.compare import Comparison, MetricChange
    from evalharness.analysis.comparison.pairing import Coverage
    from evalharness.analysis.comparison.sheets import Side
    from evalharness.analysis.statistics.noise import Noise
    from evalharness.runs.records import RunRecords

BASELINE_FOLDER = "baselines"
_MOST_SHOWN = 3
_MAX_REASON_CHARS = 300


def find_baseline(wanted: str, *, root: Path, base: Path, report_dir: Path) -> Path:
    """Return the file or run directory that --baseline names; only for `latest`, `latest~1`, … is its existence checked.

    A plain name means `baselines/NAME.json` below `root`; a value with a slash or ending in .json is a path, relative to `base`. `latest`
    counts in `report_dir`. Raises `BaselineError` if it has no such run.
    """
    if is_latest(wanted):
        try:
            return find_latest(wanted, report_dir, whole=True)
        except RecordError as error:
            raise BaselineError(f"{error}, or run once without --baseline") from None
    is_path = "/" in wanted or "\\" in wanted or wanted.endswith(".json")
    return base / wanted if is_path else root / BASELINE_FOLDER / f"{wanted}.json"


def why_absent(baseline: Path) -> str:
    """Return what to say of a baseline that does not exist: what was probably meant, which there are, and how to make it."""
    there = sorted(path.stem for path in baseline.parent.glob("*.json"))
    known = f"; there are: {first_names(there, 10)}" if there else ""
    meant = did_you_mean(baseline.stem, [*there, LATEST]).rstrip("?")
    return f"baseline {baseline} does not exist{meant}{known}; create it with: evalharness bless RUN_DIR {baseline.stem}"


def check_baseline(baseline: Path) -> None:
    """Raise `BaselineError` or `RecordError` for a baseline that does not exist or cannot be read. Of a run only run.json is read."""
    from evalharness.analysis.comparison.sides import read_baseline

    if not baseline.exists():
        raise BaselineError(why_absent(baseline))
    if baseline.is_file():
        read_baseline(baseline)
    else:
        read_run(baseline)


def _verdict(gate: Gate | RegressionGate, n: int, *, passed: bool | None, reason: str) -> GateVerdict:
    """Return a verdict; `passed` is None for a gate without a baseline, which neither passes nor fails."""
    return {
        "expression": gate.expression,
        "metric": gate.name if isinstance(gate, Gate) else gate.metric,
        "value": None,
        "threshold": None,
        "n": n,
        "passed": passed,
        "asked": passed is not None,
        "reason": reason,
    }


class RegressionJudge:
    """Judges the gates of a run against one baseline; `run` holds run.json's engines, evals, versions and options.

    `anyway`: a baseline that was asked or judged otherwise is taken all the same, with a note. `num_gates`: how many such gates the run
    has, which share one chance of a false alarm by noise, where that was measured. `margin`: that of --until-certain.
    """

    def __init__(
        self,
        baseline: Path | None,
        run: RunFile,
        problem: str | None = None,
        *,
        anyway: bool = False,
        num_gates: int = 1,
        margin: float | None = None,
    ) -> None:
        self._baseline = baseline
        self._num_gates = num_gates
        self._run = run
        self._problem = problem
        self._anyway = anyway
        self._margin = margin
        self._side = cache(self._read)

    def __call__(
        self,
        gate: Gate | RegressionGate,
        engine: str,
        rows: Sequence[Row],
        incomplete: str | None,
        aggregates: Mapping[str, float] = MappingProxyType({}),
    ) -> GateVerdict:
        """Return the verdict of one gate over the rows of one test on one engine; `incomplete` says why rows are missing.

        Of gates on a number it judges those on a difference, and those of a run that left cases out. `aggregates`: the test's.
        """
        if isinstance(gate, Gate) and gate.change and not any(map(was_left_out, rows)):
            return self._judge_change(gate, engine, rows, incomplete, aggregates)
        if isinstance(gate, Gate):
            from evalharness.analysis.judge_certain import judged_by_limits

            return judged_by_limits(gate, self._side(engine), self._run, rows)
        if incomplete is not None:
            return _verdict(gate, len(rows), passed=False, reason=f"not judged: {incomplete}")
        base = self._side(engine)
        if isinstance(base, str):
            return _verdict(gate, len(rows), passed=False, reason=base)
        from evalharness.analysis.certainty import END_LEVEL
        from evalharness.analysis.comparison.compare import compare
        from evalharness.analysis.comparison.sides import side_of_rows
        from evalharness.analysis.judge_certain import judged_by_proof, paired_test
        from evalharness.analysis.statistics.paired import LEVEL

        candidate = side_of_rows(self._run, engine, (row for row in rows if not was_left_out(row)))
        # A gate is about its own test: that the baseline has others is no news.
        common = {key: sheet for key, sheet in base.sheets.items() if key in candidate.sheets}
        base = replace(base, sheets=common or base.sheets)
        test = None if self._margin is None else paired_test(base, self._run, rows, gate.metrics, self._margin)
        try:
            level = LEVEL if test is None else END_LEVEL
            families, go_on = self._num_gates, "accept it anyway with --accept-changes"
            comparison = compare(base, candidate, only=gate.metrics, anyway=self._anyway, go_on=go_on, num_families=families, level=level)
        except EvalHarnessError as error:
            return {**_verdict(gate, len(rows), passed=False, reason=str(error)), "baseline": base.label}
        if test is None or self._margin is None:
            return _judged(gate, comparison, len(rows), families)
        whole = _judged(gate, comparison, len(rows) - sum(map(was_left_out, rows)), families)
        return judged_by_proof(gate, whole, _refusal(gate, comparison), comparison.base.label, rows, test)

    def _judge_change(
        self, gate: Gate, engine: str, rows: Sequence[Row], incomplete: str | None, aggregates: Mapping[str, float]
    ) -> GateVerdict:
        from evalharness.analysis.comparison.sides import side_of_rows
        from evalharness.analysis.drop_gates import judge_change

        base = self._side(engine)
        why = f"not judged: {incomplete}" if incomplete is not None else base if isinstance(base, str) else ""
        if isinstance(base, str) or why:
            return {**_verdict(gate, len(rows), passed=False, reason=why), "measure": gate.change}
        return judge_change(gate, base, side_of_rows(self._run, engine, rows), aggregates, anyway=self._anyway)

    def _read(self, engine: str) -> Side | str:
        """Return the baseline's side for an engine, or why there is none."""
        from evalharness.analysis.comparison.sides import read_side

        if self._baseline is None:
            return self._problem or "there is no baseline"
        if not self._baseline.exists():
            return why_absent(self._baseline)
        try:
            return read_side(str(self._baseline), prefer=engine)
        except EvalHarnessError as error:
            return str(error)


def _judged(gate: RegressionGate, comparison: Comparison, num_rows: int, num_gates: int) -> GateVerdict:
    refusal = _refusal(gate, comparison)
    reason = refusal or _regressions(comparison)
    value = comparison.metrics[0].change.difference if len(gate.metrics) == 1 and comparison.metrics else None
    num_paired = comparison.coverage[0].num_paired
    notes = [difference.text for difference in comparison.differences]
    unseen = max((change.detectable for change in comparison.metrics if change.detectable == change.detectable), default=None)
    more: GateVerdict = {"baseline": comparison.base.label, "notes": notes, "could_have_shown": unseen, "value": value}
    if comparison.has_noise:
        floors = [change.floor for change in comparison.metrics if change.floor == change.floor]
        more |= {"floor": max(floors, default=0.0), "within_noise": _within_noise(comparison)}
        more |= {} if refusal else flips_of_comparison(comparison, num_gates, passed=not reason)
    return {**_verdict(gate, num_paired or num_rows, passed=not reason, reason=reason), **more}


def _within_noise(comparison: Comparison) -> list[str]:
    """Return the differences that the paired test shows, but two runs of one checkpoint might, too; the largest first."""
    from evalharness.analysis.comparison.compare import WITHIN_NOISE
    from evalharness.analysis.statistics.paired import LEVEL

    changes = [change for change in (*comparison.metrics, *comparison.slices) if change.verdict == WITHIN_NOISE]
    shown = sorted((change for change in changes if change.p_corrected <= LEVEL), key=lambda change: -abs(change.change.difference))
    return [f"{_shown(change)} is within noise: two runs of one checkpoint differ by up to {number_text(change.floor)}" for change in shown]


def _refusal(gate: RegressionGate, comparison: Comparison) -> str:
    """Return why the comparison is too weak for a verdict, "" if it is not."""
    template = next((difference.text for difference in comparison.differences if difference.field == "chat template"), None)
    if template is not None:
        return f"the baseline cannot be compared: {template}; bless a run with this template"
    known = {change.metric for change in comparison.metrics} | {change.slice_key for change in comparison.slices}
    num_groups = max((change.change.num_groups for change in comparison.metrics), default=0)
    return too_weak(gate, comparison.candidate, comparison.coverage[0], known, num_groups, comparison.num_tests)


def too_weak(gate: RegressionGate, candidate: Side, coverage: Coverage, known: Collection[str], num_groups: int, num_tests: int) -> str:
    """Return why so many paired cases and groups, which have the `known` metrics, are too few for a verdict, "" if they are not."""
    from evalharness.analysis.statistics.paired import LEVEL, smallest_p

    num_asked = len(candidate.sheets[coverage.eval, coverage.test].cases)
    if 2 * coverage.num_paired < num_asked:
        return f"only {part_of(coverage.num_paired, num_asked, 'case')} could be paired with the baseline"
    missing = [name for name in gate.metrics if name not in known]
    if missing:
        return f"no case has {', '.join(map(repr, missing))} on both sides"
    if smallest_p(num_groups) > LEVEL / num_tests:
        return f"{plural(num_groups, 'group')} of cases cannot show any difference"
    return ""


def _regressions(comparison: Comparison) -> str:
    """Return the regressions as text, largest first; "" for none."""
    from evalharness.analysis.comparison.compare import REGRESSED

    regressed = [change for change in (*comparison.metrics, *comparison.slices) if change.verdict == REGRESSED]
    if not regressed:
        return ""
    regressed.sort(key=lambda change: -abs(change.change.difference))
    overall = [change for change in regressed if not change.slice_key]
    sliced = [change for change in regressed if change.slice_key]
    shown = [*overall[:_MOST_SHOWN], *sliced[:_MOST_SHOWN]]
    more = f" and {len(regressed) - len(shown)} more" if len(regressed) > len(shown) else ""
    return f"regressed against {comparison.base.label}: {', '.join(map(_shown, shown))}{more}"


def _shown(change: MetricChange) -> str:
    where = f" in {change.slice_key} {change.slice_value}" if change.slice_key else ""
    base, candidate = change.change.base, change.change.candidate
    shown = [number_text(value) for value in (base, candidate)]
    if shown[0] == shown[1]:
        shown = [f"{value:.6f}" for value in (base, candidate)]
    return f"{change.metric}{where} {' → '.join(shown)}"


JudgeRegression: TypeAlias = "Callable[[Gate | RegressionGate, str, Sequence[Row], str | None, Mapping[str, float]], GateVerdict]"


def judge_gates(
    evals: Mapping[str, EvalLine],
    rows: Iterable[Row],
    aggregates: Iterable[Aggregate],
    *,
    interrupted: str | None,
    unfinished: str | None = None,
    no_regression: JudgeRegression | None = None,
    noise: NoiseFacts | None = None,
    speeds: Iterable[EngineSpeed] = (),
) -> list[GateVerdict]:
    """Return the verdict of every gate. None is judged, and so none passes, on a test with cases that did not run or that all ended in an
    error, or if the run is `unfinished`.

    `no_regression` judges against a baseline; without one such a gate is skipped. `noise`: what the run's repeats say. `speeds`: those of
    the run's engines, where they are known.
    """
    speed_of = {speed["engine"]: speed for speed in speeds}
    by_test: dict[str, dict[str, dict[str, list[Row]]]] = {}
    for row in rows:
        by_test.setdefault(row["eval"], {}).setdefault(row["engine"], {}).setdefault(row["test"], []).append(row)
    extras: defaultdict[tuple[str, str, str], dict[str, float]] = defaultdict(dict)
    ends: defaultdict[tuple[str, str, str], dict[str, tuple[float, float]]] = defaultdict(dict)
    for entry in aggregates:
        places, metric = [(entry["eval"], entry["engine"], entry["test"])], entry["metric"]
        if "members" in entry:  # of a suite: for the gates of all its tests
            metric = f"{entry['eval']}.{metric}"
            places = [(name, entry["engine"], test) for name in entry["members"] for test in by_test.get(name, {}).get(entry["engine"], {})]
        for place in places:
            extras[place][metric] = entry["value"]
            if "low" in entry and "high" in entry:
                ends[place][metric] = entry["low"], entry["high"]
    verdicts: list[GateVerdict] = []
    for evaluation in evals.values():
        name = evaluation["name"]
        for engine, tests in by_test.get(name, {}).items():
            noises = noises_of(noise["measured"], engine) if noise else {}
            for test, expressions in evaluation["tests"].items():
                case_rows = tests.get(test, [])
                incomplete = _not_run(case_rows, interrupted) or unfinished
                left_out = sum(map(was_left_out, case_rows))
                for expression in expressions if case_rows else ():
                    gate = parse_gate(expression)
                    extra = extras[name, engine, test]
                    if isinstance(gate, Gate) and is_on_speed(gate, case_rows, extra):
                        verdict = judge_speed(gate, case_rows, speed_of.get(engine), incomplete)
                    elif isinstance(gate, Gate) and not gate.change and not (left_out and no_regression):
                        test_rows = [row for by_engine in by_test[name].values() for row in by_engine.get(test, ())] if gate.end else ()
                        of_metric = noises.get((name, test, gate.metric))
                        floor = _floor(of_metric)
                        within = ends[name, engine, test]
                        verdict = judge_gate(gate, case_rows, extra, incomplete=incomplete, test_rows=test_rows, floor=floor, ends=within)
                        verdict = {**verdict, **flips_of_threshold(gate, verdict, of_metric)}
                    elif no_regression is not None:
                        verdict = no_regression(gate, engine, case_rows, incomplete, extra)
                    elif unfinished:
                        verdict = _verdict(gate, len(case_rows), passed=False, reason=f"not judged: {unfinished}")
                    else:
                        verdict = _verdict(gate, len(case_rows), passed=None, reason="no baseline (use --baseline NAME)")
                    why = incomplete or (_all_errors(case_rows) if gate.metric != "error_rate" else None)
                    if why is not None and verdict["passed"] is not None:
                        verdict = {**verdict, "passed": False, "judged": False, "reason": f"not judged: {why}"}
                    verdicts.append({"eval": name, "test": test, "engine": engine, **verdict})
    return verdicts


def _floor(noise: Noise | None) -> Floor | None:
    """Return the floor of one run's metric by its rows; None where its noise is not known."""
    if noise is None:
        return None
    from evalharness.analysis.statistics.noise import floor_of

    return lambda rows: floor_of([noise], len(rows), len({row.get("group") or number for number, row in enumerate(rows)}))


def num_regression_gates(evals: Mapping[str, EvalLine], rows: Iterable[Row]) -> int:
    """Return how many gates `no_regression` are judged, each test's on each engine; at least 1."""
    gates = {
        (evaluation["name"], test): sum(not isinstance(parse_gate(expression), Gate) for expression in expressions)
        for evaluation in evals.values()
        for test, expressions in evaluation["tests"].items()
    }
    tests = {(row["eval"], row["test"], row["engine"]) for row in rows}
    return max(1, sum(gates.get((name, test), 0) for name, test, _ in tests))


def _not_run(rows: Sequence[Row], interrupted: str | None) -> str | None:
    missing = [row for row in rows if row["outcome"] == "skip" and row["started_at"] is None and not was_left_out(row)]
    if not missing:
        return None
    own = {(row.get("problem") or "").removeprefix(NOT_RUN) for row in missing} - {"", interrupted, ENDED}  # a test that ended early
    why = min(own, default=interrupted or "the session ended before them")
    return f"{part_of(len(missing), len(rows), 'case')} {'was' if len(rows) == 1 else 'were'} not run ({why})"


def _all_errors(rows: Sequence[Row]) -> str | None:
    """Return why nothing can be said of a test whose cases all ended in an error; None if some did not."""
    ran = [row for row in rows if row["outcome"] != "skip"]
    if not ran or any(row["outcome"] != "error" for row in ran):
        return None
    reasons: dict[str, list[str]] = {}
    for row in ran:
        reasons.setdefault(normalised(row["problem"] or "", (row["case_id"], row.get("group"))), []).append(row["problem"] or "")
    common, texts = max(reasons.items(), key=lambda item: len(item[1]))
    reason = shared_reason(texts[0], common, any(text != texts[0] for text in texts), _MAX_REASON_CHARS)
    cases = f"all {len(ran):,} cases" if len(ran) > 1 else "the only case"
    return f"{cases} ended in an error{'' if len(reasons) == 1 else ', most of them'}: {reason}"


def judged_run(
    records: RunRecords,
    rows: Sequence[Row],
    engines: Sequence[EngineEntry],
    *,
    interrupted: str | None,
    unfinished: str | None = None,
    aggregates: Sequence[Aggregate] = (),
    no_regression: JudgeRegression | None = None,
    noise: NoiseFacts | None = None,
    speeds: Sequence[EngineSpeed] = (),
) -> RunFile:
    """Return run.json's engines, evals, what it has only a part of, gates, outcomes and noise of a run; see `judge_gates`."""
    told: Any = {"interrupted": interrupted, "unfinished": unfinished, "no_regression": no_regression, "noise": noise, "speeds": speeds}
    gates = judge_gates(records.evals, rows, aggregates, **told)
    own: RunFile = {"noise": noise} if noise else {}
    parts = parts_of_evals(records.evals.values(), rows)
    return {
        "engines": list(engines),
        "evals": eval_entries(records, rows),
        "partial": parts,
        "gates": gates,
        "counts": count_outcomes(rows),
        **own,
    }
