"""LoRA adapters at a server: uploaded, chosen in each request, removed. `flavours.py` says how each kind of server does it.

Servers read an adapter's folder at any time, some at every step, and cache prefixes and adapters by name, number or path. So a server never
gets the caller's folder, which a trainer overwrites or removes, but a copy of our own, under a new name each time: no cache can belong to
another adapter. Every weight of the copy must fit the base.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from evalharness.api.checks import excerpt
from evalharness.api.errors import BackendError, CapabilityError, CheckpointError, ConfigError, EvalHarnessError
from evalharness.api.options import ModelLoadConfig
from evalharness.api.temporary import OwnFolder
from evalharness.backends.base import LiveChange, WeightReport
from evalharness.backends.loaded_weights import LoadedWeights, TakeCompanions, WeightSource, holds_adapter
from evalharness.backends.openai.client import HttpClient
from evalharness.backends.openai.flavours import FLAVOURS, AdapterWay
from evalharness.checkpoints.adapter import Adapter
from evalharness.checkpoints.architecture import loading_difference
from evalharness.checkpoints.identity import fingerprint_adapter

_FILES = ("adapter_config.json", "*.safetensors")  # not the far larger optimizer states that trainers keep beside them
_CLOSING_S = 10.0
_UNKNOWN = (400, 404)  # what a server that was started anew says to the name of an adapter that it had


@dataclass(frozen=True)
class _Brought:
    """An adapter that the server has, or is shown with each request."""

    name: str
    number: int
    folder: Path
    adapter: Adapter


class ServerAdapters:
    """The adapter in force at one server, at most one, for one client; others have theirs beside it.

    `way` None: the server cannot be told to load any. `folder`: where the copies are put, which the server must see under the same path;
    None: among this machine's temporary files.
    """

    def __init__(
        self, client: HttpClient, way: AdapterWay | None, base_model: str, folder: Path | None, listed: Callable[[], frozenset[str]]
    ) -> None:
        self.can_load = way is not None
        self._client, self._way, self._base_model, self._listed = client, way or AdapterWay(), base_model, listed
        self._parent = folder
        self._own_folder: OwnFolder | None = None
        self._prefix, self._count = f"evalharness-{uuid.uuid4().hex[:8]}", 0
        self._current: _Brought | None = None
        self._left: list[_Brought] = []  # that the server did not take away
        self.problem: str | None = None
        """Why nothing can be asked now: the server has lost one adapter, or may have, and did not take the next."""

    @property
    def model(self) -> str:
        """What requests name as their model."""
        if self._current is None:
            return self._base_model
        return self._way.model.format(base=self._base_model, name=self._current.name)

    @property
    def fields(self) -> dict[str, Any]:
        """What is added to each request."""
        now = self._current
        if now is None or self._way.field is None:
            return {}
        if self._way.field == "adapters":
            return {"adapters": str(now.folder)}
        return {"lora_request": {"lora_name": now.name, "lora_int_id": now.number, "lora_path": str(now.folder)}}

    @property
    def adapter(self) -> Adapter | None:
        """The adapter in force, None for the base."""
        return self._current.adapter if self._current is not None else None

    def load(self, adapter: Adapter) -> None:
        """Put an adapter in force in place of the one before.

        `CheckpointError` for one that the server cannot have or refuses: the one before is in force still, but at servers that have room
        for one, where `problem` is set. `BackendError` where the server is not there.
        """
        path = adapter.path
        before, brought = self._current, self._bring(adapter)
        try:
            if self._way.load is not None:
                if self._way.unload_first:
                    self._take_off()
                self._load(brought, path)
        except BaseException as error:
            if before is not None and self._current is None:
                self.problem = f"the server has no adapter since it did not take {path}: {error}"
            shutil.rmtree(brought.folder, ignore_errors=True)
            raise
        left, self._current, self.problem = self._current, brought, None
        if left is not None:
            self._remove(left)

    def unload(self) -> None:
        """Go back to the base; raises where the server does not take the adapter away."""
        self._take_off()
        self.problem = None

    def close(self) -> None:
        """Take away what was brought, as far as the server is there, and remove the copies; may be called twice."""
        brought, self._left = [*self._left, *([self._current] if self._current is not None else [])], []
        self._current = None
        for each in brought:
            with contextlib.suppress(EvalHarnessError):  # a server that is gone has no adapters either
                self._unload(each, _CLOSING_S)
        if self._own_folder is not None:
            self._own_folder.remove()
            self._own_folder = None

    def describe(self) -> dict[str, Any]:
        """Return plain JSON facts."""
        if not self.can_load:
            return {}
        adapter = self.adapter
        return {
            "adapter": adapter.to_json() if adapter is not None else None,
            "adapter_served_as": self.model if adapter is not None else None,
            "num_adapters_not_unloaded": len(self._left),
        }

    def _bring(self, adapter: Adapter) -> _Brought:
        """Return a copy of the adapter, whole; the caller's folder may change or go from here on."""
        path = adapter.path
        if adapter.replaced:
            raise CheckpointError(
                f"adapter {path} replaces whole weights ({', '.join(sorted(adapter.replaced)[:3])}), which servers leave out; "
                "merge it into its base and serve that"
            )
        self._count += 1
        name = f"{self._prefix}-v{self._count}"
        folder = self._folder() / name
        partial = folder.with_name(f".{name}.partial")
        try:
            partial.mkdir()
            for pattern in _FILES:
                for file in path.glob(pattern):
                    shutil.copyfile(file, partial / file.name)
            os.rename(partial, folder)  # so that a half-written folder is never seen
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise CheckpointError(f"adapter {path} cannot be copied to {folder}: {error}") from error
        if fingerprint_adapter(folder) != adapter.fingerprint:
            shutil.rmtree(folder, ignore_errors=True)
            raise CheckpointError(f"adapter {path} was written to while it was copied; load it again once it is whole")
        return _Brought(name, uuid.uuid4().int % 2**31, folder, adapter)

    def _folder(self) -> Path:
        if self._own_folder is None:
            try:
                self._own_folder = OwnFolder("adapters", self._parent)
                self._own_folder.path.chmod(0o755)  # the server may run as another user
            except OSError as error:
                raise ConfigError(f"copies of adapters cannot be put into {self._parent or tempfile.gettempdir()}: {error}") from error
        return self._own_folder.path

    def _load(self, brought: _Brought, path: Path) -> None:
        assert self._way.load is not None
        body = {"lora_name": brought.name, "lora_path": str(brought.folder)}
        refused = refusal(*self._client.tell(self._way.load, body))
        if refused is not None:
            raise self._refusal(path, refused)
        if self._way.is_listed and brought.name not in self._listed():
            raise self._refusal(path, f"it says that it loaded {brought.name}, and does not list it")

    def _refusal(self, path: Path, told: str) -> CheckpointError:
        hint = f"; {self._way.hint}" if self._way.hint else ""
        where = "" if self._parent is not None else " (a server on another machine: give a folder that both see with --adapter-dir)"
        return CheckpointError(f"the server did not take adapter {path}: {told}{hint} Does it see {self._folder()}{where}?")

    def _take_off(self) -> None:
        before = self._current
        if before is None:
            return
        try:
            self._unload(before)
        except BaseException as error:
            self.problem = f"nobody knows whether the server still has {before.name}: {str(error) or type(error).__name__}"
            raise
        self._current = None
        shutil.rmtree(before.folder, ignore_errors=True)

    def _remove(self, before: _Brought) -> None:
        """Remove an adapter that is no longer used; if that fails, it does no harm, and removal is tried again at the end."""
        try:
            self._unload(before)
        except EvalHarnessError:
            self._left.append(before)
        else:
            shutil.rmtree(before.folder, ignore_errors=True)

    def _unload(self, brought: _Brought, timeout_s: float | None = None) -> None:
        if self._way.unload is None:
            return
        status, told = self._client.tell(self._way.unload, {"lora_name": brought.name}, timeout_s=timeout_s)
        refused = refusal(status, told)
        if refused is not None and status not in _UNKNOWN:
            raise BackendError(f"the server did not take adapter {brought.name} away: {refused}")


