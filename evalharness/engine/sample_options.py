"""How several samples of one request are decoded."""

from __future__ import annotations

from dataclasses import replace

from evalharness.api.checks import check_integer
from evalharness.api.errors import ConfigError
from evalharness.api.options import GenerationOptions

__all__ = ["options_of_samples"]


def options_of_samples(options: GenerationOptions, num_samples: int) -> list[GenerationOptions]:
    """Return the options of each sample: sample k has the seed plus k, as vLLM's own `n` has it; without a seed each draws its own.

    `ConfigError` for several samples of greedy options, the same on every backend.
    """
    check_integer("num_samples", num_samples, minimum=1)
    if num_samples > 1 and not options.samples:
        raise ConfigError(f"num_samples {num_samples} with greedy decoding gives equal samples; set a temperature above 0 or ask for one")
    if options.seed is None:
        return [options] * num_samples
    return [replace(options, seed=options.seed + k) for k in range(num_samples)]
