"""Who trains and who generates where, in a training loop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from evalharness.api.errors import ConfigError
from evalharness.training.delayed import TrainerDevices, allocate_devices

SHARED = TrainerDevices("cuda:0", "cuda:0", "bfloat16", split=False, external=False, server=False)
PLACES: dict[str, tuple[str, str, int, str | None, TrainerDevices]] = {
    "on one GPU both share the model": ("pytorch", "gpu:0", 1, None, SHARED),
    "on two GPUs the first generates": ("pytorch", "gpu:0,gpu:2", 4, None, replace(SHARED, train="cuda:2", split=True)),
    "an engine with weights of its own": (
        "vllm", "gpu:0,gpu:3", 4, "http://localhost:8000", replace(SHARED, train="cuda:3", infer="cuda:3", external=True, server=True),
    ),
    "an engine in this process": ("max", "cpu", 0, None, replace(SHARED, train="cpu", infer="cpu", dtype="float32", external=True)),
}  # fmt: skip


@pytest.mark.parametrize(("engine", "devices", "num_gpus", "url", "place"), PLACES.values(), ids=PLACES)
def test_who_trains_and_who_generates_where(engine: str, devices: str, num_gpus: int, url: str | None, place: TrainerDevices) -> None:
    assert allocate_devices(engine, devices, num_gpus=num_gpus, url=url) == place


@pytest.mark.parametrize(("engine", "url", "server"), [("max", "http://localhost:8000", True), ("vllm", None, False), ("mlx", None, True)])
def test_an_address_makes_a_server(engine: str, url: str | None, server: bool) -> None:
    assert allocate_devices(engine, "cpu", num_gpus=0, url=url).server is server


def test_without_a_gpu_the_cpu_works_in_float32_and_a_notice_says_so() -> None:
    place = allocate_devices("pytorch", "cuda:1", num_gpus=0)
    assert (place.train, place.infer, place.dtype, place.split) == ("cpu", "cpu", "float32", False)
    assert place.notices == ("devices cuda:1: there is no GPU here; the CPU does the work, in float32",)


@pytest.mark.parametrize(("num_gpus", "device"), [(0, "cpu"), (2, "cuda:0")])
def test_without_a_wish_the_first_gpu_is_taken(num_gpus: int, device: str) -> None:
    place = allocate_devices("pytorch", None, num_gpus=num_gpus)
    assert (place.train, place.infer, place.notices) == (device, device, ())


@pytest.mark.parametrize(
    ("engine", "idle"), [("pytorch", "nothing runs on gpu:1: "), ("vllm", "nothing runs on gpu:0, gpu:1: training takes the last GPU")]
)
def test_gpus_that_nobody_uses_are_told(engine: str, idle: str) -> None:
    assert allocate_devices(engine, "gpu:0,gpu:1,gpu:2", num_gpus=4).notices[0].startswith(idle)


@pytest.mark.parametrize(
    ("engine", "devices", "message"),
    [
        ("pytroch", "cpu", r"^engine 'pytroch' is unknown; did you mean 'pytorch'\? Known: pytorch, huggingface, max, vllm, sglang"),
        ("auto", "cpu", "^engine 'auto' is unknown"),
        ("pytorch", "gpu:1,gpu:1", "^devices gpu:1,gpu:1 names a GPU twice; name each once"),
        ("pytorch", "gpu:0,cuda:2", "^devices gpu:0,cuda:2: there is no gpu:2; there are gpu:0 to gpu:1"),
        ("pytorch", "all", "^devices must be cpu or GPUs such as gpu:0 or gpu:0,gpu:2, got 'all'"),
    ],
)
def test_what_cannot_be_given_is_refused(engine: str, devices: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        allocate_devices(engine, devices, num_gpus=2)
