"""Training that runs one step behind sampling, in a thread of its own: while one GPU samples, another trains.

    with DelayedTraining(train, snapshot) as training:
        for batch in batches:
            engine.weights.sync_from_state_dict(training.snapshot)  # the newest weights of a finished step
            samples = engine.generate_token_batch(…)           # while the step before may still run
            loss = training.train_step(samples)                # the loss of the step before
        loss = training.finish()

Knows no torch: the trainer defines a step and a snapshot.

`allocate_devices` says which device trains and which generates, from a trainer's device string:

    place = allocate_devices("pytorch", "gpu:0,gpu:2", num_gpus=torch.cuda.device_count())
    model.to(place.train)
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.config.kinds import DeviceList
from evalharness.config.options import ENGINES

Batch = TypeVar("Batch")
Snapshot = TypeVar("Snapshot")


class DelayedTraining(Generic[Batch, Snapshot]):
    """One step of training at a time, in the background.

    `train(batch)` takes a step and returns its loss. `take_snapshot()` returns a copy of the weights that later steps do not change
    (clones, not the tensors themselves); it is called at the start, and in the background after each step, so that `snapshot` always
    holds the weights of a finished step and never blocks. Samples are thus generated with weights that are one step older than in a
    synchronous loop; `weight_version` in their results says which.
    """

    def __init__(self, train: Callable[[Batch], float], take_snapshot: Callable[[], Snapshot]) -> None:
        self._train = train
        self._take_snapshot = take_snapshot
        self._lock = threading.Lock()
        self._newest = (0, take_snapshot())
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="evalharness-training")
        self._running: Future[float] | None = None
        self._is_closed = False

    @property
    def snapshot(self) -> Snapshot:
        """The weights after the last finished step. Does not wait."""
        with self._lock:
            return self._newest[1]

    @property
    def num_steps(self) -> int:
        """The number of finished steps that `snapshot` includes."""
        with self._lock:
            return self._newest[0]

    def train_step(self, batch: Batch) -> float:
        """Start a step in the background and return the loss of the previous one; 0.0 for the first step.

        Waits for the previous step. If that failed, its error is raised here and the new step is not started.
        """
        if self._is_closed:
            raise ConfigError("this training is over; make a new DelayedTraining")
        loss = self.finish()
        self._running = self._executor.submit(self._step, batch)
        return 0.0 if loss is None else loss

    def _step(self, batch: Batch) -> float:
        loss = self._train(batch)
        snapshot = self._take_snapshot()
        with self._lock:
            self._newest = (self._newest[0] + 1, snapshot)
        return loss

    def checkpoint(self, save: Callable[[int, Snapshot], Any]) -> Any:
        """Return `save(num_steps, snapshot)` of the last finished step. Never waits. Raises the error of a step that failed."""
        if self._running is not None and self._running.done():
            self._running.result()
        with self._lock:
            num_steps, snapshot = self._newest
        return save(num_steps, snapshot)

    def finish(self) -> float | None:
        """Wait for the running step and return its loss, None if no step is running. Raises the step's error, once."""
        running, self._running = self._running, None
        return None if running is None else running.result()

    def close(self) -> None:
        """Wait for the running step and end the thread. Raises the step's error."""
        self._is_closed = True
        try:
            self.finish()
        finally:
            self._executor.shutdown()

    def __enter__(self) -> DelayedTraining[Batch, Snapshot]:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if error is None:
            self.close()
            return
        self._is_closed = True  # what ended the loop is worth more than what ended the step
        self._executor.shutdown()


_SHARING = ("pytorch", "huggingface")
"""Engines that generate with the trainer's own model where both are on one device."""


@dataclass(frozen=True)
class TrainerDevices:
    """Devices as torch names them.

    `split`: the trainer and a second copy of the model for generation use two devices at the same time. `external`: the engine has its
    own copy of the weights and must be sent new ones. `server`: that engine is another process on devices of its own, which `infer` does
    not describe. `notices`: requested devices that are not used, or replaced.
    """

    train: str
    infer: str
    dtype: str
    split: bool
    external: bool
    server: bool
    notices: tuple[str, ...] = ()


def allocate_devices(engine: str, devices: str | None, *, num_gpus: int, url: str | None = None) -> TrainerDevices:
    """Return the devices of trainer and engine. `devices`: cpu, or GPUs such as gpu:0,gpu:2 (or cuda:0); None: the first GPU, else cpu.

    `engine` is a name that `--inference-engine` takes, `num_gpus` the number of GPUs that torch sees. With several GPUs the first
    generates and the last trains. Without any GPU the CPU is used, in float32, with a notice. Raises `ConfigError` for an unknown
    engine or device, and for a GPU that is named twice or does not exist.
    """
    if engine not in ENGINES or engine == "auto":
        known = [name for name in ENGINES if name != "auto"]
        raise ConfigError(f"engine {engine!r} is unknown{did_you_mean(engine, known) or '.'} Known: {', '.join(known)}.")
    meant = ENGINES[engine]
    external = engine not in _SHARING
    server = meant.server is not None and (meant.backend is None or url is not None)
    numbers, notices = _numbers(devices, num_gpus)
    if not numbers:
        return TrainerDevices("cpu", "cpu", "float32", split=False, external=external, server=server, notices=notices)
    split = not external and len(numbers) > 1
    used = {numbers[0], numbers[-1]} if split else {numbers[-1]}
    if not server and (idle := [f"gpu:{number}" for number in numbers if number not in used]):
        notices = (
            *notices,
            f"nothing runs on {', '.join(idle)}: training takes the last GPU, {'generation the first' if split else engine}",
        )
    train = f"cuda:{numbers[-1]}"
    return TrainerDevices(train, f"cuda:{numbers[0]}" if split else train, "bfloat16", split, external, server, notices)


def _numbers(devices: str | None, num_gpus: int) -> tuple[list[int], tuple[str, ...]]:
    """Return the GPUs in order, none for the CPU, and notices about them."""
    if devices is None:
        return ([0] if num_gpus else []), ()
    text = DeviceList().read(devices, label="devices", base=Path(), is_text=True)
    if text == "cpu":
        return [], ()
    if not num_gpus:
        return [], (f"devices {devices}: there is no GPU here; the CPU does the work, in float32",)
    numbers = [int(part.removeprefix("gpu:")) for part in text.split(",")]
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"devices {devices} names a GPU twice; name each once")
    if missing := [number for number in numbers if number >= num_gpus]:
        raise ConfigError(f"devices {devices}: there is no gpu:{missing[0]}; there are gpu:0 to gpu:{num_gpus - 1}")
    return numbers, ()
