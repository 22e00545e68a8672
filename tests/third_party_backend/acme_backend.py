"""A complete backend: its "model" answers with random characters, drawn from a hash of the prompt. docs/backends.md shows this file."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from evalharness import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.hooks import GenerationPlugin
from evalharness.backends.base import BackendOutput, Capabilities, Completion, Prompt, SamplingPlan
from evalharness.backends.fake import FakeTokenizer
from evalharness.backends.stops import RowEnd


class AcmeBackend:
    name = "acme"
    capabilities = Capabilities(supports_logprobs=False, supports_token_watchers=True)
    processor = None
    weights = None  # they stay as they were loaded

    def __init__(self, config: ModelLoadConfig, preprocess: VlmPreprocessOptions, max_model_len: int | None = None) -> None:
        self.tokenizer: Any = FakeTokenizer()  # a real backend loads the checkpoint at config.model_name_or_path
        self.eos_token_ids: tuple[int, ...] = (FakeTokenizer.eos_token_id,)
        self.max_model_len = max_model_len or 2048

    def check_plan(self, plan: SamplingPlan) -> None:
        pass

    def generate(
        self, prompts: Iterable[Prompt], *, plugins: Sequence[GenerationPlugin] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[BackendOutput]:
        for prompt in prompts:
            if should_stop():
                return
            yield self._complete(prompt, plugins)

    def _complete(self, prompt: Prompt, plugins: Sequence[GenerationPlugin]) -> Completion:
        plan, ids, end = prompt.plan, [], None
        row = RowEnd(plan, self.tokenizer, plugins)
        is_greedy = plan.temperature == 0 or plan.top_p < 1e-3
        model = random.Random(hashlib.sha256(f"{prompt.token_ids} {None if is_greedy else plan.seed}".encode()).digest())
        while end is None:
            is_end = model.random() < 0.02
            ids.append(self.eos_token_ids[0] if is_end else ord(model.choice("abcdef ghij,.统计")))
            end = row.push(ids[-1])
        stopped_by, stop_name = end
        return Completion(prompt.index, tuple(ids), len(prompt.token_ids), stopped_by, stop_name=stop_name)

    def describe(self) -> Mapping[str, Any]:
        return {"acme": "1.0", "dtype": "float32"}

    def close(self) -> None:
        pass
