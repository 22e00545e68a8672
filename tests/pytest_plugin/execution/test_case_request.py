"""What a case asks, step by step, and how a request function that goes wrong is told apart from the others."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from evalharness import Case, GenerationOptions, GenerationResult, ScoringRequest, TextGenerationRequest
from evalharness.api.errors import RequestError, UnsupportedOption
from evalharness.api.requests import GenerationFailure
from evalharness.pytest_plugin.execution.case_request import MAX_STEPS, CaseRequest, Step, has_steps, is_async

CASE = Case(id="c")
GREEDY = GenerationOptions(max_new_tokens=7)


def chat(text: str) -> TextGenerationRequest:
    return TextGenerationRequest([{"role": "user", "content": text}])


def result(text: str) -> GenerationResult:
    return GenerationResult(text, text, "stop")


def two_steps(case: Case) -> Iterator[Any]:
    first = yield [chat("a"), chat("b")], GREEDY
    second = yield [chat(first[0].text + first[1].text)], GREEDY
    return chat(second[0].text)  # type: ignore[return-value]


class Asker:
    def method(self, case: Case) -> Iterator[Any]:
        return (yield [chat("a")], GREEDY)

    @staticmethod
    def static(case: Case) -> Iterator[Any]:
        return (yield [chat("a")], GREEDY)

    def __call__(self, case: Case) -> Iterator[Any]:
        return (yield [chat("a")], GREEDY)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(*args: Any) -> Any:
        return function(*args)

    return wrapper


async def coroutine(case: Case) -> TextGenerationRequest:
    return chat("a")


async def asynchronous_steps(case: Case) -> Any:
    yield [chat("a")], GREEDY


STEPPED = {
    "function": two_steps,
    "partial": functools.partial(two_steps),
    "partial-of-partial": functools.partial(functools.partial(two_steps)),
    "method": Asker().method,
    "partial-method": functools.partial(Asker().method),
    "static-method": Asker.static,
    "object": Asker(),
    "partial-of-object": functools.partial(Asker()),
    "decorated": decorated(two_steps),
    "lambda": lambda case: (yield),
}
PLAIN = {"function": chat, "lambda": lambda case: chat("a"), "partial": functools.partial(chat), "class": Case, "builtin": len}
ASYNC = {"function": coroutine, "generator": asynchronous_steps, "partial": functools.partial(coroutine)}
GUISES = {
    f"{kind}-{name}": guise for kind, all_of in (("steps", STEPPED), ("no", PLAIN), ("async", ASYNC)) for name, guise in all_of.items()
}


@pytest.mark.parametrize(("kind", "request_function"), [(name.partition("-")[0], guise) for name, guise in GUISES.items()], ids=GUISES)
def test_generator_and_async_functions_are_known_in_every_guise(kind: str, request_function: Any) -> None:
    assert has_steps(request_function) is (kind == "steps")
    assert is_async(request_function) is (kind == "async")


class TestSteps:
    def test_each_step_gets_the_results_of_the_one_before(self) -> None:
        request = CaseRequest(CASE, two_steps)
        assert request.begin() == Step((chat("a"), chat("b")), (GREEDY, GREEDY))
        assert request.go_on([result("x"), result("y")]) == Step((chat("xy"),), (GREEDY,))
        assert request.go_on([result("z")]) == chat("z")
        assert request.in_steps

    def test_a_plain_request_is_the_question_unless_the_case_is_invalid(self) -> None:
        request = CaseRequest(CASE, lambda case: chat(case.id))
        assert (request.begin(), request.in_steps, request.steps) == (chat("c"), False, [])
        assert CaseRequest(Case(id="c", invalid="no image"), two_steps).begin() == GenerationFailure("invalid", "no image")

    def test_options_are_checked_and_seeded_before_they_are_used(self) -> None:
        def seeded(step: int, position: int, options: GenerationOptions) -> GenerationOptions:
            return GenerationOptions(temperature=1.0, seed=10 * step + position, max_new_tokens=options.max_new_tokens)

        def check(options: object) -> None:
            raise UnsupportedOption("num_beams is not honoured")

        def ask(case: Case) -> Iterator[Any]:
            yield [chat("a"), chat("b")], [GREEDY, GenerationOptions(max_new_tokens=9)]
            yield [chat("c")], GREEDY

        request = CaseRequest(CASE, ask, seeded)
        first = request.begin()
        second = request.go_on([result("x"), result("y")])
        assert isinstance(first, Step)
        assert isinstance(second, Step)
        assert [(options.seed, options.max_new_tokens) for options in (*first.options, *second.options)] == [(0, 7), (1, 9), (10, 7)]
        failure = CaseRequest(CASE, two_steps, check=check).begin()
        assert failure == GenerationFailure("error", "step 1: num_beams is not honoured")

    def test_a_failed_request_names_its_step_and_ends_the_generator(self) -> None:
        closed = []

        def ask(case: Case) -> Iterator[Any]:
            try:
                yield [chat("a"), chat("b")], GREEDY
            finally:
                closed.append(True)

        request = CaseRequest(CASE, ask)
        request.begin()
        failure = request.go_on([result("x"), GenerationFailure("invalid", "too long")])
        assert failure == GenerationFailure("invalid", "step 1, request 2 of 2: too long")
        assert closed == [True]


def yielding(value: Any) -> Callable[[Case], Iterator[Any]]:
    def ask(case: Case) -> Iterator[Any]:
        yield value

    return ask


def raising(error: BaseException) -> Callable[[Case], Iterator[Any]]:
    def ask(case: Case) -> Iterator[Any]:
        yield [chat("a")], GREEDY
        raise error

    return ask


def failing_at_close(case: Case) -> Iterator[Any]:
    try:
        yield [chat("a")], GREEDY
    finally:
        raise RuntimeError("stuck")


class TestWhatGoesWrong:
    @pytest.mark.parametrize(
        ("value", "problem"),
        [
            pytest.param(chat("a"), "request(c), step 1 yielded TextGeneratio", id="bare-request"),
            pytest.param(None, "request(c), step 1 yielded None; a step is (list of requests, GenerationOptions)", id="nothing"),
            pytest.param(([chat("a")],), "step 1 yielded ([TextGeneratio", id="one-element"),
            pytest.param(([], GREEDY), "step 1 yields []; it must be a list of at least one request", id="empty"),
            pytest.param((chat("a"), GREEDY), "step 1 yields TextGeneratio", id="no-list"),
            pytest.param((["a"], GREEDY), "step 1 yields ['a']; it must be a list", id="texts"),
            pytest.param((chat("a") for _ in "a"), "step 1 yielded <generator", id="generator"),
            pytest.param(([chat("a")], None), "step 1 has the options None; a step is", id="no-options"),
            pytest.param(([chat("a")], {"max_new_tokens": 3}), "step 1 has the options {'max_new_tokens': 3}", id="mapping"),
            pytest.param(
                ([chat("a")], [GREEDY] * 2), "step 1 has 1 request but 2 options; give one for all or one for each", id="too-many"
            ),
        ],
    )
    def test_what_is_no_step_is_said_with_what_is_legal(self, value: Any, problem: str) -> None:
        failure = CaseRequest(CASE, yielding(value)).begin()
        assert isinstance(failure, GenerationFailure)
        assert failure.kind == "error"
        assert problem in failure.problem
        assert "Request" in failure.problem or "options" in failure.problem

    def test_a_generator_that_returns_no_question_says_what_it_returned(self) -> None:
        request = CaseRequest(CASE, yielding(([chat("a")], GREEDY)))
        request.begin()
        failure = request.go_on([result("x")])
        assert failure == GenerationFailure(
            "error",
            "request(c) returned None after 1 step; it must give a TextGenerationRequest, VlmGenerationRequest, CompletionRequest, "
            "TokenGenerationRequest or ScoringRequest",
        )

    @pytest.mark.parametrize(
        ("error", "kind", "problem"),
        [
            pytest.param(RequestError("no photo"), "invalid", "no photo (request after 1 step)", id="request-error"),
            pytest.param(KeyError("k"), "error", "request(c) after 1 step: KeyError: 'k' (at ask, line", id="exception"),
            pytest.param(SystemExit(3), "error", "request(c) after 1 step: SystemExit: 3 (at ask, line", id="exit"),
            pytest.param(
                StopIteration(), "error", "request(c) after 1 step: RuntimeError: generator raised StopIteration", id="stop-iteration"
            ),
        ],
    )
    def test_an_exception_between_steps_is_a_failure_of_the_case(self, error: BaseException, kind: str, problem: str) -> None:
        request = CaseRequest(CASE, raising(error))
        request.begin()
        failure = request.go_on([result("x")])
        assert isinstance(failure, GenerationFailure)
        assert failure.kind == kind
        assert failure.problem.startswith(problem)

    def test_a_generator_that_cannot_be_closed_says_so_with_the_failure(self) -> None:
        request = CaseRequest(CASE, failing_at_close)
        request.begin()
        failure = request.go_on([GenerationFailure("error", "out of memory")])
        assert isinstance(failure, GenerationFailure)
        assert failure.problem.startswith("step 1: out of memory; closing the request failed too: RuntimeError: stuck (at failing_at_close")

    def test_steps_without_end_are_ended(self) -> None:
        def ask(case: Case) -> Iterator[Any]:
            while True:
                yield [chat("a")], GREEDY

        request = CaseRequest(CASE, ask)
        asked = request.begin()
        for _ in range(MAX_STEPS - 1):
            asked = request.go_on([result("x")])
        assert isinstance(asked, Step)
        assert request.go_on([result("x")]) == GenerationFailure(
            "error", "request(c) yielded 1000 steps without returning the final request; return one"
        )


def test_a_question_that_the_step_before_scored_is_not_asked_again() -> None:
    def request(case: Case) -> Iterator[Any]:
        yield [ScoringRequest("a", "x"), ScoringRequest("a", "y")], GREEDY
        return ScoringRequest("a", "y")  # type: ignore[return-value]

    case = CaseRequest(CASE, request)
    case.begin()
    question = case.go_on([result("x"), result("y")])
    variants = [replace(GREEDY, seed=3), replace(GREEDY, logprobs_kind="processed")]  # the second is another score
    assert case.take_scored(question, variants) == [result("y"), None]
    assert case.take_scored(question, variants) == [None, None]  # released
