"""The interface that trainers expect of an inference engine, on top of `Engine`: token ids in, samples out, new weights between steps.

    engine = create_engine("vllm", "path/to/base", url="http://127.0.0.1:8000")
    groups = engine.generate([[5, 6, 7]], num_samples=8, max_tokens=64, temperature=1.0, top_p=0.95)  # [prompt][sample]
    engine.reload_weights("runs/42/adapter")
    engine.shutdown()

Names and shapes are the trainers'; `Engine`, available as `engine.engine`, does all the work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.api.options import GenerationOptions, ModelLoadConfig, ServerOptions, VllmEngineOptions
from evalharness.api.requests import GenerationResult, TokenGenerationRequest
from evalharness.backends.base import WeightReport
from evalharness.checkpoints.weights import is_adapter
from evalharness.config.options import ENGINES
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine


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


class TrainerEngine:
    """An engine with the interface of trainers.

    `logprobs_kind`: "raw" (the model's own), "processed" (of the distribution that tokens were drawn from) or None (no log-probabilities).
    """

    def __init__(self, engine: Engine, *, logprobs_kind: Literal["raw", "processed"] | None = "raw") -> None:
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
        """Load the adapter in a folder, or the whole checkpoint if the folder holds one, for all later requests.

        Raises what `EngineWeights.load_adapter` and `reload` raise; the old weights then stay in use where possible.
        """
        if is_adapter(Path(adapter_path)):
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


def create_engine(
    name: str,
    model: str,
    *,
    url: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    adapter_path: str | None = None,
    logprobs_kind: Literal["raw", "processed"] | None = "raw",
    server_options: ServerOptions | None = None,
    vllm_options: VllmEngineOptions | None = None,
) -> TrainerEngine:
    """Return an engine by the name that trainers give it (`--inference-engine`), on the checkpoint in the folder `model`.

    `vllm` and `max` are servers where there is a `url`, and run in this process without; `sglang`, `trtllm`, `mlx` and `openai` are
    servers, by default on this machine at their own port. `server_options` may have the address, too; their kind is the name's.
    Raises `ConfigError`, a ValueError, that lists all names for an unknown one.
    """
    if name not in ENGINES:
        raise ConfigError(f"engine {name!r} is unknown{did_you_mean(name, ENGINES) or '.'} Known: {', '.join(ENGINES)}.")
    meant = ENGINES[name]
    url = _address(url, server_options)
    if meant.server is not None and (url is not None or meant.backend is None):
        server_options = replace(server_options or ServerOptions(), server=meant.server, base_url=url)
        backend = "openai"
    elif url is not None:
        raise ConfigError(f"engine {name!r} runs in this process, so nothing is asked at {url}; leave url out or name a kind of server")
    elif server_options is not None:
        raise ConfigError(
            f"engine {name!r} runs in this process without a url, so server_options mean nothing; give the url or leave them out"
        )
    else:
        backend = meant.backend or name
    config = ModelLoadConfig(model, torch_dtype=dtype, device=device, adapter_path=adapter_path)
    engine = build_engine(backend, config, server_options=server_options, vllm_options=vllm_options)
    return TrainerEngine(engine, logprobs_kind=logprobs_kind)


def _address(url: str | None, options: ServerOptions | None) -> str | None:
    base_url = options.base_url if options is not None else None
    if url is not None and base_url is not None and url != base_url:
        raise ConfigError("url and server_options.base_url are two addresses; give one")
    return base_url if url is None else url


def _sample(result: GenerationResult) -> SampleResult:
    return SampleResult(
        list(result.token_ids),
        None if result.logprobs is None else list(result.logprobs),
        None if result.entropies is None else list(result.entropies),
        result.finish_reason,
        result.seed,
    )
