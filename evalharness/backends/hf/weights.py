"""The weights of a transformers model in memory: swaps, reloads, adapters, a trainer's tensors, sleep."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from evalharness.api.errors import BackendError, CapabilityError, CheckpointError, MissingDependency
from evalharness.api.installing import missing_package
from evalharness.api.options import ModelLoadConfig
from evalharness.api.wording import plural
from evalharness.backends.base import WeightReport, describe_error
from evalharness.backends.hf.batching import BatchSizes, release_memory
from evalharness.backends.hf.shared_model import stamp_of
from evalharness.backends.loaded_weights import LoadedWeights, TakeCompanions, WeightSource, pair_tensors, refuse_unmatched
from evalharness.checkpoints.adapter import Adapter, fits_of
from evalharness.checkpoints.architecture import architecture_difference
from evalharness.checkpoints.weights import ADAPTER_WEIGHTS, base_shapes, find_weights


def why_not_in_place(model: Any, folder: Path) -> str | None:
    """Return why the checkpoint's tensors cannot be copied into the model one by one, None where they can; adapters are left out.

    They can where each means one weight of the model, under the same name and of the same shape, and none is left over;
    transformers makes some models' weights out of several of the checkpoint's, which only a new load does.
    """
    try:
        wanted = base_shapes(folder)
    except CheckpointError as error:
        return str(error)
    own = own_weights(model)
    if any(tensor.is_meta for tensor in own.values()):
        return "parts of the model are kept on disk"
    strange = sorted(set(wanted) - set(own))
    if strange:
        return f"its {strange[0]} is not a weight of the model as it is in memory"
    storages = {name: place_of(tensor) for name, tensor in own.items()}
    written = [storages[name] for name in wanted]
    if len(set(written)) != len(written):
        return "it holds a weight twice that the model ties"
    left = sorted(name for name, place in storages.items() if place not in set(written))
    if left:
        return f"it lacks the model's {left[0]}"
    other = sorted(name for name, shape in wanted.items() if tuple(own[name].shape) != shape)
    return f"its {other[0]} has another shape" if other else None


def own_weights(model: Any) -> dict[str, Any]:
    """Return the model's weights by the names that they have without an adapter, whose own are left out."""
    return {_bare(name): tensor for name, tensor in model.state_dict().items() if ".lora_" not in name}


def place_of(tensor: Any) -> tuple[int, int]:
    """Return where a weight lies in memory: names that the model ties have one place."""
    # Two empty tensors have no place of their own; a model has none.
    return tensor.data_ptr(), tensor.storage_offset()


