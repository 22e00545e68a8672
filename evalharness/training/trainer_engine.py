"""The interface that trainers expect of an inference engine, on top of `Engine`: token ids in, samples out, new weights between steps.

    engine = create_engine("vllm", "path/to/base", url="http://127.0.0.1:8000")
    groups = engine.generate([[5, 6, 7]], num_samples=8, max_tokens=64, temperature=1.0, top_p=0.95)  # [prompt][sample]
    engine.reload_weights("runs/42/adapter")
    engine.shutdown()

Names and shapes are the trainers'; `Engine`, available as `engine.engine`, does all the work. One loop runs on every engine: where the
trainer's own model generates (`create_engine("pytorch", model)`), weights that are sent are there already.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from evalharness.api.checks import check_text, shown
from evalharness.api.errors import CapabilityError, ConfigError, ContractTypeError, did_you_mean
from evalharness.api.options import GenerationOptions, LogprobsKind
from evalharness.api.requests import GenerationResult, TokenGenerationRequest
from evalharness.backends.base import WeightReport
from evalharness.backends.openai.flavours import FLAVOURS
from evalharness.checkpoints.hub import cached_folder
from evalharness.checkpoints.weights import is_adapter
from evalharness.config.options import ENGINES
from evalharness.engine.engine import Engine
from evalharness.training.opening import open_engine


@dataclass(frozen=True)
class SampleResult:
    """One sample: the generated ids, including the one that ended it, without prompt and padding.

    `logprobs`: one per id, natural log; None where the engine gives none, never 0.0. `token_entropies`, if requested: the entropy in nats
    of the whole distribution before each token. `finish_reason`: "stop" or "length". `seed` reproduces the sample.
    """

    token_ids: list[int]
    logprobs: list[float | None] | None
    token_entropies: list[float | None] | None = None
    finish_reason: str | None = None
    seed: int | None = None


class InferenceEngine(ABC):
    """What a trainer samples with. For an engine of your own, make a subclass and `register_engine` its name."""

    @abstractmethod
    def generate(
        self, prompt_ids_list: Sequence[Sequence[int]], num_samples: int, max_tokens: int, temperature: float, top_p: float
    ) -> list[list[SampleResult]]:
        """Return the samples of each prompt, `[prompt][sample]`, in order."""

    @abstractmethod
    def reload_weights(self, adapter_path: str) -> Any:
        """Load the adapter in a folder for all later requests."""

    @abstractmethod
    def shutdown(self) -> None:
        """Free the model's memory and end all child processes. Idempotent."""

    def sync_from_state_dict(self, tensors: Mapping[str, Any], *, adapter_config: Any = None, strict: bool = True) -> Any:
        """Load weights from memory; `CapabilityError` where an engine takes them from a folder only."""
        raise CapabilityError(f"{type(self).__name__} takes no weights from memory; save them and call reload_weights")

    def performance_counters(self) -> dict[str, Any]:
        """Return what is known of the engine and its work, as plain JSON."""
        return {}

    def __enter__(self) -> InferenceEngine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.shutdown()


class TrainerEngine(InferenceEngine):
    """An `Engine` with the interface of trainers.

    `logprobs_kind`: "raw" (the model's own), "processed" (of the distribution that tokens were drawn from) or None (no log-probabilities).
    """

    def __init__(self, engine: Engine, *, logprobs_kind: LogprobsKind | None = "raw") -> None:
        self.engine = engine
        self._kind = logprobs_kind

    def generate(
        self,
        prompt_ids_list: Sequence[Sequence[int]],
        num_samples: int,
        max_tokens: int,
        temperature: float,
        top_p: float,
        compute_entropy: bool = False,
        *,
        seed: int | None = None,
    ) -> list[list[SampleResult]]:
        """Return the samples of each prompt, `[prompt][sample]`, in order.

        Temperature 0 is greedy and has one sample. Without a seed each sample draws one; with one, sample k has it plus k. Raises
        `ConfigError` (`UnsupportedOption`) before anything runs for what the engine cannot do, `RequestsFailed` where any sample failed.
        """
        can = self.engine.backend.capabilities
        options = GenerationOptions(
            max_new_tokens=max_tokens,
            temperature=temperature,
            top_p=top_p,
            logprobs=can.supports_logprobs and self._kind is not None,
            logprobs_kind=self._kind or "raw",
            entropies=compute_entropy,
            seed=seed,
        )
        requests = [TokenGenerationRequest(ids) for ids in prompt_ids_list]
        return [[_sample(result) for result in group] for group in self.engine.generate_samples(requests, options, num_samples)]

    def reload_weights(self, adapter_path: str) -> WeightReport:
        """Load the adapter in a folder, or the whole checkpoint if the folder holds one, for all later requests; or one by its hub name.

        Raises what `EngineWeights.load_adapter` and `reload` raise; the old weights then stay in use where possible.
        """
        if isinstance(adapter_path, (str, os.PathLike)) and is_adapter(cached_folder(str(adapter_path), Path()) or Path(adapter_path)):
            return self.engine.weights.load_adapter(adapter_path)
        return self.engine.weights.reload(adapter_path)

    def sync_from_state_dict(self, tensors: Mapping[str, Any], *, adapter_config: Any = None, strict: bool = True) -> WeightReport:
        """Load weights from memory; see `EngineWeights.sync_from_state_dict`. Names that match no weight are refused, not ignored."""
        return self.engine.weights.sync_from_state_dict(tensors, adapter_config=adapter_config, strict=strict)

    def performance_counters(self) -> dict[str, Any]:
        """Return versions and settings as plain JSON; for servers also the number of requests, retries and refusals."""
        return self.engine.describe()

    def shutdown(self) -> None:
        """Free the model's memory and end all child processes. Idempotent."""
        self.engine.close()


