"""New weights for a running engine: for trainers, who sample from a policy that changes every few steps.

    engine.weights.load_adapter("runs/42/adapter")            # a LoRA adapter on the base that is loaded
    engine.weights.reload("runs/42/checkpoint-100")           # another checkpoint of the same architecture, or the same folder, rewritten
    engine.weights.reload("Qwen/Qwen3-4B-Instruct-2507")      # likewise, from the hub's cache
    engine.weights.sync_from_state_dict(model.state_dict())   # a model's weights, or peft's of an adapter, from memory

Each answers as a new start on those weights would, and nothing computed with the old weights is used: no prefix, image or cached answer.
Loaded weights stay unchanged whatever happens to the folder. A refused change changes nothing, and the error says why. Knows no torch: the
backend moves the weights.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalharness.api.errors import BackendError, CapabilityError, ContractTypeError, ContractValueError
from evalharness.api.options import ModelLoadConfig
from evalharness.backends.base import Backend, LiveChange, LiveWeights, SleepableWeights, WatchedWeights, WeightReport
from evalharness.backends.option_support import SHIPPED
from evalharness.checkpoints.hub import folder_of, is_hub_name
from evalharness.engine.jobs import Fallback


class EngineWeights:
    """The weights that an engine answers with: `Engine.weights`. Changes wait for `lock`, which the engine holds while it generates.

    A change is refused beside a `fallback`, which would keep the old weights.
    """

    def __init__(self, backend: Backend, fallback: Fallback | None, lock: threading.RLock) -> None:
        self._backend, self._fallback, self._lock = backend, fallback, lock
        self._num_streams = 0
        self._is_closed = False
        self._num_changes = 0
        self._version = "0"
        self._id = uuid.uuid4().hex
        self._stamp: Hashable | None = self._read_stamp()
        self.cache_identity: Mapping[str, Any] = {}
        """What distinguishes answers of these weights from those of others, as plain JSON; see `Engine.use_cache`."""

    @property
    def version(self) -> str:
        """Which weights answer now: "0" at the start, then the number of changes, or the names given to them.

        Every result has it as `weight_version`. Steps of an optimizer on the model itself (hf) are changes, too.
        """
        with self._lock:
            self._notice_change()
            return self._version

    @property
    def id(self) -> str:
        """A name unique to these weights among all engines: it changes with each change and each swap, even if a version repeats."""
        with self._lock:
            self._notice_change()
            return self._id

    @property
    def were_changed(self) -> bool:
        """Whether the weights differ from those of the start, or of the last swap."""
        with self._lock:
            self._notice_change()
            return self._num_changes > 0

    @property
    def is_shared(self) -> bool:
        """Whether the model is a trainer's own, whose weights may change unnoticed."""
        watched = self._watched()
        return watched is not None and watched.is_shared

    def close(self) -> None:
        """Note that the weights are gone, with their engine."""
        self._is_closed = True

    def require_open(self) -> None:
        """Raise `BackendError` if the engine is closed."""
        if self._is_closed:
            raise BackendError(f"backend {self._backend.name!r} is closed; make a new one")

    def identify(self, identity: Mapping[str, Any]) -> None:
        """Set `cache_identity`; changes since the start, or the last swap, are added to it."""
        with self._lock:
            self.cache_identity = {**identity, "weights": self.id} if self.were_changed else identity

    @contextmanager
    def kept_for_a_stream(self) -> Iterator[None]:
        """Refuse changes while a stream of the engine is open, including those from the stream's own thread."""
        self._num_streams += 1
        try:
            yield
        finally:
            self._num_streams -= 1

    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return why another checkpoint cannot replace the loaded one, None if `swap` will work."""
        if self._fallback is not None:
            return "there is a fallback backend, which would keep the old one"
        if self._backend.weights is None:
            return f"backend {self._backend.name!r} keeps the weights that it started with"
        return self._backend.weights.why_not_swap(config)

    def swap(self, config: ModelLoadConfig) -> None:
        """Replace the loaded weights with another checkpoint's; after an error the engine can only be closed."""
        with self._lock:
            self.require_open()
            problem = self.why_not_swap(config)
            if problem is not None or self._backend.weights is None:
                raise BackendError(f"{config.model_name_or_path} cannot take the place of the loaded checkpoint: {problem}")
            self._backend.weights.swap(config)
            self._count_change("0")
            self._num_changes = 0  # they are those of a new start

    def reload(self, path: str, *, adapter_path: str | None = None, weight_version: str | None = None) -> WeightReport:
        """Load a checkpoint of the same architecture from `path`, read anew even if the same folder was loaded before.

        Removes the adapter unless one is given. On a trainer's own model nothing is loaded, as its weights are there: this and the next two
        compare them, and count a change. Raises `CheckpointError` for a checkpoint that cannot be used.
        """
        _check_path("path", path)
        if adapter_path is not None:
            _check_path("adapter_path", adapter_path)
        return self._change(
            "checkpoint",
            weight_version,
            lambda weights: weights.reload(self._folder(path), None if adapter_path is None else self._folder(adapter_path)),
        )

    def load_adapter(self, path: str, *, weight_version: str | None = None) -> WeightReport:
        """Put the LoRA adapter of a folder on the loaded base, in place of the previous adapter.

        Raises `CheckpointError` if any of its weights would be ignored or does not fit.
        """
        _check_path("path", path)
        return self._change("adapter", weight_version, lambda weights: weights.load_adapter(self._folder(path)))

    def unload_adapter(self, *, weight_version: str | None = None) -> WeightReport:
        """Remove the adapter; the base is then as it was without it, to the bit. `CapabilityError` if there is none."""
        return self._change("adapter", weight_version, lambda weights: weights.unload_adapter())

    def sync_from_state_dict(
        self, tensors: Mapping[str, Any], *, adapter_config: Any = None, strict: bool = True, weight_version: str | None = None
    ) -> WeightReport:
        """Take the weights of a model, `model.state_dict()`, or of a LoRA adapter, peft's `get_peft_model_state_dict(model)`.

        Tensors with `lora_` in their names are an adapter's: it takes the place of the one before, and `adapter_config` (peft's
        LoraConfig, or its fields) says how it is scaled; it may be left out where an adapter is loaded that is scaled alike.
        Other tensors are the model's own. Each is converted to the type of the weight that it replaces. `ContractValueError`, and
        nothing has changed, where a name means no weight of the model, a shape differs, or a weight of the model is not among
        them; with `strict` False such names are left out and stand in the report.
        """
        if not isinstance(tensors, Mapping):
            raise ContractTypeError(f"tensors must be a mapping of names to tensors, got {type(tensors).__name__}")
        if not tensors:
            raise ContractValueError("tensors is empty; give model.state_dict(), or an adapter's get_peft_model_state_dict(model)")
        return self._change(
            "tensors", weight_version, lambda weights: weights.sync_from_state_dict(tensors, adapter_config, strict=bool(strict))
        )

    def mark_changed(self, weight_version: str | None = None) -> str:
        """Count a change of a trainer's model (hf) that torch does not see (`tensor.data`), or name its weights. Return the version."""
        version = _checked_version(weight_version)
        with self._lock:
            if self._watched() is None:
                raise CapabilityError(
                    f"the weights of backend {self._backend.name!r} are its own; they change by engine.weights.reload and the like"
                )
            self._count_change(version)
            return self._version

    def sleep(self) -> None:
        """Free the device's memory for other uses; generating is refused until `wake`."""
        with self._lock:
            self._sleepable().sleep()

    def wake(self, *tags: str) -> None:
        """Bring back what sleeps, exactly: everything, or "weights" or "kv_cache" only (weights can be changed before the cache wakes)."""
        unknown = sorted(set(tags) - {"weights", "kv_cache"})
        if unknown:
            raise ContractValueError(f"{unknown[0]!r} cannot be woken; known: weights, kv_cache, or nothing for both")
        with self._lock:
            self._sleepable().wake(tags or None)

    def _change(self, kind: LiveChange, weight_version: str | None, change: Callable[[LiveWeights], WeightReport]) -> WeightReport:
        version = _checked_version(weight_version)
        with self._lock:
            weights = self._changeable(kind)
            started = time.perf_counter()
            report = change(weights)
            self._count_change(version)
            return replace(report, weight_version=self._version, duration_s=time.perf_counter() - started)

    def _folder(self, path: str) -> str:
        """Return the path, or the folder in the hub's cache that a name means; backends of other packages may have names of their own."""
        is_name = self._backend.name in SHIPPED and is_hub_name(str(path), Path())
        return str(folder_of(str(path)) if is_name else path)

    def _changeable(self, kind: LiveChange) -> LiveWeights:
        """Return the backend's weights if this change is possible now; raises before anything is touched."""
        self.require_open()
        if self._num_streams:
            raise BackendError("the engine still generates; finish or close the stream before its weights change")
        if self._fallback is not None:
            raise CapabilityError("weights cannot change beside a fallback backend, which would keep the old ones; build without one")
        weights = self._backend.weights
        if weights is None or kind not in weights.changes:
            listed = ", ".join(sorted(weights.changes)) if weights is not None and weights.changes else "nothing"
            why_not = weights.why_not.get(kind) if weights is not None else None
            reason = f": {why_not}" if why_not is not None else f"; here it can: {listed}"
            raise CapabilityError(f"backend {self._backend.name!r} cannot do this to its weights ({kind}){reason}")
        return weights

    def _sleepable(self) -> SleepableWeights:
        weights = self._changeable("sleep")
        assert isinstance(weights, SleepableWeights)
        return weights

    def _watched(self) -> WatchedWeights | None:
        weights: object = self._backend.weights
        return weights if isinstance(weights, WatchedWeights) else None

    def _read_stamp(self) -> Hashable | None:
        watched = self._watched()
        return watched.stamp() if watched is not None else None

    def _notice_change(self) -> None:
        stamp = self._read_stamp()
        if stamp is not None and stamp != self._stamp:  # None: the backend is closed
            self._count_change(None)

    def _count_change(self, version: str | None) -> None:
        self._stamp = self._read_stamp()
        self._num_changes += 1
        self._version = version if version is not None else str(self._num_changes)
        # No other engine, in no other run, has these weights: a cache on disk must not take them for each other.
        self._id = uuid.uuid4().hex
        self.cache_identity = {**self.cache_identity, "weights": self._id}


