"""Plans a call of the engine: which backend gets which requests, with which options. Everything that can be refused is refused here.

Knows nothing about how a job then runs (stream.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

from evalharness.api.errors import CapabilityError, EvalHarnessError, RequestError, UnsupportedOption
from evalharness.api.hooks import GenerationPlugin, RequestType
from evalharness.api.options import ChatTemplateOptions, GenerationOptions
from evalharness.api.requests import Request, VlmGenerationRequest, nothing_ran
from evalharness.api.scoring import ScoringRequest, chat_of
from evalharness.api.structured_output import StructuredOutput
from evalharness.backends.base import Backend, Capabilities, Prompt
from evalharness.backends.option_support import WITHOUT_EFFECT
from evalharness.engine.chat_template import check_template_owner, knows_enable_thinking
from evalharness.engine.prompts import PreparedRequest, PromptBuilder, check_options


def split_options(options: GenerationOptions, can: Capabilities) -> tuple[GenerationOptions, tuple[str, ...]]:
    """Return the options that a backend can honour, and the others as `name=value`."""
    structured = options.structured
    without = {  # what the options are where the backend cannot honour them
        "no_repeat_ngram_size": (bool(options.no_repeat_ngram_size) and not can.supports_no_repeat_ngram, None),
        "use_cache": (not options.use_cache and not can.supports_use_cache_off, True),
        "logprobs": (options.logprobs and not can.supports_logprobs, False),
        "logprobs_kind": (options.logprobs_kind != "raw" and not can.supports_processed_logprobs, "raw"),
        "entropies": (options.entropies and not can.supports_entropies, False),
        "structured": (structured is not None and structured.kind not in can.structures, None),
        "max_thinking_tokens": (options.max_thinking_tokens is not None and not can.supports_thinking_budget, None),
    }
    changes: dict[str, Any] = {name: value for name, (is_left_out, value) in without.items() if is_left_out}
    ignored = [
        f"structured.{structured.kind}" if name == "structured" and structured else f"{name}={getattr(options, name)!r}" for name in changes
    ]
    extras = options.extra_generation_kwargs
    unknown = [key for key in extras if key not in can.extra_options]
    if unknown:
        ignored += [f"{key}={extras[key]!r}" for key in unknown]
        changes["extra_generation_kwargs"] = {key: value for key, value in extras.items() if key not in unknown}
    return (replace(options, **changes) if changes else options), tuple(ignored)


_OF_SAMPLING = ("top_k", "min_p", "typical_p")


def idle_options(options: GenerationOptions) -> Iterator[tuple[str, str]]:
    """Yield the options, as `options.name=value`, that change no answer beside the others, and why."""
    if options.pad_token_id is not None:
        yield f"options.pad_token_id={options.pad_token_id}", WITHOUT_EFFECT["options.pad_token_id"]
    if options.logprobs_kind != "raw" and not options.logprobs:
        yield f"options.logprobs_kind={options.logprobs_kind!r}", "no log-probabilities are asked for; set logprobs=True"
    if not options.samples:
        sampling = {name: value for name, value in options.extra_generation_kwargs.items() if name in _OF_SAMPLING}
        if options.top_p != 1.0:
            sampling["top_p"] = options.top_p
        yield from ((f"options.{name}={value!r}", "decoding is greedy; set a temperature above 0") for name, value in sampling.items())


def check_plugin(plugin: GenerationPlugin, backend: str, can: Capabilities, request_types: Iterable[RequestType]) -> None:
    """Raise `CapabilityError` unless the plugin can act on this backend and on every type of request."""
    if plugin.backends is not None and backend not in plugin.backends:
        raise CapabilityError(f"plugin {plugin.name!r} does not work on backend {backend!r}; it works on: {_listed(plugin.backends)}")
    for request_type in request_types:
        if plugin.request_types is not None and request_type not in plugin.request_types:
            taken = _listed(plugin.request_types)
            raise CapabilityError(f"plugin {plugin.name!r} does not take {request_type} requests; it takes: {taken}")
    for is_lacking, what in (
        (plugin.uses_hf_hooks and not can.supports_hf_hooks, "uses transformers hooks, which backend {} cannot run; use backend 'hf'"),
        (
            plugin.watches_tokens and not can.supports_token_watchers,
            "ends rows by their tokens, which backend {} cannot do; use backend 'hf'",
        ),
        (
            plugin.bans_tokens and not can.supports_token_bans,
            "bans tokens while a row is written, which backend {} cannot do; use backend 'hf', or leave the plugin out",
        ),
    ):
        if is_lacking:
            raise CapabilityError(f"plugin {plugin.name!r} {what.format(repr(backend))}")
    if plugin.is_copied_for_rows:
        _check_copy(plugin)


def _check_copy(plugin: GenerationPlugin) -> None:
    try:
        plugin.for_row()
    except Exception as error:
        raise CapabilityError(
            f"plugin {plugin.name!r} cannot be copied, and each row needs its own copy ({type(error).__name__}: {error}); define "
            "__deepcopy__, or write hf_logits_processor(prompt_lengths) or hf_stopping_criteria(prompt_lengths), for the whole batch"
        ) from error


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


def has_images(request: Request) -> bool:
    """Return whether a request asks about images."""
    return isinstance(chat_of(request), VlmGenerationRequest)


Draft: TypeAlias = Callable[[], Sequence[int]]
"""Gives a recorded answer's ids when its request is prepared: many wait, few run."""


