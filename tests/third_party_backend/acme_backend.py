"""A backend as a package of somebody else's would bring it: its "model" answers with characters that a hash of the prompt draws."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from evalharness import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.hooks import GenerationPlugin, RowWatchers
from evalharness.backends.base import BackendOutput, Capabilities, Completion, Prompt, SamplingPlan
from evalharness.backends.fake import FakeTokenizer
from evalharness.backends.stops import StopStringWatcher


class AcmeBackend:
    """Generates text token by token; takes no images and scores nothing."""

    name = "acme"
    capabilities = Capabilities(supports_logprobs=False, supports_token_watchers=True)
    supports_vlm = False
    processor = None

    def __init__(self, config: ModelLoadConfig, preprocess: VlmPreprocessOptions, max_model_len: int | None = None) -> None:
        self.tokenizer: Any = FakeTokenizer()
        self.eos_token_ids: tuple[int, ...] = (FakeTokenizer.eos_token_id,)
        self.max_model_len = max_model_len or 2048
        self._seed = config.model_name_or_path

    def check_plan(self, plan: SamplingPlan) -> None:
        """Take every plan: what `capabilities` leave out is refused before."""

    def generate(
        self, prompts: Iterable[Prompt], *, plugins: Sequence[GenerationPlugin] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[BackendOutput]:
        """Yield one completion per prompt, in order."""
        for prompt in prompts:
            if should_stop():
                return
            yield self._complete(prompt, plugins)

    def _complete(self, prompt: Prompt, plugins: Sequence[GenerationPlugin]) -> Completion:
        plan, token_ids = prompt.plan, []
        greedy = plan.temperature == 0 or plan.top_p < 1e-3
        key = f"{self._seed} {prompt.token_ids} {None if greedy else plan.seed}"
        draw = random.Random(hashlib.sha256(key.encode()).digest())
        stop_strings = StopStringWatcher(self.tokenizer, plan.stop_strings, plan.skip_special_tokens)
        watchers = RowWatchers(plugins, self.tokenizer, plan.stop_token_ids)
        while len(token_ids) < plan.max_new_tokens:
            is_end = draw.random() < 0.02
            token_ids.append(FakeTokenizer.eos_token_id if is_end else self.tokenizer.encode(draw.choice("abcdef ghij,.统计"))[0])
            if token_ids[-1] in plan.stop_token_ids:
                return Completion(prompt.index, tuple(token_ids), len(prompt.token_ids), "id")
            plugin = watchers.push(token_ids[-1])
            if stop_strings.push(token_ids[-1]):
                return Completion(prompt.index, tuple(token_ids), len(prompt.token_ids), "string")
            if plugin is not None:
                return Completion(prompt.index, tuple(token_ids), len(prompt.token_ids), "plugin", stop_name=plugin)
        return Completion(prompt.index, tuple(token_ids), len(prompt.token_ids), "length")

    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return that another model needs another backend."""
        return "acme keeps the model it started with"

    def swap(self, config: ModelLoadConfig) -> None:
        """Refuse; never called, as `why_not_swap` says why not."""
        raise NotImplementedError

    def describe(self) -> Mapping[str, Any]:
        """Return facts for run.json."""
        return {"acme": "1.0", "dtype": "float32"}

    def close(self) -> None:
        """Nothing to free."""
