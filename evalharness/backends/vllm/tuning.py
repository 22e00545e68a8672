"""How many rows an engine should run at once (`--tune`), measured while it answers the run's own requests.

More rows share the reading of the weights, but each costs time of the host in every step, and beyond the largest CUDA graph a step is
launched kernel by kernel. Which of it weighs more depends on the machine. The number is changed without a restart: vLLM runs what it is
given, so as many requests are handed to it as rows are to run. Answers do not depend on it.

vLLM's own number runs first and is taken unless another is clearly faster. Then come halves of it, as long as they are not slower. Each is
measured over as many answers as it has rows, so that every row has paid for its prompt once. What a short run leaves open, the next one
like it goes on with.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evalharness.api.remembered import remember, remembered
from evalharness.backends.base import Prompt

GAIN = 1.05
"""How many times as fast as vLLM's own number another must be to be taken: two measurements of one number differ by some percent."""
STILL_WORTH_HALVING = 0.95
HOPELESS = 0.85
"""A number at whose first quarter this share of the fastest rate is not reached is measured no further: looking costs time, too."""
MOST_HALVINGS = 3
MIN_SECONDS = 2.0
_ALIKE = 8
"""How many times as long as another a request of one eval may be."""
_MEMORY, _MAX_REMEMBERED = "rows-at-once-1", 200


@dataclass
class RowTuner:
    """Chooses the number of rows for requests of one kind. `most`: vLLM's own number.

    `limit` is how many requests may be under way now. `rows`: the number in use. `how`: "measured", "remembered", or "measuring" as long as
    there was too little work to decide. `rates`: tokens per second by number of rows.
    """

    most: int
    rows: int = 0
    how: str = "measuring"
    rates: dict[int, float] = field(default_factory=dict)
    now: Callable[[], float] = time.monotonic
    _num_settling: int = 0
    """Answers to wait for before a measurement: those that were begun before."""
    _num_measured: int = 0
    _began: tuple[float, int] | None = None
    """When the measurement began, and how many tokens had been made by then."""
    _num_finished_tokens: int = 0
    _is_promising: bool = False
    """Whether the first quarter of a measurement gave no reason to end it."""

    def __post_init__(self) -> None:
        self.rows = self.rows or self.most
        self._num_settling = self.most // 2

    @property
    def limit(self) -> int:
        """How many requests may be under way: at vLLM's own number some wait in its queue, else none does."""
        return 2 * self.most if self.rows == self.most else self.rows

    @property
    def is_measuring(self) -> bool:
        """Whether nothing has been decided yet."""
        return self.how == "measuring"

    def start_anew(self) -> None:
        """Forget the measurement under way: the engine runs empty, or starts empty."""
        self._began, self._num_settling, self._is_promising = None, self.rows // 2, False

    def note(self, num_running: int, num_finished: int, num_new_tokens: int, num_tokens_running: Callable[[], int | None]) -> bool:
        """Take down one look at the engine; return whether a number has now been measured.

        `num_finished` answers of `num_new_tokens` came since the last look; `num_tokens_running` counts those of answers under way.
        """
        self._num_finished_tokens += num_new_tokens
        if self._began is None:
            self._num_settling -= num_finished
            if num_running <= self.limit and self._num_settling <= 0:
                self._began, self._num_measured = (self.now(), self._num_finished_tokens + (num_tokens_running() or 0)), 0
            return False
        self._num_measured += num_finished
        seconds = self.now() - self._began[0]
        if self._num_measured < self.rows / 4 or seconds < MIN_SECONDS / 4:
            return False
        is_whole = self._num_measured >= self.rows and seconds >= MIN_SECONDS
        if not is_whole and (self._is_promising or not self.rates):
            return False
        rate = (self._num_finished_tokens + (num_tokens_running() or 0) - self._began[1]) / seconds
        self._is_promising = not is_whole and rate >= HOPELESS * max(self.rates.values())
        if self._is_promising:
            return False
        self.rates[self.rows] = rate
        self._go_on()
        return True

    def _go_on(self) -> None:
        """Try half as many rows as before, or choose."""
        self._began, self._num_settling, self._is_promising = None, 0, False
        fastest, least = max(self.rates.values()), min(self.rates)
        half = least // 2
        if self.rates[least] >= STILL_WORTH_HALVING * fastest and half >= max(1, self.most >> MOST_HALVINGS):
            self.rows = half
            return
        best = max(self.rates, key=lambda rows: self.rates[rows])
        self.rows = best if self.rates[best] >= GAIN * self.rates[self.most] else self.most
        self.how = "measured"

    def resume(self, rates: Mapping[int, float]) -> None:
        """Go on where an earlier run's work was too little to decide."""
        self.rates = dict(rates)
        if self.most in self.rates:
            self._go_on()

    def facts(self) -> dict[str, Any]:
        """Return plain JSON for run.json."""
        rates = {str(rows): round(rate) for rows, rate in self.rates.items()}
        chosen = self.most if self.is_measuring else self.rows
        return {"rows": chosen, "default": self.most, "how": self.how, "tokens_per_s": rates}


