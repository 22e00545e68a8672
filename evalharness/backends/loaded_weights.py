"""The weights of a running backend, changed by a checkpoint, an adapter or a trainer's tensors; each is checked before anything changes.

`LoadedWeights` is what all backends with changeable weights share. Where the weights lie, and how they are written, its subclasses know.
"""

from __future__ import annotations

import json
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.api.checks import first_names
from evalharness.api.errors import BackendError, CapabilityError, CheckpointError, ContractTypeError, ContractValueError
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.temporary import OwnFolder
from evalharness.api.wording import plural
from evalharness.backends.base import LiveChange, WeightReport
from evalharness.backends.checkpoint_reading import read_companions
from evalharness.checkpoints.adapter import Adapter, fits_of, read_adapter
from evalharness.checkpoints.architecture import LoadedFolder
from evalharness.checkpoints.weights import ADAPTER_WEIGHTS, is_adapter

# What wraps a module in training, and stands in the names of its weights.
_WRAPPERS = frozenset({"_checkpoint_wrapped_module", "_fsdp_wrapped_module", "_orig_mod", "module"})


@dataclass(frozen=True)
class Pairing:
    """`pairs`: {given name: the model's}; `not_matched`: given names that mean none, sorted."""

    pairs: Mapping[str, str]
    not_matched: tuple[str, ...]


def pair_names(given: Mapping[str, tuple[int, ...]], wanted: Mapping[str, tuple[int, ...]]) -> Pairing:
    """Return which of the model's weights `wanted` each given name means; both map names to shapes.

    A name means the weight of its own name, else the only one that differs in no more than the parts by which models and
    their checkpoints, or wrappers of training, differ. `ContractValueError` where two mean one weight, or a shape differs.
    """
    bare = {name: name if name in wanted else ".".join(part for part in name.split(".") if part not in _WRAPPERS) for name in given}
    left = [name for name, plain in bare.items() if plain not in wanted]
    fitting = fits_of({bare[name] for name in left}, wanted)
    pairs = {name: plain if plain in wanted else fitting[plain] for name, plain in bare.items() if plain in wanted or plain in fitting}
    meant: dict[str, str] = {}
    for name, target in pairs.items():
        if target in meant:
            raise ContractValueError(f"{meant[target]!r} and {name!r} both mean the model's {target!r}; give it once")
        meant[target] = name
        if given[name] != wanted[target]:
            raise ContractValueError(
                f"{name!r} has shape {list(given[name])}, the model's {target!r} has {list(wanted[target])}; "
                "are the tensors of another model, or of a part of it only (a shard)?"
            )
    return Pairing(pairs, tuple(sorted(set(given) - set(pairs))))


def refuse_unmatched(not_matched: tuple[str, ...], missing: tuple[str, ...]) -> None:
    """Raise `ContractValueError` for names that would be ignored, or weights that would stay as they were."""
    if not_matched:
        raise ContractValueError(
            f"{len(not_matched)} of the names mean no weight of the model, such as {first_names([*map(repr, not_matched)], 5)}; "
            "leave them out, or have them left out and reported with strict=False"
        )
    if missing:
        raise ContractValueError(
            f"{plural(len(missing), 'weight')} of the model not given, such as {first_names([*map(repr, missing)], 5)}; give all, "
            "or have these stay as they are and reported with strict=False"
        )


_PEFT = "peft's get_peft_model_state_dict(model)"


def check_checkpoint(path: str, running: LoadedFolder, why_not: Callable[[Path], str | None]) -> None:
    """Raise `CheckpointError` unless the path is a folder of a whole model that can take the place of the running one."""
    folder = Path(path)
    if running.problem is not None:
        raise CheckpointError(f"nothing can take the place of {running.path}: {running.problem}")
    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {path}; the weights that are loaded stay")
    if is_adapter(folder):
        raise CheckpointError(f"{path} is an adapter, not a whole model; use load_adapter")
    if (problem := why_not(folder)) is not None:
        raise CheckpointError(f"{path} cannot take the place of the loaded checkpoint: {problem}")


