"""The requests of a case: one, or, where the eval's request function is a generator, steps and then the question.

    def request(case):
        results = yield [summary_of(photo) for photo in case.photos], GenerationOptions(max_new_tokens=1024)
        return verdict_on([result.text for result in results])

A step is a list of requests and their options (one for all, or one per request); its results come back in the same order.
"""

from __future__ import annotations

import functools
import inspect
import threading
import traceback
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from evalharness.api.cases import Case
from evalharness.api.checks import any_text, shown
from evalharness.api.errors import EvalHarnessError, RequestError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import (
    CompletionRequest,
    GenerationFailure,
    Outcome,
    Request,
    TextGenerationRequest,
    TokenGenerationRequest,
    VlmGenerationRequest,
)
from evalharness.api.scoring import ScoringRequest
from evalharness.api.wording import plural

MAX_STEPS = 1000
"""A generator that has asked so many steps without coming to its question never will."""
_REQUESTS = (TextGenerationRequest, VlmGenerationRequest, CompletionRequest, TokenGenerationRequest, ScoringRequest)
_QUESTION = "a TextGenerationRequest, VlmGenerationRequest, CompletionRequest, TokenGenerationRequest or ScoringRequest"
_STEP = "a step is (list of requests, GenerationOptions) or (list of requests, list with the options of each)"


@dataclass(frozen=True)
class Step:
    """Requests that are generated together before the question, each with its options."""

    requests: tuple[Request, ...]
    options: tuple[GenerationOptions, ...]


Next: TypeAlias = "Step | Request | GenerationFailure"
"""What a case's code makes next: a step, its question, or nothing any more."""


def has_steps(request: Callable[[Any], Any]) -> bool:
    """Return whether a request function is a generator function: plain, partial, method, decorated or a callable object."""
    return any(map(inspect.isgeneratorfunction, _bare(request)))


def is_async(request: Callable[[Any], Any]) -> bool:
    """Return whether a request function is asynchronous; nothing here would await it."""
    return any(inspect.iscoroutinefunction(bare) or inspect.isasyncgenfunction(bare) for bare in _bare(request))


def _bare(request: Callable[[Any], Any]) -> tuple[Any, Any]:
    """Return the function behind partials and decorators, and the `__call__` of a callable object."""
    bare: Any = inspect.unwrap(request)
    while isinstance(bare, functools.partial):
        bare = inspect.unwrap(bare.func)
    return bare, getattr(type(bare), "__call__", None)  # noqa: B004


