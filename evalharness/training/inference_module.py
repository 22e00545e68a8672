"""The interface of an InferenceModule, as a library for reinforcement learning has it, on our engines: texts in, results and scores out.

    policy = InferenceModule("path/to/checkpoint", backend="huggingface", dtype="float32")
    result = policy.generate(["The sky is"], max_new_tokens=8, temperature=0.7, return_logprobs=True)
    logprobs = policy.get_logprobs(["The sky is"], [" blue"])  # of the response alone, with its mask
    result, calls = policy.batch_generate_with_tools("Search for AI news", tools)

Names and shapes are that library's; its mistakes are corrected, as in `Engine`: prompts and responses are joined as ids, scores cover
responses only, sampled answers never come from the cache, and only complete tool calls are returned.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.api.checks import check_sequence, check_text
from evalharness.api.options import GenerationOptions, ModelLoadConfig
from evalharness.api.requests import GenerationResult, TextGenerationRequest, TokenGenerationRequest
from evalharness.api.scoring import ResponseLogits, ResponseScores
from evalharness.api.tools import Tool, read_tools
from evalharness.config.options import ENGINES
from evalharness.engine.build import build_engine
from evalharness.engine.cache import ResponseCache
from evalharness.engine.engine import Engine
from evalharness.engine.prompts import bare_prompt
from evalharness.tool_calls import ToolAnswer, ToolCall, parse_tool_calls


@dataclass(frozen=True)
class InferenceResult:
    """The generated samples as flat lists: those of the first prompt, then those of the second.

    `logprobs`, if requested: a list of raw log-probabilities per sample, None for a sample without any. `logits`: the raw logits of the
    generated tokens, padded, with their mask. `metadata`: finish reason, seed, number of tokens, weight version and more of each sample,
    as plain JSON.
    """

    texts: list[str]
    token_ids: list[list[int]]
    logprobs: list[list[float | None] | None] | None
    logits: ResponseLogits | None
    metadata: list[dict[str, Any]]


class InferenceModule:
    """Generates, scores and calls tools with a checkpoint, by means of its `engine`.

    `backend`: huggingface, vllm, or any name that `build_engine` takes. `cache_size`: the number of deterministic answers kept in memory;
    0: none. `tool_parser`: one of `tool_calls.FORMATS`, or "auto". `build_options` go to `build_engine`.
    """

    def __init__(
        self,
        model_name: str,
        backend: str = "huggingface",
        *,
        cache_size: int = 1000,
        tool_parser: str = "auto",
        device: str | None = None,
        dtype: str | None = None,
        **build_options: Any,
    ) -> None:
        meant = ENGINES.get(backend)
        name = meant.backend if meant is not None and meant.backend is not None else backend
        config = ModelLoadConfig(model_name, device=device, torch_dtype=dtype)
        self._start(build_engine(name, config, **build_options), cache_size, tool_parser)

    @classmethod
    def on(cls, engine: Engine, *, cache_size: int = 1000, tool_parser: str = "auto") -> InferenceModule:
        """Return a module that uses an existing engine."""
        module = cls.__new__(cls)
        module._start(engine, cache_size, tool_parser)
        return module

    def _start(self, engine: Engine, cache_size: int, tool_parser: str) -> None:
        self.engine = engine
        self.tool_parser = tool_parser
        self._identity = uuid.uuid4().hex
        # A server, or a trainer that shares its model, may change the weights without telling.
        is_unreliable = engine.name == "openai" or engine.weights.is_shared
        self.cache = ResponseCache(max_entries=cache_size) if cache_size and not is_unreliable else None

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
        and gives one sequence. Raises what `Engine.generate_samples` and, for logits, `Engine.get_logits` raise.
        """
        requests = [TokenGenerationRequest(bare_prompt(text, self.engine.tokenizer)[1]) for text in _texts(prompts)]
        generation = _options(max_new_tokens, temperature, top_p, return_logprobs, options)
        self._use_cache(use_cache)
        groups = self.engine.generate_samples(requests, generation, num_return_sequences)
        logits = None
        if return_logits:
            each = [request.prompt_token_ids for request in requests for _ in range(num_return_sequences)]
            logits = self.engine.get_logits(each, [result.token_ids for group in groups for result in group])
        return _result([result for group in groups for result in group], return_logprobs, logits)

    def get_logits(self, prompts: Sequence[Any], responses: Sequence[Any], *, grad: bool = False) -> ResponseLogits:
        """Return the logits of the responses, `[batch, response, vocab]`, with a mask; see `Engine.get_logits`."""
        return self.engine.get_logits(prompts, responses, grad=grad)

    def get_logprobs(self, prompts: Sequence[Any], responses: Sequence[Any], *, grad: bool = False) -> ResponseScores:
        """Return the log-probabilities of the responses, `[batch, response]`, with a mask; `grad=True` keeps gradients to the weights."""
        return self.engine.get_logprobs(prompts, responses, grad=grad)

    def batch_generate_with_tools(
        self,
        prompts: str | Sequence[str],
        available_tools: Sequence[Tool | Mapping[str, Any]] | None = None,
        max_new_tokens: int = 512,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        **options: Any,
    ) -> tuple[InferenceResult, list[list[ToolCall]]]:
        """Return the answer to each prompt, sent as a user turn that offers these tools, and the valid tool calls of each answer.

        `parse_tool_calls` returns invalid calls too, each with its error. Answers with tools are never taken from the cache.
        """
        tools = read_tools([_whole_schema(tool) for tool in available_tools or ()])
        requests = [TextGenerationRequest([{"role": "user", "content": text}], tools) for text in _texts(prompts)]
        self._use_cache(False)
        results = self.engine.generate_text_batch(requests, _options(max_new_tokens, temperature, top_p, False, options))
        calls = [list(self.parse_tool_calls(result.raw_text, tools, result.finish_reason).executable) for result in results]
        return _result(results, False, None), calls

    def parse_tool_calls(self, text: str, tools: Sequence[Tool | Mapping[str, Any]] = (), finish_reason: str = "stop") -> ToolAnswer:
        """Return the tool calls in a text, valid or not; see `tool_calls.parse_tool_calls`."""
        return parse_tool_calls(text, [_whole_schema(tool) for tool in tools], format=self.tool_parser, finish_reason=finish_reason)

    def clear_cache(self) -> None:
        """Forget all answers."""
        if self.cache is not None:
            self.cache.clear()

    def close(self) -> None:
        """Free the model's memory. Idempotent."""
        self.engine.close()

    def _use_cache(self, wanted: bool) -> None:
        self.engine.use_cache(self.cache if wanted else None, {"module": self._identity, "weights": self.engine.weights.id})


def create_inference_module(model_name: str, backend: str = "auto", **options: Any) -> InferenceModule:
    """Return a module on the backend that suits this machine and checkpoint best; `module.engine.chosen` says why."""
    return InferenceModule(model_name, backend, **options)


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
    *("finish_reason", "stop_reason", "seed", "num_prompt_tokens", "num_completion_tokens"),
    *("logprobs_kind", "weight_version", "cached", "backend"),
)


def _result(results: Sequence[GenerationResult], logprobs: bool, logits: ResponseLogits | None) -> InferenceResult:
    return InferenceResult(
        [result.text for result in results],
        [list(result.token_ids) for result in results],
        [None if result.logprobs is None else list(result.logprobs) for result in results] if logprobs else None,
        logits,
        [{name: getattr(result, name) for name in _METADATA} for result in results],
    )