def holds_adapter(tensors: Mapping[str, Any]) -> bool:
    """Return whether these are the tensors of a LoRA adapter; `ContractTypeError` where any of them is not a tensor."""
    import torch

    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise ContractTypeError(f"tensors must map names to torch tensors, got {name!r}: {type(tensor).__name__}")
        if type(tensor).__name__ == "DTensor" or tensor.is_meta:
            raise ContractValueError(
                f"{name!r} is a part of a sharded tensor, or has no values; gather whole tensors first (FSDP: full_state_dict)"
            )
    return any("lora_" in name for name in tensors)


@contextmanager
def given_adapter(
    tensors: Mapping[str, Any], adapter_config: Any, loaded: Adapter | None, shapes: Mapping[str, tuple[int, ...]], *, strict: bool
) -> Iterator[tuple[Adapter, tuple[str, ...]]]:
    """Give the adapter that the tensors are, in a folder that is there for so long, and the names that mean nothing here.

    It is read like any adapter from there, with every check. `ContractValueError` where it does not fit.
    """
    from safetensors.torch import save_file

    settings = _settings(adapter_config, loaded)
    wrapped = next((name for name in tensors if ".base_layer." in name), None)
    if wrapped is not None:
        raise ContractValueError(f"{wrapped!r} is a weight of the base, between tensors of its adapter; give {_PEFT}")
    left = tuple(sorted(name for name in tensors if not _means_something(name, shapes)))
    if left and strict:
        raise ContractValueError(
            f"{len(left)} of the names adapt no weight of the model, such as {left[0]!r}; give {_PEFT}, "
            "or have them left out and reported with strict=False"
        )
    kept = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items() if name not in left}
    if not kept:
        raise ContractValueError(f"none of the names adapts a weight of the model, such as {left[0]!r}; is it another model's adapter?")
    with OwnFolder("adapter") as folder:
        (folder / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
        save_file(kept, folder / ADAPTER_WEIGHTS)
        try:
            adapter = read_adapter(folder, shapes)
        except CheckpointError as error:
            raise ContractValueError(f"the tensors do not form an adapter of the loaded model: {error}") from error
        yield adapter, left


def _means_something(name: str, shapes: Mapping[str, tuple[int, ...]]) -> bool:
    module = name.removeprefix("base_model.model.").partition(".lora_")[0]
    base_name = f"{module}.weight" if ".lora_" in name else module
    return base_name in shapes or bool(fits_of([base_name], shapes))


def _settings(adapter_config: Any, loaded: Adapter | None) -> Mapping[str, Any]:
    if adapter_config is None:
        if loaded is None:
            raise ContractValueError(
                "an adapter's tensors do not say how they are scaled; give adapter_config, peft's LoraConfig "
                "(model.peft_config['default']) or its fields"
            )
        return loaded.settings
    fields = adapter_config.to_dict() if hasattr(adapter_config, "to_dict") else adapter_config
    if not isinstance(fields, Mapping):
        raise ContractTypeError(f"adapter_config must be peft's LoraConfig or its fields, got {type(adapter_config).__name__}")
    plain: Mapping[str, Any] = json.loads(json.dumps(dict(fields), default=_plain))
    return plain


def _plain(value: Any) -> Any:
    if isinstance(value, Collection) and not isinstance(value, (str, bytes)):
        return sorted(value)
    if hasattr(value, "value"):  # peft's enumerations
        return value.value
    raise ContractTypeError(f"adapter_config holds {value!r} ({type(value).__name__}), which is not an adapter setting")


@dataclass(frozen=True)
class GivenWeights:
    """Tensors of a trainer's model, by the names of the model that they are for.

    `tied`: names that were given beside another of the same weight. The rest as in `WeightReport`.
    """

    tensors: Mapping[str, Any]
    not_matched: tuple[str, ...]
    tied: tuple[str, ...]


def pair_tensors(tensors: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], place_of: Callable[[str], object]) -> GivenWeights:
    """Return the tensors by the model's names; `place_of` a name is equal where two names are one weight.

    `ContractValueError` for shapes that differ, for two values of one weight, for numbers of a kind that no load would make, and where no
    name means a weight.
    """
    pairing = pair_names({name: tuple(tensor.shape) for name, tensor in tensors.items()}, shapes)
    if not pairing.pairs:
        raise ContractValueError(f"none of the names means a weight of the model, such as {pairing.not_matched[0]!r}; is it another model?")
    held: dict[object, str] = {}
    kept: dict[str, Any] = {}
    tied = []
    for name, target in pairing.pairs.items():
        dtype = tensors[name].dtype
        if dtype.itemsize == 1 and not str(dtype).endswith("bool"):
            raise ContractValueError(f"{name!r} holds {dtype}, which is quantized; give the numbers that it stands for")
        other = held.setdefault(place_of(target), name)
        if other == name:
            kept[target] = tensors[name].detach()
        elif _equal(tensors[name], tensors[other]):
            tied.append(name)
        else:
            raise ContractValueError(f"{other!r} and {name!r} differ, but the model has one weight for both; give it once")
    twins = [name for name in pairing.not_matched if any(_is_twin(tensors[name], tensors[one]) for one in pairing.pairs)]
    return GivenWeights(kept, tuple(name for name in pairing.not_matched if name not in twins), tuple(sorted([*tied, *twins])))


