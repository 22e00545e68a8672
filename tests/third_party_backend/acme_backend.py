"""A complete backend: its "model" answers with random characters, drawn from a hash of the prompt. docs/backends.md shows this file."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from evalharness import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.hooks import GenerationPlugin, RowWatchers
from evalharness.backends.base import BackendOutput, Capabilities, Completion, Prompt, SamplingPlan
from evalharness.backends.fake import FakeTokenizer
from evalharness.backends.stops import StopStringWatcher


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
        plan, ids, plugin = prompt.plan, [], None
        stopped_by: Literal["id", "string", "plugin", "length"] = "length"
        stop_strings = StopStringWatcher(self.tokenizer, plan.stop_strings, plan.skip_special_tokens)
        watchers = RowWatchers(plugins, self.tokenizer, plan.stop_token_ids)
        is_greedy = plan.temperature == 0 or plan.top_p < 1e-3
        model = random.Random(hashlib.sha256(f"{prompt.token_ids} {None if is_greedy else plan.seed}".encode()).digest())
        while stopped_by == "length" and len(ids) < plan.max_new_tokens:
            is_end = model.random() < 0.02
            ids.append(self.eos_token_ids[0] if is_end else ord(model.choice("abcdef ghij,.统计")))
            if ids[-1] in plan.stop_token_ids:
                stopped_by = "id"
            elif stop_strings.push(ids[-1]):
                stopped_by = "string"
            elif plugin := watchers.push(ids[-1]):
                stopped_by = "plugin"
        return Completion(prompt.index, tuple(ids), len(prompt.token_ids), stopped_by, stop_name=plugin)

    def describe(self) -> Mapping[str, Any]:
        return {"acme": "1.0", "dtype": "float32"}

    def close(self) -> None:
        pass