def load_in_place(model: Any, folder: Path) -> int:
    """Copy a checkpoint's tensors into the model, each converted to the type of the weight it replaces, as a load does.

    Return how many. No adapter may be on the model.
    """
    from safetensors import safe_open

    own = model.state_dict()
    num_loaded = 0
    with torch.no_grad():
        for name in find_weights(folder, allow_pickle=False).files:
            with safe_open(folder / name, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 (no mapping)
                    own[key].copy_(file.get_tensor(key))
                    num_loaded += 1
    return num_loaded


class HfAdapter:
    """An adapter in a model, through peft: the base's weights stay as they are, the product is added to each layer's output."""

    def __init__(self, model: Any, adapter: Adapter) -> None:
        try:
            import peft
        except ImportError as error:
            raise MissingDependency(missing_package("an adapter on backend 'hf'", error, "hf")) from error
        self.adapter = adapter
        self._saved: dict[str, Any] = {}
        self._peft: Any = None
        self._modules = modules = _modules_of(model, adapter)
        if adapter.weights:
            # By full names, ranks and factors of each: what a pattern of the adapter's settings matches depends on the model.
            config = peft.LoraConfig(
                r=1,
                lora_alpha=1,
                target_modules=list(modules),
                rank_pattern={f"^{re.escape(module)}": weight.rank for module, weight in modules.items()},
                alpha_pattern={f"^{re.escape(module)}": weight.scaling * weight.rank for module, weight in modules.items()},
                inference_mode=True,
            )
            self._peft = peft.PeftModel(model, config)
        try:
            if adapter.weights:
                self._fill(modules, adapter)
            self._replace(model, adapter)
        except BaseException:
            self.remove()  # else peft's layers would stay in the model unnoticed
            raise
        model.eval()

    def refill(self, adapter: Adapter) -> bool:
        """Put another adapter of the same form in place of this one, and return True; False, and nothing is changed, for any other form."""
        ours, theirs = ([(weight.base_name, weight.rank, weight.scaling) for weight in one.weights] for one in (self.adapter, adapter))
        if ours != theirs or not ours or self.adapter.replaced or adapter.replaced:
            return False
        by_name = {weight.base_name: weight for weight in adapter.weights}
        modules = {module: by_name[weight.base_name] for module, weight in self._modules.items()}
        self._fill(modules, adapter)
        self._modules, self.adapter = modules, adapter
        return True

    def _fill(self, modules: Mapping[str, Any], adapter: Adapter) -> None:
        """Load A and B of every module, and fail unless the model then holds exactly those of the file."""
        import peft
        from safetensors.torch import load_file

        tensors = load_file(adapter.path / ADAPTER_WEIGHTS)
        wanted = {}
        for module, weight in modules.items():
            wanted[f"base_model.model.{module}.lora_A.weight"] = tensors[weight.a]
            wanted[f"base_model.model.{module}.lora_B.weight"] = tensors[weight.b]
        peft.set_peft_model_state_dict(self._peft, wanted)
        held = peft.get_peft_model_state_dict(self._peft)
        wrong = sorted(name for name in {*wanted, *held} if not _same(wanted.get(name), held.get(name)))
        scalings = {
            name.removeprefix("base_model.model."): layer.scaling["default"]
            for name, layer in self._peft.named_modules()
            if isinstance(getattr(layer, "scaling", None), dict)
        }
        wrong += [module for module, weight in modules.items() if abs(scalings.get(module, 0) - weight.scaling) > 1e-6 * weight.scaling]
        if wrong:
            raise BackendError(
                f"peft did not take {plural(len(wrong), 'weight')} of adapter {adapter.path} as they are, such as {wrong[0]}"
            )

    def _replace(self, model: Any, adapter: Adapter) -> None:
        from safetensors.torch import load_file

        if not adapter.replaced:
            return
        own = model.state_dict()
        names = fits_of(adapter.replaced, {_bare(name): tuple(tensor.shape) for name, tensor in own.items()})
        full = {_bare(name): name for name in own}
        tensors = load_file(adapter.path / ADAPTER_WEIGHTS)
        with torch.no_grad():
            for base_name, tensor_name in adapter.replaced.items():
                if base_name not in names:
                    raise CheckpointError(f"adapter {adapter.path} replaces {base_name!r}, which the loaded model does not have")
                target = own[full[names[base_name]]]
                self._saved[base_name] = (target, target.clone())
                target.copy_(tensors[tensor_name])

    def remove(self) -> None:
        """Leave the base as it was, to the bit."""
        with torch.no_grad():
            for target, before in self._saved.values():
                target.copy_(before)
        self._saved = {}
        if self._peft is not None:
            self._peft.unload()
            self._peft = None


def _modules_of(model: Any, adapter: Adapter) -> dict[str, Any]:
    """Return {module of the loaded model: its adapter}, all of them."""
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    names = {weight.base_name: weight.base_name for weight in adapter.weights if weight.base_name in shapes}
    names |= fits_of((weight.base_name for weight in adapter.weights if weight.base_name not in names), shapes)
    missing = [weight.base_name for weight in adapter.weights if weight.base_name not in names]
    if missing:
        raise CheckpointError(
            f"adapter {adapter.path} adapts {missing[0]!r}, which is not a weight of the model as transformers loads it; "
            "merge it into its base and give that folder"
        )
    return {names[weight.base_name].removesuffix(".weight"): weight for weight in adapter.weights}


def _bare(name: str) -> str:
    """Return the name that a weight has without peft's layer around it."""
    return name.replace(".base_layer.", ".")


def _same(wanted: Any, held: Any) -> bool:
    return wanted is not None and held is not None and torch.equal(wanted.to(held.device, held.dtype), held)


class SleepingWeights:
    """The parameters of a model, put away when this is made. Each piece of memory is kept once, so ties stay ties."""

    def __init__(self, model: Any) -> None:
        parameters = list(model.parameters())
        if any(parameter.is_meta for parameter in parameters):
            raise CapabilityError("parts of the model are kept on disk already (device_map); it cannot be put to sleep")
        self._file: Any = None
        pieces: dict[int, Any] = {parameter.untyped_storage().data_ptr(): parameter.untyped_storage() for parameter in parameters}
        kept = {place: self._put_away(storage) for place, storage in pieces.items()}
        self._views = [
            (each, kept[each.untyped_storage().data_ptr()], each.storage_offset(), tuple(each.shape), each.stride()) for each in parameters
        ]
        self.num_bytes = sum(storage.nbytes() for storage in pieces.values())
        for parameter in parameters:
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)

    def _put_away(self, storage: Any) -> _Piece:
        values = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        if storage.device.type != "cpu":
            return _Piece(storage.device, len(values), values.cpu(), 0)
        if self._file is None:
            self._file = tempfile.TemporaryFile(prefix="evalharness-sleeping-")  # noqa: SIM115 (closed when the weights wake)
        start = self._file.tell()
        self._file.write(memoryview(values.numpy()))
        return _Piece(storage.device, len(values), None, start)

    def wake(self) -> None:
        """Bring every parameter back, each where it was."""
        back: dict[int, torch.Tensor] = {}
        for parameter, piece, offset, shape, stride in self._views:
            if id(piece) not in back:
                back[id(piece)] = self._bring_back(piece)
            whole = back[id(piece)].untyped_storage()
            parameter.data = torch.empty(0, dtype=parameter.dtype, device=piece.device).set_(whole, offset, shape, stride)
        if self._file is not None:
            self._file.close()

    def _bring_back(self, piece: _Piece) -> torch.Tensor:
        if piece.values is not None:
            return piece.values.to(piece.device)
        values = torch.empty(piece.num_bytes, dtype=torch.uint8)
        self._file.seek(piece.start)
        if self._file.readinto(memoryview(values.numpy())) != piece.num_bytes:
            raise OSError("the file of sleeping weights is shorter than what was written")
        return values


