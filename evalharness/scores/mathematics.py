"""Whether two mathematical answers are the same, by math_verify (https://github.com/huggingface/Math-Verify), in a process of its own.

math_verify reads LaTeX and computes with it, and answers may be such as `9^{9^{9^9}}`: its own limit of 5 s is a signal of the main thread,
which no whole number heeds. Here the process ends after `LIMIT_S` of processor time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from evalharness.answers.bounded import BoundedFunction, OutOfBounds
from evalharness.api.errors import MissingDependency
from evalharness.api.installing import install_command
from evalharness.scores.references import texts_of

LIMIT_S = 30.0
"""Processor time of one comparison: math_verify itself gives each reading and each pair 5 s."""
_compare = BoundedFunction("evalharness.scores.mathematics_process:compare", limit_s=LIMIT_S)


@dataclass(frozen=True)
class MathVerdict:
    """Whether an answer equals the reference; `problem` says why it could not be told, "" where it could."""

    equal: bool
    problem: str = ""

    def __bool__(self) -> bool:
        return self.equal

    def __float__(self) -> float:
        return float(self.equal)


def math_verify(text: str | None, reference: str | Sequence[str]) -> MathVerdict:
    r"""Return what math_verify says of a whole text and a reference, as lm-eval's MATH tasks ask: its last box, formula or number counts.

    A reference is read likewise, so it needs marks: `\boxed{x+1}` or `$x+1$`; of a bare `x+1` it reads the 1. Raises `MissingDependency`.
    """
    return _verdict(text, reference, is_answer=False)


def math_equal(answer: str | None, reference: str | Sequence[str]) -> MathVerdict:
    r"""Return whether an answer, such as `boxed()` gives, equals the reference, or one of several: as text, else by math_verify.

    Both are read as one formula each, with marks or without: `x+1`, `\frac12`, `(3,4)`, `Evelyn`. Raises `MissingDependency`.
    """
    return _verdict(answer, reference, is_answer=True)


def _verdict(text: str | None, reference: str | Sequence[str], *, is_answer: bool) -> MathVerdict:
    if find_spec("math_verify") is None:
        raise MissingDependency(f"this score needs math_verify, which is not installed; {install_command('metrics')}")
    text, references = texts_of(text, reference)
    if text is None:
        return MathVerdict(False, "nothing found")
    try:
        return MathVerdict(*_compare(text, list(references), is_answer))
    except OutOfBounds as bounds:
        return MathVerdict(False, f"given up: it took {bounds}")
