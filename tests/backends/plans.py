"""A plan that asks for nothing special; tests change what they are about."""

from __future__ import annotations

from evalharness.backends.base import SamplingPlan

PLAN = SamplingPlan(
    max_new_tokens=8,
    temperature=0.0,
    top_p=1.0,
    repetition_penalty=1.0,
    no_repeat_ngram_size=0,
    stop_token_ids=(2,),
    stop_strings=(),
    skip_special_tokens=True,
    seed=None,
    logprobs=False,
    use_cache=True,
    pad_token_id=None,
)