class PyTorchEngine(TrainerEngine):
    """transformers in this process, on a checkpoint's folder or on the trainer's own model in memory, of which nothing is copied."""

    def __init__(self, model: Any, *, logprobs_kind: LogprobsKind | None = "raw", **options: Any) -> None:
        super().__init__(open_engine("pytorch", model, **options), logprobs_kind=logprobs_kind)


class VLLMEngine(TrainerEngine):
    """vLLM in this process; for a vLLM server take `OpenAIEngine(model, url, kind="vllm")`."""

    def __init__(self, model: str, *, logprobs_kind: LogprobsKind | None = "raw", **options: Any) -> None:
        super().__init__(open_engine("vllm", model, **options), logprobs_kind=logprobs_kind)


class MAXLocalEngine(TrainerEngine):
    """MAX in this process. It loads no adapters and no new weights."""

    def __init__(self, model: str, *, logprobs_kind: LogprobsKind | None = "raw", **options: Any) -> None:
        super().__init__(open_engine("max", model, **options), logprobs_kind=logprobs_kind)


class OpenAIEngine(TrainerEngine):
    """The client of a server; `kind`: vllm, sglang, trtllm, mlx, max, or openai for any other.

    `url` None: this machine, at that kind's own port.
    """

    def __init__(
        self, model: str, url: str | None = None, *, kind: str = "openai", logprobs_kind: LogprobsKind | None = "raw", **options: Any
    ) -> None:
        if kind not in FLAVOURS:
            raise ConfigError(f"kind {kind!r} of server is unknown{did_you_mean(kind, FLAVOURS) or '.'} Known: {', '.join(FLAVOURS)}.")
        port = FLAVOURS[kind].port
        address = f"http://127.0.0.1:{port}" if url is None and port is not None else url
        super().__init__(open_engine(kind, model, url=address, **options), logprobs_kind=logprobs_kind)


class MAXServeEngine(OpenAIEngine):
    """The client of a `max serve`."""

    def __init__(self, model: str, url: str | None = None, *, logprobs_kind: LogprobsKind | None = "raw", **options: Any) -> None:
        super().__init__(model, url, kind="max", logprobs_kind=logprobs_kind, **options)


_HERE: Mapping[str, Callable[..., InferenceEngine]] = {
    "pytorch": PyTorchEngine,
    "huggingface": PyTorchEngine,
    "max": MAXLocalEngine,
    "vllm": VLLMEngine,
}
_registered: dict[str, Callable[..., InferenceEngine]] = {}


def register_engine(name: str, make: Callable[..., InferenceEngine]) -> None:
    """Let `create_engine(name, model, …)` return `make(model, …)`: a subclass of `InferenceEngine`, or a function that makes one.

    `ConfigError` for a name that is taken.
    """
    check_text("name", name)
    if not name or not callable(make):
        raise ContractTypeError(f"an engine needs a name and a class or a function that makes it, got {name!r} and {shown(make)}")
    if name in ENGINES or _registered.get(name, make) is not make:
        raise ConfigError(f"engine {name!r} is there already; give yours another name")
    _registered[name] = make


def create_engine(name: str, model: Any, *, url: str | None = None, **options: Any) -> InferenceEngine:
    """Return an engine by the name that trainers give it (`--inference-engine`), on the checkpoint in the folder `model`, or of that
    name in the hub's cache.

    `vllm` and `max` are servers where there is a `url`, and run in this process without; `sglang`, `trtllm`, `mlx` and `openai` are
    servers, by default on this machine at their own port. `pytorch` also takes a model of transformers in memory, the trainer's own, with
    its `tokenizer`. `options`: `logprobs_kind` (see `TrainerEngine`), and those of `open_engine`: `dtype`, `adapter_path`,
    `tensor_parallel_size`, `concurrency`… Raises `ConfigError`, a ValueError, that lists all names for an unknown one.
    """
    address = {} if url is None else {"url": url}
    if name in _registered:
        return _registered[name](model, **address, **options)
    if name not in ENGINES:
        known = [*ENGINES, *_registered]
        raise ConfigError(f"engine {name!r} is unknown{did_you_mean(name, known) or '.'} Known: {', '.join(known)}.")
    server = ENGINES[name].server
    if server is not None and (url is not None or name not in _HERE):
        return MAXServeEngine(model, url, **options) if server == "max" else OpenAIEngine(model, url, kind=server, **options)
    if name in _HERE:
        return _HERE[name](model, **address, **options)
    kind = options.pop("logprobs_kind", "raw")
    return TrainerEngine(open_engine(name, model, **address, **options), logprobs_kind=kind)


def _sample(result: GenerationResult) -> SampleResult:
    return SampleResult(
        list(result.token_ids),
        None if result.logprobs is None else list(result.logprobs),
        None if result.entropies is None else list(result.entropies),
        result.finish_reason,
        result.seed,
    )
