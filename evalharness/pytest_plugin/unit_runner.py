"""Runs one work unit: its requests go to the engine together while the tests of finished ones already run."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.cases import Case
from evalharness.contracts import GenerationFailure, GenerationOptions, GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.engine import Engine
from evalharness.errors import EvalHarnessError, RecordError, RequestError
from evalharness.journal import Journal
from evalharness.pytest_plugin.collection import EvalModule

__all__ = ["UnitProgress", "UnitRunner"]

Outcome: TypeAlias = "GenerationResult | GenerationFailure"

STOP_TIMEOUT_S = 60.0
"""How long a unit may take to end once it is told to; a backend looks at least once per generated token."""
_POLL_S = 0.2  # how often a waiting test lets progress be shown


class UnitProgress:
    """Running totals of one process, for the progress line."""

    def __init__(self) -> None:
        self.num_generations = 0
        self.num_completion_tokens = 0
        self._num_told = 0

    def take_new_tokens(self) -> int:
        """Return how many tokens were generated since this was last asked: tests share generations, and each counts once."""
        new = self.num_completion_tokens - self._num_told
        self._num_told += new
        return new


class UnitRunner:
    """Generates a unit's cases in a thread of its own; `outcomes` waits for one case.

    Every finished generation is in the journal before a test can see it.
    """

    def __init__(
        self, engine_id: str, engine: Engine, module: EvalModule, cases: Sequence[Case], journal: Journal, progress: UnitProgress
    ) -> None:
        self._engine_id = engine_id
        self._engine = engine
        self._module = module
        self._cases = cases
        self._journal = journal
        self._progress = progress
        self._held = {case.id for case in cases}
        self._finished: dict[str, dict[int, Outcome]] = {}
        self._changed = threading.Condition()
        self._stop = threading.Event()
        self._broken: str | None = None
        self.fatal: RecordError | None = None
        """Set when the journal could not be written: going on would lose results."""
        self._thread = threading.Thread(target=self._run, name=f"unit-{module.name}", daemon=True)
        self._thread.start()

    def outcomes(self, case_id: str, while_waiting: Callable[[], None]) -> list[Outcome]:
        """Return the case's generations, one per variant, as soon as all are there; what was let go comes from the journal."""
        wanted = len(self._module.variants)
        if case_id not in self._held:
            return self._recorded(case_id, wanted)
        while True:
            with self._changed:
                found = self._finished.get(case_id, {})
                if len(found) == wanted:
                    return [found[sample] for sample in range(wanted)]
                if self.fatal is not None:
                    raise self.fatal
                if self._broken is not None:
                    failure = GenerationFailure("error", self._broken)
                    return [found.get(sample, failure) for sample in range(wanted)]
                self._changed.wait(_POLL_S)
            while_waiting()

    def _recorded(self, case_id: str, wanted: int) -> list[Outcome]:
        """Return what this process has recorded for a case whose tests have all run, and one of which runs once more."""
        key = {"engine": self._engine_id, "eval": self._module.name, "case_id": case_id}
        found: dict[int, Outcome] = {}
        for line in _outcome_lines(self._journal.path):
            if all(line[name] == value for name, value in key.items()):
                made = line.get("generation")
                found[line["sample"]] = (
                    GenerationFailure(line["failure"], line["problem"]) if made is None else GenerationResult.from_json(made)
                )
        missing = GenerationFailure("error", "the engine gave no generation for this case")
        return [found.get(sample, missing) for sample in range(wanted)]

    def release(self, case_id: str) -> None:
        """Let a case's generations go once no test needs them any more."""
        with self._changed:
            self._held.discard(case_id)
            self._finished.pop(case_id, None)

    def stop(self) -> bool:
        """End what still runs, wait for the thread, and return whether it has ended: it may hang in a library or a device."""
        self._stop.set()
        self._thread.join(STOP_TIMEOUT_S)
        return not self._thread.is_alive()

    def _run(self) -> None:
        started = time.monotonic()
        try:
            self._generate()
        except RecordError as error:
            self.fatal = error
            self._broken = str(error)
        except EvalHarnessError as error:
            self._broken = str(error)
        except BaseException as error:  # nothing may die unseen in a thread: every waiting case gets this as its error row
            self._broken = f"{type(error).__name__}: {error} (at {_last_frame(error)})"
        else:
            self._note_end(time.monotonic() - started)
            self._broken = (
                "the engine was stopped before this generation" if self._stop.is_set() else "the engine gave no generation for this case"
            )
        finally:
            with self._changed:
                self._changed.notify_all()

    def _note_end(self, duration_s: float) -> None:
        try:
            self._journal.write("unit", {"engine": self._engine_id, "eval": self._module.name, "generation_s": duration_s})
        except RecordError as error:
            self.fatal = error

    def _generate(self) -> None:
        places: list[tuple[str, int]] = []
        requests: list[Any] = []
        options: list[GenerationOptions] = []
        for case in self._cases:
            request = self._request(case)
            for sample, variant in enumerate(self._module.options_for(case)):
                if isinstance(request, GenerationFailure):
                    self._finish(case.id, sample, request)
                else:
                    places.append((case.id, sample))
                    requests.append(request)
                    options.append(variant)
        for position, outcome in self._engine.stream(requests, options, should_stop=self._stop.is_set):
            self._finish(*places[position], outcome)

    def _request(self, case: Case) -> Any:
        if case.invalid is not None:
            return GenerationFailure("invalid", case.invalid)
        # One case's broken request must not take the others along; pytest's own outcomes and SystemExit are no Exceptions.
        try:
            request = self._module.request(case)
        except RequestError as error:
            return GenerationFailure("invalid", str(error), error)
        except BaseException as error:
            return GenerationFailure("error", f"request({case.id}): {type(error).__name__}: {error} (at {_last_frame(error)})")
        if not isinstance(request, (TextGenerationRequest, VlmGenerationRequest)):
            kinds = "a TextGenerationRequest or VlmGenerationRequest"
            return GenerationFailure("error", f"request({case.id}) gave {request!r}; it must give {kinds}")
        return request

    def _finish(self, case_id: str, sample: int, outcome: Outcome) -> None:
        values: dict[str, Any] = {"engine": self._engine_id, "eval": self._module.name, "case_id": case_id, "sample": sample}
        if isinstance(outcome, GenerationResult):
            self._journal.write("generation", {**values, "generation": outcome.to_json()})
            self._progress.num_completion_tokens += outcome.num_completion_tokens or 0
        else:
            self._journal.write("failure", {**values, "failure": outcome.kind, "problem": outcome.problem})
        self._progress.num_generations += 1
        with self._changed:
            if case_id in self._held:  # tests that were skipped early wait for nothing
                self._finished.setdefault(case_id, {})[sample] = outcome
            self._changed.notify_all()


def _outcome_lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what a journal says of generations, which another thread may be adding to."""
    with path.open("rb") as lines:
        for line in lines:
            if line.startswith((b'{"kind":"generation"', b'{"kind":"failure"')) and line.endswith(b"\n"):
                yield json.loads(line)


def _last_frame(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].name}, line {frames[-1].lineno}" if frames else "unknown place"
