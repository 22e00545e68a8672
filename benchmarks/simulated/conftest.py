"""An engine that takes time as a GPU does, and no processor: so many rows at once, a step for all of them, waiting instead of work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from benchmarks.simulated.engine_model import CAPACITY, ROW_S, STEP_S
from evalharness.api.hooks import GenerationPlugin
from evalharness.backends.base import BackendOutput, Prompt
from evalharness.backends.fake import FakeBackend
from evalharness.pytest_plugin.execution import units


def generate(
    self: FakeBackend, prompts: Iterable[Prompt], *, plugins: Sequence[GenerationPlugin] = (), should_stop: Callable[[], bool]
) -> Iterator[BackendOutput]:
    """Yield each answer after as many steps as it has tokens."""
    source = iter(prompts)
    running: list[tuple[int, Prompt]] = []
    step = 0
    while not should_stop():
        while len(running) < CAPACITY and (prompt := next(source, None)) is not None:
            running.append((step + len(self._answer(prompt)[0]), prompt))
        if not running:
            return
        time.sleep(STEP_S + ROW_S * len(running))
        step += 1
        for _, prompt in [row for row in running if row[0] == step]:
            yield self._complete(prompt, plugins)
        running = [row for row in running if row[0] > step]


units._SMALLEST_FOR["fake"] = units._SMALLEST_FOR["vllm"] // 16
FakeBackend.generate = generate  # type: ignore[method-assign, assignment]
