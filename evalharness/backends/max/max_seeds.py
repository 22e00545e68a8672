"""How our seeds reach MAX, in this process and behind a server, so that both draw the same."""

from __future__ import annotations

import hashlib

__all__ = ["max_seed"]


def max_seed(seed: int) -> int:
    """Return 64 bits of the seed's hash, never 0.

    MAX draws the n-th token of a text with its seed plus n: seeds side by side would draw each other's numbers, one token later. And
    its server takes 0 for no seed.
    """
    return int.from_bytes(hashlib.blake2b(str(seed).encode("ascii"), digest_size=8).digest(), "big") or 1
