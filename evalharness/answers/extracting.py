"""What an extractor is and gives, and chains of them.

An extractor is a pure function of a text with a name. `extractor(text)` gives `Extracted`: the value, None where nothing was found, and
the text after each step. A text of white space only is nothing, too. Nothing is guessed, and no text makes an extractor raise.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from evalharness.api.checks import check_text, excerpt, plain_number, shown
from evalharness.api.errors import ContractTypeError, ContractValueError

T = TypeVar("T")
MAX_STEP_CHARS = 1000
"""Of a step's text that details keep; the whole text is in the row already."""


@dataclass(frozen=True)
class Extracted:
    """What was found: `value`, None for nothing; `steps`: each step's name and the text after it, None where it found nothing."""

    value: str | None
    steps: tuple[tuple[str, str | None], ...]

    def to_json(self) -> dict[str, Any]:
        """Return plain data for `details`; long texts are cut, and the cut is visible."""
        steps = [[name, text if text is None else excerpt(text, MAX_STEP_CHARS, count_rest=True)] for name, text in self.steps]
        return {"answer": self.value if self.value is None else excerpt(self.value, MAX_STEP_CHARS, count_rest=True), "steps": steps}


@dataclass(frozen=True)
class Extractor:
    """A named function from a text to what it finds there; `parts` are the steps of a chain."""

    name: str
    find: Callable[[str], str | None]
    parts: tuple[Extractor, ...] = ()

    def __call__(self, text: str) -> Extracted:
        return _run(self.parts or (self,), text)


def _run(parts: Sequence[Extractor], text: str) -> Extracted:
    check_text("the text of an extractor", text)
    steps: list[tuple[str, str | None]] = []
    for part in parts:
        found = part.find(text)
        check_text(f"what {part.name} returns", found, optional=True)
        if found is None or not found.strip():
            return Extracted(None, (*steps, (part.name, None)))
        steps.append((part.name, found))
        text = found
    return Extracted(text, tuple(steps))


def chain(*steps: Extractor | Callable[[str], str | None]) -> Extractor:
    """Return the extractor that hands the text from step to step; where one finds nothing, the chain does not.

    A step may be a plain function from a text to a text or None, such as `str.lower`.
    """
    if not steps:
        raise ContractValueError("chain() needs at least one step, such as chain(strip_thinking(), last_number())")
    parts: list[Extractor] = []
    for step in steps:
        extractor = _extractor_of(step)
        parts += extractor.parts or (extractor,)
    return Extractor(" > ".join(part.name for part in parts), lambda text: _run(parts, text).value, tuple(parts))


def _extractor_of(step: Extractor | Callable[[str], str | None]) -> Extractor:
    if isinstance(step, Extractor):
        return step
    name = getattr(step, "__name__", type(step).__name__)
    if getattr(step, "__module__", "") == "evalharness.answers.extractors" or name == "choice_letter":
        raise ContractTypeError(f"{name} makes an extractor, and is none itself: write {name}(…), with parentheses")
    if not callable(step):
        raise ContractTypeError(f"an extractor, or a function of a text, is wanted, got {step!r}")
    return Extractor(name, step)


def last_of(values: Iterable[T]) -> T | None:
    """Return the last of them, None where there is none; keeps no others."""
    return next(iter(deque(values, maxlen=1)), None)


def _number(value: Any, metric: str) -> float:
    number = plain_number(value)
    if not isinstance(number, (bool, int, float)):
        hint = "; give its .equal" if hasattr(value, "equal") else ""
        raise ContractTypeError(f"metric {metric!r} must return a number or a truth value, got {shown(value)}{hint}")
    return float(number)


@dataclass(frozen=True)
class Filtered:
    """What several filters found in one text: scores, details for the row, and by filter the answer, None where it found nothing."""

    scores: dict[str, float]
    details: dict[str, Any]
    answers: dict[str, str | None]


def by_filter(text: str, filters: Mapping[str, Extractor | Callable[[str], str | None]], /, **metrics: Callable[[str], float]) -> Filtered:
    """Return the scores of a text by several filters side by side: `<metric>_<filter>` and `not_found_<filter>`, 1 where it found nothing.

    Each metric is a function of the value that was found; nothing found scores 0, and the metric is not asked. `details` holds the
    answer and the steps of each filter under "filters".
    """
    scores: dict[str, float] = {}
    if not isinstance(filters, Mapping):
        raise ContractTypeError(f"filters must be a mapping of names to extractors, such as {{'strict': boxed()}}, got {filters!r}")
    found = {name: _extractor_of(extract)(text) for name, extract in filters.items()}
    for name, extracted in found.items():
        answer = extracted.value
        for metric, judge in metrics.items():
            scores[f"{metric}_{name}"] = 0.0 if answer is None else _number(judge(answer), metric)
        scores[f"not_found_{name}"] = float(answer is None)
    details = {"filters": {name: extracted.to_json() for name, extracted in found.items()}}
    return Filtered(scores, details, {name: extracted.value for name, extracted in found.items()})