def refusal(status: int, told: str) -> str | None:
    """Return a server's reason for refusing; None if it succeeded: status 200, in plain text, or in JSON without `success: false`."""
    short = excerpt(told, 300)
    if status != 200:
        return f"status {status}: {short}"
    try:
        answer = json.loads(told)
    except (ValueError, RecursionError):
        return None  # vLLM's plain text
    if not isinstance(answer, Mapping) or answer.get("success", True) is True:
        return None
    return short


_LOADING_S = 1800.0  # for a whole checkpoint, which may come over a network


class ServerWeights(LoadedWeights):
    """The weights of a server, as far as this client has a say in them: adapters, and checkpoints where a server takes them."""

    def __init__(
        self, client: HttpClient, flavour_name: str, source: WeightSource, adapters: ServerAdapters, on_load: TakeCompanions
    ) -> None:
        super().__init__(source, on_load)
        self._client, self._flavour_name, self._reload_way = client, flavour_name, FLAVOURS[flavour_name].reload
        self._adapters = adapters
        self._broken: str | None = None
        why_not: dict[LiveChange, str] = {"sleep": "its memory is the server's own, which has routes for it"}
        if not adapters.can_load:
            problem = f"server {flavour_name!r} cannot be told to load adapters; start it with one and name that as served model"
            why_not |= {"adapter": problem, "tensors": problem}
        if self._reload_way is None:
            why_not["checkpoint"] = f"server {flavour_name!r} keeps the checkpoint that it was started with"
        self.changes, self.why_not = self.changes - set(why_not), why_not

    def require_usable(self) -> None:
        """Raise `BackendError` if it is unknown which weights the server has."""
        problem = self._broken or self._adapters.problem
        if problem is not None:
            raise BackendError(f"the server cannot be asked: {problem}")

    def require_changeable(self, *, whole: bool) -> None:
        """Return: a server may be told at any time, and what it has become known to lack is loaded so."""

    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return why a checkpoint cannot take the place of the one in force: between those of a run only adapters change."""
        if config.model_name_or_path != self.source.config.model_name_or_path:
            return "a server keeps the weights it has"
        if config.adapter_path != self.source.config.adapter_path and not self._adapters.can_load:
            return f"server {self._flavour_name!r} cannot be told to load adapters"
        return None

    def _why_not_load(self, config: ModelLoadConfig) -> str | None:
        return loading_difference(self.source.folder, Path(config.model_name_or_path))

    def _swap(self, config: ModelLoadConfig) -> None:
        if config.adapter_path is None:
            self._put(None, None)
        elif self._adapters.can_load:
            self.load_adapter(config.adapter_path)
        self.source = replace(self.source, config=config)

    def _write_adapter(self, adapter: Adapter | None) -> int:
        if adapter is not None:
            self._adapters.load(adapter)
        else:
            self._adapters.unload()
        return 0

    def sync_from_state_dict(self, tensors: Mapping[str, Any], adapter_config: Any, *, strict: bool) -> WeightReport:
        """Bring a trainer's adapter, through a folder of our own; `CapabilityError` for the weights of a model."""
        if not holds_adapter(tensors):
            self._write_tensors(tensors, strict=strict)
        return super().sync_from_state_dict(tensors, adapter_config, strict=strict)

    def _write_tensors(self, tensors: Mapping[str, Any], *, strict: bool) -> WeightReport:
        raise CapabilityError(
            "the weights of a model cannot be sent to a server; save them, and have it load the folder (engine.weights.reload)"
        )

    def _write_checkpoint(self, source: WeightSource) -> int:
        """Have the server load a folder, which it must see, for everybody that asks it; nothing is asked after a load that failed."""
        folder, adapter = source.folder, source.adapter
        if adapter is not None and not self._adapters.can_load:
            raise CapabilityError(f"server {self._flavour_name!r} cannot be told to load adapters; load the checkpoint without one")
        self._tell_checkpoint(folder.path.absolute())
        try:
            self._adapters.unload()  # not before: a server that does not load checkpoints keeps base and adapter
            if adapter is not None:
                self._adapters.load(adapter)
        except BaseException as error:
            self._broken = f"{folder.path} was loaded, its adapter not changed: {error}"
            raise
        self._broken = None
        return len(folder.weight_shapes())

    def _tell_checkpoint(self, folder: Path) -> None:
        """Tell the server, step by step; from the first step until the last succeeds, the server's weights are unknown."""
        way = self._reload_way
        assert way is not None  # else `changes` does not say so
        for number, (route, body) in enumerate(way.steps):
            try:
                filled = json.loads(json.dumps(body).replace('"{folder}"', json.dumps(str(folder))))
                status, told = self._client.tell(route, filled, timeout_s=_LOADING_S)
            except BaseException as error:  # Ctrl-C among them: the server goes on with what it was told
                self._broken = f"{folder} was being loaded, and {str(error) or type(error).__name__}"
                raise
            if status == 404 and number == 0:
                raise CapabilityError(f"the server has no {route}, so it keeps its checkpoint; {way.hint}")
            refused = refusal(status, told)
            if refused is not None:
                self._broken = f"{folder} could not be loaded ({route}): {refused}"
                raise BackendError(f"{self._broken}; {way.hint}" if way.hint else self._broken)
