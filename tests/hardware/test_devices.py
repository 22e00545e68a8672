"""Which worker gets which GPU, on made-up environments and lists of cards."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api.errors import ConfigError
from evalharness.config import RunConfig, resolve
from evalharness.hardware.devices import (
    Card,
    auto_num_workers,
    cuda_is_initialised,
    installed_cards,
    parse_listing,
    spans_hosts,
    uses_cards,
    visible_cards,
    worker_cards,
)

LISTING = """\
GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-aaaa1111-0000-0000-0000-000000000000)
GPU 1: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb2222-0000-0000-0000-000000000000)
GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-bbbb3333-0000-0000-0000-000000000000)
GPU 3: NVIDIA H100 80GB HBM3 (UUID: GPU-dddd4444-0000-0000-0000-000000000000)
"""
DIVIDED = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-aaaa1111-0000-0000-0000-000000000000)
  MIG 3g.20gb     Device  0: (UUID: MIG-1111aaaa-0000-5000-8000-000000000000)
  MIG 3g.20gb     Device  1: (UUID: MIG-2222bbbb-0000-5000-8000-000000000000)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-bbbb2222-0000-0000-0000-000000000000)
"""
FOUR = parse_listing(LISTING)
PARTS = parse_listing(DIVIDED)


def run(**options: Any) -> RunConfig:
    return resolve({"backend": "vllm", **options}, {}, Path("/"), cwd=Path("/"))


def test_a_listing_is_read_with_the_parts_of_divided_cards() -> None:
    assert [(card.index, card.uuid[:8]) for card in FOUR] == [(0, "GPU-aaaa"), (1, "GPU-bbbb"), (2, "GPU-bbbb"), (3, "GPU-dddd")]
    assert [card.parts for card in PARTS] == [("MIG-1111aaaa-0000-5000-8000-000000000000", "MIG-2222bbbb-0000-5000-8000-000000000000"), ()]
    assert parse_listing("No devices found.\n") == []


def test_cards_are_counted_by_an_nvidia_smi_that_does_not_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    for script, cards in (
        (f"cat <<'END'\n{LISTING}END", FOUR),
        ("echo 'NVIDIA-SMI has failed' >&2; exit 9", [Card(number) for number, _ in enumerate(Path("/dev").glob("nvidia[0-9]*"))]),
    ):
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(0o755)
        assert installed_cards() == cards


@pytest.mark.parametrize(
    ("mask", "installed", "expected"),
    [
        pytest.param(None, FOUR, ["0", "1", "2", "3"], id="no-mask"),
        pytest.param("2,0", FOUR, ["2", "0"], id="indices-in-the-users-order"),
        pytest.param(" 1 , 3 ", FOUR, ["1", "3"], id="spaces"),
        pytest.param("GPU-dddd4444-0000,GPU-aaaa", FOUR, ["GPU-dddd4444-0000", "GPU-aaaa"], id="uuids-and-their-beginnings"),
        pytest.param("", FOUR, [], id="empty"),
        pytest.param("-1", FOUR, [], id="minus-one"),
        pytest.param("1,-1,2", FOUR, ["1"], id="minus-one-ends-the-list"),
        pytest.param("0,1", [], [], id="a-mask-on-a-machine-without-cards"),
        pytest.param(None, PARTS, [*PARTS[0].parts, "1"], id="parts-in-place-of-their-card"),
        pytest.param("MIG-2222bbbb-0000-5000-8000-000000000000", PARTS, ["MIG-2222bbbb-0000-5000-8000-000000000000"], id="a-part"),
        pytest.param("MIG-GPU-aaaa1111/3/0", PARTS, ["MIG-GPU-aaaa1111/3/0"], id="a-part-by-its-old-name"),
        pytest.param("GPU-abcd", [Card(0)], ["GPU-abcd"], id="uuids-where-none-are-listed"),
    ],
)  # fmt: skip
def test_the_mask_is_understood_as_cuda_does(mask: str | None, installed: list[Card], expected: list[str]) -> None:
    assert visible_cards({} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}, installed) == expected


