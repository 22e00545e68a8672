"""As many answers as `worker_scaling.py` asks for, as long and as unequal; a test takes a while, as reading and scoring do."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks.simulated.engine_model import NUM_TOKENS, num_tokens
from evalharness import Case, GenerationOptions, GenerationResult, TextGenerationRequest
from evalharness.pytest_plugin.outcomes import Score

NUM_CASES = int(os.environ.get("SIMULATED_CASES", "384"))
SPREAD = float(os.environ.get("SIMULATED_SPREAD", "0"))
TEST_S = 0.03


def load_cases(data_dir: Path | None) -> list[Case]:
    """Return numbered cases."""
    return [Case(id=f"c{number:05}") for number in range(NUM_CASES)]


def request(case: Case) -> TextGenerationRequest:
    """Return what is echoed, a character a token."""
    return TextGenerationRequest([{"role": "user", "content": case.id.ljust(num_tokens(case.id, SPREAD), ".")}])


pytestmark = pytest.mark.eval(cases=load_cases, request=request, options=GenerationOptions(max_new_tokens=2 * NUM_TOKENS))


def test_answer(case: Case, generation: GenerationResult, score: Score) -> None:
    """Score the length."""
    time.sleep(TEST_S)
    score(length=len(generation.text))
