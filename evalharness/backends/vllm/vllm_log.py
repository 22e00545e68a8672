"""What vLLM's processes log as errors. Its own exceptions say no more than "see root cause above"."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["EngineLog", "ErrorFileHandler", "Problem"]

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
        self._folder = tempfile.TemporaryDirectory(prefix="evalharness-vllm-")
        self._errors_path = Path(self._folder.name) / "errors.jsonl"
        self._handler = ErrorFileHandler(str(self._errors_path))
        self._num_seen = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Have the processes that are started in here report to this log."""
        if CONFIG_VARIABLE in os.environ or os.environ.get("VLLM_CONFIGURE_LOGGING") == "0":
            yield
            return
        config_path = Path(self._folder.name) / "logging.json"
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
        self._folder.cleanup()


def _logging_config(errors_path: str) -> dict[str, Any]:
    handler = f"{ErrorFileHandler.__module__}.{ErrorFileHandler.__qualname__}"
    level = os.environ.get("VLLM_LOGGING_LEVEL", "ERROR")
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"format": "vLLM %(levelname)s %(asctime)s [%(process)d] %(message)s", "datefmt": "%H:%M:%S"}},
        "handlers": {
            "console": {"class": "logging.StreamHandler", "formatter": "line"},
            "errors": {"class": handler, "path": errors_path},
        },
        "loggers": {"vllm": {"handlers": ["console", "errors"], "level": level, "propagate": False}},
    }


def _one_line(text: str) -> str:
    return " ".join(text.split())[:MAX_SUMMARY]


def _came_from_weights(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return type(error).__name__ == "SafetensorError" or any(frame.name in ("load_weights", "_prepare_weights") for frame in frames)
