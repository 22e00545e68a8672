"""The eval that `verdict.py` runs: chats of `gpu_scaling.py`, each answered up to the cap and right nine times out of ten by a hash.

VERDICT_DROP is the share of cases that are made wrong, whatever their answer is: a loss that is known, on answers that are real.
"""

from __future__ import annotations

import os
from zlib import crc32

import pytest

from benchmarks.throughput.test_answers import MAX_NEW_TOKENS, load_cases, request
from evalharness import GenerationOptions

pytestmark = pytest.mark.eval(
    cases=load_cases, request=request, options=GenerationOptions(max_new_tokens=MAX_NEW_TOKENS, eos_token_id=(), seed=0)
)
DROP = float(os.environ.get("VERDICT_DROP", "0"))


@pytest.mark.gate("no_regression(right)")
def test_answer(case, generation, score):
    is_right = crc32(repr(generation.token_ids).encode()) % 10 != 0
    is_lost = crc32(f"lost {case.id}".encode()) % 1000 < 1000 * DROP / 0.9
    score(right=is_right and not is_lost)
    assert generation.num_completion_tokens == MAX_NEW_TOKENS
