"""Keeps the engine that was used last open, so that the next checkpoint's weights are put into it instead of a new start."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from evalharness.api.errors import EvalHarnessError
from evalharness.config import RunConfig
from evalharness.pytest_plugin.execution.caching import cache_identity, make_cache
from evalharness.pytest_plugin.execution.engine_specs import EngineSpec

if TYPE_CHECKING:
    from evalharness.engine.cache import ResponseCache
    from evalharness.engine.engine import Engine

__all__ = ["EnginePool", "Opening"]


@dataclass(frozen=True)
class Opening:
    """How an engine came to its checkpoint: a new start, a swap into a running one, or it had it still.

    `swapped_from`: the engine id before; `cold_because`: why there was no swap, where an engine was running.
    """

    how: Literal["load", "swap", "kept"]
    seconds: float
    swapped_from: str | None = None
    cold_because: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the facts for the journal; something held all along took no seconds."""
        facts: dict[str, Any] = {"how": self.how}
        if self.how != "kept":
            facts["load_s"] = self.seconds
        for name in ("swapped_from", "cold_because"):
            if getattr(self, name) is not None:
                facts[name] = getattr(self, name)
        return facts


class EnginePool:
    """At most one engine waits here: a second one beside it would need the memory of both."""

    def __init__(self, run: RunConfig, on_notice: Callable[[str], None]) -> None:
        self._run = run
        self._on_notice = on_notice
        self._waiting: tuple[EngineSpec, Engine] | None = None

    @cached_property
    def cache(self) -> ResponseCache | None:
        """The run's answers to deterministic questions, opened on first use; `ConfigError` where its folder cannot be used."""
        return make_cache(self._run, self._on_notice)

    def open(self, spec: EngineSpec) -> tuple[Engine, Opening]:
        """Return an engine with the spec's checkpoint loaded; the errors of a backend's start pass through."""
        engine, opening = self._open(spec)
        # A server may change its weights unseen, and without a fingerprint nothing tells two scripts of answers apart.
        if self.cache is not None and spec.fingerprint is not None and spec.backend != "openai":
            engine.use_cache(self.cache, cache_identity(spec, self._run, engine))
        return engine, opening

    def _open(self, spec: EngineSpec) -> tuple[Engine, Opening]:
        from evalharness.pytest_plugin.execution.engine_loading import open_engine  # a session that opens none pays for none

        started = time.monotonic()
        before, self._waiting = self._waiting, None
        cold_because = None
        if before is not None:
            last, engine = before
            try:
                is_changed = engine.weights_were_changed
                if last.id == spec.id and not is_changed:
                    return engine, Opening("kept", 0.0)
                cold_because = f"a test changed the weights of {last.id}" if is_changed else self._swap(engine, last, spec)
                if cold_because is None:
                    return engine, Opening("swap", time.monotonic() - started, swapped_from=last.id)
            except BaseException:
                engine.close()
                raise
            engine.close()
            started = time.monotonic()
        engine = open_engine(spec, self._run, self._on_notice)
        return engine, Opening("load", time.monotonic() - started, cold_because=cold_because)

    def _swap(self, engine: Engine, last: EngineSpec, spec: EngineSpec) -> str | None:
        """Put the spec's checkpoint into the engine; return why that was not possible, None if it was."""
        if (last.backend, last.dtype) != (spec.backend, spec.dtype):
            return f"the engine before, {last.id}, is of another kind"
        from evalharness.pytest_plugin.execution.engine_loading import load_config

        config = load_config(spec, self._run)
        try:
            problem = engine.why_not_swap(config)
            if problem is None:
                engine.swap(config)
        except EvalHarnessError as error:  # a new start says what is wrong with the checkpoint, if it is the checkpoint
            return f"the swap into {last.id} failed: {error}"
        return f"{last.id} cannot take its weights: {problem}" if problem is not None else None

    def give_back(self, spec: EngineSpec, engine: Engine) -> None:
        """Keep an engine that no test uses any more."""
        self._close_waiting()
        self._waiting = (spec, engine)

    def close(self) -> None:
        """Close the engine that waits, if any, and the cache: what it has on disk is then one file, which may be copied."""
        self._close_waiting()
        if "cache" in vars(self) and self.cache is not None:
            self.cache.close()

    def _close_waiting(self) -> None:
        waiting, self._waiting = self._waiting, None
        if waiting is not None:
            waiting[1].close()
