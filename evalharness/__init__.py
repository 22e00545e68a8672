"""pytest for post-training checkpoints: write evals as test modules, run them on real engines, keep every generation.

The names below are loaded at first use, so that `import evalharness` is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from evalharness.api.cases import Case as Case
    from evalharness.api.errors import EvalHarnessError as EvalHarnessError
    from evalharness.api.options import (
        ChatTemplateOptions as ChatTemplateOptions,
        DecodeOptions as DecodeOptions,
        GenerationOptions as GenerationOptions,
        ModelLoadConfig as ModelLoadConfig,
        ServerOptions as ServerOptions,
        StopOptions as StopOptions,
        VllmEngineOptions as VllmEngineOptions,
        VlmPreprocessOptions as VlmPreprocessOptions,
    )
    from evalharness.api.requests import (
        CompletionRequest as CompletionRequest,
        FinishReason as FinishReason,
        GenerationFailure as GenerationFailure,
        GenerationResult as GenerationResult,
        TextGenerationRequest as TextGenerationRequest,
        TokenGenerationRequest as TokenGenerationRequest,
        VlmGenerationRequest as VlmGenerationRequest,
    )
    from evalharness.api.scoring import ResponseLogits as ResponseLogits, ResponseScores as ResponseScores, ScoringRequest as ScoringRequest
    from evalharness.api.structured_output import StructuredOutput as StructuredOutput
    from evalharness.engine.build import build_engine as build_engine, build_engine_around as build_engine_around
    from evalharness.engine.engine import Engine as Engine, EngineWarning as EngineWarning
    from evalharness.report.flat_table import samples_frame as samples_frame
    from evalharness.report.notebook import open_run as open_run


_HOMES = {
    "evalharness.api.cases": ("Case",),
    "evalharness.api.errors": ("EvalHarnessError",),
    "evalharness.api.options": (
        "ChatTemplateOptions", "DecodeOptions", "GenerationOptions", "ModelLoadConfig", "ServerOptions", "StopOptions",
        "VllmEngineOptions", "VlmPreprocessOptions",
    ),
    "evalharness.api.requests": (
        "CompletionRequest", "FinishReason", "GenerationFailure", "GenerationResult", "TextGenerationRequest", "TokenGenerationRequest",
        "VlmGenerationRequest",
    ),
    "evalharness.api.scoring": ("ResponseLogits", "ResponseScores", "ScoringRequest"),
    "evalharness.api.structured_output": ("StructuredOutput",),
    "evalharness.engine.build": ("build_engine", "build_engine_around"),
    "evalharness.engine.engine": ("Engine", "EngineWarning"),
    "evalharness.report.flat_table": ("samples_frame",),
    "evalharness.report.notebook": ("open_run",),
}  # fmt: skip
__all__ = [name for names in _HOMES.values() for name in names]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("evalharness")
    for module, names in _HOMES.items():
        if name in names:
            globals()[name] = value = getattr(import_module(module), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; public names: {', '.join(__all__)}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
