"""The engine: requests in, results out, the same on every backend.

    engine = build_engine("hf", ModelLoadConfig("path/to/checkpoint"))  # in build.py
    results = engine.generate_text_batch([TextGenerationRequest([{"role": "user", "content": "Hi"}])], GenerationOptions())

Rendering, tokenising, stop policy and decoding happen once, in this room: jobs.py decides which backend gets which requests, stream.py runs
them, weights.py changes weights. Knows nothing about evals or pytest.
"""

from __future__ import annotations

import math
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any, TypeVar

from evalharness.api.checks import check_instance, check_integer, check_sequence, shown
from evalharness.api.errors import CapabilityError, ConfigError, ContractTypeError, ContractValueError, EvalHarnessError
from evalharness.api.hooks import normalise_plugins
from evalharness.api.options import ChatTemplateOptions, GenerationOptions
from evalharness.api.requests import (
    CompletionRequest,
    GenerationResult,
    Outcome,
    Request,
    TextGenerationRequest,
    TokenGenerationRequest,
    VlmGenerationRequest,
    check_requests,
)
from evalharness.api.scoring import Context, ResponseLogits, ResponseScores, ScoringRequest, TokenIds, scores_of
from evalharness.api.wording import plural
from evalharness.backends.base import Backend, CountedWork, Prompt, TensorBackend, ToldProgress, UnderWay
from evalharness.engine.cache import ResponseCache
from evalharness.engine.chat_template import knows_enable_thinking, template_sha256
from evalharness.engine.jobs import Draft, Fallback, Job, JobMaker, has_images
from evalharness.engine.stream import JobStream, all_results
from evalharness.engine.weights import EngineWeights

MAX_LOGIT_BYTES = 2 * 1024**3
"""How large the answer of `get_logits` may be unless another size is allowed: 2 GiB is 3,500 tokens of a vocabulary of 150,000."""
_FLOAT32_BYTES = 4

Made = TypeVar("Made")


def options_of_samples(options: GenerationOptions, num_samples: int) -> list[GenerationOptions]:
    """Return the options of each sample: sample k has the seed plus k, as vLLM's own `n` has it; without a seed each draws its own.

    `ConfigError` for several samples of greedy options, the same on every backend.
    """
    check_integer("num_samples", num_samples, minimum=1)
    options.check_num_samples("num_samples", num_samples)
    if options.seed is None:
        return [options] * num_samples
    return [replace(options, seed=options.seed + k) for k in range(num_samples)]


class EngineWarning(UserWarning):
    """The engine did something other than requested, with permission: it used a fallback, or left options out."""