def _equal(one: Any, other: Any) -> bool:
    import torch

    return _is_twin(one, other) or torch.equal(one.detach().cpu(), other.detach().cpu())


def _is_twin(one: Any, other: Any) -> bool:
    """Return whether both are one piece of memory: a head that shares the embedding's weight stands twice in a model's state_dict."""
    return one is other or (one.shape == other.shape and one.dtype == other.dtype and one.data_ptr() == other.data_ptr() != 0)


def merged_weights(weights: Iterable[tuple[str, Any]], adapter: Adapter, dtype: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, tensor) of the base, adapted ones as `dtype`: the sum is made in float32 and rounded once.

    Raises `CheckpointError` at the end if any of the adapter's weights found none of the base's.
    """
    import torch
    from safetensors import safe_open

    left = {weight.base_name: weight for weight in adapter.weights}
    replaced = dict(adapter.replaced)
    with safe_open(adapter.path / ADAPTER_WEIGHTS, framework="pt") as file:
        for name, tensor in weights:
            weight = left.pop(name, None)
            if weight is not None:
                a, b = (file.get_tensor(part).to(torch.float32) for part in (weight.a, weight.b))
                yield name, (tensor.to(torch.float32).cpu() + weight.scaling * (b @ a)).to(dtype)
            elif name in replaced:
                yield name, file.get_tensor(replaced.pop(name))
            else:
                yield name, tensor
    missed = [*left, *replaced]
    if missed:
        raise CheckpointError(f"{plural(len(missed), 'weight')} of adapter {adapter.path} not applied, such as the one of {missed[0]!r}")


TakeCompanions: TypeAlias = "Callable[[Any, Any, tuple[int, ...]], None]"
"""Takes the tokenizer, the processor (None for text) and the EOS ids of a checkpoint that has replaced the one before."""


@dataclass(frozen=True)
class WeightSource:
    """A checkpoint as its folder held it when it was read, and the adapter that it is loaded with."""

    config: ModelLoadConfig
    preprocess: VlmPreprocessOptions
    folder: LoadedFolder
    adapter: Adapter | None = None

    @classmethod
    def read(cls, config: ModelLoadConfig, preprocess: VlmPreprocessOptions) -> WeightSource:
        """Return what the config names; `CheckpointError` for an adapter that does not fit it."""
        folder = LoadedFolder.read(Path(config.model_name_or_path))
        adapter = read_adapter(Path(config.adapter_path), folder.weight_shapes()) if config.adapter_path is not None else None
        return cls(config, preprocess, folder, adapter)


class LoadedWeights(ABC):
    """The weights of a running backend, and what is known of their `source`; `adapter` is the one in force now.

    `on_load`, a method, is called for each checkpoint that replaces the first. Whatever can be refused is refused before a weight changes.
    """

    def __init__(self, source: WeightSource, on_load: TakeCompanions) -> None:
        self.source, self.adapter = source, source.adapter
        self.changes: frozenset[LiveChange] = frozenset({"checkpoint", "adapter", "tensors", "sleep"})
        self.why_not: Mapping[LiveChange, str] = {}
        self._adapter_source = source.config.adapter_path
        self._on_load = weakref.WeakMethod(on_load)  # a backend that nobody holds any more frees its model at once

    @abstractmethod
    def require_changeable(self, *, whole: bool) -> None:
        """Raise unless the weights can change now; `whole`: all of them, whatever they are at present."""

    @abstractmethod
    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return why this checkpoint cannot take the place of the loaded one, None where `swap` will do."""

    @abstractmethod
    def _why_not_load(self, config: ModelLoadConfig) -> str | None:
        """Return why this checkpoint's weights cannot take the place of the loaded ones, None where they can."""

    @abstractmethod
    def _write_checkpoint(self, source: WeightSource) -> int:
        """Load base and adapter; return the number of the base's tensors."""

    @abstractmethod
    def _write_adapter(self, adapter: Adapter | None) -> int:
        """Put this adapter, or none, on the loaded base; return how many tensors of the base were loaded for it."""

    @abstractmethod
    def _write_tensors(self, tensors: Mapping[str, Any], *, strict: bool) -> WeightReport:
        """Put a trainer's tensors, whose names may be other than the model's, in the place of the loaded ones."""

    def adapter_facts(self) -> Mapping[str, Any] | None:
        """Return plain JSON facts about the adapter in force, None where there is none."""
        return {**self.adapter.to_json(), "path": self._adapter_source} if self.adapter is not None else None

    def swap(self, config: ModelLoadConfig) -> None:
        """Load another checkpoint's weights; its tokenizer, processor and EOS ids are read anew."""
        problem = self.why_not_swap(config)
        if problem is not None:
            raise BackendError(f"{config.model_name_or_path} cannot take the place of the loaded checkpoint: {problem}")
        self._swap(config)

    def _swap(self, config: ModelLoadConfig) -> None:
        self._load(config)

    def reload(self, path: str, adapter_path: str | None) -> WeightReport:
        """Read a checkpoint's folder anew, whatever was loaded from it before."""
        self.require_changeable(whole=True)
        config = replace(self.source.config, model_name_or_path=path, adapter_path=adapter_path)
        check_checkpoint(path, self.source.folder, lambda _: self._why_not_load(config))
        num_loaded = self._load(config)
        return WeightReport(path, num_loaded, adapter=self.adapter_facts())

    def _load(self, config: ModelLoadConfig) -> int:
        source = WeightSource.read(config, self.source.preprocess)
        companions = read_companions(config, source.preprocess)
        num_loaded = self._write_checkpoint(source)
        self.source, self.adapter, self._adapter_source = source, source.adapter, config.adapter_path
        on_load = self._on_load()
        assert on_load is not None  # weights are reached through their backend
        on_load(*companions)
        return num_loaded

    def load_adapter(self, path: str) -> WeightReport:
        """Put the adapter in that folder on the loaded base."""
        self.require_changeable(whole=False)
        if not Path(path).is_dir():
            raise CheckpointError(f"there is no folder {path}; the weights that are loaded stay")
        adapter = read_adapter(Path(path), self.source.folder.weight_shapes())
        self._put(adapter, path)
        return WeightReport(path, adapter.num_tensors, adapter=self.adapter_facts())

    def unload_adapter(self) -> WeightReport:
        """Take the adapter off."""
        self.require_changeable(whole=False)
        if self.adapter is None:
            raise CapabilityError("there is no adapter to remove")
        return WeightReport(self.source.config.model_name_or_path, self._put(None, None))

    def _put(self, adapter: Adapter | None, source: str | None) -> int:
        num_loaded = self._write_adapter(adapter)
        self.adapter, self._adapter_source = adapter, source
        return num_loaded

    def sync_from_state_dict(self, tensors: Mapping[str, Any], adapter_config: Any, *, strict: bool) -> WeightReport:
        """Take a trainer's weights, or put its adapter on."""
        if holds_adapter(tensors):
            self.require_changeable(whole=False)
            with given_adapter(tensors, adapter_config, self.adapter, self.source.folder.weight_shapes(), strict=strict) as (adapter, left):
                self._put(adapter, "tensors")
            return WeightReport("tensors", adapter.num_tensors, not_matched=left, adapter=self.adapter_facts())
        self.require_changeable(whole=True)
        if self.adapter is not None:
            raise CapabilityError("an adapter is loaded, which would be added to these weights as well; call unload_adapter() first")
        return self._write_tensors(tensors, strict=strict)
