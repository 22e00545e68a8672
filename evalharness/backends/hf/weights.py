"""The part of `HfBackend` whose weights change: swaps, reloads, adapters, a trainer's tensors, sleep."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from evalharness.api.engine_options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.errors import BackendError, CapabilityError, CheckpointError
from evalharness.backends.base import LiveChange, WeightReport
from evalharness.backends.checkpoint_reading import pixel_budget
from evalharness.backends.hf.hf_batch_sizes import BatchSizes
from evalharness.backends.hf.hf_memory import describe_error, release_memory
from evalharness.backends.hf.hf_sleeping import SleepingWeights
from evalharness.backends.hf.hf_swapping import HfAdapter, load_in_place, own_weights, place_of, why_not_in_place
from evalharness.backends.hf.loading import read_companions
from evalharness.backends.hf.shared_model import SharedModel, stamp_of
from evalharness.backends.hf.structured import Grammars
from evalharness.backends.weight_names import refuse_unmatched
from evalharness.backends.weight_sources import check_checkpoint, given_adapter, holds_adapter, pair_tensors
from evalharness.checkpoints.adapter import Adapter, read_adapter
from evalharness.checkpoints.architecture import LoadedFolder, architecture_difference

__all__ = ["HfLiveWeights"]

_ALL: frozenset[LiveChange] = frozenset({"checkpoint", "adapter", "tensors", "sleep"})
_SHARED = "the model is shared with its trainer, who changes it; there is nothing to bring here"


class HfLiveWeights:
    """Weights of a transformers model in memory, and what is known of where they are from."""

    tokenizer: Any
    processor: Any
    eos_token_ids: tuple[int, ...]
    _model: Any
    _config: ModelLoadConfig
    _preprocess: VlmPreprocessOptions
    _settings: Mapping[str, Any]
    batch_sizes: BatchSizes
    _vocab_size: int
    _grammars: Grammars
    _broken: str | None

    _shared: SharedModel | None

    def _start_weights(self, folder: LoadedFolder, adapter: Adapter | None) -> None:
        self._folder = folder
        self._is_as_loaded = True  # the base is the folder's, no tensor of it was given since
        self._between: str | None = None  # why the weights are of two kinds
        self._sleeping: SleepingWeights | None = None
        self._adapter_source = self._config.adapter_path
        self._adapted = HfAdapter(self._model, adapter) if adapter is not None else None
        self._own_stamp = self.weight_stamp()  # of what was done here: another is somebody's training

    def _what_is_live(self) -> tuple[frozenset[LiveChange], Mapping[LiveChange, str]]:
        """Return what can be done to the weights, and why the rest cannot."""
        return (_ALL, {}) if self._shared is None else (frozenset(), dict.fromkeys(_ALL, _SHARED))

    def _adapter_facts(self) -> Mapping[str, Any] | None:
        return {**self._adapted.adapter.to_json(), "path": self._adapter_source} if self._adapted is not None else None

    def weight_stamp(self) -> Hashable | None:
        """Return what differs after each change of the weights, whoever makes it; None when there are none any more."""
        return stamp_of(self._model) if self._model is not None else None

    @property
    def is_shared(self) -> bool:
        """Whether the model is somebody else's."""
        return self._shared is not None

    def _require_open(self) -> None:
        if self._model is None:
            raise BackendError("backend 'hf' is closed; make a new one")
        if self._broken is not None:
            raise BackendError(f"backend 'hf' cannot go on after: {self._broken}")
        if self._sleeping is not None:
            raise CapabilityError("backend 'hf' sleeps, its weights are put away; wake the engine first (engine.wake())")

    def _require_usable(self) -> None:
        """Raise unless the weights are there and all of one kind."""
        self._require_open()
        if self._between is not None:
            raise BackendError(f"a change of weights broke off, they are of two kinds: {self._between}; load a checkpoint (reload_weights)")

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Whatever ends this early leaves weights of two kinds behind, and nothing may be generated with them."""
        if self._own_stamp != self.weight_stamp():  # somebody trained the base, which the stamp taken below would not tell
            self._is_as_loaded = False
        try:
            yield
        except BaseException as error:
            self._between = describe_error(error) if isinstance(error, Exception) else type(error).__name__
            raise
        self._between = None
        self._own_stamp = self.weight_stamp()

    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return why this checkpoint cannot take the place of the loaded one, None where `swap` will do."""
        if self._shared is not None:
            return "the model is a trainer's"
        self._require_open()
        return None if self._keeps_base(config) else self._why_not_load(config)

    def _keeps_base(self, config: ModelLoadConfig) -> bool:
        is_same = config.model_name_or_path == self._config.model_name_or_path
        untouched = self._is_as_loaded and self._between is None and self._own_stamp == self.weight_stamp()
        return is_same and untouched and not self._folder.has_changed()

    def _why_not_load(self, config: ModelLoadConfig) -> str | None:
        other = Path(config.model_name_or_path)
        difference = architecture_difference(self._folder, other, dtype_matters=(config.torch_dtype or "").lower() == "auto")
        return difference or why_not_in_place(self._model, other)

    def swap(self, config: ModelLoadConfig) -> None:
        """Copy another checkpoint's weights into the model; its tokenizer, processor and EOS ids are read anew."""
        problem = self.why_not_swap(config)
        if problem is not None:
            raise BackendError(f"{config.model_name_or_path} cannot take the place of the loaded checkpoint: {problem}")
        if self._keeps_base(config):
            adapter = self._read_adapter(config.adapter_path) if config.adapter_path is not None else None
            self._put_adapter(adapter, config.adapter_path)
            self._config = config
        else:
            self._load(config)
        self.batch_sizes.num_halvings = 0  # of this checkpoint

    def reload_weights(self, path: str, adapter_path: str | None) -> WeightReport:
        """Read a checkpoint's folder anew, whatever was loaded from it before."""
        self._require_open()
        check_checkpoint(path, self._folder)
        config = replace(self._config, model_name_or_path=path, adapter_path=adapter_path)
        problem = self._why_not_load(config)
        if problem is not None:
            raise CheckpointError(f"{path} cannot take the place of the loaded checkpoint: {problem}")
        num_loaded = self._load(config)
        return WeightReport(path, num_loaded, adapter=self._adapter_facts())

    def _load(self, config: ModelLoadConfig) -> int:
        """Load base and adapter; whatever can be refused is refused before anything is touched. Return the number of tensors."""
        folder = LoadedFolder.read(Path(config.model_name_or_path))
        adapter = read_adapter(Path(config.adapter_path), folder.weight_shapes()) if config.adapter_path is not None else None
        tokenizer, processor, eos_token_ids = read_companions(config, self._preprocess)
        with self._changing():
            self._take_adapter_off()
            num_loaded = load_in_place(self._model, folder.path)
            if adapter is not None:
                self._adapted = HfAdapter(self._model, adapter)
        self.tokenizer, self.processor, self.eos_token_ids = tokenizer, processor, eos_token_ids
        self._grammars = Grammars(self.tokenizer, self._vocab_size)
        budget = pixel_budget(self.processor.image_processor) if self.processor is not None else None
        self._settings = {**self._settings, "pixel_budget": budget}
        self._config, self._folder, self._is_as_loaded, self._adapter_source = config, folder, True, config.adapter_path
        return num_loaded

    def load_adapter(self, path: str) -> WeightReport:
        """Put an adapter on the base that is in memory."""
        self._require_usable()
        adapter = self._read_adapter(path)
        self._put_adapter(adapter, path)
        return WeightReport(path, adapter.num_tensors, adapter=self._adapter_facts())

    def unload_adapter(self) -> WeightReport:
        """Take the adapter off."""
        self._require_usable()
        if self._adapted is None:
            raise CapabilityError("there is no adapter to take off")
        self._put_adapter(None, None)
        return WeightReport(self._config.model_name_or_path, 0)

    def _read_adapter(self, path: str) -> Adapter:
        if not Path(path).is_dir():
            raise CheckpointError(f"there is no folder {path}; the weights that are loaded stay")
        return read_adapter(Path(path), self._folder.weight_shapes())

    def _put_adapter(self, adapter: Adapter | None, source: str | None) -> None:
        with self._changing():
            if adapter is None or self._adapted is None or not self._adapted.refill(adapter):
                self._take_adapter_off()
                self._adapted = HfAdapter(self._model, adapter) if adapter is not None else None
        self._adapter_source = source

    def _take_adapter_off(self) -> None:
        if self._adapted is not None:
            self._adapted.remove()
            self._adapted = None

    def sync_from_state_dict(self, tensors: Mapping[str, Any], adapter_config: Any, *, strict: bool) -> WeightReport:
        """Copy a trainer's tensors into the model, or put its adapter on."""
        if holds_adapter(tensors):
            self._require_usable()
            loaded = self._adapted.adapter if self._adapted is not None else None
            with given_adapter(tensors, adapter_config, loaded, self._folder.weight_shapes(), strict=strict) as (adapter, left):
                self._put_adapter(adapter, "tensors")
            return WeightReport("tensors", adapter.num_tensors, not_matched=left, adapter=self._adapter_facts())
        self._require_open()
        if self._adapted is not None:
            raise CapabilityError("an adapter is loaded, which would be added to these weights as well; call unload_adapter() first")
        if getattr(self._model, "is_quantized", False):
            raise CapabilityError(
                "the loaded weights are quantized; a trainer's cannot be put in their place, start anew on a saved checkpoint"
            )
        own = own_weights(self._model)
        given = pair_tensors(tensors, {name: tuple(tensor.shape) for name, tensor in own.items()}, lambda name: place_of(own[name]))
        written = {place_of(own[name]) for name in given.tensors}
        missing = tuple(sorted(name for name, tensor in own.items() if place_of(tensor) not in written))
        if strict or self._between is not None:
            refuse_unmatched(given.not_matched, missing)
        with self._changing(), torch.no_grad():
            for name, tensor in given.tensors.items():
                own[name].copy_(tensor)
            self._is_as_loaded = False
        return WeightReport("tensors", len(given.tensors), given.not_matched, missing, given.tied)

    def sleep(self) -> None:
        """Put the weights away: a GPU's into the machine's memory, a CPU's into a temporary file."""
        if self._sleeping is None:
            self._require_usable()
            try:
                self._sleeping = SleepingWeights(self._model)
            except CapabilityError:
                raise
            except (OSError, RuntimeError) as error:
                raise BackendError(f"the weights cannot be put away, they stay where they are: {describe_error(error)}") from error
            release_memory()

    def wake(self, tags: Sequence[str] | None) -> None:
        """Bring the weights back, unless only the cache is asked for: keys and values are made anew by each call."""
        if self._sleeping is not None and (tags is None or "weights" in tags):
            try:
                self._sleeping.wake()
            except (OSError, RuntimeError) as error:
                raise BackendError(f"the weights cannot be brought back, try again when there is room: {describe_error(error)}") from error
            self._sleeping = None
