"""The max backend: Modular's MAX in this process, text models, rows that join and leave a running batch.

MAX's pipeline does one step for the rows that it is given; which rows these are is decided here. New prompts are read in a step of
their own and then go on with the others. A row is let in when its longest generation has room in MAX's cache, so none is ever put
out again. MAX's kernels may round by the size of a batch: near ties may fall otherwise in other company.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from evalharness.api.engine_options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.errors import BackendError, PromptTooLong, RequestError
from evalharness.api.hooks import GenerationPlugin
from evalharness.api.requests import GenerationFailure
from evalharness.backends.base import BackendOutput, Capabilities, Prompt, SamplingPlan, preflight
from evalharness.backends.checkpoint_reading import first_line
from evalharness.backends.max.loading import load_model
from evalharness.backends.max.max_rows import EXTRA_OPTIONS, MaxRow, sampling_params
from evalharness.backends.stop_ids import check_stop_ids

__all__ = ["MaxBackend"]


class MaxBackend:
    """A text checkpoint in MAX. Fails as `load_model` does, and leaves nothing behind."""

    name = "max"
    processor = None
    supports_vlm = False

    def __init__(self, config: ModelLoadConfig, preprocess: VlmPreprocessOptions, max_model_len: int | None = None) -> None:
        started = time.perf_counter()
        loaded = load_model(config, preprocess, max_model_len)
        self.tokenizer, self.eos_token_ids = loaded.tokenizer, loaded.eos_token_ids
        self._model: Any = loaded.model
        self._device, self._dtype = loaded.device, loaded.dtype
        self._generating = False
        pipeline = loaded.model.pipeline
        self.max_model_len: int | None = int(pipeline._pipeline_model.max_seq_len)  # what MAX's own GenerateIterator asks
        self._vocab_size = int(pipeline.vocab_size or len(self.tokenizer))
        self._max_rows = int(pipeline.max_batch_size)
        self._max_prefill_tokens = loaded.max_prefill_tokens
        self._page_size = int(pipeline.kv_manager.params.page_size)
        self._num_pages = int(pipeline.kv_manager.block_count().total)
        self.capabilities = Capabilities(
            supports_entropies=True,
            supports_token_watchers=True,
            extra_options=frozenset(EXTRA_OPTIONS),
            vocab_size=self._vocab_size,
        )
        self._load_s = time.perf_counter() - started

    def check_plan(self, plan: SamplingPlan) -> None:
        """Raise `ConfigError` (`UnsupportedOption`) for a plan that cannot be honoured."""
        check_stop_ids(plan, vocab_size=self._vocab_size, eos_token_ids=self.eos_token_ids, tokenizer=self.tokenizer)
        sampling_params(plan, vocab_size=self._vocab_size)

    def generate(
        self, prompts: Iterable[Prompt], *, plugins: Sequence[GenerationPlugin] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[BackendOutput]:
        """Yield one output per prompt, each as soon as it is finished; see `Backend.generate`."""
        preflight(plugins, backend=self.name, can=self.capabilities, request_types=())
        return self._generate(prompts, [plugin for plugin in plugins if plugin.watches_tokens], should_stop)

    def _generate(
        self, prompts: Iterable[Prompt], watching: Sequence[GenerationPlugin], should_stop: Callable[[], bool]
    ) -> Iterator[BackendOutput]:
        if self._model is None:
            raise BackendError("backend 'max' is closed; make a new one")
        if self._generating:
            raise BackendError("this engine is generating already; finish or close the first iterator before the next")
        self._generating = True
        batch = _Batch(self._model.pipeline)
        try:
            waiting = _Waiting(prompts)
            while not should_stop():
                fresh: list[MaxRow] = []
                while self._has_room(waiting, batch.rows, fresh):
                    row = self._row(waiting.take(), watching)
                    if isinstance(row, MaxRow):
                        fresh.append(row)
                    else:
                        yield row
                rows = fresh or batch.rows
                if not rows:
                    return
                for output in self._step(batch, rows, waiting):
                    if should_stop():
                        return
                    yield output
        finally:
            self._generating = False
            batch.close()

    def _has_room(self, waiting: _Waiting, running: Sequence[MaxRow], fresh: Sequence[MaxRow]) -> bool:
        """Return whether a prompt is there and may begin; the source is asked only where it might."""
        rows = [*running, *fresh]
        if rows and (waiting.is_suspect or waiting.suspect_runs or len(rows) >= self._max_rows):
            return False
        prompt = waiting.next
        if prompt is None or not rows:
            return prompt is not None
        needed = [row.num_tokens for row in rows] + [len(prompt.token_ids) + prompt.plan.max_new_tokens]
        to_read = sum(len(row.prompt.token_ids) for row in fresh) + len(prompt.token_ids)
        return sum(-(-each // self._page_size) for each in needed) <= self._num_pages and (not fresh or to_read <= self._max_prefill_tokens)

    def _row(self, prompt: Prompt, watching: Sequence[GenerationPlugin]) -> MaxRow | BackendOutput:
        """Return the prompt's row, or why it cannot run: whatever happens while one is made ready concerns that one alone."""
        try:
            self._check(prompt)
            return MaxRow(prompt, watching, self.tokenizer, vocab_size=self._vocab_size)
        except RequestError as error:
            return prompt.index, GenerationFailure("invalid", str(error), error)
        except Exception as error:  # MAX's own, of what it makes of the prompt, or a plugin's
            told = BackendError(f"MAX cannot begin this prompt: {type(error).__name__}: {first_line(error)}")
            return prompt.index, GenerationFailure("error", str(told), told)

    def _check(self, prompt: Prompt) -> None:
        num_tokens, num_new = len(prompt.token_ids), prompt.plan.max_new_tokens
        if prompt.has_images:
            raise RequestError("this checkpoint takes text only, but the prompt has images")
        if not num_tokens:
            raise RequestError("the prompt has no tokens")
        if max(prompt.token_ids) >= self._vocab_size:
            raise RequestError(f"the prompt has token id {max(prompt.token_ids)}; the vocabulary ends at {self._vocab_size - 1}")
        prompt.plan.check_prompt_tokens(num_tokens)
        if self.max_model_len is not None and num_tokens + num_new > self.max_model_len:
            raise PromptTooLong(
                f"the prompt's {num_tokens} tokens and max_new_tokens {num_new} exceed the context of {self.max_model_len} tokens; "
                "shorten the prompt or lower max_new_tokens"
            )

    def _step(self, batch: _Batch, rows: Sequence[MaxRow], waiting: _Waiting) -> Iterator[BackendOutput]:
        """Yield what one step of these rows finishes. A step that fails is tried again row by row, each alone and from its start."""
        rows = list(rows)
        try:
            done = batch.step(rows)
        except Exception as error:  # MAX's own: of its kernels, of memory
            for row in rows:
                batch.leave(row)
            if len(rows) > 1:
                waiting.suspect(row.prompt for row in rows)
            else:
                told = BackendError(f"MAX failed on this prompt: {type(error).__name__}: {first_line(error)}")
                yield rows[0].prompt.index, GenerationFailure("error", str(told), told)
            done = []
        waiting.suspect_runs = waiting.suspect_runs and bool(batch.rows)
        yield from done

    def why_not_swap(self, config: ModelLoadConfig) -> str | None:
        """Return that weights stay: MAX has them packed into the model that it compiled."""
        return "MAX keeps the weights that its model was made with"

    def swap(self, config: ModelLoadConfig) -> None:
        """Raise `BackendError`: see `why_not_swap`."""
        raise BackendError(f"{config.model_name_or_path} cannot take the place of the loaded checkpoint: {self.why_not_swap(config)}")

    def describe(self) -> Mapping[str, Any]:
        """Return plain JSON facts: versions, dtype, device, what MAX planned."""
        return {
            "max": importlib.metadata.version("max"),
            "transformers": importlib.metadata.version("transformers"),
            "device": self._device,
            "dtype": self._dtype,
            "max_model_len": self.max_model_len,
            "eos_token_ids": list(self.eos_token_ids),
            "max_rows_per_batch": self._max_rows,
            "num_kv_pages": self._num_pages,
            "kv_page_size": self._page_size,
            "load_s": round(self._load_s, 3),
        }

    def close(self) -> None:
        """Free the model's memory; may be called twice."""
        if self._model is None:
            return
        model, self._model = self._model, None
        model.close()


