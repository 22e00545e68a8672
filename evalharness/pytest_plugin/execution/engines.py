"""Opens engines for the first test that needs one, records their facts, and keeps the last one open for the next checkpoint's weights."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Callable
from functools import cached_property, partial
from threading import RLock
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import ConfigError, EvalHarnessError
from evalharness.api.options import ChatTemplateOptions, ModelLoadConfig, ServerOptions, VllmEngineOptions, VlmPreprocessOptions
from evalharness.api.thinking import DEFAULT_MARKS
from evalharness.api.threads import set_default_threads
from evalharness.config import RunConfig
from evalharness.config.options import OPTIONS
from evalharness.pytest_plugin.execution.drafts import NONE, Drafts
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec, concerns
from evalharness.pytest_plugin.execution.metering import EngineMeter, cards_of, cost_of
from evalharness.pytest_plugin.execution.takeover import read_crashes
from evalharness.runs.run_file import installed_versions
from evalharness.runs.schema import EngineLine

if TYPE_CHECKING:
    from evalharness.api.options import GenerationOptions
    from evalharness.api.requests import Outcome
    from evalharness.engine.cache import ResponseCache
    from evalharness.engine.engine import Engine
    from evalharness.pytest_plugin.run_context import RunContext

# Facts of an engine that may change its answers; others, such as how long it took to load, differ from start to start.
_FACTS = ("torch", "transformers", "vllm", "max", "device", "dtype", "attn_implementation", "max_model_len", "template_sha256")
# Beside those that the engine tells: what decodes, prepares images, adds adapters and constrains.
_PACKAGES = ("evalharness", "llguidance", "peft", "pillow", "tokenizers", "torchvision", "xgrammar")
_OPTIONS = (
    "max_pixels",
    "min_pixels",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "engine_option",
    "enforce_eager",
    "attn_implementation",
    "variant",
    "trust_remote_code",
)


def cache_identity(spec: EngineSpec, run: RunConfig, engine: Engine) -> dict[str, Any]:
    """Return what answers depend on besides the request: weights by fingerprint, backend, libraries, options."""
    facts = engine.describe()
    return {
        "fingerprint": spec.fingerprint,
        "backend": spec.backend,
        "facts": {name: facts[name] for name in _FACTS if name in facts},
        "versions": installed_versions(_PACKAGES),
        "options": {name: getattr(run, name) for name in _OPTIONS},
        # Absent where they are off, so that answers of before these options still count. With drafts vLLM draws with another runner.
        **({"batch_invariant": True} if run.batch_invariant else {}),
        **({} if run.draft_from in (None, NONE) else {"drafts": True}),
    }


class EnginePool:
    """Keeps the engine used last open, so that the next checkpoint's weights are swapped into it instead of a new start.

    At most one engine waits: a second one beside it would need the memory of both.
    """

    def __init__(self, run: RunConfig, on_notice: Callable[[str], None]) -> None:
        self._run = run
        self._on_notice = on_notice
        self._waiting: tuple[EngineSpec, Engine] | None = None

    @cached_property
    def cache(self) -> ResponseCache | None:
        """The run's answers to deterministic questions, opened on first use; None where the run has no cache.

        `ConfigError` where its folder cannot be used.
        """
        run = self._run
        if not (run.cache if run.cache is not None else run.cache_dir is not None):
            return None
        from evalharness.engine.cache import ResponseCache  # brings sqlite along

        return ResponseCache(run.cache_dir, on_notice=self._on_notice)

    def open(self, spec: EngineSpec) -> tuple[Engine, EngineLine]:
        """Return an engine with the spec's checkpoint loaded, and how it got it; errors of the backend's start propagate."""
        engine, opening = self._open(spec)
        if opening["how"] != "kept" and spec.backend != "openai":  # a server has its weights from elsewhere
            try:
                spec.check_unchanged()
            except BaseException:
                engine.close()
                raise
        # A server may change its weights unseen, and without a fingerprint nothing tells two scripts of answers apart.
        if self.cache is not None and spec.fingerprint is not None and spec.backend != "openai":
            engine.use_cache(self.cache, cache_identity(spec, self._run, engine))
        return engine, opening

    def _open(self, spec: EngineSpec) -> tuple[Engine, EngineLine]:
        started = time.monotonic()
        before, self._waiting = self._waiting, None
        cold_start_reason = None
        if before is not None:
            last, engine = before
            try:
                is_changed = engine.weights.were_changed
                if last.id == spec.id and not is_changed:
                    return engine, {"how": "kept"}
                cold_start_reason = f"a test changed the weights of {last.id}" if is_changed else self._swap(engine, last, spec)
                if cold_start_reason is None:
                    return engine, {"how": "swap", "load_s": time.monotonic() - started, "swapped_from": last.id}
            except BaseException:
                engine.close()
                raise
            engine.close()
            started = time.monotonic()
        engine = open_engine(spec, self._run, self._on_notice)
        opening: EngineLine = {"how": "load", "load_s": time.monotonic() - started}
        return engine, opening if cold_start_reason is None else {**opening, "cold_because": cold_start_reason}

    def _swap(self, engine: Engine, last: EngineSpec, spec: EngineSpec) -> str | None:
        """Put the spec's checkpoint into the engine; return why that was not possible, None if it was."""
        if (last.backend, last.dtype) != (spec.backend, spec.dtype):
            return f"the engine before, {last.id}, is of another kind"

        config = load_config(spec, self._run)
        try:
            problem = engine.weights.why_not_swap(config)
            if problem is None:
                engine.weights.swap(config)
        except EvalHarnessError as error:  # if the checkpoint is at fault, a new start reports it
            return f"the swap into {last.id} failed: {error}"
        return f"{last.id} cannot take its weights: {problem}" if problem is not None else None

    def give_back(self, spec: EngineSpec, engine: Engine) -> None:
        """Keep an engine that no test uses any more."""
        self._close_waiting()
        self._waiting = (spec, engine)

    def close(self) -> None:
        """Close the waiting engine, if any, and the cache, which is then one file on disk that may be copied."""
        self._close_waiting()
        if "cache" in vars(self) and self.cache is not None:
            self.cache.close()

    def _close_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting[1].close()


