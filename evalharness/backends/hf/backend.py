"""The transformers backend: `generate` on left-padded batches of similar length.

No row's result depends on which batch it was in: padding is masked, penalties skip it, each row draws from its own
generator and ends by itself. Batches are sized by memory; when it is not enough they are halved, and rows already
finished are not run again.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from evalharness.api.errors import BackendError, ConfigError, RequestError
from evalharness.api.hooks import GenerationPlugin
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.requests import nothing_ran
from evalharness.api.scoring import ResponseLogits, ResponseScores
from evalharness.api.structured_output import STRUCTURES
from evalharness.backends.base import BackendOutput, Capabilities, Prompt, SamplingPlan, UnderWay, describe_error, failure_of
from evalharness.backends.checkpoint_reading import pixel_budget
from evalharness.backends.hf._transformers import transformers
from evalharness.backends.hf.batching import BatchSizes, groups_of_equal_plan, is_broken_device, is_out_of_memory, release_memory
from evalharness.backends.hf.decoding import BatchRunner, Row, StopRequested
from evalharness.backends.hf.drafts import HfDrafts
from evalharness.backends.hf.fixed_cache import Steps
from evalharness.backends.hf.image_rows import largest_image_tokens, row_with_images
from evalharness.backends.hf.loading import LoadedCheckpoint, load_checkpoint, shared_checkpoint
from evalharness.backends.hf.sampling import EXTRA_OPTIONS, Grammars, check_extras
from evalharness.backends.hf.scoring import ScoringRunner, padded_logits, padded_logprobs, row_to_score, through_model
from evalharness.backends.hf.shared_model import SharedModel
from evalharness.backends.hf.shared_prefixes import SharedPrefixes, has_values
from evalharness.backends.hf.shared_weights import SharedWeights
from evalharness.backends.hf.weights import HfWeights
from evalharness.backends.loaded_weights import WeightSource
from evalharness.backends.stops import check_stop_ids
from evalharness.backends.work import WorkSums

logger = logging.getLogger(__name__)

WINDOW_SIZE = 1024
"""How many prompts are pulled, without their images, to be sorted by length."""


Runner: TypeAlias = "BatchRunner | ScoringRunner"


class HfBackend:
    """Generates with transformers; text and, for vision-language checkpoints, images."""

    name = "hf"

    def __init__(self, config: ModelLoadConfig, preprocess: VlmPreprocessOptions) -> None:
        source = WeightSource.read(config, preprocess)  # before the weights: a trainer may write over them
        self._take(load_checkpoint(config, preprocess), source, None)

    @classmethod
    def around(cls, model: Any, tokenizer: Any = None, processor: Any = None) -> HfBackend:
        """Return a backend on a model that is in memory already, and stays its owner's: no weight is copied or changed.

        Give its tokenizer, or for images its processor. Sampling finds the weights as they are at that time, with the adapters of
        peft that are active then, and leaves the model as it was. See `shared_model.py`.
        """
        shared = SharedModel(model)
        config = ModelLoadConfig(getattr(shared.model.config, "_name_or_path", None) or "shared")
        backend = cls.__new__(cls)
        loaded = shared_checkpoint(shared, tokenizer, processor)
        backend._take(loaded, WeightSource.read(config, VlmPreprocessOptions()), shared)
        return backend

    def _take(self, loaded: LoadedCheckpoint, source: WeightSource, shared: SharedModel | None) -> None:
        self._shared = shared
        self._runner: BatchRunner | None = None
        self.work = WorkSums()
        self._drafts = HfDrafts()
        self._prefixes = SharedPrefixes() if shared is None else None  # a trainer's model is called as its trainer calls it
        model = loaded.model
        self._computing: Callable[[], AbstractContextManager[Any]] = self._without_settings if shared is None else shared.sampling
        self._settings: Mapping[str, Any] = {
            "variant": "text" if loaded.processor is None else "vlm",
            "dtype": str(model.dtype).removeprefix("torch."),
            "device": str(model.device),
            "device_map": loaded.device_map,
            "attn_implementation": getattr(model.config, "_attn_implementation", None),
            **({"quantization": loaded.quantization} if shared is None else {}),
        }
        self.vocab_size = int(model.get_input_embeddings().num_embeddings)
        """How many tokens the model knows."""
        self._take_companions(model, loaded.tokenizer, loaded.processor, loaded.eos_token_ids)
        # A trainer's model may be wrapped, moved and given hooks between two calls: its steps run as they are.
        self._steps = Steps(are_fixed=shared is None and model.device.type == "cuda")
        self.max_model_len: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self.capabilities = Capabilities(
            supports_vlm=loaded.processor is not None,
            supports_hf_hooks=True,
            supports_token_watchers=True,
            supports_token_bans=True,
            supports_no_repeat_ngram=True,
            supports_use_cache_off=True,
            supports_processed_logprobs=True,
            supports_entropies=True,
            supports_scoring=True,
            supports_greedy_checks=True,
            supports_logits=True,
            structures=frozenset(STRUCTURES),
            supports_thinking_budget=True,
            extra_options=EXTRA_OPTIONS,
            vocab_size=self.vocab_size,
        )
        self.batch_sizes = BatchSizes(model, self.vocab_size)
        """How large batches are; its bounds may be set."""
        kind = HfWeights if shared is None else SharedWeights
        self.weights = kind(model, source, self.batch_sizes, self._take_others)

    def _take_others(self, tokenizer: Any, processor: Any, eos_token_ids: tuple[int, ...]) -> None:
        self._take_companions(self.weights.model, tokenizer, processor, eos_token_ids)

    def _take_companions(self, model: Any, tokenizer: Any, processor: Any, eos_token_ids: tuple[int, ...]) -> None:
        self.tokenizer, self.processor, self.eos_token_ids = tokenizer, processor, eos_token_ids
        self._grammars = Grammars(tokenizer, self.vocab_size)
        budget = pixel_budget(processor.image_processor) if processor is not None else None
        self._settings = {**self._settings, "pixel_budget": budget}
        if self._shared is None:  # for other code that generates with this model: it would run past the end
            model.generation_config.eos_token_id = list(eos_token_ids)

    @property
    def model(self) -> Any:
        """The loaded torch module, for training it or taking gradients."""
        self.weights.require_usable()
        return self.weights.model

    @contextmanager
    def _without_settings(self) -> Iterator[None]:
        """Compute without gradients, and without the model's generation settings: transformers takes from them what a call leaves out."""
        model = self.weights.model
        settings, model.generation_config = model.generation_config, transformers.GenerationConfig()
        try:
            with torch.inference_mode():
                yield
        finally:
            model.generation_config = settings

    def describe(self) -> Mapping[str, Any]:
        """Return plain JSON facts for run.json."""
        return {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            **self._settings,
            "max_model_len": self.max_model_len,
            "eos_token_ids": list(self.eos_token_ids),
            "max_rows_per_batch": self.batch_sizes.row_cap,
            "num_batches_halved": self.batch_sizes.num_halvings,
            **({"cuda_graphs": self._steps.problem or self._steps.are_fixed} if self._settings["device"].startswith("cuda") else {}),
            **({} if self._prefixes is None or self._prefixes.problem is None else {"shared_prefixes": self._prefixes.problem}),
            "adapter": self.weights.adapter_facts(),
            "is_shared": self.weights.is_shared,
        }

    def generate(
        self, prompts: Iterable[Prompt], *, plugins: Sequence[GenerationPlugin] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[BackendOutput]:
        """Yield one output per prompt, soon after it has ended; the longest prompts of each window run first."""
        self.weights.require_usable()
        runner = BatchRunner(
            self.weights.model, self.tokenizer, plugins, should_stop, self._grammars, self._computing, self.work, self._steps
        )
        self._runner = runner
        try:
            for output in self._outputs(prompts, runner):
                if should_stop():
                    return
                yield output
        except StopRequested:
            return
        finally:
            self._runner = None

    def under_way(self) -> UnderWay:
        """Return what is generated now."""
        return UnderWay() if self._runner is None else self._runner.under_way()

    def _outputs(self, prompts: Iterable[Prompt], runner: BatchRunner) -> Iterator[BackendOutput]:
        source = iter(prompts)
        while window := list(itertools.islice(source, WINDOW_SIZE)):
            for group in groups_of_equal_plan(window):
                self.check_plan(group[0].plan)
                if group[0].response_ids is None:
                    yield from self._run_prompts(group, runner)
                    continue
                scoring = ScoringRunner(self.weights.model, runner.should_stop, self._computing, self._prefixes)
                yield from self._run_prompts(group, scoring) if group[0].has_images else self._run_given(group, scoring)

    def response_logprobs(self, prompts: Sequence[Prompt], *, grad: bool) -> ResponseScores:
        """Return the scores of the prompts' responses as tensors; see `TensorBackend`."""
        return padded_logprobs(self._through_model(prompts, grad), len(prompts))

    def response_logits(self, prompts: Sequence[Prompt], *, grad: bool) -> ResponseLogits:
        """Return the logits of the prompts' responses; see `TensorBackend`."""
        return padded_logits(self._through_model(prompts, grad), len(prompts))

    def _through_model(self, prompts: Sequence[Prompt], grad: bool) -> list[tuple[list[Row], list[torch.Tensor]]]:
        self.weights.require_usable()
        made, refused = {}, {}
        for one in prompts:
            try:
                made[one.index] = self._row(one)
            except RequestError as error:
                refused[one.index] = error
        if refused:
            raise nothing_ran(refused, len(prompts)) from refused[min(refused)]
        batches = []
        for group in groups_of_equal_plan(prompts):
            rows = sorted((made[one.index] for one in group), key=_length)
            while rows:
                batches.append(self.batch_sizes.take(rows, _length, group, self.weights.model.device))
        if self._shared is None or grad:  # with gradients it is the trainer's own step, in the mode that it has chosen
            return through_model(self.weights.model, batches, grad=grad)
        with self._shared.sampling():
            return through_model(self.weights.model, batches, grad=False)

    def check_plan(self, plan: SamplingPlan) -> None:
        """Raise `ConfigError` for a plan that cannot be honoured."""
        check_extras(plan, self.vocab_size)
        self._grammars.check(plan)
        check_stop_ids(plan, vocab_size=self.vocab_size, eos_token_ids=self.eos_token_ids, tokenizer=self.tokenizer)
        if plan.pad_token_id is not None and plan.pad_token_id >= self.vocab_size:
            raise ConfigError(f"options.pad_token_id is {plan.pad_token_id}; the vocabulary ends at {self.vocab_size - 1}")

    def _row(self, prompt: Prompt) -> Row:
        if not prompt.has_images:
            return row_to_score(Row(prompt, prompt.token_ids))
        row = row_with_images(prompt, self.processor)
        prompt.check_length(len(row.token_ids), self.max_model_len)
        return row_to_score(row)

    def _run_prompts(self, prompts: list[Prompt], runner: Runner) -> Iterator[BackendOutput]:
        """Open the images of one batch at a time; lengths with images are estimates until then."""
        per_image = largest_image_tokens(self.processor) if prompts[0].has_images else 0
        placeholder = getattr(self.processor, "image_token_id", None)

        def estimate(prompt: Prompt) -> int:
            num_tokens = prompt.num_tokens or len(prompt.token_ids) + prompt.token_ids.count(placeholder) * per_image
            return num_tokens + len(prompt.response_ids or ())

        prompts.sort(key=estimate)
        while prompts:
            batch = self.batch_sizes.take(prompts, estimate, prompts, self.weights.model.device)
            since = time.monotonic()
            rows, refused = _sort_out(batch, self._row, runner)
            if batch[0].has_images:
                self.work.pictures(since, is_waited_for=True)
                self.work.patches(grid for row in rows for grid in row.image_grids)
            yield from refused
            yield from self._run_rows(rows, runner)

    def _run_given(self, prompts: list[Prompt], runner: ScoringRunner) -> Iterator[BackendOutput]:
        """Score texts, those together that begin alike."""
        rows, refused = _sort_out(prompts, self._row, runner)
        yield from refused
        with_values = list(filter(has_values, rows))
        packs = self._prefixes.packs(self.weights.model, with_values) if self._prefixes is not None else None
        packs = [pack for pack in packs or () if len(pack.rows) > 1]
        shared = {row.prompt.index for pack in packs for row in pack.rows}
        yield from self._run_rows([row for row in rows if not has_values(row)], runner)  # costs no pass, if among their like
        yield from self._run_rows([row for row in with_values if row.prompt.index not in shared], runner)
        if not packs:
            return
        packs.sort(key=lambda pack: pack.width)
        num_logits = max(pack.num_judging for pack in packs)
        while packs:
            batch = self.batch_sizes.take(packs, lambda pack: pack.width, prompts, self.weights.model.device, num_logits=num_logits)
            yield from self._run_batch([row for pack in batch for row in pack.rows], runner)

    def _run_rows(self, rows: list[Row], runner: Runner) -> Iterator[BackendOutput]:
        rows.sort(key=_length)
        while rows:
            batch = self.batch_sizes.take(rows, _length, [row.prompt for row in rows], self.weights.model.device)
            yield from self._run_batch(batch, runner)

    def _run_batch(self, batch: list[Row], runner: Runner) -> Iterator[BackendOutput]:
        """Run a batch: in halves when memory is not enough, row by row after any other error."""
        waiting = [batch]
        while waiting:
            rows, problem = yield from self._attempt(waiting.pop(), runner)
            if problem is None:
                continue
            if len(rows) == 1:
                yield rows[0].prompt.index, failure_of(BackendError(problem.text))
            elif problem.is_out_of_memory:
                self.batch_sizes.note_halving([row.prompt for row in rows], max(map(_length, rows)), problem.text)
                half = len(rows) // 2
                waiting += [rows[half:], rows[:half]]
            else:
                # One bad row must not take the others along.
                logger.warning("a batch of %d failed (%s); running its rows one by one", len(rows), problem.text)
                waiting += [[row] for row in reversed(rows)]

    def _attempt(self, rows: list[Row], runner: Runner) -> Generator[BackendOutput, None, tuple[list[Row], _Problem | None]]:
        """Yield outputs; return the rows that have none, and what went wrong as plain text, as the exception would keep tensors alive."""
        left = {row.prompt.index: row for row in rows}
        try:
            drafted = self._drafts.run(rows, runner) if isinstance(runner, BatchRunner) and self._drafts.can_run(rows, runner) else None
            for output in runner.run(rows) if drafted is None else drafted:
                del left[output[0] if isinstance(output, tuple) else output.index]
                yield output
            return [], None
        except Exception as error:
            problem = _Problem(describe_error(error), is_out_of_memory(error))
            if not problem.is_out_of_memory and is_broken_device(error):
                self.weights.broken = problem.text
                raise BackendError(f"the device failed and cannot be used any more by this process: {problem.text}") from error
        if problem.is_out_of_memory:
            release_memory()
        return list(left.values()), problem

    def close(self) -> None:
        """Free the model's memory; may be called twice."""
        if self.weights.model is None:
            return
        self.weights.close()
        self._shared = None
        self.processor = None
        release_memory()


@dataclass(frozen=True)
class _Problem:
    text: str
    is_out_of_memory: bool


def _length(row: Row) -> int:
    return len(row.token_ids)


def _sort_out(prompts: Iterable[Prompt], prepare: Callable[[Prompt], Row], runner: Runner) -> tuple[list[Row], list[BackendOutput]]:
    """Return the rows that can run, and the failures of the prompts that cannot."""
    rows: list[Row] = []
    refused: list[BackendOutput] = []
    for prompt in prompts:
        if runner.should_stop():
            raise StopRequested
        try:
            rows.append(prepare(prompt))
        except Exception as error:
            refused.append((prompt.index, failure_of(error, "preparing the prompt")))
    return rows, refused
