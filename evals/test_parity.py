"""Parity: do engines of one checkpoint agree across backends and dtypes?

    pytest evals -k parity --backend hf,vllm --dtype float32
    pytest evals -k parity --dtype float32,bfloat16

A sample of cases of every task, greedy, with log-probabilities. Each engine is compared with the others of its checkpoint, see
`evalharness/tasks/parity.py`; the report lists first differences and the settings in which the engines differ. The eval is
skipped, with that reason, where no checkpoint has two engines.

Gates: `same_prompt`, all prompts are equal; `prefix_gap_mean`, how far log-probabilities drift apart while the texts are equal;
`split_gap_max`, where the texts diverge, both tokens were about equally likely. Measured on `final` on a CPU, hf against vLLM, both
float32: 6e-8 (6e-6 at most) and 0, all 24 answers equal to the end. The thresholds leave room for bfloat16, which rounds to
three digits: 0.02 is a factor of 1.02 per token.
"""

from __future__ import annotations

from functools import partial

import pytest

from evalharness import GenerationOptions
from evalharness.tasks import parity, task_sample

pytestmark = pytest.mark.eval(
    cases=partial(task_sample.load_cases, num_per_task=8),
    request=task_sample.request,
    options=GenerationOptions(max_new_tokens=512, logprobs=True),
    across=parity.compare_engines,
    directions={"mean_logprob": "none", "prefix_gap_mean": "lower", "prefix_gap_max": "lower", "split_gap_max": "lower"},
)


@pytest.mark.gate("same_prompt >= 1", "prefix_gap_mean <= 0.02", "split_gap_max <= 0.25", "invalid_rate <= 0.02")
def test_parity(case, generation, score):
    score(mean_logprob=sum(generation.logprobs) / len(generation.logprobs) if generation.logprobs else None)