class DeferredEngine:
    """Stands for an engine that may not be needed because everything is recorded; loads at the first access beyond its name.

    `open` loads it, and raises the same error however often it is called. `opened` is the engine itself, None until it is needed.
    """

    def __init__(self, name: str, load: Callable[[], Engine]) -> None:
        self.name = name
        self.opened: Engine | None = None
        self._load = load
        self._failure: BaseException | None = None
        self._lock = RLock()

    def open(self) -> Engine:
        """Return the engine, loaded at the first call."""
        with self._lock:
            if self._failure is not None:
                raise self._failure
            if self.opened is None:
                try:
                    self.opened = self._load()
                except BaseException as error:
                    self._failure = error
                    raise
            return self.opened

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # copies and inspections are no reason to load anything
            raise AttributeError(name)
        return getattr(self.open(), name)


def opened_engine(engine: Engine, *, wanted: bool = False) -> Engine | None:
    """Return the engine itself, None if it was never needed; with `wanted` it is loaded now, and errors propagate."""
    deferred: object = engine
    if not isinstance(deferred, DeferredEngine):
        return engine
    return deferred.open() if wanted else deferred.opened


class EngineOpening:
    """The engines of one process, at most one of them open."""

    def __init__(self, context: RunContext) -> None:
        self._context = context
        self._notices: list[str] = []
        drafts = Drafts(context.run, self._note)
        self.drafts = drafts if drafts.is_on else None
        self._pool = EnginePool(context.run, self._note)
        self.card_problem: str | None = None
        """Why no engine can be opened on this process's GPUs."""
        self.opening: tuple[str, float] | None = None
        """The engine that is being opened just now, and since when, by the monotonic clock."""
        self.current: Engine | None = None
        """The engine that was opened last."""
        self.meter = EngineMeter()
        """Measures it."""
        self.on_outcome: Callable[[EngineSpec, GenerationOptions, Outcome, float], None] | None = None
        """Called with every outcome of the open engine, see `Engine.on_outcome`."""

    def check_cache(self) -> None:
        """Raise `ConfigError` where the folder of the run's cache cannot be used, before anything runs."""
        self._pool.cache  # noqa: B018

    def may_not_be_needed(self, spec: EngineSpec) -> bool:
        """Return whether all work of an engine may be recorded already, by earlier sessions or a dead worker."""
        context = self._context
        if context.resumed is not None:
            return True
        return context.is_worker and any(note["engine"] == spec.id for note in read_crashes(context.run_dir, context.session_number))

    def open(self, spec: EngineSpec) -> Engine:
        """Open and return the engine of a spec, and note its facts."""
        context = self._context
        if context.num_workers:
            # Before torch is imported; without it every worker's torch would use all cores.
            set_default_threads(max(1, (os.cpu_count() or 1) // context.num_workers))
        if self.card_problem is not None:
            raise ConfigError(self.card_problem)
        context.journal.write("engine_start", {"id": spec.id})
        self.current, self.opening = None, (spec.id, time.monotonic())
        try:
            engine, opening = self._pool.open(spec)
        finally:
            self.opening = None
        self.current = engine
        if self.drafts is not None and opening["how"] != "kept":
            self.drafts.look_back(context.run_dir)
        engine.on_outcome = None if self.on_outcome is None else partial(self.on_outcome, spec)
        facts = engine.describe()
        problem = None if context.resumed is None else context.resumed.engine_change(spec, facts)
        if problem is not None:
            self._pool.give_back(spec, engine)
            raise ConfigError(problem)
        devices = None if context.cards is None else list(context.cards)
        cards, why_not = cards_of(facts, context.cards)
        self.meter.attach(engine, () if context.run.share_devices else cards)
        line: EngineLine = {
            "id": spec.id,
            **opening,
            "settings": facts,
            "ended_s": time.time(),
            "cost": cost_of(spec, facts, cards, why_not),
        }
        context.journal.write("engine", {**line, "worker": context.journal.worker, "devices": devices})
        return engine

    def give_back(self, spec: EngineSpec, engine: Engine) -> None:
        """Keep an engine for the next checkpoint. Records its facts again: some count events since it was opened."""
        opened = opened_engine(engine)
        if opened is None:
            return
        facts = opened.describe()
        self._pool.give_back(spec, opened)
        line: EngineLine = {"id": spec.id, "settings": facts, "worker": self._context.journal.worker, "closed_s": time.time()}
        self._context.journal.write("engine", line)

    def close(self) -> None:
        """Close the engine that was kept."""
        self.current = None
        self._pool.close()

    def _note(self, message: str) -> None:
        # A warning that is an error would end the thread that generates, and with it every case of the unit.
        if threading.current_thread() is threading.main_thread():
            _warn(message)
        else:
            self._notices.append(message)

    def warn_of_notices(self) -> None:
        """Warn, in the main thread, of everything that engines did other than requested."""
        while self._notices:
            _warn(self._notices.pop(0))


def _warn(message: str) -> None:
    from evalharness.engine.engine import EngineWarning

    warnings.warn(message, EngineWarning, stacklevel=2)


def open_engine(spec: EngineSpec, run: RunConfig, on_notice: Callable[[str], None]) -> Engine:
    """Return the loaded engine; errors of the backend's start propagate. `on_notice`: see `Engine`."""
    from evalharness.engine.build import build_engine  # loads the backend's libraries

    return build_engine(spec.backend, load_config(spec, run), **how_to_build(spec, run), on_notice=on_notice)


def how_to_build(spec: EngineSpec, run: RunConfig) -> dict[str, Any]:
    """Return the arguments of `build_engine` beside backend, checkpoint and `on_notice`."""
    options = _options_for(spec, run)
    return {
        "vllm_options": VllmEngineOptions(
            tensor_parallel_size=options["tensor_parallel_size"],
            pipeline_parallel_size=options["pipeline_parallel_size"],
            distributed_executor_backend=options["distributed_executor_backend"],
            gpu_memory_utilization=options["gpu_memory_utilization"],
            max_model_len=options["max_model_len"],
            enforce_eager=options["enforce_eager"],
            batch_invariant=options["batch_invariant"],
            extra=options["engine_option"],
            tune=options["tune"],
            drafts=spec.backend == "vllm" and (options["draft_from"] or NONE) != NONE,  # hf needs not know before
        ),
        "server_options": ServerOptions(
            server=options["server"],
            base_url=options["base_url"],
            served_model=options["served_model"],
            concurrency=options["concurrency"],
            request_timeout_s=options["request_timeout"],
            adapter_dir=str(options["adapter_dir"]) if options["adapter_dir"] is not None else None,
        ),
        "chat_template": ChatTemplateOptions(
            enable_thinking=run.thinking,
            thinking_marks=run.thinking_marks.partition(",")[::2] if run.thinking_marks else DEFAULT_MARKS,
            special_tokens=not run.special_tokens_as_text,
        ),
        "preprocess": VlmPreprocessOptions(max_pixels=options["max_pixels"], min_pixels=options["min_pixels"]),
        "fallback_backend": run.fallback_backend if run.fallback_backend != spec.backend else None,
        "unsupported_options": run.unsupported_options,
    }


def load_config(spec: EngineSpec, run: RunConfig) -> ModelLoadConfig:
    """Return which weights an engine of the spec loads, and how."""
    options = _options_for(spec, run)
    return ModelLoadConfig(
        spec.base_path or spec.checkpoint_path,
        torch_dtype=spec.dtype,
        device=options["device"],
        attn_implementation=options["attn_implementation"],
        trust_remote_code=options["trust_remote_code"],
        allow_pickle=options["allow_pickle"],
        variant=options["variant"],
        adapter_path=spec.checkpoint_path if spec.base_path is not None else None,
    )


def _options_for(spec: EngineSpec, run: RunConfig) -> dict[str, Any]:
    """Return every option's value, with the default for options that concern only other engines of the matrix."""
    return {
        option.name: getattr(run, option.name) if concerns(option, spec.backend, run, spec.variant) else option.default
        for option in OPTIONS
    }