class JobRequest(NamedTuple):
    """A request at its position in the call; `options` as its backend honours them, without those that are `ignored`.

    `draft` gives the ids that the answer will probably have.
    """

    position: int
    request: Request
    options: GenerationOptions
    ignored: tuple[str, ...]
    builder: PromptBuilder
    draft: Draft | None = None

    def prepare(self) -> PreparedRequest:
        """Return the prompt; `RequestError` if there can be none."""
        prepared = self.builder.build(self.position, self.request, self.options)
        if self.draft is not None and prepared.prompt.response_ids is None:
            prepared = prepared._replace(prompt=replace(prepared.prompt, draft_ids=tuple(self.draft())))
        return prepared._replace(ignored=(*self.ignored, *prepared.ignored)) if self.ignored else prepared


@dataclass(frozen=True)
class Job:
    """The work of one backend in one call; `note` says why it is not the first choice."""

    backend: Backend
    note: str | None
    weight_version: str
    requests: tuple[JobRequest, ...]

    def with_drafts(self, drafts: Mapping[int, Draft | None]) -> Job:
        """Return the job with drafts, by position."""
        return replace(self, requests=tuple(one._replace(draft=drafts.get(one.position)) for one in self.requests))

    def prompts(self) -> list[Prompt]:
        """Make and return the prompts of all requests; `RequestsFailed`, with an outcome for each request, if one has none."""
        prompts: list[Prompt] = []
        refused: dict[int, RequestError] = {}
        for request in self.requests:
            try:
                prompts.append(request.prepare().prompt)
            except RequestError as error:
                refused[request.position] = error
        if refused:
            raise nothing_ran(refused, len(self.requests)) from refused[min(refused)]
        return prompts


class Fallback:
    """Another backend for requests that the first one cannot run; if given as a function, it is made when first needed."""

    def __init__(self, given: Backend | Callable[[], Backend]) -> None:
        self._given = given

    def open(self) -> Backend:
        """Return the backend."""
        if not isinstance(self._given, Backend):
            self._given = self._given()
        return self._given

    @property
    def opened(self) -> Backend | None:
        """The backend, if it was made."""
        return self._given if isinstance(self._given, Backend) else None

    def close(self) -> None:
        """Close the backend, if it was made."""
        if self.opened is not None:
            self.opened.close()


_Numbered: TypeAlias = "tuple[int, Request, GenerationOptions]"
"""A request at its position in the call, with its options."""