class _Batch:
    """The rows that MAX has read and goes on with."""

    def __init__(self, pipeline: Any) -> None:
        self.rows: list[MaxRow] = []
        self._pipeline = pipeline

    def step(self, rows: Sequence[MaxRow]) -> list[BackendOutput]:
        """Do one step of these rows, new ones or running ones; return what has ended."""
        from max.pipelines.modeling.types import TextGenerationInputs

        kv = self._pipeline.kv_manager
        for row in rows:
            if not kv.contains(row.context):
                kv.claim(row.context)
                self.rows.append(row)
            kv.alloc(row.context).synchronize()
        outputs = self._pipeline.execute(TextGenerationInputs(batches=[[row.context for row in rows]]))
        done: list[BackendOutput] = []
        for row in rows:
            ended = row.take(outputs.get(row.context.request_id))
            if ended is not None:
                self.leave(row)
                done.append(ended)
        return done

    def leave(self, row: MaxRow) -> None:
        """Give back what MAX holds for a row."""
        if row in self.rows:
            self.rows.remove(row)
        if self._pipeline.kv_manager.contains(row.context):
            self._pipeline.kv_manager.release(row.context)
        self._pipeline.release(row.context.request_id)

    def close(self) -> None:
        """Give back what MAX holds for all rows."""
        for row in list(self.rows):
            self.leave(row)


class _Waiting:
    """Prompts that have not begun: those of the source, and before them those of a batch that failed, which run one at a time."""

    def __init__(self, prompts: Iterable[Prompt]) -> None:
        self._source = iter(prompts)
        self._suspects: deque[Prompt] = deque()
        self._upcoming: Prompt | None = None
        self.suspect_runs = False

    @property
    def next(self) -> Prompt | None:
        """The prompt that begins next; where there was none, more may have come."""
        if self._suspects:
            return self._suspects[0]
        if self._upcoming is None:
            self._upcoming = next(self._source, None)
        return self._upcoming

    @property
    def is_suspect(self) -> bool:
        """Whether that is one of a batch that failed."""
        return bool(self._suspects)

    def take(self) -> Prompt:
        """Return the next prompt, which begins now."""
        if self._suspects:
            self.suspect_runs = True
            return self._suspects.popleft()
        taken, self._upcoming = self._upcoming, None
        assert taken is not None
        return taken

    def suspect(self, prompts: Iterable[Prompt]) -> None:
        """Have these begin again, each alone."""
        self._suspects.extend(prompts)
