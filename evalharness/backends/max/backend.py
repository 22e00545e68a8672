"""The max backend: Modular's MAX in this process, text models, rows that join and leave a running batch.

MAX's pipeline runs one step for the rows that it is given; this module chooses the rows. New prompts are read in a step of their own and
then continue with the others. A row is admitted when its longest generation has room in MAX's cache, so no row is ever evicted. MAX's
kernels may round by the size of a batch, so near-ties may depend on the rest of the batch.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from evalharness.api.errors import BackendError, UnsupportedOption
from evalharness.api.hooks import GenerationPlugin
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.backends.base import BackendOutput, Capabilities, Completion, Prompt, SamplingPlan, StoppedBy, UnderWay, failure_of
from evalharness.backends.checkpoint_reading import first_line
from evalharness.backends.max.loading import load_model, max_facts, why_not_in_max
from evalharness.backends.stops import RowEnd, check_stop_ids


def max_seed(seed: int) -> int:
    """Return 64 bits of the seed's hash, never 0.

    MAX draws the n-th token of a text with its seed plus n: seeds side by side would draw each other's numbers, one token later. And
    its server takes 0 for no seed.
    """
    return int.from_bytes(hashlib.blake2b(str(seed).encode("ascii"), digest_size=8).digest(), "big") or 1


EXTRA_OPTIONS: Mapping[str, Any] = {"top_k": -1, "min_p": 0.0, "min_new_tokens": 0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""Extra options that MAX honours, by its own names, and what they are where they are off."""


def sampling_params(plan: SamplingPlan, *, vocab_size: int) -> Any:
    """Return MAX's `SamplingParams` with every field set that a result depends on; a checkpoint's own ideas reach none of them.

    `UnsupportedOption` where MAX cannot honour the plan, or would change it without saying so.
    """
    from max.pipelines.context import SamplingParams

    extra = {**EXTRA_OPTIONS, **{name: value for name, value in plan.extra if value is not None}}
    if extra["min_new_tokens"] > plan.max_new_tokens:
        raise UnsupportedOption(f"option min_new_tokens={extra['min_new_tokens']} is more than max_new_tokens, {plan.max_new_tokens}")
    if not _stop_ids(plan, vocab_size):
        extra["min_new_tokens"] = 0  # nothing could end the row sooner, and MAX's mask of no tokens breaks its batch
    try:
        return SamplingParams(
            temperature=plan.temperature,
            top_p=plan.top_p,
            repetition_penalty=plan.repetition_penalty,
            seed=max_seed(plan.seed) if plan.seed is not None else 0,
            detokenize=False,
            **extra,
        )
    except (TypeError, ValueError) as error:
        raise UnsupportedOption(f"MAX refuses these generation options: {error}") from error


def _stop_ids(plan: SamplingPlan, vocab_size: int) -> set[int]:
    return {token_id for token_id in plan.stop_token_ids if token_id < vocab_size}


class _RawScores:
    """MAX's hook before sampling: keeps the scores of the next token, as penalties and masks change them in place afterwards."""

    def __init__(self) -> None:
        self._scores: Any = None

    def __call__(self, inputs: Any) -> None:
        self._scores = np.array(inputs.logits[-1, :].to_numpy(), dtype=np.float64)

    def logprob_and_entropy(self, token_id: int) -> tuple[float, float]:
        """Return the raw log-probability of a token at the place that was looked at last, and the entropy there; natural log."""
        shifted = self._scores - self._scores.max()
        logprobs = shifted - np.log(np.exp(shifted).sum())
        possible = logprobs[np.isfinite(logprobs)]
        return float(logprobs[token_id]), float(-(np.exp(possible) * possible).sum())


