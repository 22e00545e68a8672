"""pytest for post-training checkpoints: write evals as test modules, run them on real engines, keep every generation.

The names below are loaded when they are first used, so that `import evalharness` costs next to nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalharness.cases import Case
    from evalharness.contracts import (
        ChatTemplateOptions,
        DecodeOptions,
        FinishReason,
        GenerationFailure,
        GenerationOptions,
        GenerationResult,
        ModelLoadConfig,
        ServerOptions,
        StopOptions,
        TextGenerationRequest,
        TokenGenerationRequest,
        VllmEngineOptions,
        VlmGenerationRequest,
        VlmPreprocessOptions,
    )
    from evalharness.engine import Engine, EngineWarning
    from evalharness.engine_building import build_engine, build_engine_around
    from evalharness.errors import EvalHarnessError
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

# What is not here is a contract.
_HOMES = {
    "Case": "evalharness.cases",
    "Engine": "evalharness.engine",
    "EngineWarning": "evalharness.engine",
    "EvalHarnessError": "evalharness.errors",
    "ResponseLogits": "evalharness.scoring",
    "ResponseScores": "evalharness.scoring",
    "ScoringRequest": "evalharness.scoring",
    "StructuredOutput": "evalharness.structured_output",
    "build_engine": "evalharness.engine_building",
    "build_engine_around": "evalharness.engine_building",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("evalharness")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")
    value = getattr(import_module(_HOMES.get(name, "evalharness.contracts")), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
