"""Names, energy and use of NVIDIA cards, from the driver's own library (NVML): no package is needed, and CUDA is not started.

Energy is a counter of each card since the driver was loaded, in millijoules; cards before Volta and parts of a card (MIG) have none.
Use is the share of the latest moment (1/6 s to 1 s) in which any kernel ran.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_NAME_BYTES = 96


class _Use(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


@dataclass(frozen=True)
class NvmlCard:
    """One card, named as CUDA_VISIBLE_DEVICES names it; each question is answered with None where the driver does not tell."""

    name: str
    _library: Any
    _handle: Any

    def energy_j(self) -> float | None:
        """Return how much energy the card has taken since the driver was loaded, in joules."""
        value = ctypes.c_ulonglong()
        is_told = self._library.nvmlDeviceGetTotalEnergyConsumption(self._handle, ctypes.byref(value)) == 0
        return value.value / 1000 if is_told else None

    def busy(self) -> float | None:
        """Return the share of the latest moment in which the card worked, 0 to 1."""
        value = _Use()
        return value.gpu / 100 if self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(value)) == 0 else None


@cache
def _nvml() -> Any:
    """Return the driver's library, started; None where there is none."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def nvml_cards(names: Sequence[str] | None) -> list[NvmlCard]:
    """Return the cards of these names (index, UUID or its start), or all that there are for None; without those that are not found."""
    library = _nvml()
    if library is None:
        return []
    if names is None:
        count = ctypes.c_uint()
        names = [str(index) for index in range(count.value)] if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0 else []
    return [card for name in names if (card := _card(library, name)) is not None]


def _card(library: Any, name: str) -> NvmlCard | None:
    handle = ctypes.c_void_p()
    if name.isdecimal():
        is_found = library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle)) == 0
    else:
        is_found = library.nvmlDeviceGetHandleByUUID(name.encode("ascii", "replace"), ctypes.byref(handle)) == 0
    if not is_found:
        return None
    buffer = ctypes.create_string_buffer(_NAME_BYTES)
    is_named = library.nvmlDeviceGetName(handle, buffer, ctypes.c_uint(_NAME_BYTES)) == 0
    return NvmlCard(buffer.value.decode("utf-8", "replace") if is_named else "", library, handle)
