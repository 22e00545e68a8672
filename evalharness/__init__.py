"""pytest for post-training checkpoints: write evals as test modules, run them on real engines, keep every generation.

The names below are loaded when they are first used, so that `import evalharness` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalharness.api.cases import Case
    from evalharness.api.errors import EvalHarnessError
    from evalharness.api.options import (
        ChatTemplateOptions,
        DecodeOptions,
        GenerationOptions,
        ModelLoadConfig,
        ServerOptions,
        StopOptions,
        VllmEngineOptions,
        VlmPreprocessOptions,
    )
    from evalharness.api.requests import (
        FinishReason,
        GenerationFailure,
        GenerationResult,
        TextGenerationRequest,
        TokenGenerationRequest,
        VlmGenerationRequest,
    )
    from evalharness.api.scoring import ResponseLogits, ResponseScores, ScoringRequest
    from evalharness.api.structured_output import StructuredOutput
    from evalharness.engine.build import build_engine, build_engine_around
    from evalharness.engine.engine import Engine, EngineWarning

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
    "Case": "evalharness.api.cases",
    "ChatTemplateOptions": "evalharness.api.options",
    "DecodeOptions": "evalharness.api.options",
    "Engine": "evalharness.engine.engine",
    "EngineWarning": "evalharness.engine.engine",
    "EvalHarnessError": "evalharness.api.errors",
    "FinishReason": "evalharness.api.requests",
    "GenerationFailure": "evalharness.api.requests",
    "GenerationOptions": "evalharness.api.options",
    "GenerationResult": "evalharness.api.requests",
    "ModelLoadConfig": "evalharness.api.options",
    "ResponseLogits": "evalharness.api.scoring",
    "ResponseScores": "evalharness.api.scoring",
    "ScoringRequest": "evalharness.api.scoring",
    "ServerOptions": "evalharness.api.options",
    "StopOptions": "evalharness.api.options",
    "StructuredOutput": "evalharness.api.structured_output",
    "TextGenerationRequest": "evalharness.api.requests",
    "TokenGenerationRequest": "evalharness.api.requests",
    "VllmEngineOptions": "evalharness.api.options",
    "VlmGenerationRequest": "evalharness.api.requests",
    "VlmPreprocessOptions": "evalharness.api.options",
    "build_engine": "evalharness.engine.build",
    "build_engine_around": "evalharness.engine.build",
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
