"""What a worker in a Ray cluster needs, and how many there are; no cluster is started."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import ConfigError
from evalharness.config import resolve
from evalharness.pytest_plugin.distributed.ray_cluster import Needs
from evalharness.pytest_plugin.distributed.ray_hosts import Host
from evalharness.pytest_plugin.distributed.ray_workers import auto_num_workers, needs_of

GPU_HOSTS = [{"CPU": 64.0, "GPU": 8.0}, {"CPU": 64.0, "GPU": 8.0}, {"CPU": 16.0}]
CPU_HOSTS = [{"CPU": 16.0}, {"CPU": 20.0}]


class Cluster:
    """The resources of a cluster's hosts."""

    num_own = 0

    def __init__(self, hosts: list[dict[str, float]]) -> None:
        self._hosts = hosts

    def alive(self) -> list[dict[str, float]]:
        return self._hosts

    def total(self, name: str) -> float:
        return sum(host.get(name, 0) for host in self._hosts)


def asked(tmp_path: Path, backend: str, **options: Any) -> Any:
    return resolve({"backend": [backend], "model": ["x"], "executor": "ray", **options}, {}, tmp_path)


@pytest.mark.parametrize(
    ("hosts", "backend", "options", "needs", "num_workers"),
    [
        (GPU_HOSTS, "vllm", {}, Needs(1, 1), 16),
        (GPU_HOSTS, "vllm", {"tensor_parallel_size": "4"}, Needs(1, 4), 4),
        (GPU_HOSTS, "vllm", {"tensor_parallel_size": "3"}, Needs(1, 3), 4),
        (GPU_HOSTS, "hf", {"devices": "cpu"}, Needs(8, hides_gpus=True), 18),
        (GPU_HOSTS, "fake", {}, Needs(1), 144),
        (GPU_HOSTS, "vllm", {"tensor_parallel_size": "8", "distributed_executor_backend": "ray"}, Needs(1, 0, 8), 2),
        (CPU_HOSTS, "hf", {}, Needs(8), 4),
        (CPU_HOSTS, "vllm", {}, Needs(20), 1),
    ],
    ids=["a-gpu-each", "four-gpus-each", "not-across-hosts", "cpu-on-purpose", "no-weights", "across-hosts", "cpu", "all-cores"],
)
def test_each_worker_gets_what_its_engine_needs(
    tmp_path: Path, hosts: list[dict[str, float]], backend: str, options: dict[str, Any], needs: Needs, num_workers: int
) -> None:
    run, cluster = asked(tmp_path, backend, **options), Cluster(hosts)
    assert (needs_of(run, cluster), auto_num_workers(run, cluster)) == (needs, num_workers)


@pytest.mark.parametrize("options", [{"devices": "gpu:1"}, {"share_devices": True}], ids=["devices", "share"])
def test_options_that_place_workers_on_this_host_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="with --executor ray"):
        needs_of(asked(tmp_path, "hf", **options), Cluster(GPU_HOSTS))


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"exit_status": -9}, ("died on 10.0.0.2 (SIGKILL)", False)),
        ({"exit_status": 1, "problem": "ImportError: no torch"}, ("died on 10.0.0.2 (exit code 1: ImportError: no torch)", False)),
        ({"exit_status": -99}, ("died on 10.0.0.2 (exit code -99)", False)),
        ({"problem": "the node has gone"}, ("was lost with its host 10.0.0.2", True)),
        ({"was_killed": True}, ("was killed on 10.0.0.2", False)),
    ],
    ids=["signal", "last-words", "odd-signal", "lost", "killed-by-us"],
)
def test_it_is_said_how_a_worker_ended_and_whether_its_host_is_lost(facts: dict[str, Any], expected: tuple[str, bool]) -> None:
    host = Host(0, None, None, address="10.0.0.2", **facts)
    host.is_over.set()
    assert host.how_it_ended() == expected
