"""The interface of an InferenceModule, as a library for reinforcement learning has it, on our engines: texts in, results and scores out.

    policy = InferenceModule("path/to/checkpoint", backend="huggingface", dtype="float32")
    result = policy.generate(["The sky is"], max_new_tokens=8, temperature=0.7, return_logprobs=True)
    logprobs = policy.get_logprobs(["The sky is"], [" blue"])  # a tensor, of the response alone, with gradients
    result, calls = policy.batch_generate_with_tools("Search for AI news", tools)

Names and shapes are that library's; its mistakes are corrected, as in `Engine`: prompts and responses are joined as ids, scores cover
responses only, sampled answers never come from the cache, and only complete tool calls are returned.
"""

from __future__ import annotations

import threading
import uuid
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from evalharness.api.checks import check_integer, check_sequence, check_text
from evalharness.api.errors import CapabilityError, ConfigError, ContractTypeError, did_you_mean
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationResult as EngineResult, TextGenerationRequest, TokenGenerationRequest
from evalharness.api.tools import Tool, read_tools
from evalharness.engine.cache import ResponseCache
from evalharness.engine.engine import Engine
from evalharness.engine.text_ids import bare_prompt
from evalharness.tool_calls import FORMATS, ToolAnswer, ToolCall, parse_tool_calls, prompt_part
from evalharness.training.opening import open_engine


@dataclass(frozen=True)
class InferenceResult:
    """The generated samples as flat lists: those of the first prompt, then those of the second.

    `logprobs`, if requested: raw log-probabilities of the generated tokens, a float32 tensor `[sample, token]`, 0 behind a shorter
    sample, NaN for a number that the backend does not know. `logits`, if requested: the raw logits that they were drawn from,
    `[sample, token, vocab]`, 0 likewise. `metadata`: finish reason, seed, number of tokens, weight version and more of each sample, as
    plain JSON.
    """

    texts: list[str]
    token_ids: list[list[int]]
    logprobs: Any
    logits: Any
    metadata: list[dict[str, Any]]


GenerationResult = InferenceResult
"""What the original calls it; `evalharness.GenerationResult` is an engine's own, of one sample."""


@dataclass(frozen=True)
class ToolCallParser:
    """Reads tool calls out of texts. `format`: one of `tool_calls.FORMATS`, or "auto" for the first that finds any."""

    format: str = "auto"

    def __post_init__(self) -> None:
        if self.format not in (known := ("auto", *FORMATS)):
            hint = did_you_mean(self.format, known) or "."
            raise ConfigError(f"the format {self.format!r} of tool calls is unknown{hint} Known: {', '.join(known)}.")

    def parse(self, text: str, tools: Sequence[Tool | Mapping[str, Any]] = (), finish_reason: str | None = "stop") -> ToolAnswer:
        """Return the tool calls in a text, valid or not, each with its error; see `tool_calls.parse_tool_calls`."""
        return parse_tool_calls(text, [_whole_schema(tool) for tool in tools], format=self.format, finish_reason=finish_reason)


class InferenceBackend(ABC):
    """What an `InferenceModule` generates and scores with. For an engine of your own, make a subclass: `InferenceModule(backend=Mine())`.

    `Tensor` is torch's. `responses` and `prompts` are texts or token ids, one response for each prompt.
    """

    @abstractmethod
    def generate(self, prompts: Sequence[str], *, cache: ResponseCache | None = None, **options: Any) -> InferenceResult:
        """Return completions of the prompts; `options` as in `InferenceModule.generate`. `cache`: where answers may be kept."""

    @abstractmethod
    def get_logits(self, prompts: Sequence[Any], responses: Sequence[Any], *, grad: bool | None = None) -> Any:
        """Return a tensor `[batch, response, vocab]`, see `InferenceModule.get_logits`; or raise `CapabilityError`."""

    @abstractmethod
    def get_logprobs(self, prompts: Sequence[Any], responses: Sequence[Any], *, grad: bool | None = None) -> Any:
        """Return a tensor `[batch, response]`, see `InferenceModule.get_logprobs`; or raise `CapabilityError`."""

    @property
    def model(self) -> Any:
        """The torch module, for training it; `CapabilityError` where it is not in this process."""
        raise CapabilityError(f"{type(self).__name__} has no torch module in this process")

    def generate_with_tools(self, prompts: Sequence[str], tools: Sequence[Tool], **options: Any) -> InferenceResult:
        """Return completions of the prompts, each after a description of the tools; a backend with a chat template takes that."""
        return self.generate([f"{prompt_part(tools)}\n\n{prompt}" if tools else prompt for prompt in prompts], **options)

    def close(self) -> None:  # noqa: B027 (not every backend holds something)
        """Free the model's memory. Idempotent."""


