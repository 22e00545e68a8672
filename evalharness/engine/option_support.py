"""Which generation options a backend honours, by its capabilities. Knows nothing about what is done with the rest."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from evalharness.api.options import GenerationOptions
from evalharness.backends.base import Capabilities

__all__ = ["split_options"]


def split_options(options: GenerationOptions, can: Capabilities) -> tuple[GenerationOptions, tuple[str, ...]]:
    """Return the options that a backend can honour, and the others as `name=value`."""
    changes: dict[str, Any] = {}
    ignored = []
    if options.no_repeat_ngram_size and not can.supports_no_repeat_ngram:
        ignored.append(f"no_repeat_ngram_size={options.no_repeat_ngram_size}")
        changes["no_repeat_ngram_size"] = None
    if not options.use_cache and not can.supports_use_cache_off:
        ignored.append("use_cache=False")
        changes["use_cache"] = True
    if options.logprobs and not can.supports_logprobs:
        ignored.append("logprobs=True")
        changes["logprobs"] = False
    if options.logprobs_kind != "raw" and not can.supports_processed_logprobs:
        ignored.append(f"logprobs_kind={options.logprobs_kind!r}")
        changes["logprobs_kind"] = "raw"
    if options.entropies and not can.supports_entropies:
        ignored.append("entropies=True")
        changes["entropies"] = False
    if options.structured is not None and options.structured.kind not in can.structures:
        ignored.append(f"structured.{options.structured.kind}")
        changes["structured"] = None
    if options.max_thinking_tokens is not None and not can.supports_thinking_budget:
        ignored.append(f"max_thinking_tokens={options.max_thinking_tokens}")
        changes["max_thinking_tokens"] = None
    extras = options.extra_generation_kwargs
    unknown = [key for key in extras if key not in can.extra_options]
    if unknown:
        ignored += [f"{key}={extras[key]!r}" for key in unknown]
        changes["extra_generation_kwargs"] = {key: value for key, value in extras.items() if key not in unknown}
    return (replace(options, **changes) if changes else options), tuple(ignored)
