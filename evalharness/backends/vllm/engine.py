"""One vLLM engine from start to end: it takes requests, returns finished ones, and names the first cause of a failure."""

from __future__ import annotations

import contextlib
import gc
import json
import logging
import os
import traceback
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evalharness.api.checks import excerpt
from evalharness.api.errors import BackendError, CheckpointError, ConfigError, RequestError
from evalharness.api.garbage import collector
from evalharness.api.temporary import OwnFolder
from evalharness.backends.drafting import DraftCounts
from evalharness.backends.vllm._internals import (
    check_room,
    in_placement_group,
    listen_to_steps,
    num_tokens_running,
    render,
    result_queue,
    uses_v2_runner,
    validate_structure,
)
from evalharness.backends.vllm.processes import ChildProcesses, children_prepared, interrupts_get_through, one_thread_each
from evalharness.backends.vllm.sampling import validation_errors
from evalharness.backends.work import WorkSums

CONFIG_VARIABLE = "VLLM_LOGGING_CONFIG_PATH"
MAX_SUMMARY = 1000


@dataclass(frozen=True)
class Problem:
    """An error that vLLM has logged, in this process or in one that it started."""

    summary: str
    in_weights: bool
    is_exception: bool


class ErrorFileHandler(logging.Handler):
    """Appends one line of JSON per error to a file; every process of an engine writes to the same one."""

    def __init__(self, path: str) -> None:
        super().__init__(level=logging.ERROR)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write down the error, or the exception that it reports."""
        problem = Problem(_one_line(record.getMessage()), in_weights=False, is_exception=False)
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            problem = Problem(_one_line(f"{type(error).__name__}: {error}"), _came_from_weights(error), is_exception=True)
        with contextlib.suppress(OSError), open(self._path, "a", encoding="utf-8") as file:  # gone once the engine is closed
            file.write(json.dumps(vars(problem)) + "\n")


class EngineLog:
    """The errors of one engine and all its processes; a logging configuration of the user's own is left alone."""

    def __init__(self) -> None:
        self._folder = OwnFolder("vllm")
        self._errors_path = self._folder.path / "errors.jsonl"
        self._handler = ErrorFileHandler(str(self._errors_path))
        self._num_seen = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Have the processes that are started in here report to this log."""
        if CONFIG_VARIABLE in os.environ or os.environ.get("VLLM_CONFIGURE_LOGGING") == "0":
            yield
            return
        config_path = self._folder.path / "logging.json"
        config_path.write_text(json.dumps(_logging_config(str(self._errors_path))), encoding="utf-8")
        os.environ[CONFIG_VARIABLE] = str(config_path)  # for spawned processes, and releases that configure again at start
        logging.getLogger("vllm").addHandler(self._handler)  # for forked ones
        try:
            yield
        finally:
            del os.environ[CONFIG_VARIABLE]

    def root_cause(self) -> Problem | None:
        """Return the first exception logged since the last call, else the first error message, else None."""
        if not self._errors_path.exists():
            return None
        lines = self._errors_path.read_text(encoding="utf-8", errors="replace").splitlines()
        problems = [Problem(**json.loads(line)) for line in lines[self._num_seen :] if line.endswith("}")]
        self._num_seen = len(lines)
        return min(problems, key=lambda problem: not problem.is_exception, default=None)

    def close(self) -> None:
        """Remove the file; may be called twice."""
        logging.getLogger("vllm").removeHandler(self._handler)
        self._folder.remove()


def _logging_config(errors_path: str) -> dict[str, Any]:
    handler = f"{ErrorFileHandler.__module__}.{ErrorFileHandler.__qualname__}"
    level = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": "vLLM %(levelname)s %(asctime)s [%(process)d] %(message)s", "datefmt": "%H:%M:%S"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}, "errors": {"class": handler, "path": errors_path}},
        "loggers": {"vllm": {"handlers": ["console", "errors"], "level": level, "propagate": False}},
    }


def _one_line(text: str) -> str:
    return excerpt(" ".join(text.split()), MAX_SUMMARY)


def _came_from_weights(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__ == "SafetensorError" or any(frame.name in ("load_weights", "_prepare_weights") for frame in frames)


GRACE_S = 10.0  # how long the engine core may take to end by itself
LOOK_AFTER_S = 1.0  # how often a silent engine is looked after


class VllmEngine:
    """A running engine. `CheckpointError` or `BackendError` when it cannot start; nothing of it is left then."""

    def __init__(self, arguments: Mapping[str, Any], *, is_on_gpu: bool = False) -> None:
        self.arguments = arguments
        self._is_on_gpu = is_on_gpu
        self.is_generating = False
        """Whether requests are under way, from the first to the last; nothing may change meanwhile."""
        self.broken: str | None = None
        self.work = WorkSums()
        self._llm: Any = None
        self._log = EngineLog()
        self._children = ChildProcesses()
        try:
            self._start(arguments)
            self._children.look()  # not later: what this program starts while the engine lives is not the engine's
        except BaseException:
            self._children.look()
            self.close()
            raise

    def _start(self, arguments: Mapping[str, Any]) -> None:
        with collector(on=False):
            from vllm import LLM

        problem: Exception | None = None
        try:
            with (
                interrupts_get_through(self._children),
                children_prepared(),
                one_thread_each(wanted=self._is_on_gpu),
                in_placement_group(),
                self._log.listening(),
            ):
                self._llm = LLM(**arguments)
        except Exception as error:
            problem = self._start_problem(arguments["model"], error)
        else:
            listen_to_steps(self._llm, self.work.step)
        # Raised here, not from vLLM's error: that one holds on to the half-made engine and its sockets.
        if problem is not None:
            raise problem

    def _start_problem(self, path: str, error: Exception) -> CheckpointError | BackendError:
        cause = self._log.root_cause()
        if cause is not None:
            summary, is_checkpoint = cause.summary, cause.in_weights
        else:  # vLLM looks at config and options in this process, before it starts anything
            summary, is_checkpoint = _summary(error), isinstance(error, (*validation_errors(), OSError))
        kind = CheckpointError if is_checkpoint else BackendError
        return kind(f"vLLM could not start on {path}: {summary}")

    @property
    def config(self) -> Any:
        """vLLM's own configuration, everything resolved."""
        return self._llm.llm_engine.vllm_config

    def render(self, prompt: Mapping[str, Any]) -> Any:
        """Return the engine input of one prompt, its images processed; `RequestError` where vLLM refuses the prompt."""
        try:
            return render(self._llm, prompt)
        except validation_errors() as error:
            problem = _refusal(error)
        raise problem  # not from vLLM's error, which holds on to the images

    def add(self, request_id: str, engine_input: Any, params: Any) -> None:
        """Hand a request to the engine core; `RequestError` where vLLM refuses it, `BackendError` for a broken engine."""
        self.work.start()
        try:
            self._llm.llm_engine.add_request(request_id, engine_input, params)
        except validation_errors() as error:
            raise _refusal(error) from error
        except Exception as error:
            raise self.failure(error) from error

    def check_structure(self, params: Any, kind: str) -> None:
        """Raise `ConfigError` where vLLM makes no grammar of the structure in these parameters, which are used up by it."""
        try:
            validate_structure(params, self._llm)
        except validation_errors() as error:
            raise ConfigError(f"structured.{kind} cannot be made a grammar: {error}") from error

    def check_room(self, params: Any) -> None:
        """Raise `UnsupportedOption` where these parameters, which are used up by it, hold more than this engine has room for."""
        if uses_v2_runner(self.config):
            check_room(params, self._llm.get_tokenizer())

    def num_tokens_running(self) -> int | None:
        """Return how many tokens the running requests have so far; None where this vLLM does not tell. For any thread."""
        return num_tokens_running(self._llm)

    def results_wait(self) -> bool:
        """Return whether `step` would return at once; False where this vLLM cannot tell."""
        waiting, _ = result_queue(self._llm)
        return waiting is not None and not waiting.empty()

    def step(self) -> list[Any]:
        """Wait for news from the engine core and return it: finished requests, and new tokens of those that are watched.

        `BackendError` when the engine core has died.
        """
        try:
            self._wait_for_results()
            news = list(self._llm.llm_engine.step())
        except BackendError:
            raise
        except Exception as error:  # whatever the engine core died of
            raise self.failure(error) from error
        self.work.leave(sum(output.finished for output in news))
        return news

    def _wait_for_results(self) -> None:
        """Wait until a step would return, or the engine is dead: vLLM waits for ever for one that was killed."""
        waiting, reader = result_queue(self._llm)
        if waiting is None or reader is None:  # the engine core runs in this process
            return
        while waiting.empty():
            with waiting.not_empty:
                if not waiting.queue:
                    waiting.not_empty.wait(LOOK_AFTER_S)
            if waiting.empty() and not reader.is_alive():
                raise self.failure(RuntimeError("an engine process was killed, perhaps for want of memory"))

    def abort(self, request_ids: Sequence[str]) -> None:
        """Take back what still runs, so that the engine is free for the next call."""
        if not request_ids or self._llm is None or self.broken is not None:
            return
        self.work.leave(len(request_ids))
        try:
            self._llm.llm_engine.abort_request(list(request_ids))
        except Exception as error:  # Ctrl-C has ended the engine core as well
            self.failure(error)

    def swap(self, path: str | None, adapter_path: str | None, given_path: str | None) -> int:
        """Load another checkpoint of the same architecture into the running model, and forget all that the old one computed.

        `given_path`: a file of tensors that stand for those of the checkpoint; `path` None: they are all there is.
        Return how many were loaded.
        `CheckpointError` or `BackendError`, and the engine is broken, when that fails.
        """
        with self._broken_by_errors():
            num_loaded = self._llm.llm_engine.collective_rpc("evalharness_swap", args=(path, adapter_path, given_path))[0]
            # Without these the next request would read keys, values and images of the old weights, or end the engine.
            self._llm.llm_engine.reset_mm_cache()
            self._llm.llm_engine.reset_encoder_cache()
            if not self._llm.llm_engine.reset_prefix_cache():
                raise RuntimeError("the prefix cache could not be reset, for a request still uses it")
        return int(num_loaded)

    def attach_drafts(self) -> None:
        """Let the proposer of drafts read the requests; before any request is added."""
        with self._broken_by_errors():
            self._llm.llm_engine.collective_rpc("evalharness_attach_drafts")

    def draft_counts(self) -> DraftCounts:
        """Return what has become of drafts since the last call; all workers of an engine count the same."""
        with self._broken_by_errors():
            made = self._llm.llm_engine.collective_rpc("evalharness_draft_counts")
        return DraftCounts(**next(filter(None, made), {}))

    def sleep(self) -> None:
        """Have the weights moved to the machine's memory and the cache given up; `BackendError`, and it is broken, when that fails."""
        with self._broken_by_errors():
            self._llm.sleep(level=1)

    def wake(self, tags: Sequence[str]) -> None:
        """Bring back "weights", "kv_cache" or both; `BackendError`, and the engine is broken, when memory is not enough."""
        with self._broken_by_errors():
            self._llm.wake_up(tags=list(tags))

    @contextlib.contextmanager
    def _broken_by_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise self.failure(error) from error

    def failure(self, error: Exception) -> BackendError:
        """Mark the engine as broken and return the error to raise."""
        cause = self._log.root_cause()
        self.broken = cause.summary if cause is not None else _summary(error)
        return BackendError(f"the vLLM engine failed: {self.broken}")

    def close(self) -> None:
        """End the engine core and everything it started, within half a minute at most; may be called twice."""
        llm, self._llm = self._llm, None
        self.broken = self.broken or "it has been closed"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)  # vLLM leaves a ZeroMQ context to the garbage collector
            if llm is not None:
                self._children.look_below()
                with contextlib.suppress(Exception):  # a dead engine cannot be asked to end; its processes are ended below
                    llm.llm_engine.engine_core.shutdown(timeout=GRACE_S)
            del llm
            gc.collect()
            self._children.end(grace_s=GRACE_S)
            gc.collect()  # vLLM's threads hold on to the context until its processes are gone
        self._log.close()


def _refusal(error: Exception) -> RequestError | BackendError:
    """Return what a validation error of vLLM means: it also wraps every error of an image processor, with all of its input."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    if isinstance(cause, validation_errors()):
        return RequestError(f"vLLM refuses the prompt: {cause}")
    return BackendError(f"vLLM could not process the prompt: {type(cause).__name__}: {cause}")


def _summary(error: Exception) -> str:
    return f"{type(error).__name__}: {_one_line(str(error))}"