class MaxRow:
    """A prompt, MAX's context of it, and what has come of it."""

    def __init__(self, prompt: Prompt, watching: Sequence[GenerationPlugin], tokenizer: Any, *, vocab_size: int) -> None:
        from max.pipelines.context import EOSTracker, TextContext, TokenBuffer

        plan = prompt.plan
        params = sampling_params(plan, vocab_size=vocab_size)
        self._scores = _RawScores() if plan.logprobs or plan.entropies else None
        if self._scores is not None:
            params.logits_processors = [self._scores]
        self.prompt = prompt
        self.context = TextContext(
            max_length=len(prompt.token_ids) + plan.max_new_tokens,
            tokens=TokenBuffer(np.asarray(prompt.token_ids, dtype=np.int64)),
            eos_tracker=EOSTracker(eos_token_ids=_stop_ids(plan, vocab_size)),
            sampling_params=params,
            vocab_size=vocab_size,
        )
        self._end = RowEnd(plan, tokenizer, watching)
        self._token_ids: list[int] = []
        self._logprobs: list[float] = []
        self._entropies: list[float] = []

    @property
    def num_tokens(self) -> int:
        """Room that the row may come to need: prompt and longest generation."""
        return len(self.prompt.token_ids) + self.prompt.plan.max_new_tokens

    @property
    def num_new(self) -> int:
        """How many tokens it has so far."""
        return len(self._token_ids)

    def take(self, output: Any) -> BackendOutput | None:
        """Take the newest token out of MAX's output; return what has come of the row where it ends with it."""
        if output is None or len(output.tokens) != 1:
            return self._failure(f"MAX gave {0 if output is None else len(output.tokens)} tokens for one step")
        token_id = int(output.tokens[0])
        self._token_ids.append(token_id)
        if self._scores is not None:
            logprob, entropy = self._scores.logprob_and_entropy(token_id)
            self._logprobs.append(logprob)
            self._entropies.append(entropy)
        end = self._end.push(token_id)
        if end is not None:
            return self._completion(*end)
        if output.is_done:
            return self._failure(f"MAX ended the row with {output.final_status.value!r}, where nothing was to end it")
        return None

    def _failure(self, problem: str) -> BackendOutput:
        return self.prompt.index, failure_of(BackendError(problem))

    def _completion(self, stopped_by: StoppedBy, stop_name: str | None) -> Completion:
        return Completion(
            index=self.prompt.index,
            token_ids=tuple(self._token_ids),
            num_prompt_tokens=len(self.prompt.token_ids),
            stopped_by=stopped_by,
            logprobs=tuple(self._logprobs) if self.prompt.plan.logprobs else None,
            entropies=tuple(self._entropies) if self.prompt.plan.entropies else None,
            stop_name=stop_name,
        )


class MaxBackend:
    """A text checkpoint in MAX. Fails as `load_model` does, and leaves nothing behind."""

    name = "max"
    processor = None
    weights = None  # MAX packs them into the model that it compiles

    @staticmethod
    def probe() -> tuple[dict[str, Any], Callable[[Path], str | None]]:
        """Return what there is of MAX here, and what says why a checkpoint cannot be taken; for `evalharness doctor`."""
        return max_facts(), why_not_in_max

    def __init__(self, config: ModelLoadConfig, preprocess: VlmPreprocessOptions, max_model_len: int | None = None) -> None:
        started = time.perf_counter()
        loaded = load_model(config, preprocess, max_model_len)
        self.tokenizer, self.eos_token_ids = loaded.tokenizer, loaded.eos_token_ids
        self._model: Any = loaded.model
        self._device, self._dtype = loaded.device, loaded.dtype
        self._generating = False
        self._batch: _Batch | None = None
        pipeline = loaded.model.pipeline
        self.max_model_len: int | None = int(pipeline._pipeline_model.max_seq_len)  # what MAX's own GenerateIterator asks
        self._vocab_size = int(pipeline.vocab_size or len(self.tokenizer))
        self._max_rows = int(pipeline.max_batch_size)
        self._max_prefill_tokens = loaded.max_prefill_tokens
        self._page_size = int(pipeline.kv_manager.params.page_size)
        self._num_pages = int(pipeline.kv_manager.block_count().total)
        ignored = {"min_p"} if self._device == "cpu" else set()  # MAX 26.7's sampler for CPUs takes it and draws as without
        self.capabilities = Capabilities(
            supports_entropies=True,
            supports_token_watchers=True,
            extra_options=frozenset(EXTRA_OPTIONS) - ignored,
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
        return self._generate(prompts, [plugin for plugin in plugins if plugin.watches_tokens], should_stop)

    def _generate(
        self, prompts: Iterable[Prompt], watching: Sequence[GenerationPlugin], should_stop: Callable[[], bool]
    ) -> Iterator[BackendOutput]:
        if self._model is None:
            raise BackendError("backend 'max' is closed; make a new one")
        if self._generating:
            raise BackendError("this engine is generating already; finish or close the first iterator before the next")
        self._generating = True
        self._batch = batch = _Batch(self._model.pipeline)
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

    def under_way(self) -> UnderWay:
        """Return what is generated now."""
        rows = () if self._batch is None else tuple(self._batch.rows)
        return UnderWay(len(rows), sum(row.num_new for row in rows))

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
            return MaxRow(prompt, watching, self.tokenizer, vocab_size=self._vocab_size)
        except Exception as error:  # MAX's own, of what it makes of the prompt, or a plugin's
            return prompt.index, failure_of(BackendError(f"MAX cannot begin this prompt: {type(error).__name__}: {first_line(error)}"))

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
                problem = BackendError(f"MAX failed on this prompt: {type(error).__name__}: {first_line(error)}")
                yield rows[0].prompt.index, failure_of(problem)
            done = []
        waiting.suspect_runs = waiting.suspect_runs and bool(batch.rows)
        yield from done

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
