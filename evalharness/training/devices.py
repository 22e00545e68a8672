"""Parses trainers' device strings: which device trains and which generates in a training loop. A plain function; loads no torch.

    place = allocate_devices("pytorch", "gpu:0,gpu:2", num_gpus=torch.cuda.device_count())
    model.to(place.train)

Eval runs do not train; `hardware/devices.py` gives them their GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from evalharness.api.errors import ConfigError, did_you_mean
from evalharness.config.kinds import DeviceList
from evalharness.config.options import ENGINES

_SHARING = ("pytorch", "huggingface")
"""Engines that generate with the trainer's own model where both are on one device."""


@dataclass(frozen=True)
class TrainerDevices:
    """Devices as torch names them.

    `split`: the trainer and a second copy of the model work at the same time, on two devices. `external`: the engine has weights of its
    own, which must be told of new ones; where `server` it is another process, on devices of its own, and `infer` says nothing about it.
    `notices`: what was asked for and is done otherwise, or not used.
    """

    train: str
    infer: str
    dtype: str
    split: bool
    external: bool
    server: bool
    notices: tuple[str, ...] = ()


def allocate_devices(engine: str, devices: str | None, *, num_gpus: int, url: str | None = None) -> TrainerDevices:
    """Return who works where. `devices`: cpu, or GPUs such as gpu:0,gpu:2 (cuda:0 means the same); None: the first GPU, else cpu.

    `engine` is a name that `--inference-engine` takes; `num_gpus` says how many GPUs torch sees. With several GPUs the first generates
    and the last trains. Raises `ConfigError` for what is unknown, named twice or not there; where there is no GPU at all, the CPU
    does the work, in float32, and a notice says so.
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
