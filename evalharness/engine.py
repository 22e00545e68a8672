"""The engine: requests in, results out, the same whatever backend does the work.

    engine = build_engine("hf", ModelLoadConfig("path/to/checkpoint"))  # in engine_building.py
    results = engine.generate_text_batch([TextGenerationRequest([{"role": "user", "content": "Hi"}])], GenerationOptions())

Rendering, tokenising, stop policy and decoding happen here, once. It knows nothing about evals or pytest. Far over 300
lines because preflight and the stream are read together; scores and changes of weights are in engine_scoring.py and live_weights.py.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from evalharness.backends.base import Backend, Completion, Prompt
from evalharness.chat_template import check_template_owner, knows_enable_thinking, template_sha256
from evalharness.contracts import GenerationFailure, GenerationResult, TextGenerationRequest, TokenGenerationRequest, VlmGenerationRequest
from evalharness.engine_options import ChatTemplateOptions, ModelLoadConfig
from evalharness.engine_scoring import MAX_LOGIT_BYTES, refuse_scoring, response_logits, response_logprobs
from evalharness.errors import BackendError, CapabilityError, ConfigError, EvalHarnessError, RequestError, RequestsFailed, UnsupportedOption
from evalharness.generation_options import GenerationOptions
from evalharness.generation_plugins import GenerationPlugin, RequestType, normalise_plugins, preflight
from evalharness.live_weights import LiveWeights, WatchedBackend
from evalharness.option_support import split_options
from evalharness.prompt_source import PromptSource
from evalharness.prompts import PreparedRequest, PromptBuilder, Request
from evalharness.results import result_of
from evalharness.sample_options import options_of_samples
from evalharness.scoring import Chat, ResponseLogits, ResponseScores, TokenIds, asked_chat

if TYPE_CHECKING:
    from evalharness.response_cache import ResponseCache

__all__ = ["Engine", "EngineWarning", "Job"]

Outcome: TypeAlias = "GenerationResult | GenerationFailure"
Made = TypeVar("Made")


class EngineWarning(UserWarning):
    """Something was done otherwise than asked, with permission: a fallback, or options left out."""


@dataclass(frozen=True)
class Job:
    """What one backend does in one call; `requests`: position, request, options as honoured, options left out."""

    backend: Backend
    note: str | None
    weight_version: str
    builder: PromptBuilder
    requests: tuple[tuple[int, Request, GenerationOptions, tuple[str, ...]], ...]


class Engine(LiveWeights):
    """One loaded checkpoint behind one interface. Calls from several threads wait for each other.

    `fallback_backend` takes the image requests that the backend cannot run (a backend, or a function that makes one);
    each of its results says so. `unsupported_options`: "refuse" or "warn" where the backend cannot honour an option.
    `on_notice` is called, once each, with what would otherwise be an `EngineWarning`, in the thread that generates.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        fallback_backend: Backend | Callable[[], Backend] | None = None,
        chat_template: ChatTemplateOptions | None = None,
        unsupported_options: str = "refuse",
        on_notice: Callable[[str], None] | None = None,
    ) -> None:
        if unsupported_options not in ("refuse", "warn"):
            raise ConfigError(f"unsupported_options must be 'refuse' or 'warn', got {unsupported_options!r}")
        self._backend = backend
        self._fallback = fallback_backend
        self._chat_template = chat_template or ChatTemplateOptions()
        self._warn_only = unsupported_options == "warn"
        self._lock = threading.RLock()
        self._on_notice = on_notice or _warn
        self._noticed: set[str] = set()
        self._cache: ResponseCache | None = None
        self._identity: Mapping[str, Any] = {}
        self.chosen: str | None = None
        """Why `auto` took this backend, None where it was named."""
        LiveWeights.__init__(self)

    def use_cache(self, cache: ResponseCache | None, identity: Mapping[str, Any]) -> None:
        """Take answers from a cache, and keep them there; None: from now on from none.

        `identity` says which weights answer and how they run, as plain JSON: two engines of one identity must answer alike. Give
        it anew after a swap; changes of `LiveWeights` are added to it. Generations with plugins, and those of a fallback backend, are
        never cached, and none of a trainer's own model: `CapabilityError`.
        """
        with self._lock:
            if cache is not None and isinstance(self._backend, WatchedBackend) and self._backend.is_shared:
                raise CapabilityError("the weights of a shared model may change unseen, so none of its answers can be kept")
            changed = {"weights": self.weights_id} if self.weights_were_changed else {}
            self._cache, self._identity = cache, {**identity, **changed}

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._backend.name

    @property
    def backend(self) -> Backend:
        """The backend that runs what it can."""
        return self._backend

    @property
    def tokenizer(self) -> Any:
        """The checkpoint's tokenizer."""
        return self._backend.tokenizer

    @property
    def processor(self) -> Any:
        """The checkpoint's processor, None for a text model."""
        return self._backend.processor

    def describe(self) -> dict[str, Any]:
        """Return plain JSON facts about backend, template and context for run.json."""
        return {
            **self._backend.describe(),
            **({"chosen": self.chosen} if self.chosen is not None else {}),
            "template_sha256": template_sha256(self.processor) or template_sha256(self.tokenizer),
            "enable_thinking": self._chat_template.enable_thinking,
            "template_knows_enable_thinking": knows_enable_thinking(self.tokenizer),
            "max_model_len": self._backend.max_model_len,
            "eos_token_ids": list(self._backend.eos_token_ids),
        }

    def generate_text_batch(
        self, requests: Sequence[TextGenerationRequest], options: GenerationOptions, *, plugins: Sequence[Any] = ()
    ) -> list[GenerationResult]:
        """Return one result per request, in order; `RequestsFailed` (with all outcomes) where any has none."""
        return self._batch(requests, options, plugins)

    def generate_token_batch(
        self, requests: Sequence[TokenGenerationRequest], options: GenerationOptions, *, plugins: Sequence[Any] = ()
    ) -> list[GenerationResult]:
        """Return one result per request, in order; `RequestsFailed` (with all outcomes) where any has none."""
        return self._batch(requests, options, plugins)

    def generate_samples(
        self, requests: Sequence[Request], options: GenerationOptions, num_samples: int, *, plugins: Sequence[Any] = ()
    ) -> list[list[GenerationResult]]:
        """Return `num_samples` results per request, by request; `RequestsFailed` (with all outcomes, flat) where any has none.

        Sample k is drawn with the options' seed plus k, so that sample 0 is what one sample alone is. `ConfigError` for more than one
        sample of greedy options, which would be equal.
        """
        each = options_of_samples(options, num_samples)
        asked = [request for request in requests for _ in each]
        results = self._batch(asked, each * len(requests), plugins)
        return [results[start : start + num_samples] for start in range(0, len(results), num_samples)]

    def generate_vlm_batch(
        self, requests: Sequence[VlmGenerationRequest], options: GenerationOptions, *, plugins: Sequence[Any] = ()
    ) -> list[GenerationResult]:
        """Return one result per request, in order; `RequestsFailed` (with all outcomes) where any has none."""
        return self._batch(requests, options, plugins)

    def _batch(
        self, requests: Sequence[Request], options: GenerationOptions | Sequence[GenerationOptions], plugins: Sequence[Any]
    ) -> list[GenerationResult]:
        outcomes: dict[int, Outcome] = dict(self.stream(requests, options, plugins=plugins))
        ordered = [outcomes[index] for index in range(len(requests))]
        results = [outcome for outcome in ordered if isinstance(outcome, GenerationResult)]
        failures = [outcome for outcome in ordered if isinstance(outcome, GenerationFailure)]
        if failures:
            raise RequestsFailed(ordered, [failure.problem for failure in failures]) from failures[0].error
        return results

    def get_logprobs(
        self,
        prompts: Sequence[Chat | TokenIds],
        responses: Sequence[TokenIds],
        options: GenerationOptions | None = None,
        *,
        ends: bool = False,
        grad: bool = False,
    ) -> ResponseScores:
        """Return how likely each response is to its prompt, token by token; see `ScoringRequest` and `ResponseScores`.

        `grad` (hf): torch tensors through which gradients reach the loaded model's weights. `CapabilityError` and `UnsupportedOption`
        for what the backend cannot do, `RequestsFailed` where any pair cannot be scored; one that is too long is never cut.
        """
        return response_logprobs(self, prompts, responses, options or GenerationOptions(), ends=ends, grad=grad)

    def get_logits(
        self,
        prompts: Sequence[Chat | TokenIds],
        responses: Sequence[TokenIds],
        *,
        ends: bool = False,
        grad: bool = False,
        max_bytes: int = MAX_LOGIT_BYTES,
    ) -> ResponseLogits:
        """Return the raw logits that each response's tokens were judged by, float32 `[batch, response, vocab]`; hf only.

        `ConfigError`, before anything runs, where they would take more than `max_bytes`.
        """
        return response_logits(self, prompts, responses, ends=ends, grad=grad, max_bytes=max_bytes)

    def check_options(self, options: Iterable[GenerationOptions]) -> None:
        """Raise what `stream` would raise for these options, `UnsupportedOption` or `BackendError`, before anything is asked with them.

        Where image requests run on a fallback backend, only `stream` can tell.
        """
        if self._backend.supports_vlm or self._fallback is None:
            builder = PromptBuilder(self._backend, self._chat_template)
            for value in options:
                self._backend.check_plan(builder.sampling_plan(self._honoured(self._backend, value)[0]))

    def stream(
        self,
        requests: Sequence[Request],
        options: GenerationOptions | Sequence[GenerationOptions],
        *,
        plugins: Sequence[Any] = (),
        should_stop: Callable[[], bool] = lambda: False,
        on_asked: Callable[[int], None] = lambda position: None,
        more: Callable[[], Job | None] = lambda: None,
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Yield `(position, result or failure)` per request, each as soon as it is finished, in any order.

        `options` is one for all or one per request. Everything that can be refused is refused at the first `next`,
        before anything is generated: `UnsupportedOption`, `CapabilityError`. `BackendError` when the engine breaks.
        Closing the iterator, or `should_stop()` turning True, aborts what still runs. `on_asked(position)` is called as each
        request is made ready for the backend. `more()` is called whenever the backend has room and nothing is left to ask: what
        it returns, made by `join`, is asked too; None for nothing at present. Most backends ask again while they still work on something.
        """
        each = [options] * len(requests) if isinstance(options, GenerationOptions) else list(options)
        if len(each) != len(requests):
            raise ValueError(f"{len(requests)} requests but {len(each)} options; give one for all or one per request")
        if not requests:
            return
        normalised = normalise_plugins(plugins)
        with self._lock:
            jobs = [self._prepare(*group, requests, each, normalised) for group in self._split(requests)]
            can_join = len(jobs) == 1 and jobs[0].note is None and not normalised
            self._num_generating += 1
            try:
                for job in jobs:
                    yield from self._run(job, normalised, should_stop, on_asked, more if can_join else lambda: None)
            finally:
                self._num_generating -= 1

    def with_prompts(self, requests: Sequence[Request], options: GenerationOptions, run: Callable[[list[Prompt]], Made]) -> Made:
        """Return what `run` makes of the requests' prompts, while no other call has the backend; `RequestsFailed` where one has none."""
        with self._lock:
            job = self._prepare(self._backend, None, range(len(requests)), requests, [options] * len(requests), ())
            prompts: list[Prompt] = []
            failures: list[GenerationFailure] = []
            for i, request, honoured, _ in job.requests:
                try:
                    prompts.append(job.builder.build(i, request, honoured).prompt)
                except RequestError as error:
                    failures.append(GenerationFailure("invalid", str(error), error))
            if failures:
                raise RequestsFailed(failures, [failure.problem for failure in failures]) from failures[0].error
            try:
                return run(prompts)
            except RequestError as error:  # what only the backend could tell
                raise RequestsFailed([GenerationFailure("invalid", str(error), error)], [str(error)]) from error

    def join(self, requests: Sequence[Request], options: Sequence[GenerationOptions], first: int) -> Job | None:
        """Return requests, with positions from `first` on, that a running `stream` of this engine can take up by its `more`.

        None where they need a call of their own, which then says what is the matter with them, if anything is; with a cache, which has
        an answer only once it is there.
        """
        if self._cache is not None:
            return None
        if not self._backend.supports_vlm and any(map(_has_images, requests)):
            return None
        try:
            return self._prepare(self._backend, None, range(len(requests)), requests, options, (), first)
        except EvalHarnessError:
            return None

    def _split(self, requests: Sequence[Request]) -> list[tuple[Backend, str | None, list[int]]]:
        """Return which backend runs which positions, and why where it is not the first choice."""
        if self._backend.supports_vlm:
            return [(self._backend, None, list(range(len(requests))))]
        images = [i for i, request in enumerate(requests) if _has_images(request)]
        texts = [i for i, request in enumerate(requests) if not _has_images(request)]
        groups: list[tuple[Backend, str | None, list[int]]] = [(self._backend, None, texts)] if texts else []
        if images:
            reason = f"backend {self.name!r} cannot run image requests with this checkpoint"
            if self._fallback is None:
                raise CapabilityError(f"{reason}; give a vision-language checkpoint, or allow another backend (--fallback-backend hf)")
            fallback = self._open_fallback()
            if not fallback.supports_vlm:
                raise CapabilityError(f"{reason}, and neither can the fallback {fallback.name!r}; give a vision-language checkpoint")
            self._notice(f"{reason}: they run on {fallback.name!r}")
            groups.append((fallback, f"{fallback.name}: {reason}", images))
        return groups

    def _open_fallback(self) -> Backend:
        if not isinstance(self._fallback, Backend):
            assert callable(self._fallback)
            self._fallback = self._fallback()
        return self._fallback

    def _prepare(
        self,
        backend: Backend,
        note: str | None,
        positions: Sequence[int],
        requests: Sequence[Request],
        options: Sequence[GenerationOptions],
        plugins: Sequence[GenerationPlugin],
        first: int = 0,
    ) -> Job:
        """Return what one backend is to do; raises where it could not do it."""
        types: set[RequestType] = {"vlm" if _has_images(requests[i]) else "text" for i in positions}
        is_chat = any(asked_chat(requests[i]) is not None for i in positions)
        refuse_scoring(backend, [(requests[i], options[i]) for i in positions], plugins)
        preflight(plugins, backend=backend.name, can=backend.capabilities, request_types=sorted(types))
        builder = PromptBuilder(backend, self._chat_template)
        for request_type in types if is_chat else ():
            owner = builder.template_owner(request_type)
            check_template_owner(owner, self._chat_template)
            if self._chat_template.enable_thinking and not knows_enable_thinking(owner):
                self._notice("thinking was asked for, but the chat template does not know enable_thinking: the prompts are as without it")
        distinct = {id(options[i]): options[i] for i in positions}
        honoured = {key: self._honoured(backend, value) for key, value in distinct.items()}
        for value, _ in honoured.values():
            backend.check_plan(builder.sampling_plan(value))
        each = tuple((first + i, requests[i], *honoured[id(options[i])]) for i in positions)
        return Job(backend, note, self.weight_version, builder, each)

    def _run(
        self,
        job: Job,
        plugins: Sequence[GenerationPlugin],
        should_stop: Callable[[], bool],
        on_asked: Callable[[int], None],
        more: Callable[[], Job | None],
    ) -> Iterator[tuple[int, Outcome]]:
        running: dict[int, tuple[PreparedRequest, tuple[str, ...]]] = {}
        refused: deque[tuple[int, Outcome]] = deque()  # and what the cache has: whatever needs no backend
        keys: dict[int, str] = {}
        cache = self._cache if job.note is None and not plugins else None

        waiting = deque((job.builder, *one) for one in job.requests)

        def next_prompt() -> Prompt | None:
            while True:
                if not waiting:
                    joining = more()
                    if joining is None:
                        return None
                    waiting.extend((joining.builder, *one) for one in joining.requests)
                    continue
                builder, i, request, options, ignored = waiting.popleft()
                on_asked(i)
                try:
                    prepared = builder.build(i, request, options)
                    cached = self._cached(cache, prepared, keys)
                except RequestError as error:
                    refused.append((i, GenerationFailure("invalid", str(error), error)))
                except Exception as error:  # one request must not take the others along
                    refused.append((i, _error("preparing the prompt", error)))
                else:
                    if cached is None:
                        running[i] = (prepared, ignored)
                        return prepared.prompt
                    outcome = _read(prepared, cached, job, ignored, plugins)
                    refused.append((i, replace(outcome, cached=True) if isinstance(outcome, GenerationResult) else outcome))

        outputs = job.backend.generate(PromptSource(next_prompt), plugins=plugins, should_stop=should_stop)
        try:
            for output in outputs:
                while refused:
                    yield refused.popleft()
                if isinstance(output, Completion):
                    prepared, ignored = running.pop(output.index)
                    outcome = _read(prepared, output, job, ignored, plugins)
                    if cache is not None and output.index in keys:
                        cache.put(keys.pop(output.index), output, on_disk=_may_be_kept(outcome))
                    yield output.index, outcome
                else:
                    running.pop(output[0])
                    yield output
        except Exception:
            while refused:  # their verdict does not depend on the engine that broke
                yield refused.popleft()
            raise
        finally:
            # Left to the garbage collector, a backend would go on with what nobody waits for.
            close = getattr(outputs, "close", None)
            if close is not None:
                close()
        yield from refused
        if running and not should_stop():
            for i in running:
                yield i, GenerationFailure("error", f"backend {job.backend.name!r} gave no output for this request")

    def _cached(self, cache: ResponseCache | None, prepared: PreparedRequest, keys: dict[int, str]) -> Completion | None:
        """Return what the cache has for a prompt; else note under which key its answer is to be kept, if it may be."""
        if cache is None:
            return None
        from evalharness.response_cache import cache_key, is_deterministic  # few runs have a cache

        draws_nothing = prepared.options.seed is not None or prepared.prompt.response_ids is not None
        if not is_deterministic(prepared.prompt.plan, seed_was_given=draws_nothing):
            cache.counts.not_cacheable += 1
            return None
        facts = prepared.images.identify() if prepared.images is not None else ()
        key = cache_key(self._identity, prepared.prompt, [fact["sha256"] for fact in facts])
        found = cache.get(key, prepared.prompt.index)
        if found is None:
            keys[prepared.prompt.index] = key
        return found

    def _honoured(self, backend: Backend, options: GenerationOptions) -> tuple[GenerationOptions, tuple[str, ...]]:
        """Return the options without what the backend cannot honour, and what that is; raises unless leaving out is allowed."""
        honoured, ignored = split_options(options, backend.capabilities)
        if ignored:
            listed = ", ".join(ignored)
            if not self._warn_only:
                legal = ", ".join(sorted(backend.capabilities.extra_options)) or "none"
                raise UnsupportedOption(
                    f"backend {backend.name!r} cannot honour: {listed}. Leave them out, or allow it with --unsupported-options warn. "
                    f"Extra options it knows: {legal}"
                )
            self._notice(f"backend {backend.name!r} ignores: {listed}")
        return honoured, ignored

    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return why another checkpoint cannot take the place of the loaded one, None where `swap` will do."""
        if self._fallback is not None:
            return "there is a fallback backend, which would keep the old one"
        return self._backend.why_not_swap(config)

    def swap(self, config: ModelLoadConfig) -> None:
        """Take another checkpoint's weights in place of the loaded one's; the engine can only be closed after an error."""
        with self._lock:
            problem = self.why_not_swap(config)
            if problem is not None:
                raise BackendError(f"{config.model_name_or_path} cannot take the place of the loaded checkpoint: {problem}")
            self._backend.swap(config)
            self._start_over()

    def _notice(self, message: str) -> None:
        if message not in self._noticed:
            self._noticed.add(message)
            self._on_notice(message)

    def close(self) -> None:
        """Free the models' memory and end all child processes; may be called twice."""
        try:
            self._backend.close()
        finally:
            if isinstance(self._fallback, Backend):
                self._fallback.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _has_images(request: Request) -> bool:
    return isinstance(asked_chat(request), VlmGenerationRequest)


def _warn(message: str) -> None:
    warnings.warn(message, EngineWarning, stacklevel=3)


def _read(
    prepared: PreparedRequest, output: Completion, job: Job, ignored: tuple[str, ...], plugins: Sequence[GenerationPlugin]
) -> Outcome:
    try:
        return result_of(
            prepared, output, job.backend, fallback=job.note, ignored=ignored, plugins=plugins, weight_version=job.weight_version
        )
    except Exception as error:  # a plugin's or tokenizer's fault concerns this request only
        return _error("reading the completion", error)


def _may_be_kept(outcome: Outcome) -> bool:
    """Return whether an answer may be written to disk as ids, where no secret in it can be hidden."""
    from evalharness.redaction import redactor  # few runs have a cache

    return isinstance(outcome, GenerationResult) and redactor().known(outcome.raw_text) == outcome.raw_text


def _error(doing: str, error: Exception) -> GenerationFailure:
    return GenerationFailure("error", f"{doing} failed: {type(error).__name__}: {error}", error)