@pytest.mark.parametrize(
    ("mask", "problem"),
    [
        ("0,7", r"CUDA_VISIBLE_DEVICES=0,7 names '7', which this machine does not have; its GPUs: 0 \(GPU-aaaa"),
        ("GPU-cccc", "names 'GPU-cccc', which this machine does not have"),
        ("GPU-bbbb", "names 'GPU-bbbb', which this machine does not have"),
        ("all", "names 'all', which this machine does not have"),
        ("1,1", "names one GPU twice"),
        ("1,GPU-bbbb2222", "names one GPU twice"),
    ],
    ids=["index", "uuid", "ambiguous", "word", "twice", "twice-by-other-names"],
)
def test_a_mask_that_cuda_would_cut_silently_is_refused(mask: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        visible_cards({"CUDA_VISIBLE_DEVICES": mask}, FOUR)


@pytest.mark.parametrize(
    ("options", "mask", "num_workers", "expected"),
    [
        pytest.param({}, None, 4, [("0",), ("1",), ("2",), ("3",)], id="one-each"),
        pytest.param({}, None, 2, [("0",), ("1",)], id="fewer-workers"),
        pytest.param({}, "3,GPU-aaaa", 2, [("3",), ("GPU-aaaa",)], id="within-the-mask"),
        pytest.param({"tensor_parallel_size": "2"}, "3,1,0,2", 2, [("3", "1"), ("0", "2")], id="two-cards-as-one-mask"),
        pytest.param({"pipeline_parallel_size": "2"}, None, 2, [("0", "1"), ("2", "3")], id="two-stages"),
        pytest.param({"tensor_parallel_size": "2", "pipeline_parallel_size": "2"}, None, 1, [("0", "1", "2", "3")], id="two-by-two"),
        pytest.param({"tensor_parallel_size": "8", "distributed_executor_backend": "ray"}, None, 1, [("0", "1", "2", "3")], id="hosts"),
        pytest.param({"tensor_parallel_size": "8", "engine_option": ["nnodes=2"]}, None, 0, None, id="hosts-in-one-process"),
        pytest.param({"devices": "gpu:0,gpu:2"}, "3,1,0", 2, [("3",), ("0",)], id="chosen-within-the-mask"),
        pytest.param({"devices": "cpu"}, None, 2, [(), ()], id="cpu"),
        pytest.param({"devices": "cpu"}, None, 0, [()], id="cpu-in-one-process"),
        pytest.param({"share_devices": True}, "2,3", 3, [("2",), ("3",), ("2",)], id="shared"),
        pytest.param({}, "", 4, None, id="none-visible"),
        pytest.param({}, "1", 0, None, id="one-process-keeps-its-mask"),
        pytest.param({"devices": "gpu:1,gpu:2"}, None, 0, [("1", "2")], id="one-process-with-a-choice"),
        pytest.param({"backend": "fake"}, None, 8, None, id="no-weights"),
        pytest.param({"backend": "hf", "device": "cpu"}, None, 8, None, id="hf-on-the-cpu"),
        pytest.param({"backend": "hf"}, None, 2, [("0",), ("1",)], id="hf"),
        pytest.param({"backend": "fake,hf", "tensor_parallel_size": "2"}, None, 2, [("0",), ("1",)], id="tensor-parallel-is-vllms"),
    ],
)
def test_each_worker_gets_cards_of_its_own(options: dict[str, Any], mask: str | None, num_workers: int, expected: Any) -> None:
    env = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert worker_cards(run(**options), env, FOUR, num_workers) == expected


@pytest.mark.parametrize(
    ("options", "num_workers", "problem"),
    [
        ({}, 5, r"5 workers need 5 GPUs, but 4 \(0, 1, 2, 3\) may be used; give -n 4 or -n auto, .* with --share-devices"),
        ({"tensor_parallel_size": "2"}, 3, "3 workers need 6 GPUs, but 4 .* give -n 2"),
        ({"tensor_parallel_size": "8"}, 1, "--tensor-parallel-size 8 needs 8 GPUs, but 4 .* may be used; lower it"),
        ({"tensor_parallel_size": "4", "pipeline_parallel_size": "2"}, 1, "4 with --pipeline-parallel-size 2 needs 8 GPUs, but 4"),
        ({"distributed_executor_backend": "ray"}, 2, "2 workers would share an engine that spans hosts; give -n 1"),
        ({"devices": "gpu:4"}, 1, "there is no gpu:4; visible GPUs: gpu:0 to gpu:3"),
        ({"devices": "gpu:1,gpu:1"}, 1, "names a GPU twice"),
        ({"devices": "gpu:0"}, 0, "visible GPUs: none; leave --devices out or give --devices cpu"),
        ({"backend": "hf", "device": "cuda:1"}, 2, "--device cuda:1 with -n: each worker has its own GPUs.* --devices gpu:1"),
    ],
    ids=["workers", "workers-of-two-each", "too-parallel", "too-many-stages", "hosts", "not-there", "twice", "no-gpu", "device-of-hf"],
)  # fmt: skip
def test_what_cannot_be_given_is_refused(options: dict[str, Any], num_workers: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        worker_cards(run(**options), {}, FOUR if num_workers else [], num_workers)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, False),
        ({"distributed_executor_backend": "mp"}, False),
        ({"distributed_executor_backend": "ray"}, True),
        ({"engine_option": ["nnodes=2"]}, True),
        ({"engine_option": ["nnodes=1"]}, False),
        ({"backend": "hf", "engine_option": ["nnodes=2"]}, False),
    ],
    ids=["default", "processes", "ray", "two-nodes", "one-node", "hf"],
)
def test_which_engines_may_span_hosts(options: dict[str, Any], expected: bool) -> None:
    assert spans_hosts(run(**options)) is expected


