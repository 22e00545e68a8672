"""Sampling from a model that is being trained: without a second copy, and with its state restored each time.

A trainer's model may be in training mode, recompute its activations, have caches switched off, generation settings of its own, and be
wrapped by peft, DistributedDataParallel or torch.compile. While it generates it is in eval mode, without any of that, and no tensor is made
in inference mode: state that a model keeps must not break the next backward pass.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch

from evalharness.api.errors import CapabilityError, CheckpointError
from evalharness.backends.hf._transformers import transformers


class SharedModel:
    """Another owner's model: `given` is what was passed, `model` the transformers model inside its wrappers.

    `CapabilityError` for one that cannot be sampled from as it is.
    """

    def __init__(self, given: Any) -> None:
        self.given = given
        self.model = _unwrapped(given)
        if not hasattr(self.model, "generate") or not hasattr(self.model, "config"):
            raise CapabilityError(f"{type(self.model).__name__} cannot generate; give a model of transformers with a head for language")
        for name, parameter in self.model.named_parameters():
            if type(parameter).__name__ == "DTensor" or hasattr(parameter, "ds_id"):
                raise CapabilityError(f"{name} is spread over processes; gather the weights and give them to sync_from_state_dict")
            if parameter.is_meta:
                raise CapabilityError(f"{name} has no values yet, or is kept on disk; a shared model must be in memory")
            if parameter.is_inference():
                raise CapabilityError(f"{name} was made in inference mode, in which torch counts no changes; make the model outside of it")

    @contextmanager
    def sampling(self) -> Iterator[None]:
        """Put the model into the state for generation; restore its own state at the end, also after an error."""
        modules = list(self.model.modules())
        training = [module.training for module in modules]
        checkpointing = [module for module in modules if getattr(module, "gradient_checkpointing", None) is True]
        positions = [(module, module.rope_deltas) for module in modules if hasattr(module, "rope_deltas")]
        generation_config = self.model.generation_config
        try:
            for module in modules:
                module.training = False
            for module in checkpointing:
                module.gradient_checkpointing = False
            self.model.generation_config = transformers.GenerationConfig()
            with torch.no_grad():
                yield
        finally:
            self.model.generation_config = generation_config
            for module, was_training in zip(modules, training, strict=True):
                module.training = was_training
            for module in checkpointing:
                module.gradient_checkpointing = True
            for module, deltas in positions:
                module.rope_deltas = deltas

    def eos_token_ids(self, tokenizer: Any) -> tuple[int, ...]:
        """Return the ids that end a sequence: those of the generation settings, else of the config, then the tokenizer's."""
        declared = getattr(self.model.generation_config, "eos_token_id", None)
        if declared is None:
            config = self.model.config
            declared = getattr(config, "eos_token_id", None) or getattr(config.get_text_config(), "eos_token_id", None)
        ids = [*declared] if isinstance(declared, (list, tuple)) else [declared]
        token_ids = tuple(dict.fromkeys(int(token_id) for token_id in (*ids, tokenizer.eos_token_id) if token_id is not None))
        if not token_ids:
            raise CheckpointError("neither model nor tokenizer says which token ends a sequence; set tokenizer.eos_token")
        return token_ids


def stamp_of(model: Any) -> Hashable:
    """Return what differs after each change of weights that can be counted: steps of optimizers, loads, adapters switched on or off."""
    values: list[Hashable] = [_steps_on(model).num]
    for module in model.modules():
        values += [parameter._version for parameter in module._parameters.values() if parameter is not None]
        if hasattr(module, "merged_adapters"):  # a layer of peft's
            values.append((tuple(module.active_adapters), module.disable_adapters, tuple(module.merged_adapters)))
    return tuple(values)


class _Steps:
    """The steps of optimizers on one model: `num` so far, of all that torch tells of."""

    def __init__(self) -> None:
        self.num = 0
        self._ids: frozenset[int] = frozenset()

    def count(self, model: Any, optimizer: Any) -> None:
        """Count a step, if it was on weights of this model."""
        if not self._concerns(optimizer):
            self._ids = frozenset(map(id, model.parameters()))  # adapters may have come since
            if not self._concerns(optimizer):
                return
        self.num += 1

    def _concerns(self, optimizer: Any) -> bool:
        return any(id(parameter) in self._ids for group in optimizer.param_groups for parameter in group["params"])


_watched: WeakKeyDictionary[Any, _Steps] = WeakKeyDictionary()


def _steps_on(model: Any) -> _Steps:
    """Return the steps on this model since it was asked first.

    A tensor's version counter misses what one kernel does to all weights: optimizers with `fused=True`, as trainers take on GPUs, and
    those of other libraries. torch calls a hook after every step of every optimizer that is made from its class.
    """
    _listen()
    return _watched.setdefault(model, _Steps())


@functools.cache
def _listen() -> None:
    from torch.optim.optimizer import register_optimizer_step_post_hook  # torch.optim itself does not name its module

    def count(optimizer: Any, args: Any, kwargs: Any) -> None:
        for model, steps in list(_watched.items()):
            steps.count(model, optimizer)

    register_optimizer_step_post_hook(count)


def _unwrapped(model: Any) -> Any:
    """Return the transformers model inside of the wrappers of training; LoRA layers are in it."""
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        elif hasattr(model, "_orig_mod"):  # torch.compile
            model = model._orig_mod
        elif hasattr(model, "peft_config") and hasattr(model, "get_base_model"):
            for name, config in model.peft_config.items():
                if config.is_prompt_learning:
                    raise CapabilityError(f"adapter {name!r} learns a prompt, which only peft's own generate adds; share a model with LoRA")
            model = model.get_base_model()
        else:
            return model