class EngineBackend(InferenceBackend):
    """An `Engine` as the backend of an `InferenceModule`."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._identity = uuid.uuid4().hex
        self._lock = threading.Lock()

    @property
    def model(self) -> Any:
        """The torch module of the checkpoint; see `InferenceBackend`."""
        backend: Any = self.engine.backend
        if not backend.capabilities.supports_logits:
            raise CapabilityError(f"the model of backend {backend.name!r} is not a torch module of this process; take 'huggingface'")
        return backend.model

    @contextmanager
    def _with_cache(self, cache: ResponseCache | None) -> Iterator[None]:
        """Let the engine use a cache for one call; never where a server, or a trainer that shares its model, may change the weights."""
        if self.engine.name == "openai" or self.engine.weights.is_shared:
            cache = None
        with self._lock:  # else another thread's call would have this one's cache
            self.engine.use_cache(cache, {"module": self._identity, "weights": self.engine.weights.id})
            yield

    def generate(
        self,
        prompts: Sequence[str],
        *,
        cache: ResponseCache | None = None,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        num_return_sequences: int = 1,
        return_logprobs: bool = False,
        return_logits: bool = False,
        **options: Any,
    ) -> InferenceResult:
        """See `InferenceModule.generate`."""
        if return_logits:
            self._require_logits()
        requests = [TokenGenerationRequest(bare_prompt(text, self.engine.tokenizer)[1]) for text in prompts]
        generation = _options(max_new_tokens, temperature, top_p, return_logprobs, options)
        with self._with_cache(cache):
            groups = self.engine.generate_samples(requests, generation, num_return_sequences)
        results = [result for group in groups for result in group]
        logits = None
        if return_logits:
            each = [request.prompt_token_ids for request in requests for _ in range(num_return_sequences)]
            logits = self.get_logits(each, [result.token_ids for result in results])
        return _result(results, self._logprobs(results) if return_logprobs else None, logits)

    def get_logits(self, prompts: Sequence[Any], responses: Sequence[Any], *, grad: bool | None = None) -> Any:
        """See `InferenceModule.get_logits`."""
        self._require_logits()
        logits = self.engine.get_logits(prompts, responses, grad=self._grad(grad))
        from evalharness.backends.tensors import without_gaps

        return self._beside_model(without_gaps(logits.values, logits.mask))

    def get_logprobs(self, prompts: Sequence[Any], responses: Sequence[Any], *, grad: bool | None = None) -> Any:
        """See `InferenceModule.get_logprobs`."""
        scores = self.engine.get_logprobs(prompts, responses, grad=self._grad(grad))
        from evalharness.backends.tensors import without_gaps  # torch, which what is refused needs not

        return self._beside_model(without_gaps(scores.values, scores.mask))

    def _logprobs(self, results: Sequence[EngineResult]) -> Any:
        from evalharness.backends.tensors import padded

        rows = [[None] * len(result.token_ids) if result.logprobs is None else result.logprobs for result in results]
        return self._beside_model(padded(rows))

    def _beside_model(self, values: Any) -> Any:
        """Return a tensor on the model's device, where others are that it will meet."""
        return values.to(self.model.device) if self.engine.backend.capabilities.supports_logits else values

    def _grad(self, wanted: bool | None) -> bool:
        if wanted is not None or not self.engine.backend.capabilities.supports_logits:
            return bool(wanted)
        from evalharness.backends.tensors import wants_gradients

        return wants_gradients(self.model)

    def _require_logits(self) -> None:
        if not self.engine.backend.capabilities.supports_logits:
            raise CapabilityError(f"backend {self.engine.name!r} gives no logits; take 'huggingface', or log-probabilities alone")

    def generate_with_tools(
        self,
        prompts: Sequence[str],
        tools: Sequence[Tool],
        *,
        max_new_tokens: int = 512,
        temperature: float = 0.0,
        top_p: float = 1.0,
        return_logprobs: bool = False,
        **options: Any,
    ) -> InferenceResult:
        """Return the answer to each prompt, sent as a user turn by the checkpoint's chat template, which offers the tools."""
        requests = [TextGenerationRequest([{"role": "user", "content": text}], tools) for text in prompts]
        generation = _options(max_new_tokens, temperature, top_p, return_logprobs, options)
        with self._with_cache(None):
            results = self.engine.generate_text_batch(requests, generation)
        return _result(results, self._logprobs(results) if return_logprobs else None)

    def close(self) -> None:
        """Free the model's memory. Idempotent."""
        self.engine.close()


