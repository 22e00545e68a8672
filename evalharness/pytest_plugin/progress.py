"""Shows what will run and how far it is; only in the reporting process."""

from __future__ import annotations

import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.pytest_plugin._pytest_internals import terminal_width
from evalharness.pytest_plugin.execution.engine_specs import choices_of_auto

if TYPE_CHECKING:
    from evalharness.pytest_plugin.execution.execution import Execution
    from evalharness.pytest_plugin.session import EvalSession

__all__ = ["Progress", "announce"]

_TERMINAL_EVERY_S = 0.2
_PIPE_EVERY_S = 30.0


def announce(state: EvalSession) -> str:
    """Return a line that says what will run, and further lines with notices about checkpoints and the baseline."""
    context, registry = state.context, state.registry
    engines = ", ".join(registry.engine_ids)
    workers = f", {context.num_workers} workers" if context.num_workers > 1 else ""
    line = f"evalharness: {len(state.execution.plan.units)} eval tests on {engines}{workers}; run {context.run.run_id} -> {context.run_dir}"
    line = "\n".join([line, *(f"evalharness: {choice}" for choice in choices_of_auto(registry.known_engines))])
    more = registry.notices if context.resumed is None else [context.resumed.announcement, *registry.notices]
    line = "\n".join([line, *(f"evalharness: {notice}" for notice in more)])
    baseline = state.run_file_at_start.get("baseline")
    if baseline is None:
        return line
    path = baseline["path"] or ""
    problem = baseline["problem"] or (None if Path(path).exists() else f"{path} is not there")
    return f"{line}\nevalharness: baseline {baseline['path'] if problem is None else f'cannot be used, gates on it will fail: {problem}'}"


class Progress:
    """Shows cases done, tokens per second and time left: one live line on a terminal, a line now and then in a pipe."""

    def __init__(self, config: pytest.Config, execution: Execution) -> None:
        self._execution = execution
        self._reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        self._capture: Any = config.pluginmanager.get_plugin("capturemanager")
        self._live = bool(self._reporter is not None and self._reporter.isatty and config.get_verbosity() <= 0)
        self._every_s = _TERMINAL_EVERY_S if self._live else _PIPE_EVERY_S
        self._started = time.monotonic()
        self._last = self._started
        self._num_done = 0
        self._num_tokens = 0
        self._num_problems = 0

    @property
    def is_live(self) -> bool:
        """Whether one line is rewritten in place (then pytest's own dots stay away)."""
        return self._live

    def test_ended(self, num_tokens: int, is_problem: bool) -> None:
        """Count a test."""
        self._num_done += 1
        self._num_tokens += num_tokens
        self._num_problems += is_problem
        self.show()

    def show(self) -> None:
        """Show the line if it is time again; also called while a test waits for its generation."""
        now = time.monotonic()
        if self._reporter is None or now - self._last < self._every_s:
            return
        self._last = now
        # A test that waits for its generation is being captured, and so would be this line.
        with self._capture.global_and_fixture_disabled() if self._capture is not None else nullcontext():
            self._write(self._line(now))

    def _write(self, line: str) -> None:
        if self._live:
            self._reporter.rewrite(line[: terminal_width(self._reporter) - 1], erase=True)
        else:
            self._reporter.ensure_newline()
            self._reporter.write_line(line)

    def clear(self) -> None:
        """Take the live line away."""
        if self._live and self._last != self._started:
            self._reporter.rewrite("", erase=True)

    def _line(self, now: float) -> str:
        total = len(self._execution.plan.units)
        elapsed = now - self._started
        tokens = max(self._num_tokens, self._execution.progress.num_completion_tokens)
        generated = self._execution.progress.num_generations
        rate = [f"{tokens / elapsed:,.0f} tokens/s"] if tokens or not generated else []  # given responses are scored, not generated
        parts = [f"{self._num_done}/{total} tests", *rate]
        if generated > self._num_done:
            parts.insert(1, f"{generated} generated")
        steps = self._execution.progress.num_step_generations
        if steps:
            parts.insert(1, f"{steps} generated in steps")
        if 0 < self._num_done < total:
            parts.append(f"about {_duration((total - self._num_done) * elapsed / self._num_done)} left")
        if self._num_problems:
            parts.append(f"{self._num_problems} not passed")
        return "evalharness: " + ", ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