@dataclass(frozen=True)
class _Piece:
    """One piece of memory: its values, or where they begin in the file."""

    device: torch.device
    num_bytes: int
    values: torch.Tensor | None
    start: int


class HfWeights(LoadedWeights):
    """The weights of a transformers model in memory. `is_shared`: the model is a trainer's, who alone changes it (`SharedWeights`)."""

    is_shared = False

    def __init__(self, model: Any, source: WeightSource, batch_sizes: BatchSizes, on_load: TakeCompanions) -> None:
        super().__init__(source, on_load)
        self.model: Any = model
        """The torch module, None once closed."""
        self._batch_sizes = batch_sizes
        self.broken: str | None = None
        """Why the device can do nothing more."""
        self._is_as_loaded = True  # the base is the folder's, no tensor of it was given since
        self._between: str | None = None  # why the weights are of two kinds
        self._sleeping: SleepingWeights | None = None
        self._adapted = HfAdapter(model, source.adapter) if source.adapter is not None else None
        self._own_stamp = self.stamp()  # after our own changes: a different stamp means training

    def stamp(self) -> Hashable | None:
        """Return a value that changes with each change of the weights, by anyone; None when they are gone."""
        return stamp_of(self.model) if self.model is not None else None

    def require_usable(self) -> None:
        """Raise unless the weights are there and all of one kind."""
        self.require_changeable(whole=False)

    def require_changeable(self, *, whole: bool) -> None:
        """Raise unless the weights are there and, where not the whole is to change, all of one kind."""
        if self.model is None:
            raise BackendError("backend 'hf' is closed; make a new one")
        if self.broken is not None:
            raise BackendError(f"backend 'hf' cannot go on after: {self.broken}")
        if self._sleeping is not None:
            raise CapabilityError("backend 'hf' sleeps, its weights are put away; wake the engine first (engine.weights.wake())")
        if self._between is not None and not whole:
            raise BackendError(
                f"a change of weights broke off, they are of two kinds: {self._between}; load a checkpoint (engine.weights.reload)"
            )

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Whatever ends this early leaves weights of two kinds behind, and nothing may be generated with them."""
        if self._own_stamp != self.stamp():  # the base was trained, which the stamp taken below would hide
            self._is_as_loaded = False
        try:
            yield
        except BaseException as error:
            self._between = describe_error(error) if isinstance(error, Exception) else type(error).__name__
            raise
        self._between = None
        self._own_stamp = self.stamp()

    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return why this checkpoint cannot take the place of the loaded one, None where `swap` will do."""
        self.require_changeable(whole=True)
        return None if self._keeps_base(config) else self._why_not_load(config)

    def _keeps_base(self, config: ModelLoadConfig) -> bool:
        is_same = config.model_name_or_path == self.source.config.model_name_or_path
        untouched = self._is_as_loaded and self._between is None and self._own_stamp == self.stamp()
        return is_same and untouched and not self.source.folder.has_changed()

    def _why_not_load(self, config: ModelLoadConfig) -> str | None:
        other = Path(config.model_name_or_path)
        difference = architecture_difference(self.source.folder, other, dtype_matters=(config.torch_dtype or "").lower() == "auto")
        return difference or why_not_in_place(self.model, other)

    def _swap(self, config: ModelLoadConfig) -> None:
        if not self._keeps_base(config):
            self._load(config)
        elif config.adapter_path is not None:
            self.load_adapter(config.adapter_path)
        else:
            self._put(None, None)
        self.source = replace(self.source, config=config)
        self._batch_sizes.num_halvings = 0  # of this checkpoint

    def _write_checkpoint(self, source: WeightSource) -> int:
        with self._changing():
            self._take_adapter_off()
            num_loaded = load_in_place(self.model, source.folder.path)
            if source.adapter is not None:
                self._adapted = HfAdapter(self.model, source.adapter)
        self._is_as_loaded = True
        return num_loaded

    def _write_adapter(self, adapter: Adapter | None) -> int:
        with self._changing():
            if adapter is None or self._adapted is None or not self._adapted.refill(adapter):
                self._take_adapter_off()
                self._adapted = HfAdapter(self.model, adapter) if adapter is not None else None
        return 0

    def _take_adapter_off(self) -> None:
        if self._adapted is not None:
            self._adapted.remove()
            self._adapted = self.adapter = None  # should the change break off, a trainer's tensors can still mend the model

    def _write_tensors(self, tensors: Mapping[str, Any], *, strict: bool) -> WeightReport:
        if getattr(self.model, "is_quantized", False):
            raise CapabilityError(
                "the loaded weights are quantized; a trainer's cannot be put in their place, start anew on a saved checkpoint"
            )
        own = own_weights(self.model)
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
            self.require_usable()
            try:
                self._sleeping = SleepingWeights(self.model)
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

    def close(self) -> None:
        """Free the model's memory; may be called twice."""
        self.model = self._adapted = self._sleeping = None