class CaseRequest:
    """Runs one case's request function. Anything it raises or yields wrongly is a failure of this case alone.

    `options_of(step, position, options)` returns a step request's options with seed and overrides applied; `check` raises for options that
    the engine cannot honour.
    """

    def __init__(
        self,
        case: Case,
        request: Callable[[Any], Any],
        options_of: Callable[[int, int, GenerationOptions], GenerationOptions] = lambda step, position, options: options,
        check: Callable[[Iterable[GenerationOptions]], None] = lambda options: None,
    ) -> None:
        self.case = case
        self._request = request
        self._options_of = options_of
        self._check = check
        self._generator: Generator[Any, Any, Any] | None = None
        self._arrived: dict[int, Outcome] = {}
        self._scored: Sequence[Outcome] = ()
        self.steps: list[Step] = []
        """The steps asked so far."""

    @property
    def in_steps(self) -> bool:
        """Whether the request function turned out to be a generator function."""
        return self._generator is not None

    def begin(self) -> Next:
        """Return the first step, or the question."""
        if self.case.invalid is not None:
            return GenerationFailure("invalid", self.case.invalid)
        # One case's broken request must not take the others along; pytest's own outcomes and SystemExit are no Exceptions.
        try:
            made = self._request(self.case)
        except BaseException as error:
            return self._raised(error)
        if isinstance(made, Generator):
            self._generator = made
            return self._advance(None)
        return self._question(made, "gave")

    def take(self, position: int, outcome: Outcome) -> list[Outcome] | None:
        """Take the outcome of one request of the current step; return those of all its requests, in order, once none is missing."""
        self._arrived[position] = outcome
        num_requests = len(self.steps[-1].requests)
        if len(self._arrived) < num_requests:
            return None
        outcomes = [self._arrived[place] for place in range(num_requests)]
        self._arrived.clear()
        return outcomes

    def go_on(self, outcomes: Sequence[Outcome]) -> Next:
        """Return the next step, or the question; `outcomes` are those of the last step's requests, in order."""
        for number, outcome in enumerate(outcomes, 1):
            if isinstance(outcome, GenerationFailure):
                which = f", request {number} of {len(outcomes)}" if len(outcomes) > 1 else ""
                return self._failure(outcome.kind, f"step {len(self.steps)}{which}: {outcome.problem}", outcome.error)
        made = self._advance(list(outcomes))
        self._scored = outcomes if isinstance(made, ScoringRequest) else ()
        return made

    def take_scored(self, question: Next, options: Sequence[GenerationOptions]) -> list[Outcome | None]:
        """Return, for each options, what the last step's request for the same score brought, None if there was none.

        Scoring draws nothing, so the engine would answer the same. The outcomes are released.
        """
        known: list[Outcome | None] = [None] * len(options)
        for place, outcome in enumerate(self._scored):
            if self.steps[-1].requests[place] == question:
                asked = replace(self.steps[-1].options[place], seed=None)
                known = [outcome if replace(each, seed=None) == asked else before for each, before in zip(options, known, strict=True)]
        self._scored = ()
        return known

    def close(self) -> str | None:
        """End the generator; return the problem if it did not end well. May be called at any time."""
        if self._generator is None:
            return None
        try:
            self._generator.close()
        except BaseException as error:  # the case has its verdict already
            return f"{type(error).__name__}: {any_text(error)} (at {last_frame(error)})"
        return None

    def _advance(self, results: list[Outcome] | None) -> Next:
        assert self._generator is not None
        try:
            yielded = self._generator.send(results)
        except StopIteration as end:
            return self._question(end.value, "returned")
        except BaseException as error:
            return self._raised(error)
        return self._step(yielded)

    def _step(self, yielded: Any) -> Step | GenerationFailure:
        number = len(self.steps) + 1
        where = f"request({self.case.id}), step {number}"
        if number > MAX_STEPS:
            return self._failure(
                "error", f"request({self.case.id}) yielded {MAX_STEPS} steps without returning the final request; return one"
            )
        if not isinstance(yielded, (tuple, list)) or len(yielded) != 2:
            return self._failure("error", f"{where} yielded {shown(yielded)}; {_STEP}")
        requests, options = yielded
        if not isinstance(requests, (tuple, list)) or not requests or not all(isinstance(request, _REQUESTS) for request in requests):
            return self._failure("error", f"{where} yields {shown(requests)}; it must be a list of at least one request, each {_QUESTION}")
        each = [options] * len(requests) if isinstance(options, GenerationOptions) else options
        if not isinstance(each, (tuple, list)) or not all(isinstance(value, GenerationOptions) for value in each):
            return self._failure("error", f"{where} has the options {shown(options)}; {_STEP}")
        if len(each) != len(requests):
            return self._failure(
                "error",
                f"{where} has {plural(len(requests), 'request')} but {plural(len(each), 'option')}; give one for all or one for each",
            )
        try:
            decoded = tuple(self._options_of(number - 1, position, value) for position, value in enumerate(each))
            self._check({id(value): value for value in decoded}.values())
        except EvalHarnessError as error:
            return self._failure("error", f"step {number}: {error}", error)
        step = Step(tuple(requests), decoded)
        self.steps.append(step)
        return step

    def _question(self, made: Any, did: str) -> Request | GenerationFailure:
        if isinstance(made, _REQUESTS):
            return made
        given = f"{shown(made)}{self._after()}"
        return GenerationFailure("error", f"request({self.case.id}) {did} {given}; it must give {_QUESTION}")

    def _raised(self, error: BaseException) -> GenerationFailure:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise error  # Ctrl-C while recorded generations are looked at
        if isinstance(error, RequestError):
            return GenerationFailure("invalid", f"{any_text(error)} (request{self._after()})" if self.steps else any_text(error), error)
        where = f"request({self.case.id}){self._after()}"
        return GenerationFailure("error", f"{where}: {type(error).__name__}: {any_text(error)} (at {last_frame(error)})")

    def _after(self) -> str:
        return f" after {plural(len(self.steps), 'step')}" if self.steps else ""

    def _failure(self, kind: Any, problem: str, error: Exception | None = None) -> GenerationFailure:
        closing = self.close()
        return GenerationFailure(kind, problem if closing is None else f"{problem}; closing the request failed too: {closing}", error)


def last_frame(error: BaseException) -> str:
    """Return where an error was raised, for a one-line message."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].name}, line {frames[-1].lineno}" if frames else "unknown place"