class HuggingFaceBackend(EngineBackend):
    """Transformers: logits, log-probabilities with gradients, the model itself.

    `model`: the folder of a checkpoint, or a model in memory with its `tokenizer`. `options`: `device`, `dtype`, `device_map`,
    `attn_implementation`, `adapter_path`, `trust_remote_code` and the like; see `training.opening.open_engine`.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(open_engine("huggingface", model, **options))


class VLLMBackend(EngineBackend):
    """vLLM in this process, or with `url` a vLLM server.

    `options`: `tensor_parallel_size`, `gpu_memory_utilization`, `max_model_len`, `dtype` and any engine argument of vLLM; see
    `training.opening.open_engine`.
    """

    def __init__(self, model: str, **options: Any) -> None:
        super().__init__(open_engine("vllm", model, **options))


_BACKENDS = {"huggingface": HuggingFaceBackend, "hf": HuggingFaceBackend, "vllm": VLLMBackend}


class InferenceModule:
    """Generates, scores and calls tools with a checkpoint, by means of its `backend`.

    `backend`: huggingface, vllm, any other name that `open_engine` takes, or an `InferenceBackend`, which has its model already.
    `cache_size`: the number of deterministic answers kept in memory; 0: none. `tool_parser`: one of `tool_calls.FORMATS`, or "auto".
    `options` are those of the backend: `device`, `dtype`, `tensor_parallel_size`…
    """

    def __init__(
        self,
        model_name: Any = None,
        backend: str | InferenceBackend = "huggingface",
        *,
        cache_size: int = 1000,
        tool_parser: str = "auto",
        **options: Any,
    ) -> None:
        check_integer("cache_size", cache_size, minimum=0)
        self.tool_parser = ToolCallParser(tool_parser)
        self.backend = _backend(model_name, backend, options)
        self.generation_cache = ResponseCache(max_entries=max(cache_size, 1))
        self._caches = cache_size > 0

    def generate(
        self,
        prompts: str | Sequence[str],
        use_cache: bool = True,
        *,
        max_new_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        num_return_sequences: int = 1,
        return_logprobs: bool = False,
        return_logits: bool = False,
        **options: Any,
    ) -> InferenceResult:
        """Return completions of the prompts, without a chat template; only the tokenizer's beginning-of-sequence token is added.

        `options`: further `GenerationOptions` as plain data (`seed`, `top_k`, `stop`: texts that end a completion). Temperature 0 is greedy
        and gives one sequence. `return_logits` takes a second pass through the model, with gradients as `get_logits` has them. Raises what
        `Engine.generate_samples` and, for logits, `Engine.get_logits` raise; `CapabilityError` before anything is generated where there
        are none.
        """
        return self.backend.generate(
            _texts(prompts),
            cache=self.generation_cache if use_cache and self._caches else None,
            max_new_tokens=max_new_tokens,
            temperature=temperature,
            top_p=top_p,
            num_return_sequences=num_return_sequences,
            return_logprobs=return_logprobs,
            return_logits=return_logits,
            **options,
        )

    def get_logits(self, prompts: Sequence[Any], responses: Sequence[Any], *, grad: bool | None = None) -> Any:
        """Return the raw logits of the responses, a float32 tensor `[batch, response, vocab]`, equal (0) behind a shorter response.

        `grad`: whether gradients reach the weights; None: as torch's grad mode says, so not under `torch.no_grad()`. huggingface only.
        """
        return self.backend.get_logits(prompts, responses, grad=grad)

    def get_logprobs(self, prompts: Sequence[Any], responses: Sequence[Any], *, grad: bool | None = None) -> Any:
        """Return the log-probabilities of the responses' tokens, a float32 tensor `[batch, response]`, 0 behind a shorter response.

        `grad` as in `get_logits`; where the backend has no gradients (all but huggingface), None gives a tensor without, and True is
        refused. `backend.engine.get_logprobs` returns the mask, too.
        """
        return self.backend.get_logprobs(prompts, responses, grad=grad)

    def batch_generate_with_tools(
        self,
        prompts: str | Sequence[str],
        available_tools: Sequence[Tool | Mapping[str, Any]] | None = None,
        max_new_tokens: int = 512,
        *,
        temperature: float = 0.0,
        **options: Any,
    ) -> tuple[InferenceResult, list[list[ToolCall]]]:
        """Return the answer to each prompt, sent as a user turn that offers these tools, and the valid tool calls of each answer.

        `options` as in `generate`. `tool_parser.parse` returns invalid calls too, each with its error. Answers with tools are never taken
        from the cache.
        """
        tools = read_tools([_whole_schema(tool) for tool in available_tools or ()])
        result = self.backend.generate_with_tools(_texts(prompts), tools, max_new_tokens=max_new_tokens, temperature=temperature, **options)
        answers = [
            self.tool_parser.parse(facts.get("raw_text", text), tools, facts.get("finish_reason", "stop"))
            for text, facts in zip(result.texts, result.metadata, strict=True)
        ]
        return result, [list(answer.executable) for answer in answers]

    def clear_cache(self) -> None:
        """Forget all answers."""
        self.generation_cache.clear()

    def close(self) -> None:
        """Free the model's memory. Idempotent."""
        self.backend.close()


