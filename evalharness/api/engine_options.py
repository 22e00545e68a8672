"""How an engine is made: which checkpoint, how its prompts and pictures are prepared, how vLLM or a server is run.

Frozen, validated, importable without torch; errors name the field by its dotted path, as in contracts.py. How a single generation
is decoded is in generation_options.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from evalharness.api.checks import check_boolean, check_integer, check_json, check_number, check_sequence, check_text
from evalharness.api.errors import ContractValueError
from evalharness.api.thinking import DEFAULT_MARKS

__all__ = ["ChatTemplateOptions", "ModelLoadConfig", "ServerOptions", "Variant", "VllmEngineOptions", "VlmPreprocessOptions"]

Variant: TypeAlias = Literal["vlm", "text"]


@dataclass(frozen=True)
class ModelLoadConfig:
    """Which checkpoint to load and how. `variant` None means: look at its config. Remote code and pickles are off.

    `adapter_path`: the folder of a LoRA adapter of that checkpoint, which then is its base.
    """

    model_name_or_path: str
    torch_dtype: str | None = None
    device: str | None = None
    device_map: object | None = None
    attn_implementation: str | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    variant: Variant | None = None
    adapter_path: str | None = None

    def __post_init__(self) -> None:
        check_text("model.model_name_or_path", self.model_name_or_path)
        if not self.model_name_or_path.strip():
            raise ContractValueError("model.model_name_or_path is empty; give the path of a checkpoint directory")
        for name in ("torch_dtype", "device", "attn_implementation", "variant", "adapter_path"):
            check_text(f"model.{name}", getattr(self, name), optional=True)
        check_boolean("model.trust_remote_code", self.trust_remote_code)
        check_boolean("model.allow_pickle", self.allow_pickle)
        if self.variant is not None:
            if self.variant.lower() not in ("vlm", "text"):
                raise ContractValueError(f"model.variant must be 'vlm', 'text' or None, got {self.variant!r}")
            object.__setattr__(self, "variant", self.variant.lower())


@dataclass(frozen=True)
class ChatTemplateOptions:
    """How messages become the prompt; thinking is off unless asked for. `thinking_marks`: what a model opens and closes a thought with."""

    add_generation_prompt: bool = True
    tokenize: bool = False
    enable_thinking: bool = False
    continue_final_message: bool = False
    thinking_marks: tuple[str, str] = DEFAULT_MARKS

    def __post_init__(self) -> None:
        for name in ("add_generation_prompt", "tokenize", "enable_thinking", "continue_final_message"):
            check_boolean(f"chat_template.{name}", getattr(self, name))
        check_sequence("chat_template.thinking_marks", self.thinking_marks, "texts")
        if len(self.thinking_marks) != 2 or not all(isinstance(mark, str) and mark.strip() for mark in self.thinking_marks):
            raise ContractValueError(f"chat_template.thinking_marks must be two texts such as {DEFAULT_MARKS}, got {self.thinking_marks!r}")
        object.__setattr__(self, "thinking_marks", tuple(self.thinking_marks))
        if self.add_generation_prompt and self.continue_final_message:
            raise ContractValueError(
                "chat_template.continue_final_message and chat_template.add_generation_prompt exclude each other; set one to False"
            )


@dataclass(frozen=True)
class VlmPreprocessOptions:
    """How images are resized; `max_pixels` and `min_pixels` are areas in pixels, None keeps the checkpoint's own budget."""

    max_pixels: int | None = None
    min_pixels: int | None = None
    do_resize: bool | None = None
    padding_side: str = "left"
    truncation_side: str = "left"
    pad_token_fallback: bool = True

    def __post_init__(self) -> None:
        check_integer("preprocess.max_pixels", self.max_pixels, minimum=1, optional=True)
        check_integer("preprocess.min_pixels", self.min_pixels, minimum=1, optional=True)
        if self.max_pixels is not None and self.min_pixels is not None and self.min_pixels > self.max_pixels:
            raise ContractValueError(f"preprocess.min_pixels ({self.min_pixels}) must not exceed preprocess.max_pixels ({self.max_pixels})")
        check_boolean("preprocess.do_resize", self.do_resize, optional=True)
        check_boolean("preprocess.pad_token_fallback", self.pad_token_fallback)
        for name in ("padding_side", "truncation_side"):
            check_text(f"preprocess.{name}", getattr(self, name))
            if getattr(self, name) not in ("left", "right"):
                raise ContractValueError(f"preprocess.{name} must be 'left' or 'right', got {getattr(self, name)!r}")


@dataclass(frozen=True)
class VllmEngineOptions:
    """How vLLM is started; None leaves vLLM's own default. `extra`: (name, value) of engine arguments that have no field here."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    distributed_executor_backend: str | None = None
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    trust_remote_code: bool = False
    dtype: str | None = None
    enforce_eager: bool | None = None
    extra: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        check_integer("vllm.tensor_parallel_size", self.tensor_parallel_size, minimum=1)
        check_integer("vllm.pipeline_parallel_size", self.pipeline_parallel_size, minimum=1)
        check_text("vllm.distributed_executor_backend", self.distributed_executor_backend, optional=True)
        for name, value in self.extra:
            check_json(f"vllm.extra.{name}", value)
        if self.gpu_memory_utilization is not None:
            check_number("vllm.gpu_memory_utilization", self.gpu_memory_utilization, integer=False, above=0.0, maximum=1.0)
        check_integer("vllm.max_model_len", self.max_model_len, minimum=1, optional=True)
        check_boolean("vllm.trust_remote_code", self.trust_remote_code)
        check_text("vllm.dtype", self.dtype, optional=True)
        check_boolean("vllm.enforce_eager", self.enforce_eager, optional=True)


@dataclass(frozen=True)
class ServerOptions:
    """Which server answers (backend `openai`), and how patiently it is asked. Keys come from the environment, never from here.

    `server` is its kind: vllm, sglang, trtllm, mlx, max or openai. `base_url` None: this machine, at that kind's port. `adapter_dir`:
    where copies of adapters are put for it to read, a folder that it sees under the same path; None: this machine's temporary files.
    """

    server: str = "vllm"
    base_url: str | None = None
    served_model: str | None = None
    concurrency: int = 64
    request_timeout_s: float = 120.0
    max_attempts: int = 3
    adapter_dir: str | None = None

    def __post_init__(self) -> None:
        check_text("server.server", self.server)
        check_text("server.adapter_dir", self.adapter_dir, optional=True)
        check_text("server.base_url", self.base_url, optional=True)
        check_text("server.served_model", self.served_model, optional=True)
        check_integer("server.concurrency", self.concurrency, minimum=1)
        check_number("server.request_timeout_s", self.request_timeout_s, integer=False, above=0.0)
        check_integer("server.max_attempts", self.max_attempts, minimum=1)
