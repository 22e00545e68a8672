"""What vLLM is told of structures and thoughts: its own grammars hold the one, its budget of thinking tokens the other."""

from __future__ import annotations

from typing import Any

from evalharness.api.errors import UnsupportedOption
from evalharness.api.structured_output import StructuredOutput
from evalharness.api.thinking import DEFAULT_MARKS
from evalharness.backends.base import SamplingPlan
from evalharness.backends.vllm.limits import knows_thinking, uses_v2_runner

__all__ = ["check_structure", "check_thinking", "structured_params", "thinking_arguments"]

_NAMES = {"json_schema": "json", "regex": "regex", "choice": "choice", "grammar": "grammar"}


def structured_params(structured: StructuredOutput) -> Any:
    """Return `vllm.sampling_params.StructuredOutputsParams`; what vLLM raises passes."""
    from vllm.sampling_params import StructuredOutputsParams

    ((kind, value),) = structured.to_json().items()
    return StructuredOutputsParams(**{_NAMES[kind]: value})


def check_structure(params: Any, llm: Any) -> None:
    """Raise what vLLM would raise of the structure as the request comes in, before any does; nothing where this release cannot be asked.

    `llm`: the `vllm.LLM`. vLLM notes its choice of a grammar's engine in `params`, so these are to be thrown away.
    """
    validate = getattr(params, "_validate_structured_outputs", None)
    if validate is not None:
        config = llm.llm_engine.vllm_config
        validate(config.model_config, config.structured_outputs_config, llm.get_tokenizer())


def thinking_arguments(tokenizer: Any) -> dict[str, Any]:
    """Return the engine argument that names the marks of thoughts, for tokenizers that have them as tokens; others' models do not think."""
    if any(len(tokenizer.encode(mark, add_special_tokens=False)) != 1 for mark in DEFAULT_MARKS):
        return {}
    start, end = DEFAULT_MARKS
    return {"reasoning_config": {"reasoning_start_str": start, "reasoning_end_str": end}}


def check_thinking(plan: SamplingPlan, engine_config: Any) -> None:
    """Raise `UnsupportedOption` for a budget that this engine cannot keep: its marks are chosen when it starts."""
    if plan.thinking is None:
        return
    if uses_v2_runner(engine_config) and not knows_thinking():
        raise UnsupportedOption(
            "options.max_thinking_tokens cannot be honoured by the V2 model runner of this vLLM; start with VLLM_USE_V2_MODEL_RUNNER=0 in "
            "the environment, take a newer vLLM, or use --backend hf"
        )
    known = getattr(engine_config, "reasoning_config", None)
    start, end = (getattr(known, f"reasoning_{which}_token_ids", None) or () for which in ("start", "end"))
    if (tuple(start), tuple(end)) != (plan.thinking.start_ids, plan.thinking.end_ids):
        raise UnsupportedOption(
            "options.max_thinking_tokens cannot be honoured by this vLLM engine, which was started with "
            f"{'other marks of thoughts' if known is not None else 'no marks of thoughts'}; give them with "
            """--engine-option reasoning_config='{"reasoning_start_str": "<think>", "reasoning_end_str": "</think>"}'"""
        )