class JobMaker:
    """Makes jobs for a backend, and for its fallback those that the backend cannot run.

    `warn_only`: options that a backend cannot honour are left out instead of refused. `on_notice` is called, once each, with everything
    that is done other than requested.
    """

    def __init__(
        self,
        backend: Backend,
        fallback: Fallback | None,
        chat_template: ChatTemplateOptions,
        *,
        warn_only: bool,
        on_notice: Callable[[str], None],
    ) -> None:
        self._backend = backend
        self._fallback = fallback
        self._chat_template = chat_template
        self._warn_only = warn_only
        self._on_notice = on_notice
        self._noticed: set[str] = set()

    def jobs(
        self, requests: Sequence[Request], options: Sequence[GenerationOptions], plugins: Sequence[GenerationPlugin], weight_version: str
    ) -> list[Job]:
        """Return the job of each backend; raises if one cannot run."""
        numbered = list(zip(range(len(requests)), requests, options, strict=True))
        if self._backend.capabilities.supports_vlm:
            return [self._job(self._backend, None, numbered, plugins, weight_version)]
        texts = [one for one in numbered if not has_images(one[1])]
        images = [one for one in numbered if has_images(one[1])]
        groups: list[tuple[Backend, str | None, list[_Numbered]]] = [(self._backend, None, texts)] if texts else []
        if images:
            groups.append((*self._image_backend(), images))
        return [self._job(*group, plugins, weight_version) for group in groups]

    def own_job(self, requests: Sequence[Request], options: Sequence[GenerationOptions], weight_version: str, *, first: int = 0) -> Job:
        """Return a job of the first backend alone, without plugins, positions from `first` on; raises if it cannot run."""
        return self._job(self._backend, None, list(zip(itertools.count(first), requests, options)), (), weight_version)

    def check_options(self, options: Iterable[GenerationOptions]) -> None:
        """Raise what the first backend would raise for these options. If image requests run on a fallback, only `jobs` can tell."""
        if self._backend.capabilities.supports_vlm or self._fallback is None:
            builder = PromptBuilder(self._backend, self._chat_template)
            for value in options:
                self._backend.check_plan(builder.sampling_plan(self._honoured(self._backend, value)[0]))

    def _image_backend(self) -> tuple[Backend, str]:
        """Return the backend that runs image requests in place of the first one, and why."""
        reason = f"backend {self._backend.name!r} cannot run image requests with this checkpoint"
        if self._fallback is None:
            raise CapabilityError(f"{reason}; give a vision-language checkpoint, or allow another backend (--fallback-backend hf)")
        fallback = self._fallback.open()
        if not fallback.capabilities.supports_vlm:
            raise CapabilityError(f"{reason}, and neither can the fallback {fallback.name!r}; give a vision-language checkpoint")
        self._notice(f"{reason}: they run on {fallback.name!r}")
        return fallback, f"{fallback.name}: {reason}"

    def _job(
        self, backend: Backend, note: str | None, numbered: Sequence[_Numbered], plugins: Sequence[GenerationPlugin], weight_version: str
    ) -> Job:
        types: set[RequestType] = {"vlm" if has_images(request) else "text" for _, request, _ in numbered}
        is_chat = any(chat_of(request) is not None for _, request, _ in numbered)
        _refuse_scoring(backend, numbered, plugins)
        for plugin in plugins:
            check_plugin(plugin, backend.name, backend.capabilities, sorted(types))
        builder = PromptBuilder(backend, self._chat_template)
        for request_type in types if is_chat else ():
            owner = builder.template_owner(request_type)
            check_template_owner(owner, self._chat_template)
            if not knows_enable_thinking(owner):
                self._notice_thinking(backend, owner)
        honoured = {key: self._honoured(backend, value) for key, value in {id(options): options for *_, options in numbered}.items()}
        generating = {id(options) for _, request, options in numbered if not isinstance(request, ScoringRequest)}
        for key, (value, _) in honoured.items():
            for name, reason in idle_options(value) if key in generating else ():
                self._notice(f"{name} changes nothing: {reason}")
            backend.check_plan(builder.sampling_plan(value))
        each = tuple(JobRequest(position, request, *honoured[id(options)], builder) for position, request, options in numbered)
        return Job(backend, note, weight_version, each)

    def _notice_thinking(self, backend: Backend, owner: Any) -> None:
        """Say that the template ignores the switch: on, or off where the model may think all the same."""
        mark = self._chat_template.thinking_marks[0]
        if self._chat_template.enable_thinking:
            self._notice("thinking was asked for, but the chat template does not know enable_thinking: the prompts are as without it")
        elif mark in str(getattr(owner, "chat_template", "")) or mark in getattr(backend.tokenizer, "get_added_vocab", dict)():
            self._notice("thinking is off, but the chat template does not know enable_thinking: a model that thinks does so all the same")

    def _honoured(self, backend: Backend, options: GenerationOptions) -> tuple[GenerationOptions, tuple[str, ...]]:
        """Return the options that the backend can honour, and those it cannot; raises unless leaving out is allowed."""
        structured = options.structured
        if structured is not None and structured.optional and not self._can_hold(backend, options, structured):
            honoured, ignored = self._honoured(backend, replace(options, structured=None))
            return honoured, (*ignored, f"structured.{structured.kind}")
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

    def _can_hold(self, backend: Backend, options: GenerationOptions, structured: StructuredOutput) -> bool:
        if structured.kind not in backend.capabilities.structures:
            return False
        try:
            plan = PromptBuilder(backend, self._chat_template).sampling_plan(split_options(options, backend.capabilities)[0])
            backend.check_plan(plan)  # a package may be missing, a keyword beyond its grammars, thinking be on
        except EvalHarnessError:  # where another option is at fault, this error is raised again without the form
            return False
        return True

    def _notice(self, message: str) -> None:
        if message not in self._noticed:
            self._noticed.add(message)
            self._on_notice(message)


def _refuse_scoring(backend: Backend, numbered: Sequence[_Numbered], plugins: Sequence[GenerationPlugin]) -> None:
    """Raise `CapabilityError` or `UnsupportedOption` if given responses cannot be scored, before anything runs."""
    scoring = {id(options): options for _, request, options in numbered if isinstance(request, ScoringRequest)}
    if not scoring:
        return
    asks_greedy = any(isinstance(request, ScoringRequest) and request.greedy for _, request, _ in numbered)
    if not backend.capabilities.supports_scoring:
        raise CapabilityError(f"backend {backend.name!r} cannot score given responses; use --backend hf or vllm")
    if asks_greedy and not backend.capabilities.supports_greedy_checks:
        raise CapabilityError(f"backend {backend.name!r} cannot tell what is greedy (scoring.greedy); leave it out, or use hf or vllm")
    if plugins:
        raise CapabilityError("generation plugins act on what is generated, and a given response is not; leave them out")
    for options in scoring.values():
        check_options(options)