class RowTuning:
    """The tuners of one engine, by the lengths of what is asked; `machine` is all else that a choice depends on, see `machine_of`."""

    def __init__(self, most: int, machine: Mapping[str, Any]) -> None:
        self._most = most
        self._machine = hashlib.sha256(json.dumps(machine, sort_keys=True, default=str).encode()).hexdigest()
        self._tuners: dict[str, RowTuner] = {}
        self._current: tuple[Prompt, str, RowTuner] | None = None
        """A request, its lengths, and what chooses for those like it."""

    def begin(self, first: Prompt | None) -> int:
        """Get ready for requests like this one; return how many may be under way. Given responses, and no request, are no measure."""
        self._current = None
        if first is None or first.response_ids is not None:
            return 2 * self._most
        lengths = lengths_of(first)
        tuner = self._tuners.get(lengths)
        if tuner is None:
            self._tuners[lengths] = tuner = self._recall(lengths)
        tuner.start_anew()
        self._current = (first, lengths, tuner)
        return tuner.limit

    def note(
        self, num_running: int, num_finished: int, num_new_tokens: int, num_made: Callable[[], int | None], next_one: Prompt | None
    ) -> int:
        """Take down one look at the engine, see `RowTuner.note`; return how many requests may be under way.

        `next_one`: the next request, None while there is none. An engine that runs empty is no measure, nor is one whose requests change.
        """
        if next_one is not None and (self._current is None or not are_alike(self._current[0], next_one)):
            return self.begin(next_one)
        if self._current is None:
            return 2 * self._most
        _, lengths, tuner = self._current
        if tuner.is_measuring and next_one is None and num_running < tuner.rows:
            tuner.start_anew()
        elif tuner.is_measuring and tuner.note(num_running, num_finished, num_new_tokens, num_made):
            remember(_MEMORY, {self._key(lengths): tuner.facts()}, _MAX_REMEMBERED)
        return tuner.limit

    def facts(self) -> dict[str, Any]:
        """Return plain JSON for run.json: what was chosen, by lengths."""
        return {lengths: tuner.facts() for lengths, tuner in self._tuners.items()}

    def _key(self, lengths: str) -> str:
        return f"{self._machine}, {lengths}"

    def _recall(self, lengths: str) -> RowTuner:
        entry = remembered(_MEMORY).get(self._key(lengths))
        found: dict[str, Any] = entry if isinstance(entry, dict) else {}
        rows, rates = found.get("rows"), found.get("tokens_per_s")
        tuner = RowTuner(self._most)
        if type(rows) is not int or not 0 < rows <= self._most or not isinstance(rates, dict):
            return tuner
        known = {int(count): float(rate) for count, rate in rates.items() if count.isdecimal() and type(rate) is int and rate > 0}
        known = {count: rate for count, rate in known.items() if 0 < count <= self._most}
        if found.get("how") == "measuring":
            tuner.resume(known)
            return tuner
        return RowTuner(self._most, rows, "remembered", known)


def lengths_of(prompt: Prompt) -> str:
    """Return how long requests like this one are, in powers of two: cases of one eval differ, and that is to make no difference."""
    images = " and images" if prompt.has_images else ""
    return f"prompts up to {_up_to(len(prompt.token_ids))} tokens{images}, answers up to {_up_to(prompt.plan.max_new_tokens)}"


def are_alike(first: Prompt, other: Prompt) -> bool:
    """Return whether two requests are about as long; they then share a measurement, whatever side of a power of two they are on."""
    if (first.has_images, first.response_ids is None) != (other.has_images, other.response_ids is None):
        return False
    lengths = ((len(first.token_ids), len(other.token_ids)), (first.plan.max_new_tokens, other.plan.max_new_tokens))
    return all(max(pair) <= _ALIKE * max(1, min(pair)) for pair in lengths)


def _up_to(number: int) -> int:
    return 1 << max(0, number - 1).bit_length()


def machine_of(engine_config: Any, arguments: Mapping[str, Any], versions: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the best number of rows depends on beside the requests: machine, versions, the model's shape, the engine's arguments."""
    from vllm.platforms import current_platform

    shape = engine_config.model_config.hf_config.to_dict()
    not_shape = ("_name_or_path", "name_or_path", "transformers_version")
    return {
        "device": current_platform.get_device_name(),
        "driver": _first_line("/proc/driver/nvidia/version"),
        "processor": (_processor(), os.cpu_count()),
        "versions": dict(versions),
        "model": {name: value for name, value in shape.items() if name not in not_shape},
        "arguments": {name: value for name, value in arguments.items() if name != "model"},
        "scheduler": (engine_config.scheduler_config.max_num_seqs, engine_config.scheduler_config.max_num_batched_tokens),
    }


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    except OSError:
        return ""


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.startswith("model name")), "")
