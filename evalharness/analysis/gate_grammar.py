"""The expressions of gates: what they may say, and what was probably meant by one that says something else.

    metric >= 0.9                       a score's mean, an aggregate, a rate that every test has, a quantity of answers, or a speed
    metric[tag=value], metric[tag=*]    of the cases of a slice, or of each slice
    p95(metric), min, max, sum          a statistic of single values in place of their mean
    drop(metric), rise(metric)          how much lower, or higher, the metric is than in the baseline
    low(…), high(…)                     the ends of the 95 % interval of a mean, a rate, a drop or a rise
    no_regression                       nothing is shown to be worse than in the baseline

Knows nothing of rows: `gates.py` judges those of one run, `drop_gates.py` and `judge.py` those against a baseline.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

from evalharness.api.errors import ConfigError, did_you_mean

_OPERATORS: dict[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
}
EACH = "*"
"""In `metric[tag=*]`: each value of the tag, of which the worst decides."""

RATES = ("pass_rate", "invalid_rate", "error_rate", "length_rate", "empty_rate")
"""Shares of cases that every test has."""
_UNPAIRED_RATES = ("invalid_rate", "error_rate")
PAIRED_RATES = tuple(rate for rate in RATES if rate not in _UNPAIRED_RATES)
"""Those that a comparison with another run has."""
QUANTITIES = ("completion_tokens", "prompt_tokens", "total_tokens", "thinking_tokens")
"""Numbers that every answer has; a score of the same name comes before them."""
SPEEDS = ("tokens_per_s", "generation_s", "energy_j", "j_per_token")
"""Numbers that an engine has for the whole run: those of `runs.measured.EngineSpeed`."""
EVERYWHERE = (*RATES, *QUANTITIES, *SPEEDS)
"""Metrics that no test needs to record."""

_ENDS, _CHANGES, _STATISTICS = ("low", "high"), ("drop", "rise"), ("min", "max", "sum")
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,3})?)")
_METRIC = r"[A-Za-z_][\w.@^/-]*"
_EXPRESSION = re.compile(
    rf"\s*(?P<calls>(?:[A-Za-z_][\w.]*\s*\(\s*)*)(?P<metric>{_METRIC})\s*"
    r"(?:\[(?P<tag>[^\[\]=]+)=(?P<value>[^\[\]]*)\]\s*)?(?P<closed>(?:\)\s*)*)"
    r"(?P<comparison>>=|<=|==|>|<)\s*(?P<threshold>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
)
_NO_REGRESSION = re.compile(r"\s*no_regression\s*(?:\(([^()]*)\))?\s*")
_GRAMMAR = (
    f"write 'metric >= number' with one of: {', '.join(_OPERATORS)}; 'metric[tag=value] >= number' for a slice, with '*' for each value of "
    "the tag; 'low(metric) >= number' for the lower end of the interval, 'high(metric)' for the upper; 'p95(metric) <= number', min, max "
    "or sum for single values; 'drop(metric) <= number' or 'rise(metric) <= number' for the difference to --baseline; or 'no_regression' "
    "or 'no_regression(metric, metric)'"
)
_FUNCTIONS = f"there are: {', '.join(_ENDS)}, p1 … p99, {', '.join((*_STATISTICS, *_CHANGES))}"
_WRITTEN = {"=>": ">=", "=<": "<=", "≥": ">=", "≤": "<=", "=": "=="}
_MEANS = ("mean", "avg", "average")
_WRONG_SIGN = re.compile(r"=>|=<|≥|≤|(?<![<>=!])=(?![<>=])")
_IN_BRACKETS = re.compile(r"\[[^\[\]]*\]")
_ADVICE = {
    r"^\s*[\w.]+,[\w-]+\s*[<>=]": "a comma is no part of a name; scores are named as the test records them",
    r"\)\s*\[": "write the slice beside the metric: low(metric[tag=value])",
    r"\]\s*\[": "a slice is of one tag; give the cases a tag that joins both",
    r"\[[^~\[\]]*\]": "name a tag: [tag=value], or [tag=*] for each of its values",
    r"[<>]\s+=": "write >= and <= without a space",
    r"\b(?:and|or)\b|&|[<>=].*[^<>=].*[<>]": "give two conditions as two gates: gate('metric >= 0.5', 'metric <= 0.9')",
    r"%\s*$": "write a share, 0.9 in place of 90%",
    r"\d,\d": "write numbers with a point and without commas, 1000 or 0.9",
    r"^\s*[-+]?\.?\d": "begin with the metric, 'metric >= 0.9'",
}
"""What to do about forms that other languages have, the first that is found."""


@dataclass(frozen=True)
class Gate:
    """One parsed expression with a number."""

    expression: str
    metric: str
    comparison: str
    threshold: float
    end: str = ""
    """"low" or "high": the gate is on this end of the metric's 95 % interval."""
    tag: str = ""
    """The gate is on the cases that have `value` for this tag, or on each value's cases for "*"."""
    value: str = ""
    statistic: str = ""
    """"p95", "min", "max" or "sum" of single values; "" for the mean."""
    change: str = ""
    """"drop" or "rise": the gate is on the difference to the baseline, counted this way."""

    def holds(self, value: float) -> bool:
        """Return whether the value passes."""
        return _OPERATORS[self.comparison](value, self.threshold)

    @property
    def name(self) -> str:
        """The metric's name in a verdict: "valid", "p95(completion_tokens)", "drop(valid)"."""
        function = self.statistic or self.change
        return f"{function}({self.metric})" if function else self.metric

    @property
    def fails_if_shown(self) -> bool:
        """Whether it fails only where the whole interval misses the threshold: of many slices, some would by chance."""
        return (self.end, self.comparison[0]) in (("high", ">"), ("low", "<"))