@pytest.mark.parametrize(
    ("options", "mask", "installed", "expected"),
    [
        pytest.param({}, None, FOUR, 4, id="one-per-gpu"),
        pytest.param({}, "1,2", FOUR, 2, id="within-the-mask"),
        pytest.param({"tensor_parallel_size": "2"}, None, FOUR, 2, id="per-two"),
        pytest.param({"tensor_parallel_size": "8"}, None, FOUR, 1, id="at-least-one"),
        pytest.param({"pipeline_parallel_size": "2"}, None, FOUR, 2, id="per-two-stages"),
        pytest.param({"distributed_executor_backend": "ray", "tensor_parallel_size": "16"}, None, FOUR, 1, id="hosts"),
        pytest.param({"devices": "gpu:0,gpu:3"}, None, FOUR, 2, id="chosen"),
        pytest.param({"devices": "cpu", "backend": "hf"}, None, FOUR, 3, id="cpu-by-choice"),
        pytest.param({"backend": "hf"}, None, [], 3, id="hf-on-24-cores"),
        pytest.param({}, None, [], 1, id="vllm-on-a-cpu"),
        pytest.param({}, "", FOUR, 1, id="gpus-hidden"),
        pytest.param({"backend": "hf,vllm"}, None, [], 1, id="both-on-a-cpu"),
        pytest.param({"backend": "fake"}, None, FOUR, None, id="no-weights"),
    ],
)
def test_auto_counts_gpus_else_what_a_cpu_bears(
    options: dict[str, Any], mask: str | None, installed: list[Card], expected: int | None
) -> None:
    env = {} if mask is None else {"CUDA_VISIBLE_DEVICES": mask}
    assert auto_num_workers(run(**options), env, installed, num_cores=24) == expected
    assert auto_num_workers(run(backend="hf"), {}, [], num_cores=2) == 1


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"backend": "hf"}, True), ({"backend": "hf", "device": "cuda:1"}, True), ({"backend": "hf", "device": "mps"}, False),
        ({"backend": "fake"}, False), ({"backend": "fake", "fallback_backend": "hf"}, True), ({"devices": "cpu"}, False),
    ],
    ids=["hf", "hf-on-cuda", "hf-on-mps", "fake", "fallback", "cpu"],
)  # fmt: skip
def test_it_is_known_who_would_use_a_gpu(options: dict[str, Any], expected: bool) -> None:
    assert uses_cards(run(**options)) == expected


def test_cuda_is_looked_at_only_where_torch_is_loaded() -> None:
    assert not cuda_is_initialised({})
    assert not cuda_is_initialised({"torch": SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: False))})
    assert cuda_is_initialised({"torch": SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: True))})