class WeightSync:
    """Brings a trainer's weights to an engine, only if they have changed, and again after a failure.

    `push` brings them and returns its report: `lambda: engine.weights.sync_from_state_dict(model.state_dict())`, or a `save_pretrained` and
    `lambda: engine.weights.load_adapter(path)`.
    """

    def __init__(self, push: Callable[[], WeightReport]) -> None:
        self._push = push
        self._num_marks, self._num_pushed = 1, 0  # counts, not a flag: a mark that is made while a push runs must not be lost
        self.last: WeightReport | None = None

    @property
    def dirty(self) -> bool:
        """Whether the engine's weights are older than the trainer's; True at first."""
        return self._num_pushed < self._num_marks

    def mark_dirty(self) -> None:
        """Note that the trainer's weights have changed: after each step of the optimizer."""
        self._num_marks += 1

    def __call__(self) -> WeightReport | None:
        """Push if dirty; return the report, None if there was nothing to do. Stays dirty after an error."""
        num_marks = self._num_marks
        if self._num_pushed == num_marks:
            return None
        self.last = self._push()
        self._num_pushed = num_marks
        return self.last


def _check_path(name: str, path: object) -> None:
    if not isinstance(path, (str, os.PathLike)):
        raise ContractTypeError(f"{name} must be the path of a folder, got {path!r} ({type(path).__name__})")


def _checked_version(version: object) -> str | None:
    if version is None or (isinstance(version, str) and version):
        return version
    raise ContractValueError(f"weight_version must be a text, such as 'step-100', or left out, got {version!r}")
