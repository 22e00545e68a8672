"""What engines that serve many users alike cannot honour of a plan, told in one form."""

from __future__ import annotations

from evalharness.api.errors import UnsupportedOption
from evalharness.backends.base import SamplingPlan

__all__ = ["check_limits"]

# vLLM raises what is lower without an error, and refuses what is higher; MAX itself refuses more, but not this.
_MIN_TEMPERATURE, _MAX_TEMPERATURE = 0.01, 2.0


def check_limits(plan: SamplingPlan, engine: str) -> None:
    """Raise `UnsupportedOption` for what neither vLLM nor MAX can honour; `engine` is its name in the message."""
    if 0 < plan.temperature < _MIN_TEMPERATURE or plan.temperature > _MAX_TEMPERATURE:
        raise UnsupportedOption(
            f"options.temperature={plan.temperature} cannot be honoured by {engine}, "
            f"which takes 0 (greedy) or {_MIN_TEMPERATURE} to {_MAX_TEMPERATURE}"
        )
    if plan.no_repeat_ngram_size:
        raise UnsupportedOption(
            f"options.no_repeat_ngram_size={plan.no_repeat_ngram_size} cannot be honoured by {engine}; set it to 0 or use --backend hf"
        )
    if plan.structured is not None and plan.logprobs:
        raise UnsupportedOption(
            f"{engine} takes log-probabilities after the mask of options.structured, so they are not the model's own; leave one of the two "
            "out, or use --backend hf"
        )
    if not plan.use_cache:
        raise UnsupportedOption(f"options.use_cache=False cannot be honoured by {engine}; leave it True or use --backend hf")
