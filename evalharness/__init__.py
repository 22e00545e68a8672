"""pytest for post-training checkpoints: write evals as test modules, run them on real engines, keep every generation.

The names below are loaded when they are first used, so that `import evalharness` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalharness.cases import Case
    from evalharness.contracts import (
        FinishReason,
        GenerationFailure,
        GenerationResult,
        TextGenerationRequest,
        TokenGenerationRequest,
        VlmGenerationRequest,
    )
    from evalharness.engine import Engine, EngineWarning
    from evalharness.engine_building import build_engine, build_engine_around
    from evalharness.engine_options import ChatTemplateOptions, ModelLoadConfig, ServerOptions, VllmEngineOptions, VlmPreprocessOptions
    from evalharness.errors import EvalHarnessError
    from evalharness.generation_options import DecodeOptions, GenerationOptions, StopOptions
    from evalharness.scoring import ResponseLogits, ResponseScores, ScoringRequest
    from evalharness.structured_output import StructuredOutput

__all__ = [
    "Case",
    "ChatTemplateOptions",
    "DecodeOptions",
    "Engine",
    "EngineWarning",
    "EvalHarnessError",
    "FinishReason",
    "GenerationFailure",
    "GenerationOptions",
    "GenerationResult",
    "ModelLoadConfig",
    "ResponseLogits",
    "ResponseScores",
    "ScoringRequest",
    "ServerOptions",
    "StopOptions",
    "StructuredOutput",
    "TextGenerationRequest",
    "TokenGenerationRequest",
    "VllmEngineOptions",
    "VlmGenerationRequest",
    "VlmPreprocessOptions",
    "build_engine",
    "build_engine_around",
]

_HOMES = {
    "Case": "evalharness.cases",
    "ChatTemplateOptions": "evalharness.engine_options",
    "DecodeOptions": "evalharness.generation_options",
    "Engine": "evalharness.engine",
    "EngineWarning": "evalharness.engine",
    "EvalHarnessError": "evalharness.errors",
    "FinishReason": "evalharness.contracts",
    "GenerationFailure": "evalharness.contracts",
    "GenerationOptions": "evalharness.generation_options",
    "GenerationResult": "evalharness.contracts",
    "ModelLoadConfig": "evalharness.engine_options",
    "ResponseLogits": "evalharness.scoring",
    "ResponseScores": "evalharness.scoring",
    "ScoringRequest": "evalharness.scoring",
    "ServerOptions": "evalharness.engine_options",
    "StopOptions": "evalharness.generation_options",
    "StructuredOutput": "evalharness.structured_output",
    "TextGenerationRequest": "evalharness.contracts",
    "TokenGenerationRequest": "evalharness.contracts",
    "VllmEngineOptions": "evalharness.engine_options",
    "VlmGenerationRequest": "evalharness.contracts",
    "VlmPreprocessOptions": "evalharness.engine_options",
    "build_engine": "evalharness.engine_building",
    "build_engine_around": "evalharness.engine_building",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("evalharness")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
