"""The former name of `evalharness.backends.vllm.weights.WeightSwapping`: it stands in the command lines of running vLLM servers."""

from __future__ import annotations

from evalharness.backends.vllm.weights import WeightSwapping as WeightSwapping
