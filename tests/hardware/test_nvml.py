"""What NVML is asked and what its answers mean, with a library that answers as the driver's own does."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from evalharness.hardware import nvml
from evalharness.hardware.nvml import nvml_cards

CARDS = {b"GPU-aa": b"NVIDIA H200", b"GPU-bb": b"NVIDIA L4"}


class Driver:
    """Two cards; the second has no energy counter, as parts of cards and old ones have none."""

    @staticmethod
    def _target(pointer: Any) -> Any:
        return pointer._obj  # of ctypes.byref

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        self._target(count).value = len(CARDS)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        self._target(handle).value = index.value + 1
        return 0 if index.value < len(CARDS) else 6

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        found = [place for place, known in enumerate(CARDS) if known == uuid]
        self._target(handle).value = found[0] + 1 if found else 0
        return 0 if found else 6

    def nvmlDeviceGetName(self, handle: Any, buffer: Any, length: Any) -> int:
        buffer.value = list(CARDS.values())[handle.value - 1]
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any, value: Any) -> int:
        self._target(value).value = 5_000_000_000_000
        return 0 if handle.value == 1 else 3

    def nvmlDeviceGetUtilizationRates(self, handle: Any, value: Any) -> int:
        self._target(value).gpu = 37
        return 0


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a driver."""
    monkeypatch.setattr(nvml, "_nvml", Driver)


@pytest.mark.parametrize(
    ("names", "cards"),
    [
        (None, ["NVIDIA H200", "NVIDIA L4"]),
        (["1"], ["NVIDIA L4"]),
        (["GPU-bb", "GPU-aa"], ["NVIDIA L4", "NVIDIA H200"]),
        (["7", "GPU-cc", "MIG-dd"], []),
        ([], []),
    ],
)
def test_cards_are_found_by_the_names_of_the_mask(names: list[str] | None, cards: list[str]) -> None:
    assert [card.name for card in nvml_cards(names)] == cards


def test_energy_is_in_joules_and_what_is_not_told_is_not_guessed() -> None:
    first, second = nvml_cards(None)
    assert first.energy_j() == 5_000_000_000
    assert second.energy_j() is None
    assert first.busy() == 0.37


def test_without_a_driver_there_is_no_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(nvml, "_LIBRARY", "libno-such-driver.so.1")
    nvml._nvml.cache_clear()
    assert nvml_cards(None) == []
    nvml._nvml.cache_clear()
    assert ctypes.sizeof(nvml._Use) == 8
