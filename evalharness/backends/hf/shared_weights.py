"""The weights of a trainer's own model: what a training loop sends is in the model already, so that one loop runs on every engine.

Nothing is loaded. Each tensor that is sent is compared with the model's: one that differs would be ignored, and is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from evalharness.api.errors import CapabilityError, CheckpointError, ContractValueError
from evalharness.api.options import ModelLoadConfig
from evalharness.backends.base import WeightReport
from evalharness.backends.hf.weights import HfWeights, place_of
from evalharness.backends.loaded_weights import holds_adapter
from evalharness.checkpoints.weights import ADAPTER_WEIGHTS, find_weights

_OWNERS = "the model is shared with its trainer, who alone changes it"
_BETWEEN = frozenset({"_checkpoint_wrapped_module", "_orig_mod", "base_layer", "base_model", "language_model", "model", "module"})


class SharedWeights(HfWeights):
    """The weights of a model that belongs to a trainer."""

    is_shared = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.changes, self.why_not = self.changes - {"sleep"}, {"sleep": f"{_OWNERS}; there is no second copy to put away"}

    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return that the model is a trainer's."""
        return "the model is a trainer's"

    def reload(self, path: str, adapter_path: str | None) -> WeightReport:
        """Compare a checkpoint that the trainer has saved, and its adapter, with the model."""
        folders = [Path(path), *([Path(adapter_path)] if adapter_path is not None else [])]
        return self._compare_folders(path, folders)

    def load_adapter(self, path: str) -> WeightReport:
        """Compare an adapter that the trainer has saved with the model's."""
        return self._compare_folders(path, [Path(path)])

    def unload_adapter(self) -> WeightReport:
        """Refuse: what is active in the model its owner decides."""
        raise CapabilityError(f"{_OWNERS}; sample inside `with model.disable_adapter():`")

    def sync_from_state_dict(self, tensors: Mapping[str, Any], adapter_config: Any, *, strict: bool) -> WeightReport:
        """Compare the model's weights, or its adapter's, with themselves."""
        self.require_usable()
        holds_adapter(tensors)  # else no tensors at all
        return self._compare("tensors", tensors.items())

    def _compare_folders(self, source: str, folders: Iterable[Path]) -> WeightReport:
        self.require_usable()
        try:
            return self._compare(source, (each for folder in folders for each in _tensors_in(folder)))
        except ContractValueError as error:
            raise CheckpointError(f"{source}: {error}") from error

    def _compare(self, source: str, tensors: Iterable[tuple[str, Any]]) -> WeightReport:
        own: dict[str, list[Any]] = {}
        for name, tensor in self.model.state_dict().items():
            own.setdefault(_core(name), []).append(tensor)
        num_equal, not_matched = 0, []
        for name, tensor in tensors:
            mine = own.get(_core(name))
            if mine is None:
                not_matched.append(name)
            elif any(_equal(each, tensor) for each in mine):  # several: one for each adapter of peft's
                num_equal += 1
            else:
                raise ContractValueError(
                    f"{name!r} differs from the model's, and {_OWNERS}: nothing is loaded into it here; load it into the model itself"
                )
        if not num_equal:
            raise ContractValueError(
                f"none of the names means a weight of the model, such as {[*not_matched, ''][0]!r}; is it another model?"
            )
        return WeightReport(source, num_equal, not_matched=tuple(sorted(not_matched)))


def _core(name: str) -> str:
    """Return a weight's name without what training, peft and checkpoints put between its parts."""
    bare = re.sub(r"(\.lora_\w+)\.[^.]+$", r"\1", name.removesuffix(".weight")) if ".lora_" in name else name
    return ".".join(part for part in bare.split(".") if part not in _BETWEEN)


def _equal(own: Any, given: Any) -> bool:
    if own.shape != given.shape:
        return False
    if own.dtype == given.dtype and own.device == given.device and place_of(own) == place_of(given):
        return True
    return torch.equal(own.detach().to(given.device, given.dtype), given.detach())  # rounded, as for an engine in another type


def _tensors_in(folder: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import safe_open

    if not folder.is_dir():
        raise CheckpointError(f"there is no folder {folder}; the weights that are loaded stay")
    files = [ADAPTER_WEIGHTS] if (folder / ADAPTER_WEIGHTS).is_file() else find_weights(folder, allow_pickle=False).files
    for file in files:
        with safe_open(folder / file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                yield name, opened.get_tensor(name)