class Engine:
    """One loaded checkpoint behind one interface. Calls from several threads wait for each other.

    `fallback_backend` takes the image requests that the backend cannot run (a backend, or a function that makes one); each of its results
    says so. `unsupported_options`: "refuse" or "warn" if the backend cannot honour an option. `on_notice` is called, once each, with
    notices that would otherwise be an `EngineWarning`, in the thread that generates.
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
        check_instance("chat_template", chat_template, ChatTemplateOptions, optional=True)
        self._backend = backend
        self._fallback = Fallback(fallback_backend) if fallback_backend is not None else None
        self._chat_template = chat_template or ChatTemplateOptions()
        warn_only = unsupported_options == "warn"
        self._jobs = JobMaker(backend, self._fallback, self._chat_template, warn_only=warn_only, on_notice=on_notice or warn)
        self._lock = threading.RLock()
        self.weights = EngineWeights(backend, self._fallback, self._lock)
        self._cache: ResponseCache | None = None
        self.chosen: str | None = None
        """Why `auto` took this backend, None where it was named."""
        self.on_outcome: Callable[[GenerationOptions, Outcome, float], None] | None = None
        """Called before `stream` yields the outcome of a request: its options, the outcome, and the seconds since the one before it."""

    def use_cache(self, cache: ResponseCache | None, identity: Mapping[str, Any]) -> None:
        """Take answers from a cache, and store new ones in it; None turns caching off.

        `identity` says which weights answer and how they run, as plain JSON: two engines of one identity must answer alike. Set it again
        after a swap; changes of `weights` are added to it. Generations with plugins or from a fallback backend are never cached; for a
        trainer's own model this raises `CapabilityError`.
        """
        with self._lock:
            if cache is not None and self.weights.is_shared:
                raise CapabilityError("the weights of a shared model may change unseen, so none of its answers can be kept")
            self._cache = cache
            self.weights.identify(identity)

    @property
    def name(self) -> str:
        """The backend's name."""
        return self._backend.name

    @property
    def backend(self) -> Backend:
        """The primary backend; image requests that it cannot run go to the fallback."""
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

    def under_way(self) -> UnderWay | None:
        """Return what is generated at this moment, None where the backend does not tell; for any thread, a few times a second."""
        backends: list[Any] = [self._backend, None if self._fallback is None else self._fallback.opened]
        told = [backend.under_way() for backend in backends if isinstance(backend, ToldProgress) and backend.under_way is not None]
        return max(told, key=lambda one: one.num_rows, default=None)

    def work(self) -> dict[str, float]:
        """Return the backend's running sums of its work (`backends/work.py`); empty where it counts none."""
        return self._backend.work.read() if isinstance(self._backend, CountedWork) else {}

    def generate_text_batch(
        self, requests: Sequence[TextGenerationRequest | CompletionRequest], options: GenerationOptions, *, plugins: Sequence[Any] = ()
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

        Sample k is drawn with the options' seed plus k, so sample 0 equals a single sample. `ConfigError` for several samples of greedy
        options, which would be equal.
        """
        check_requests(requests)
        check_instance("options", options, GenerationOptions)
        each = options_of_samples(options, num_samples)
        repeated = [request for request in requests for _ in each]
        results = self._batch(repeated, each * len(requests), plugins)
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
        return all_results([outcomes[index] for index in range(len(requests))])

    def get_logprobs(
        self,
        prompts: Sequence[Context],
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
        requests = _scoring_requests(prompts, responses, ends)
        options = options or GenerationOptions()
        if not grad:
            return scores_of(self._batch(requests, options, ()))
        backend = _tensor_backend(self._backend, "give gradients")
        return self._with_prompts(
            requests, options, lambda made: replace(backend.response_logprobs(made, grad=True), weight_version=self.weights.version)
        )

    def get_logits(
        self,
        prompts: Sequence[Context],
        responses: Sequence[TokenIds],
        *,
        ends: bool = False,
        grad: bool = False,
        max_bytes: int = MAX_LOGIT_BYTES,
    ) -> ResponseLogits:
        """Return the raw logits from which each response's tokens were predicted, float32 `[batch, response, vocab]`; hf only.

        `ConfigError`, before anything runs, if they would take more than `max_bytes`.
        """
        requests = _scoring_requests(prompts, responses, ends)
        check_integer("max_bytes", max_bytes, minimum=0)
        backend = _tensor_backend(self._backend, "give logits")

        def run(made: Sequence[Prompt]) -> ResponseLogits:
            shape = (len(made), max((len(prompt.response_ids or ()) for prompt in made), default=0), backend.vocab_size)
            num_bytes = math.prod(shape) * _FLOAT32_BYTES
            if num_bytes > max_bytes:
                raise ConfigError(
                    f"the logits {list(shape)} in float32 would take {num_bytes:,} bytes, more than max_bytes={max_bytes:,}; "
                    "ask for fewer or shorter responses at once, use get_logprobs, or allow more"
                )
            return replace(backend.response_logits(made, grad=grad), weight_version=self.weights.version)

        return self._with_prompts(requests, GenerationOptions(), run)

    def check_options(self, options: Iterable[GenerationOptions]) -> None:
        """Raise what `stream` would raise for these options (`UnsupportedOption` or `BackendError`), before any request is made.

        If image requests run on a fallback backend, only `stream` can tell.
        """
        self._jobs.check_options(options)

    def stream(
        self,
        requests: Sequence[Request],
        options: GenerationOptions | Sequence[GenerationOptions],
        *,
        plugins: Sequence[Any] = (),
        should_stop: Callable[[], bool] = lambda: False,
        on_start: Callable[[int], None] = lambda position: None,
        next_job: Callable[[], Job | None] = lambda: None,
        drafts: Sequence[Draft | None] = (),
    ) -> Generator[tuple[int, Outcome], None, None]:
        """Yield `(position, result or failure)` per request, each as soon as it is finished, in any order.

        `options` apply to all requests, or are one per request. Everything that can be refused is refused at the first `next`, before
        anything is generated: `UnsupportedOption`, `CapabilityError`. `BackendError` if the engine breaks. Closing the iterator, or
        `should_stop()` returning True, aborts running requests. `on_start(position)` is called as each request is prepared for the backend.
        `next_job()` is called whenever the backend has room and no request is waiting: the job that it returns, made by `prepare_join`,
        runs in this call, too. It returns None if there is none now; most backends ask again while requests run. `drafts`: one per request,
        which gives the ids that its answer will probably have; they change no answer, and save time where they are right.
        """
        check_requests(requests)
        each = _each_options(options, len(requests))
        if len(each) != len(requests):
            counts = f"options is a list of {len(each)}, requests one of {len(requests)}"
            raise ContractValueError(f"{counts}; give one for all or one per request")
        if not requests:
            return
        normalised = normalise_plugins(plugins)
        with self._lock, self.weights.kept_for_a_stream():
            self.weights.require_open()
            jobs = self._jobs.jobs(requests, each, normalised, self.weights.version)
            if any(drafts):
                jobs = [job.with_drafts(dict(enumerate(drafts))) for job in jobs]
            can_join = len(jobs) == 1 and jobs[0].note is None and not normalised
            for job in jobs:
                cache = self._cache if job.note is None and not normalised else None
                joining = next_job if can_join else lambda: None
                run = JobStream(job, normalised, cache, lambda: self.weights.cache_identity, on_start=on_start, next_job=joining)
                since_s = time.monotonic()
                for position, outcome in run.outcomes(should_stop):
                    if self.on_outcome is not None and position < len(each):  # else of a request that joined
                        self.on_outcome(each[position], outcome, time.monotonic() - since_s)
                    yield position, outcome
                    since_s = time.monotonic()

    def _with_prompts(self, requests: Sequence[Request], options: GenerationOptions, run: Callable[[list[Prompt]], Made]) -> Made:
        """Return the result of `run` on the requests' prompts, while no other call has the backend.

        Raises `RequestsFailed`, with an outcome for each request, if one has no prompt, or if `run` raises it. Nothing ran then.
        """
        with self._lock:
            self.weights.require_open()
            return run(self._jobs.own_job(requests, [options] * len(requests), self.weights.version).prompts())

    def prepare_join(
        self, requests: Sequence[Request], options: Sequence[GenerationOptions], first: int, drafts: Sequence[Draft | None] = ()
    ) -> Job | None:
        """Return a job that a running `stream` of this engine can take up by `next_job`; its positions begin at `first`.

        None if the requests need a call of their own: with a cache, which has answers only after they are generated; for images that go to
        the fallback; and for refused requests, so that their own call names the reason.
        """
        if self._cache is not None:
            return None
        if not self._backend.capabilities.supports_vlm and any(map(has_images, requests)):
            return None
        try:
            job = self._jobs.own_job(requests, options, self.weights.version, first=first)
            return job.with_drafts(dict(enumerate(drafts, first))) if any(drafts) else job
        except EvalHarnessError:
            return None

    def close(self) -> None:
        """Free the models' memory and end all child processes; every later call raises `BackendError`. Idempotent."""
        self.weights.close()
        try:
            self._backend.close()
        finally:
            if self._fallback is not None:
                self._fallback.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _each_options(options: Any, num_requests: int) -> list[GenerationOptions]:
    if isinstance(options, GenerationOptions):
        return [options] * num_requests
    each = list(options) if isinstance(options, (list, tuple)) else [options]
    for one in each:
        if not isinstance(one, GenerationOptions):
            hint = "; GenerationOptions.from_mapping makes them of plain data" if isinstance(one, Mapping) else ""
            raise ContractTypeError(f"options must be GenerationOptions, or a list of them, got {shown(one)} ({type(one).__name__}){hint}")
    return each


def warn(message: str) -> None:
    """Warn with `EngineWarning`, at the place of the engine's caller."""
    warnings.warn(message, EngineWarning, stacklevel=3)


def _scoring_requests(prompts: Sequence[Context], responses: Sequence[TokenIds], ends: bool) -> list[ScoringRequest]:
    for name, values in (("prompts", prompts), ("responses", responses)):
        if isinstance(values, str):
            raise ContractValueError(f"{name} must be a list, one per pair, got one text: {values[:80]!r}")
        check_sequence(name, values, "texts, token ids or chats, one per pair")
    if len(prompts) != len(responses):
        raise ContractValueError(
            f"{plural(len(prompts), 'prompt')} but {plural(len(responses), 'response')}; give one response for each prompt"
        )
    requests = []
    for number, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        try:
            requests.append(ScoringRequest(prompt, response, ends))
        except (ContractTypeError, ContractValueError) as error:
            raise type(error)(f"pair {number}: {error}") from None
    return requests


def _tensor_backend(backend: Backend, what: str) -> TensorBackend:
    if not backend.capabilities.supports_logits:
        raise CapabilityError(f"backend {backend.name!r} cannot {what}: its model is not a torch module of this process; use --backend hf")
    assert isinstance(backend, TensorBackend)
    return backend
