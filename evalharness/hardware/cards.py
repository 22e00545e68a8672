"""What known cards can do at most: dense FLOP/s by dtype, and bytes per second of their memory.

Vendors' figures without sparsity: NVIDIA's data sheets of each card (H100, H200, B200, H20, GH200, A100, L40S, L4, A10, T4, V100) and the
appendices of its architecture papers (RTX 4090: Ada, RTX 3090: Ampere GA102, RTX 5090: Blackwell; with accumulation in float32).
float32 is without tensor cores, as torch multiplies unless it is told otherwise. A card that is not here is unknown: nothing is guessed.
"""

from __future__ import annotations

from dataclasses import dataclass

_T = 1e12


@dataclass(frozen=True)
class CardLimits:
    """The limits of one card: FLOP/s by dtype (`flops`), bytes per second."""

    flops_16: float
    flops_fp8: float | None
    flops_32: float
    bandwidth: float
    has_bfloat16: bool = True

    def flops(self, dtype: str) -> float | None:
        """Return the FLOP/s of a dtype, None where this card has no figure for it."""
        if dtype in ("float16", "bfloat16"):
            return self.flops_16 if dtype == "float16" or self.has_bfloat16 else None
        if dtype == "fp8":  # without fp8 arithmetic such weights are multiplied in 16 bits
            return self.flops_fp8 or self.flops_16
        return self.flops_32 if dtype == "float32" else None


def _card(flops_16: float, flops_fp8: float | None, flops_32: float, bandwidth: float, *, has_bfloat16: bool = True) -> CardLimits:
    """Return limits given in units of 10^12."""
    return CardLimits(flops_16 * _T, flops_fp8 and flops_fp8 * _T, flops_32 * _T, bandwidth * _T, has_bfloat16)


_H100, _H200 = _card(989.4, 1978.9, 66.9, 3.35), _card(989.4, 1978.9, 66.9, 4.8)
_A100_40, _A100_80 = _card(311.9, None, 19.5, 1.555), _card(311.9, None, 19.5, 2.039)
_V100 = _card(125.0, None, 15.7, 0.9, has_bfloat16=False)
CARDS = {
    "NVIDIA B200": _card(2250.0, 4500.0, 75.0, 8.0),
    "NVIDIA H200": _H200,
    "NVIDIA H200 NVL": _card(835.5, 1671.0, 60.0, 4.8),
    "NVIDIA H100 80GB HBM3": _H100,
    "NVIDIA H100 PCIe": _card(756.4, 1512.8, 51.2, 2.039),
    "NVIDIA H100 NVL": _card(835.5, 1671.0, 60.0, 3.9),
    "NVIDIA GH200 480GB": _card(989.4, 1978.9, 66.9, 4.0),
    "NVIDIA GH200 144G HBM3e": _card(989.4, 1978.9, 66.9, 4.9),
    "NVIDIA H20": _card(148.0, 296.0, 44.0, 4.0),
    "NVIDIA A100-SXM4-80GB": _A100_80,
    "NVIDIA A100-SXM4-40GB": _A100_40,
    "NVIDIA A100-PCIE-40GB": _A100_40,
    "NVIDIA A100 80GB PCIe": _card(311.9, None, 19.5, 1.935),
    "NVIDIA L40S": _card(362.1, 733.0, 91.6, 0.864),
    "NVIDIA L4": _card(121.0, 242.0, 30.3, 0.3),
    "NVIDIA A10": _card(125.0, None, 31.2, 0.6),
    "Tesla T4": _card(65.0, None, 8.1, 0.32, has_bfloat16=False),
    "Tesla V100-SXM2-16GB": _V100,
    "Tesla V100-SXM2-32GB": _V100,
    "NVIDIA GeForce RTX 5090": _card(209.5, 419.0, 104.8, 1.792),
    "NVIDIA GeForce RTX 4090": _card(165.2, 330.3, 82.6, 1.008),
    "NVIDIA GeForce RTX 3090": _card(71.0, None, 35.6, 0.936),
}
"""By the name that NVML and torch give."""


def limits_of(name: str) -> CardLimits | None:
    """Return the limits of a card, None for one that is not known."""
    return CARDS.get(name) or CARDS.get(f"NVIDIA {name}")