@dataclass(frozen=True)
class RegressionGate:
    """One parsed `no_regression`; without metrics it covers all of them, and slices."""

    expression: str
    metrics: tuple[str, ...] = ()
    metric: ClassVar[str] = "no_regression"
    """The metric's name in a verdict."""


def parse_gate(expression: object) -> Gate | RegressionGate:
    """Return the gate of an expression; otherwise `ConfigError` with the grammar, or with what is wrong in it."""
    if isinstance(expression, str):
        match = _EXPRESSION.fullmatch(expression)
        if match is not None and match["calls"].count("(") == match["closed"].count(")"):
            return _gate(expression.strip(), match)
        match = _NO_REGRESSION.fullmatch(expression)
        metrics = () if match is None or match[1] is None else tuple(part.strip() for part in match[1].split(","))
        if match is not None and all(re.fullmatch(_METRIC, metric) for metric in metrics):
            return RegressionGate(expression.strip(), metrics)
    raise ConfigError(f"gate {expression!r} is not understood{_meant(expression) or ';'} {_GRAMMAR}")


def needs_baseline(expression: str) -> bool:
    """Return whether a gate compares with the baseline; False for what this version does not understand."""
    try:
        gate = parse_gate(expression)
    except ConfigError:
        return False
    return isinstance(gate, RegressionGate) or bool(gate.change)


def percent_of(statistic: str) -> float | None:
    """Return 95 for "p95", None for a statistic that is no percentile."""
    match = _PERCENTILE.fullmatch(statistic)
    return float(match[1]) if match is not None and 0 < float(match[1]) < 100 else None


def _gate(expression: str, match: re.Match[str]) -> Gate:
    calls = [word.strip() for word in match["calls"].split("(")[:-1]]
    for word in calls:
        if word not in (*_ENDS, *_CHANGES, *_STATISTICS) and percent_of(word) is None:
            if word in _MEANS and len(calls) == 1:
                raise ConfigError(f"gate {expression!r}: a metric is a mean already; write {_without_call(expression)!r}")
            near = did_you_mean("p50" if word == "median" else word, (*_ENDS, *_CHANGES, *_STATISTICS, "p95", "p99", "p90", "p50"))
            raise ConfigError(f"gate {expression!r}: {word}(…) is not a function of gates{near or ';'} {_FUNCTIONS}")
    end = calls.pop(0) if calls and calls[0] in _ENDS else ""
    change = calls.pop(0) if calls and calls[0] in _CHANGES else ""
    statistic = calls.pop(0) if calls and not end and not change and calls[0] not in _ENDS else ""
    if calls:
        raise ConfigError(
            f"gate {expression!r}: {match['calls'].strip()}… cannot be combined; low and high take a metric, a drop or a rise, "
            "and all others a metric alone"
        )
    tag, value = ((match[name] or "").strip() for name in ("tag", "value"))
    gate = Gate(expression, match["metric"], match["comparison"], float(match["threshold"]), end, tag, value, statistic, change)
    if why := _why_impossible(gate):
        raise ConfigError(f"gate {expression!r}: {why}")
    return gate


def _why_impossible(gate: Gate) -> str:
    if not math.isfinite(gate.threshold):
        return "its number is too large for a computer to hold"
    if gate.metric in SPEEDS and (gate.end or gate.tag or gate.statistic or gate.change):
        return f"{gate.metric} is one number of an engine for the whole run, without slices, intervals or differences; compare it alone"
    if gate.metric in RATES and gate.statistic:
        return f"{gate.metric} is a share of cases and has no {gate.statistic}; leave {gate.statistic}( ) out"
    if gate.metric in _UNPAIRED_RATES and gate.change:
        return f"{gate.change} compares cases that both runs judged, which {gate.metric} is not about; compare it with a number"
    return ""


def _without_call(expression: str) -> str:
    return re.sub(r"^\s*\w+\s*\((.*)\)", lambda match: match[1].strip(), expression).strip()


def _meant(expression: object) -> str:
    """Return what was probably meant by another sign, or by a name like `no_regression`; "" where nothing is near."""
    if not isinstance(expression, str):
        return ""
    text = re.sub(r"\[[^=\[\]]+=[^\[\]]*\]", "[~]", expression)  # whose value may be any
    advice = next((advice for form, advice in _ADVICE.items() if re.search(form, text)), None)
    if advice is not None:
        return f": {advice};"
    sign = _WRONG_SIGN.search(_IN_BRACKETS.sub("", expression))
    if sign is not None:
        return f"; did you mean {_WRITTEN[sign[0]]!r} in place of {sign[0]!r}?"
    word = re.match(r"\s*(\w+)\s*(?:\(|$)", expression)
    return "" if word is None or word[1] == "no_regression" else did_you_mean(word[1], ["no_regression"], cutoff=0.75)
