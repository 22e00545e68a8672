"""Mathematics by math_verify: equal to it per pair, and bounded on hostile answers."""

from __future__ import annotations

import threading
import time

import pytest

from evalharness.answers.bounded import BoundedFunction
from evalharness.api.errors import MissingDependency
from evalharness.scores import MathVerdict, mathematics
from evalharness.scores.mathematics import math_equal, math_verify

pytestmark = pytest.mark.slow  # sympy takes seconds to import, here and in the other process

TEXTS = [
    r"so it is $\boxed{\frac{1}{2}}$", "The answer is 0.5.", r"$\frac12$ or $x=3$", "x^2+1", "$1+x^2$", "", r"$(3,4)$", r"$10\%$", "1,000",
    "Final Answer: The final answer is $5$. I hope",
]  # fmt: skip


def test_each_verdict_is_that_of_math_verify() -> None:
    from math_verify import parse, verify

    for reference in TEXTS:
        for text in TEXTS:
            assert math_verify(text, reference).equal is verify(gold=parse(reference), target=parse(text)), (reference, text)


@pytest.mark.parametrize(
    ("answer", "reference", "verdict"),
    [
        ("1+x^2", "x^2+1", MathVerdict(True)),
        ("14/3", r"\frac{14}{3}", MathVerdict(True)),
        (r"$\frac{14}{3}$", r"\frac{14}{3}", MathVerdict(True)),
        ("Eve lyn", "Evelyn", MathVerdict(True)),
        ("(3, 4)", "(3,4)", MathVerdict(True)),
        ("3,2,1", "1,2,3", MathVerdict(True)),
        ("(2,5)", "[2,5)", MathVerdict(False)),
        ("4", ["3", "4"], MathVerdict(True)),
        ("", "4", MathVerdict(False, "nothing to compare in the answer")),
        (None, "4", MathVerdict(False, "nothing found")),
    ],
)
def test_answers_are_read_as_one_formula(answer, reference, verdict) -> None:
    assert math_equal(answer, reference) == verdict
    assert bool(verdict) is verdict.equal
    assert float(verdict) == verdict.equal


def test_a_comparison_without_end_is_given_up_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mathematics, "_compare", BoundedFunction("evalharness.scores.mathematics_process:compare", limit_s=1.0))
    math_equal("1", "2")  # reads sympy, whose time does not count
    verdicts: list[MathVerdict] = []
    thread = threading.Thread(target=lambda: verdicts.append(math_equal("9^{9^{9^{9}}}", "5")))
    began = time.monotonic()
    thread.start()
    thread.join()
    assert verdicts == [MathVerdict(False, "given up: it took more than 1 s of processor time")]
    assert time.monotonic() - began < 20
    assert math_equal("2", "2.0")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mathematics, "find_spec", lambda name: None)
    with pytest.raises(MissingDependency, match=r"this score needs math_verify, which is not installed; .*\[metrics\]"):
        math_verify("1", "1")
