"""Another checkpoint of the same architecture, or an adapter, put into a transformers model that is in memory already."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from evalharness.checkpoint_adapter import ADAPTER_WEIGHTS, Adapter, fits_of
from evalharness.checkpoint_weights import base_shapes, find_weights
from evalharness.errors import BackendError, CheckpointError, MissingDependency
from evalharness.installing import missing_package

__all__ = ["HfAdapter", "load_in_place", "own_weights", "place_of", "why_not_in_place"]


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
            self.remove()  # else peft's layers would stay in the model, and nobody would know
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
            raise BackendError(f"peft did not take {len(wrong)} weights of adapter {adapter.path} as they are, such as {wrong[0]}")

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
                    raise CheckpointError(f"adapter {adapter.path} replaces {base_name!r}, which the loaded model has not")
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
            f"adapter {adapter.path} adapts {missing[0]!r}, which is no weight of the model as transformers loads it; "
            "merge it into its base and give that folder"
        )
    return {names[weight.base_name].removesuffix(".weight"): weight for weight in adapter.weights}


def _bare(name: str) -> str:
    """Return the name that a weight has without peft's layer around it."""
    return name.replace(".base_layer.", ".")


def _same(wanted: Any, held: Any) -> bool:
    return wanted is not None and held is not None and torch.equal(wanted.to(held.device, held.dtype), held)
