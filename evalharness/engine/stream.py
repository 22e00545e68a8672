"""Runs one job: makes prompts as the backend pulls them, turns completions into results, and yields each outcome as soon as it is ready.

A fault of one request is that request's outcome and does not affect the others; a fault of the backend ends the stream. Cached answers are
not generated again. jobs.py has decided before which backend runs the job.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from evalharness.api.checks import any_text
from evalharness.api.errors import RequestError, RequestsFailed
from evalharness.api.hooks import GenerationPlugin, postprocess_text
from evalharness.api.requests import GenerationFailure, GenerationResult, Outcome
from evalharness.api.thinking import Thinking, num_ids_until
from evalharness.backends.base import BackendOutput, Completion, Prompt
from evalharness.engine.cache import ResponseCache
from evalharness.engine.jobs import Job
from evalharness.engine.prompts import PreparedRequest, prompt_sha256
from evalharness.engine.rolling import Rolled
from evalharness.engine.stop_policy import Ending, finish
from evalharness.engine.text_ids import text_of_ids


class PromptSource:
    """An iterator that may continue after its end: asked again, it gives the prompts that arrived in the meantime.

    If a backend stops at the first end, nothing is lost: the remaining prompts run in a call of their own.
    """

    def __init__(self, next_prompt: Callable[[], Prompt | None]) -> None:
        self._next_prompt = next_prompt

    def __iter__(self) -> PromptSource:
        """Return itself."""
        return self

    def __next__(self) -> Prompt:
        """Return the next prompt; `StopIteration` while there is none."""
        prompt = self._next_prompt()
        if prompt is None:
            raise StopIteration
        return prompt


class JobStream:
    """The outcomes of a job and of those that `next_job` adds to it, by position.

    `cache`: where answers are looked up and stored, under `identity()`, which says which weights answer; None: no cache. `on_start`,
    `next_job`: see `Engine.stream`.
    """

    def __init__(
        self,
        job: Job,
        plugins: Sequence[GenerationPlugin],
        cache: ResponseCache | None,
        identity: Callable[[], Mapping[str, Any]],
        *,
        on_start: Callable[[int], None],
        next_job: Callable[[], Job | None],
    ) -> None:
        self._job, self._plugins = job, plugins
        self._cache, self._identity = cache, identity
        self._on_start, self._next_job = on_start, next_job
        self._waiting = deque(job.requests)
        self._running: dict[int, PreparedRequest] = {}
        self._windows: deque[Prompt] = deque()  # of a response that is too long for one
        self._rolled: dict[int, Rolled] = {}  # by the index of each window, which is below 0
        self._known: deque[tuple[int, Outcome]] = deque()  # refused, or found in the cache: no backend needed
        self._num_windows = 0
        self._keys: dict[int, str] = {}  # under which to store an answer

    def outcomes(self, should_stop: Callable[[], bool]) -> Iterator[tuple[int, Outcome]]:
        """Yield `(position, result or failure)` per request; `should_stop()` turning True ends it early, as closing it does."""
        outputs = self._job.backend.generate(PromptSource(self._next_prompt), plugins=self._plugins, should_stop=should_stop)
        try:
            for output in outputs:
                yield from self._take_known()
                if self._rolled and (whole := self._of_request(output)) is not output:
                    if whole is None:
                        continue
                    output = whole
                if isinstance(output, Completion):
                    yield output.index, self._completed(output)
                else:
                    self._running.pop(output[0])
                    yield output
        except Exception:
            yield from self._take_known()  # these outcomes do not depend on the broken backend
            raise
        finally:
            # Left to the garbage collector, a backend would keep generating after its caller has gone.
            close = getattr(outputs, "close", None)
            if close is not None:
                close()
        yield from self._take_known()
        if self._running and not should_stop():
            for position in self._running:
                yield position, GenerationFailure("error", f"backend {self._job.backend.name!r} gave no output for this request")

    def _of_request(self, output: BackendOutput) -> BackendOutput | None:
        """Return the output of a request: this one, or that of all its windows, None as long as some are missing."""
        index = output.index if isinstance(output, Completion) else output[0]
        rolled = self._rolled.pop(index, None)
        return output if rolled is None else rolled.take(index, output)

    def _roll(self, prepared: PreparedRequest, position: int) -> Prompt:
        """Return the first window of a request; the others follow."""
        first = -1 - self._num_windows
        self._num_windows += len(prepared.windows)
        windows = [replace(window, index=first - place) for place, window in enumerate(prepared.windows)]
        self._rolled.update(dict.fromkeys((window.index for window in windows), Rolled(position, [window.index for window in windows])))
        self._windows.extend(windows[1:])
        return windows[0]

    def _take_known(self) -> Iterator[tuple[int, Outcome]]:
        while self._known:
            yield self._known.popleft()

    def _next_prompt(self) -> Prompt | None:
        """Return the next prompt that the backend has to answer, None if there is none now."""
        while True:
            if self._windows:
                return self._windows.popleft()
            if not self._waiting:
                joining = self._next_job()
                if joining is None:
                    return None
                self._waiting.extend(joining.requests)
                continue
            request = self._waiting.popleft()
            position = request.position
            self._on_start(position)
            try:
                prepared = request.prepare()
                cached = self._cached(prepared)
            except RequestError as error:
                self._known.append((position, GenerationFailure("invalid", str(error), error)))
            except Exception as error:  # one request must not take the others along
                self._known.append((position, _error("preparing the prompt", error)))
            else:
                if cached is None:
                    self._running[position] = prepared
                    return self._roll(prepared, position) if prepared.windows else prepared.prompt
                outcome = self._read(prepared, cached)
                self._known.append((position, replace(outcome, cached=True) if isinstance(outcome, GenerationResult) else outcome))

    def _cached(self, prepared: PreparedRequest) -> Completion | None:
        """Return the cached completion of a prompt; otherwise note the key for storing its answer, if it may be stored."""
        if self._cache is None or prepared.windows:
            return None
        from evalharness.engine.cache import cache_key, is_deterministic  # few runs have a cache

        draws_nothing = prepared.options.seed is not None or prepared.prompt.response_ids is not None
        if not is_deterministic(prepared.prompt.plan, seed_was_given=draws_nothing):
            self._cache.counts.not_cacheable += 1
            return None
        facts = prepared.images.identify() if prepared.images is not None else ()
        key = cache_key(self._identity(), prepared.prompt, [fact["sha256"] for fact in facts])
        completion = self._cache.get(key, prepared.prompt.index)
        if completion is None:
            self._keys[prepared.prompt.index] = key
        return completion

    def _completed(self, completion: Completion) -> Outcome:
        outcome = self._read(self._running.pop(completion.index), completion)
        if self._cache is not None and completion.index in self._keys:
            self._cache.put(self._keys.pop(completion.index), completion, on_disk=_may_be_kept(outcome))
        return outcome

    def _read(self, prepared: PreparedRequest, completion: Completion) -> Outcome:
        try:
            return _result_of(prepared, completion, self._job, self._plugins)
        except Exception as error:  # a plugin's or tokenizer's fault concerns this request only
            return _error("reading the completion", error)


def _may_be_kept(outcome: Outcome) -> bool:
    """Return whether an answer may be stored on disk as ids: secrets in ids cannot be hidden."""
    from evalharness.api.redaction import redactor  # few runs have a cache

    return isinstance(outcome, GenerationResult) and redactor().known(outcome.raw_text) == outcome.raw_text


def _error(doing: str, error: Exception) -> GenerationFailure:
    return GenerationFailure("error", f"{doing} failed: {type(error).__name__}: {any_text(error)}", error)


def _result_of(prepared: PreparedRequest, completion: Completion, job: Job, plugins: Sequence[GenerationPlugin]) -> GenerationResult:
    """Return the result of one completion: texts and finish reason from the stop policy, and the options that really applied."""
    ending = finish(completion, prepared.stops, job.backend.tokenizer, prepared.options.decode)
    plan = prepared.prompt.plan
    facts = prepared.images.facts if prepared.images is not None else ()
    num_ids = len(ending.token_ids)
    logprobs = completion.logprobs[:num_ids] if completion.logprobs is not None else None
    return GenerationResult(
        text=postprocess_text(plugins, ending.text) if prepared.response_text is None else prepared.response_text,
        raw_text=ending.raw_text,
        finish_reason=ending.finish_reason,
        stop_reason=ending.stop_reason,
        num_prompt_tokens=completion.num_prompt_tokens,
        num_completion_tokens=num_ids if completion.exact_ids else completion.num_completion_tokens,
        token_ids=ending.token_ids,
        logprobs=logprobs,
        logprobs_kind=plan.logprobs_kind if logprobs is not None else None,
        entropies=completion.entropies[:num_ids] if completion.entropies is not None else None,
        seed=plan.seed if plan.temperature > 0 and prepared.prompt.response_ids is None else None,
        backend=job.backend.name,
        fallback=job.note,
        ignored_options=prepared.ignored,
        prompt_sha256=prompt_sha256(prepared.prompt, facts),
        prompt_text=prepared.prompt.text,
        weight_version=job.weight_version,
        images=_image_facts(prepared, completion),
        exact_ids=completion.exact_ids,
        thinking=_thinking(prepared, completion, ending, job.backend.tokenizer, plugins),
        shots=prepared.shots,
        prefill=prepared.prefill,
        join=prepared.join,
        is_greedy=completion.is_greedy,
        num_bytes_scored=_num_bytes_scored(prepared.response_text, ending, logprobs, job.backend.tokenizer),
    )


def _num_bytes_scored(response: str | None, ending: Ending, logprobs: Sequence[float | None] | None, tokenizer: Any) -> int | None:
    """Return the bytes of a scored response that its log-probabilities are of: the first token of a text has none."""
    if ending.finish_reason != "scored" or logprobs is None:
        return None
    num_without = next((place for place, value in enumerate(logprobs) if value is not None), len(logprobs))
    unscored = text_of_ids(ending.token_ids[:num_without], tokenizer) if num_without else ""
    num_bytes = len((ending.text if response is None else response).encode("utf-8", "surrogatepass"))
    return max(0, num_bytes - len(unscored.encode("utf-8", "surrogatepass")))


def _thinking(
    prepared: PreparedRequest, completion: Completion, ending: Ending, tokenizer: Any, plugins: Sequence[GenerationPlugin]
) -> Thinking | None:
    """Return thoughts and answer, None if the text does not begin with a thought."""
    marks = prepared.thinking_marks
    thoughts = None if marks is None else marks.thoughts_of(ending.raw_text)
    if marks is None or thoughts is None:
        return None
    num_closed, is_open = thoughts
    num_tokens = len(ending.token_ids)
    if not is_open:
        decode_all = lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))  # noqa: E731
        num_tokens = num_ids_until(ending.token_ids, marks.end, num_closed, decode_all)
    thought = str(tokenizer.decode(list(ending.token_ids[:num_tokens]), skip_special_tokens=True))
    pieces = thought.split(marks.end)
    answer = ""
    if not is_open:
        decode = prepared.options.decode
        answer = finish(replace(completion, token_ids=ending.token_ids[num_tokens:]), prepared.stops, tokenizer, decode).text
        if len(pieces) > num_closed and pieces[-1].strip():  # one token closes the thought and begins the answer: the mark is plain text
            answer = ending.text.split(marks.end, num_closed)[-1]
            answer = answer.strip() if decode.strip_whitespace else answer
            pieces = pieces[:-1]
        answer = postprocess_text(plugins, answer)
    texts = [(piece.partition(marks.start)[2] if marks.start in piece else piece).strip() for piece in pieces]
    return Thinking("\n".join(filter(None, texts)), answer, not is_open, num_tokens, marks.is_expected)


def _image_facts(prepared: PreparedRequest, completion: Completion) -> tuple[Mapping[str, Any], ...]:
    if prepared.images is None:
        return ()
    facts = prepared.images.facts
    if not prepared.images.verify:
        return facts
    expected = prepared.prompt.num_tokens
    return tuple(
        {
            **fact,
            "grid": list(completion.image_grids[i]) if i < len(completion.image_grids) else None,
            "expected_prompt_tokens": expected,
            "actual_prompt_tokens": completion.num_prompt_tokens,
        }
        for i, fact in enumerate(facts)
    )


def all_results(outcomes: Sequence[GenerationResult | GenerationFailure]) -> list[GenerationResult]:
    """Return the outcomes as results; `RequestsFailed`, with all of them, if any is a failure."""
    failures = [outcome for outcome in outcomes if isinstance(outcome, GenerationFailure)]
    if failures:
        raise RequestsFailed(outcomes, [failure.problem for failure in failures]) from failures[0].error
    return [outcome for outcome in outcomes if isinstance(outcome, GenerationResult)]
