"""The engine: requests in, results out, the same whatever backend does the work.

    engine = build_engine("hf", ModelLoadConfig("path/to/checkpoint"))
    results = engine.generate_text_batch([TextGenerationRequest([{"role": "user", "content": "Hi"}])], GenerationOptions())

Rendering, tokenising, stop policy and decoding happen here, once. It knows nothing about evals or pytest.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

from evalharness.backends import load_backend_class
from evalharness.backends.base import Backend, Completion, Prompt
from evalharness.chat_template import template_sha256
from evalharness.contracts import (
    ChatTemplateOptions,
    GenerationFailure,
    GenerationOptions,
    GenerationResult,
    ModelLoadConfig,
    TextGenerationRequest,
    VllmEngineOptions,
    VlmGenerationRequest,
    VlmPreprocessOptions,
)
from evalharness.errors import CapabilityError, RequestError, RequestsFailed, UnsupportedOption
from evalharness.generation_plugins import GenerationPlugin, RequestType, normalise_plugins, postprocess_text, preflight
from evalharness.prompts import PreparedRequest, PromptBuilder, Request, prompt_sha256
from evalharness.stop_policy import finish

__all__ = ["Engine", "EngineWarning", "build_backend", "build_engine"]

Outcome: TypeAlias = "GenerationResult | GenerationFailure"


class EngineWarning(UserWarning):
    """Something was done otherwise than asked, with permission: a fallback, or options left out."""


class Engine:
    """One loaded checkpoint behind one interface. Calls from several threads wait for each other.

    `fallback_backend` takes the image requests that the backend cannot run (a backend, or a function that makes one);
    each of its results says so. `unsupported_options`: "refuse" or "warn" where the backend cannot honour an option.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        fallback_backend: Backend | Callable[[], Backend] | None = None,
        chat_template: ChatTemplateOptions | None = None,
        unsupported_options: str = "refuse",
    ) -> None:
        self._backend = backend
        self._fallback = fallback_backend
        self._chat_template = chat_template or ChatTemplateOptions()
        self._warn_only = unsupported_options == "warn"
        self._lock = threading.RLock()
        self._warned: set[str] = set()

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
            "template_sha256": template_sha256(self.processor) or template_sha256(self.tokenizer),
            "max_model_len": self._backend.max_model_len,
            "eos_token_ids": list(self._backend.eos_token_ids),
        }

    def generate_text_batch(
        self, requests: Sequence[TextGenerationRequest], options: GenerationOptions, *, plugins: Sequence[Any] = ()
    ) -> list[GenerationResult]:
        """Return one result per request, in order; `RequestsFailed` (with all outcomes) where any has none."""
        return self._batch(requests, options, plugins)

    def generate_vlm_batch(
        self, requests: Sequence[VlmGenerationRequest], options: GenerationOptions, *, plugins: Sequence[Any] = ()
    ) -> list[GenerationResult]:
        """Return one result per request, in order; `RequestsFailed` (with all outcomes) where any has none."""
        return self._batch(requests, options, plugins)

    def _batch(self, requests: Sequence[Request], options: GenerationOptions, plugins: Sequence[Any]) -> list[GenerationResult]:
        outcomes: dict[int, Outcome] = dict(self.stream(requests, options, plugins=plugins))
        ordered = [outcomes[index] for index in range(len(requests))]
        results = [outcome for outcome in ordered if isinstance(outcome, GenerationResult)]
        failures = [outcome for outcome in ordered if isinstance(outcome, GenerationFailure)]
        if failures:
            raise RequestsFailed(ordered, [failure.problem for failure in failures]) from failures[0].error
        return results

    def stream(
        self,
        requests: Sequence[Request],
        options: GenerationOptions | Sequence[GenerationOptions],
        *,
        plugins: Sequence[Any] = (),
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Iterator[tuple[int, Outcome]]:
        """Yield `(position, result or failure)` per request, each as soon as it is finished, in any order.

        `options` is one for all or one per request. Everything that can be refused is refused at the first `next`,
        before anything is generated: `UnsupportedOption`, `CapabilityError`. `BackendError` when the engine breaks.
        Closing the iterator, or `should_stop()` turning True, aborts what still runs.
        """
        each = [options] * len(requests) if isinstance(options, GenerationOptions) else list(options)
        if len(each) != len(requests):
            raise ValueError(f"{len(requests)} requests but {len(each)} options; give one for all or one per request")
        if not requests:
            return
        with self._lock:
            for backend, note, positions in self._split(requests):
                yield from self._run(backend, note, positions, requests, each, normalise_plugins(plugins), should_stop)

    def _split(self, requests: Sequence[Request]) -> list[tuple[Backend, str | None, list[int]]]:
        """Return which backend runs which positions, and why where it is not the first choice."""
        if self._backend.supports_vlm:
            return [(self._backend, None, list(range(len(requests))))]
        images = [i for i, request in enumerate(requests) if isinstance(request, VlmGenerationRequest)]
        texts = [i for i, request in enumerate(requests) if not isinstance(request, VlmGenerationRequest)]
        groups: list[tuple[Backend, str | None, list[int]]] = [(self._backend, None, texts)] if texts else []
        if images:
            reason = f"backend {self.name!r} cannot run image requests with this checkpoint"
            if self._fallback is None:
                raise CapabilityError(f"{reason}; give a vision-language checkpoint, or allow another backend (--fallback-backend hf)")
            fallback = self._open_fallback()
            self._warn(f"{reason}: {len(images)} requests run on {fallback.name!r}")
            groups.append((fallback, f"{fallback.name}: {reason}", images))
        return groups

    def _open_fallback(self) -> Backend:
        if not isinstance(self._fallback, Backend):
            assert callable(self._fallback)
            self._fallback = self._fallback()
        return self._fallback

    def _run(
        self,
        backend: Backend,
        note: str | None,
        positions: Sequence[int],
        requests: Sequence[Request],
        options: Sequence[GenerationOptions],
        plugins: Sequence[GenerationPlugin],
        should_stop: Callable[[], bool],
    ) -> Iterator[tuple[int, Outcome]]:
        types: set[RequestType] = {"vlm" if isinstance(requests[i], VlmGenerationRequest) else "text" for i in positions}
        preflight(plugins, backend=backend.name, supports_hf_hooks=backend.capabilities.supports_hf_hooks, request_types=sorted(types))
        ignored = {id(o): self._ignored_options(backend, o) for o in {id(options[i]): options[i] for i in positions}.values()}
        builder = PromptBuilder(backend, self._chat_template)
        running: dict[int, PreparedRequest] = {}
        refused: deque[tuple[int, Outcome]] = deque()

        def prompts() -> Iterator[Prompt]:
            for i in positions:
                try:
                    running[i] = builder.build(i, requests[i], options[i])
                except RequestError as error:
                    refused.append((i, GenerationFailure("invalid", str(error), error)))
                    continue
                yield running[i].prompt

        for output in backend.generate(prompts(), plugins=plugins, should_stop=should_stop):
            while refused:
                yield refused.popleft()
            if isinstance(output, Completion):
                prepared = running.pop(output.index)
                yield output.index, _result(prepared, output, backend, note, ignored[id(prepared.options)], plugins)
            else:
                running.pop(output[0])
                yield output
        yield from refused
        if running and not should_stop():
            for i in running:
                yield i, GenerationFailure("error", f"backend {backend.name!r} gave no output for this request")

    def _ignored_options(self, backend: Backend, options: GenerationOptions) -> tuple[str, ...]:
        can = backend.capabilities
        ignored = []
        if options.no_repeat_ngram_size and not can.supports_no_repeat_ngram:
            ignored.append(f"no_repeat_ngram_size={options.no_repeat_ngram_size}")
        if not options.use_cache and not can.supports_use_cache_off:
            ignored.append("use_cache=False")
        if options.logprobs and not can.supports_logprobs:
            ignored.append("logprobs=True")
        ignored += [f"{key}={value!r}" for key, value in options.extra_generation_kwargs.items() if key not in can.extra_options]
        if ignored:
            listed = ", ".join(ignored)
            legal = ", ".join(sorted(can.extra_options)) or "none"
            if not self._warn_only:
                raise UnsupportedOption(
                    f"backend {backend.name!r} cannot honour: {listed}. Leave them out, or allow it with --unsupported-options warn. "
                    f"Extra options it knows: {legal}"
                )
            self._warn(f"backend {backend.name!r} ignores: {listed}")
        return tuple(ignored)

    def _warn(self, message: str) -> None:
        if message not in self._warned:
            self._warned.add(message)
            warnings.warn(message, EngineWarning, stacklevel=2)

    def close(self) -> None:
        """Free the models' memory and end all child processes; may be called twice."""
        self._backend.close()
        if isinstance(self._fallback, Backend):
            self._fallback.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _result(
    prepared: PreparedRequest,
    completion: Completion,
    backend: Backend,
    note: str | None,
    ignored: tuple[str, ...],
    plugins: Sequence[GenerationPlugin],
) -> GenerationResult:
    ending = finish(completion, prepared.stops, backend.tokenizer, prepared.options.decode)
    plan = prepared.prompt.plan
    facts = prepared.images.facts if prepared.images is not None else ()
    logprobs = completion.logprobs[: len(ending.token_ids)] if completion.logprobs is not None else None
    return GenerationResult(
        text=postprocess_text(plugins, ending.text),
        raw_text=ending.raw_text,
        finish_reason=ending.finish_reason,
        stop_reason=ending.stop_reason,
        num_prompt_tokens=completion.num_prompt_tokens,
        num_completion_tokens=len(ending.token_ids),
        token_ids=ending.token_ids,
        logprobs=logprobs,
        logprobs_kind="raw" if logprobs is not None else None,
        seed=plan.seed if plan.temperature > 0 else None,
        backend=backend.name,
        fallback=note,
        ignored_options=ignored,
        prompt_sha256=prompt_sha256(prepared.prompt, facts),
        prompt_text=prepared.prompt.text,
        images=_image_facts(prepared, completion),
    )


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


def build_backend(name: str, config: ModelLoadConfig, preprocess: VlmPreprocessOptions, vllm_options: VllmEngineOptions) -> Backend:
    """Return a loaded backend by name; `ConfigError` for an unknown one, `CheckpointError` or `BackendError` if it cannot start."""
    backend_class = load_backend_class(name)
    if name == "vllm":
        return backend_class(config, preprocess, vllm_options)
    return backend_class(config, preprocess)


def build_engine(
    backend: str,
    config: ModelLoadConfig,
    *,
    vllm_options: VllmEngineOptions | None = None,
    chat_template: ChatTemplateOptions | None = None,
    preprocess: VlmPreprocessOptions | None = None,
    fallback_backend: str | None = None,
    unsupported_options: str = "refuse",
) -> Engine:
    """Return an engine with one checkpoint loaded; `fallback_backend` is loaded only when it is needed."""
    preprocess = preprocess or VlmPreprocessOptions()
    vllm_options = vllm_options or VllmEngineOptions()
    fallback = None
    if fallback_backend is not None:
        fallback = lambda: build_backend(fallback_backend, config, preprocess, vllm_options)  # noqa: E731
    primary = build_backend(backend, config, preprocess, vllm_options)
    return Engine(primary, fallback_backend=fallback, chat_template=chat_template, unsupported_options=unsupported_options)
