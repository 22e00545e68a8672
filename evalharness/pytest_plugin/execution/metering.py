"""What an engine runs on, and what its work between two looks took: steps and waiting as its backend counts them, energy and use of GPUs.

Looked at once a unit, the use of the GPUs once a second while the engine is asked for its next step: no thread, nothing for each case.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalharness.hardware.devices import MASK
from evalharness.runs.measured import EngineCost
from evalharness.runs.schema import mapping

if TYPE_CHECKING:
    from evalharness.engine.engine import Engine
    from evalharness.hardware.nvml import NvmlCard
    from evalharness.pytest_plugin.execution.engine_specs import EngineSpec

_LOOK_EVERY_S = 1.0
_ORDER = "CUDA_DEVICE_ORDER"


class EngineMeter:
    """The work of one process's engine, by difference. `attach` and the rest are never called at the same time."""

    def __init__(self) -> None:
        self._engine: Engine | None = None
        self._cards: Sequence[NvmlCard] = ()
        self._before: dict[str, float] = {}
        self._busy: list[float] = []
        self._look_at_s = 0.0

    def attach(self, engine: Engine, cards: Sequence[NvmlCard]) -> None:
        """Measure this engine from here on; `cards`: the GPUs that it has to itself."""
        self._engine, self._cards = engine, cards

    def restart(self) -> None:
        """Forget what has been done so far."""
        self._before, self._busy = self._read(), []

    def look(self) -> None:
        """See how busy the GPUs are, once a second; cheap to call at every step."""
        if not self._cards or (now := time.monotonic()) < self._look_at_s:
            return
        self._look_at_s = now + _LOOK_EVERY_S
        self._busy += [share for card in self._cards if (share := card.busy()) is not None]

    def take(self) -> dict[str, float]:
        """Return the work since the last `take` or `restart`: sums, so that those of units and workers add up."""
        now, before = self._read(), self._before
        work = {name: value - before.get(name, 0.0) for name, value in now.items()}
        if self._busy:
            work |= {"busy_looks": float(len(self._busy)), "busy_sum": sum(self._busy)}
        self._before, self._busy = now, []
        return {name: round(value, 6) for name, value in work.items() if value > 0}

    def _read(self) -> dict[str, float]:
        sums = {} if self._engine is None else self._engine.work()
        energies = [card.energy_j() for card in self._cards]
        known = [energy for energy in energies if energy is not None]
        return {**sums, "energy_j": sum(known)} if known and len(known) == len(energies) else sums


def cards_of(facts: Mapping[str, Any], given: Sequence[str] | None) -> tuple[list[NvmlCard], str]:
    """Return the GPUs of an engine that tells these facts, or none and why not; `given`: those of the process, as its mask names them."""
    from evalharness.hardware.nvml import nvml_cards  # loads ctypes

    device = facts.get("device")
    if not isinstance(device, str):
        return [], "the backend does not say what it runs on"
    on_cuda = re.fullmatch(r"cuda(?::(\d{1,4}))?", device)
    if on_cuda is None:
        return [], f"it ran on {device}"
    if facts.get("device_map"):
        return [], "its layers are spread over devices"
    mask = os.environ.get(MASK)
    names = given if given is not None else None if mask is None else [name.strip() for name in mask.split(",") if name.strip()]
    arguments: Mapping[str, Any] = mapping(facts.get("arguments"))
    num = int(arguments.get("tensor_parallel_size") or 1) * int(arguments.get("pipeline_parallel_size") or 1)
    first = int(on_cuda[1] or 0)
    are_numbers = names is None or any(name.isdecimal() for name in names)
    if are_numbers and os.environ.get(_ORDER) != "PCI_BUS_ID" and len({card.name for card in nvml_cards(None)}) > 1:
        return [], f"this host's GPUs differ, and CUDA may number them otherwise than the driver; {_ORDER}=PCI_BUS_ID makes them agree"
    cards = nvml_cards(names)[first : first + num]
    if len(cards) < num:
        return [], "the driver (NVML) does not tell which GPU it is"
    return cards, ""


def cost_of(spec: EngineSpec, facts: Mapping[str, Any], cards: Sequence[NvmlCard], why_no_cards: str) -> EngineCost:
    """Return what the limit of an engine depends on, for the journal: the model's shape and its cards, or why they are not known."""
    from evalharness.checkpoints.model_shape import UnknownShape, shape_at  # has regular expressions to compile

    names = {card.name for card in cards}
    cost: EngineCost = {"num_cards": max(1, len(cards))}
    if len(names) == 1:
        cost["card"] = next(iter(names))
    else:
        cost["card_unknown"] = why_no_cards or "its GPUs differ"
    arguments: Mapping[str, Any] = mapping(facts.get("arguments"))
    try:
        if arguments.get("quantization") is not None:
            raise UnknownShape("its weights are packed when they are loaded")
        kv_dtype = "fp8" if str(arguments.get("kv_cache_dtype")).startswith("fp8") else None
        cost["shape"] = shape_at(spec.base_path or spec.checkpoint_path, str(facts.get("dtype")), kv_dtype=kv_dtype).to_json()
    except UnknownShape as error:
        cost["shape_unknown"] = str(error)
    rows = facts.get("max_num_seqs", facts.get("max_rows_per_batch"))
    if isinstance(rows, int):
        cost["rows_at_once"] = rows
    blocks, size = facts.get("num_kv_blocks"), facts.get("kv_block_size")
    if isinstance(blocks, int) and isinstance(size, int):
        cost["kv_tokens"] = blocks * size
    return cost
