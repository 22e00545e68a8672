"""The part of `OpenAIBackend` whose weights change: adapters, a trainer's adapter from memory, and checkpoints where a server takes them.

An adapter concerns this client alone. A checkpoint that is loaded into a server answers everybody there: so it is done where a trainer
says so (`Engine.reload_weights`), and never between the checkpoints of a run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalharness.api.engine_options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.errors import BackendError, CapabilityError, CheckpointError
from evalharness.backends.base import LiveChange, WeightReport
from evalharness.backends.checkpoint_reading import end_of_sequence_ids, load_tokenizer_and_processor
from evalharness.backends.openai.client import HttpClient
from evalharness.backends.openai.flavours import Flavour
from evalharness.backends.openai.weights import ServerAdapters, refusal
from evalharness.checkpoints.adapter import Adapter, read_adapter
from evalharness.checkpoints.architecture import LoadedFolder, architecture_difference, companion_difference, tensor_difference

__all__ = ["ServerLiveWeights"]

_LOADING_S = 1800.0  # for a whole checkpoint, which may come over a network


class ServerLiveWeights:
    """The weights of a server, as far as this client has a say in them."""

    tokenizer: Any
    processor: Any
    eos_token_ids: tuple[int, ...]
    _config: ModelLoadConfig
    _preprocess: VlmPreprocessOptions
    _client: HttpClient
    _flavour: Flavour
    _flavour_name: str
    _folder: LoadedFolder
    _adapters: ServerAdapters | None
    _broken: str | None

    def _what_is_live(self) -> tuple[frozenset[LiveChange], Mapping[LiveChange, str]]:
        """Return what can be done to the weights, and why the rest cannot."""
        able: set[LiveChange] = set()
        why: dict[LiveChange, str] = {"sleep": "its memory is the server's own, which has routes for it"}
        if self._adapters is not None:
            able |= {"adapter", "tensors"}
        else:
            why["adapter"] = (
                f"server {self._flavour_name!r} cannot be told to load adapters; start it with one and name that as served model"
            )
            why["tensors"] = why["adapter"]
        if self._flavour.reload is not None:
            able.add("checkpoint")
        else:
            why["checkpoint"] = f"server {self._flavour_name!r} keeps the checkpoint that it was started with"
        return frozenset(able), why

    def _require_usable(self) -> None:
        problem = self._broken or (self._adapters.problem if self._adapters is not None else None)
        if problem is not None:
            raise BackendError(f"the server cannot be asked: {problem}")

    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return why a checkpoint cannot take the place of the one in force: between those of a run only adapters change."""
        if config.model_name_or_path != self._config.model_name_or_path:
            return "a server keeps the weights it has"
        if config.adapter_path != self._config.adapter_path and self._adapters is None:
            return f"server {self._flavour_name!r} cannot be told to load adapters"
        return None

    def swap(self, config: ModelLoadConfig) -> None:
        """Put another adapter of the same base in force, or none; `BackendError`: see `why_not_swap`."""
        problem = self.why_not_swap(config)
        if problem is not None:
            raise BackendError(f"{config.model_name_or_path} cannot be put into a server from here: {problem}")
        if config.adapter_path is not None and self._adapters is not None:
            self.load_adapter(config.adapter_path)
        elif self._adapters is not None:
            self._adapters.unload()
        self._config = config

    def load_adapter(self, path: str) -> WeightReport:
        """Bring an adapter to the server and have it answer from now on; see `ServerAdapters.load`."""
        adapter = self._bring(Path(path))
        self._config = replace(self._config, adapter_path=path)
        return WeightReport(path, adapter.num_tensors, adapter=adapter.to_json())

    def _bring(self, path: Path) -> Adapter:
        assert self._adapters is not None  # else `Capabilities.live` is empty
        return self._adapters.load(path, self._folder.weight_shapes())

    def unload_adapter(self) -> WeightReport:
        """Have the base answer again; `CapabilityError` where no adapter was brought."""
        assert self._adapters is not None
        if self._adapters.adapter is None and self._adapters.problem is None:
            raise CapabilityError("there is no adapter to take off: the server's base answers")
        self._adapters.unload()
        self._config = replace(self._config, adapter_path=None)
        return WeightReport(self._config.model_name_or_path, 0)

    def sync_from_state_dict(self, tensors: Mapping[str, Any], adapter_config: Any, *, strict: bool) -> WeightReport:
        """Bring a trainer's adapter, through a folder of our own; `CapabilityError` for the weights of a model."""
        from evalharness.backends.weight_sources import given_adapter, holds_adapter  # these alone need torch

        if not holds_adapter(tensors):
            raise CapabilityError(
                "the weights of a model cannot be sent to a server; save them, and have it load the folder (reload_weights)"
            )
        before = self._adapters.adapter if self._adapters is not None else None
        with given_adapter(tensors, adapter_config, before, self._folder.weight_shapes(), strict=strict) as (given, left):
            adapter = self._bring(given.path)
        return WeightReport("tensors", adapter.num_tensors, not_matched=left, adapter={**adapter.to_json(), "path": "tensors"})

    def reload_weights(self, path: str, adapter_path: str | None) -> WeightReport:
        """Have the server load a checkpoint from that folder, which it must see; for everybody that asks it.

        `CheckpointError` for one that cannot take the place of the old, before the server is told. After a load that failed nothing is
        asked until another has succeeded.
        """
        from evalharness.backends.weight_sources import check_checkpoint

        folder = Path(path).absolute()
        check_checkpoint(path, self._folder)
        problem = (
            architecture_difference(self._folder, folder, dtype_matters=False)
            or companion_difference(self._folder, folder)
            or tensor_difference(self._folder, folder)
        )
        if problem is not None:
            raise CheckpointError(f"{path} cannot take the place of the loaded checkpoint: {problem}")
        config = replace(self._config, model_name_or_path=path, adapter_path=None)
        loaded = LoadedFolder.read(folder)
        if adapter_path is not None:
            if self._adapters is None:
                raise CapabilityError(f"server {self._flavour_name!r} cannot be told to load adapters; load the checkpoint without one")
            read_adapter(Path(adapter_path), loaded.weight_shapes())  # refused before anything is loaded
        companions = load_tokenizer_and_processor(config, self._preprocess)
        self._load_checkpoint(folder)
        self.tokenizer, self.processor = companions
        self.eos_token_ids = end_of_sequence_ids(path, self.tokenizer)
        self._config, self._folder, self._broken = config, loaded, None
        try:
            if self._adapters is not None:
                self._adapters.unload()  # not before: a server that does not load checkpoints keeps base and adapter
            if adapter_path is None:
                return WeightReport(path, len(loaded.weight_shapes()))
            return replace(self.load_adapter(adapter_path), source=path)
        except BaseException as error:
            self._broken = f"{path} was loaded, its adapter not changed: {error}"
            raise

    def _load_checkpoint(self, folder: Path) -> None:
        """Tell the server, step by step; once the first step has begun nobody knows its weights until the last has ended well."""
        way = self._flavour.reload
        assert way is not None  # else `Capabilities.live` does not say so
        for number, (route, body) in enumerate(way.steps):
            try:
                status, told = self._client.tell(route, _filled(body, str(folder)), timeout_s=_LOADING_S)
            except BaseException as error:  # Ctrl-C among them: the server goes on with what it was told
                self._broken = f"{folder} was being loaded, and {str(error) or type(error).__name__}"
                raise
            if status == 404 and number == 0:
                raise CapabilityError(f"the server has no {route}, so it keeps its checkpoint; {way.hint}")
            refused = refusal(status, told)
            if refused is not None:
                self._broken = f"{folder} could not be loaded ({route}): {refused}"
                raise BackendError(f"{self._broken}; {way.hint}" if way.hint else self._broken)

    def sleep(self) -> None:
        """Refuse: see `Capabilities.live`."""
        raise CapabilityError("a server is not put to sleep from here")

    def wake(self, tags: Sequence[str] | None) -> None:
        """Refuse: see `Capabilities.live`."""
        raise CapabilityError("a server is not woken from here")


def _filled(body: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return the body with the folder where it stands as `{folder}`."""
    return {
        key: folder
        if value == "{folder}"
        else [folder if one == "{folder}" else one for one in value]
        if isinstance(value, list)
        else value
        for key, value in body.items()
    }