def create_inference_module(model_name: str, backend: str = "auto", **options: Any) -> InferenceModule:
    """Return a module on the backend that suits this machine and checkpoint best; `module.backend.engine.chosen` says why."""
    return InferenceModule(model_name, backend, **options)


def _backend(model: Any, backend: Any, options: Mapping[str, Any]) -> InferenceBackend:
    if isinstance(backend, InferenceBackend):
        if model is not None or options:
            raise ConfigError(
                f"{type(backend).__name__} is made already: give model and options to its constructor, not to InferenceModule"
            )
        return backend
    if not isinstance(backend, str):
        got = f"the class {backend.__name__}" if isinstance(backend, type) else type(backend).__name__
        raise ContractTypeError(f"backend must be a name, or an object of a class of InferenceBackend, got {got}")
    if model is None:
        raise ConfigError(f"backend {backend!r} needs a model: the folder of a checkpoint, or its name in the hub's cache")
    if backend in _BACKENDS:
        return _BACKENDS[backend](model, **options)
    return EngineBackend(open_engine(backend, model, **options))


def _texts(prompts: str | Sequence[str]) -> list[str]:
    texts = [prompts] if isinstance(prompts, str) else prompts
    check_sequence("prompts", texts, "texts")
    for number, text in enumerate(texts):
        check_text(f"prompts[{number}]", text)
    return list(texts)


def _options(max_new_tokens: int, temperature: float, top_p: float, logprobs: bool, more: Mapping[str, Any]) -> GenerationOptions:
    named = {"max_new_tokens": max_new_tokens, "temperature": temperature, "top_p": top_p, "logprobs": logprobs}
    stop = more.get("stop")
    if isinstance(stop, (str, list, tuple)):
        more = {**more, "stop": {"stop": [stop] if isinstance(stop, str) else stop}}
    return GenerationOptions.from_mapping({**named, **more})


def _whole_schema(tool: Tool | Mapping[str, Any]) -> Tool | Mapping[str, Any]:
    """Return the tool with a JSON Schema where its parameters are written in short: {"query": "string"}."""
    if not isinstance(tool, Mapping) or "function" in tool:
        return tool
    parameters = tool.get("parameters")
    if not isinstance(parameters, Mapping) or not parameters or not all(isinstance(kind, str) for kind in parameters.values()):
        return tool
    if parameters.get("type") == "object":  # a schema already, of a tool that takes anything or nothing
        return tool
    properties = {name: {"type": kind} for name, kind in parameters.items()}
    return {**tool, "parameters": {"type": "object", "properties": properties, "required": list(properties)}}


_METADATA = (
    *("raw_text", "finish_reason", "stop_reason", "seed", "num_prompt_tokens", "num_completion_tokens"),
    *("logprobs_kind", "weight_version", "cached", "backend"),
)


def _result(results: Sequence[EngineResult], logprobs: Any, logits: Any = None) -> InferenceResult:
    return InferenceResult(
        [result.text for result in results],
        [list(result.token_ids) for result in results],
        logprobs,
        logits,
        [{name: getattr(result, name) for name in _METADATA} for result in results],
    )
