"""`--executor ray`: workers on the hosts of a Ray cluster, three of them here, which come and go while a run goes on."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.simulated.ray_hosts import RayHosts, ray_hosts
from tests.pytest_plugin.killing import CASES, CONFTEST, EVALS, NUM_CASES, num_lines
from tests.pytest_plugin.project import HEADER, Project
from tests.pytest_plugin.test_random_kills import check

pytest.importorskip("ray", reason="Ray is not installed: pip install 'evalharness[ray]'")


@pytest.fixture(scope="module")
def hosts() -> Iterator[RayHosts]:
    with ray_hosts(3, num_cpus=1) as started:
        yield started


@pytest.fixture
def project(tmp_path: Path) -> Project:
    slower = CONFTEST.replace("0.01", "0.05")
    return Project(tmp_path / "project").write(conftest=slower, **{name: HEADER + CASES + text for name, text in EVALS.items()})


@pytest.mark.slow
def test_a_host_lost_at_random_changes_no_row(project: Project, hosts: RayHosts) -> None:
    calm = project.run("--run-id", "calm", mode="n2")
    assert calm.counts == {"pass": 4 * NUM_CASES - 2, "miss": 2}
    draw = random.Random(7)
    run_dir = project.root / "reports" / "lossy"
    arguments = ("--executor", "ray", "--ray-address", hosts.address, "-n", "3", "--run-id", "lossy")
    with project.start(*arguments, mode="n2") as process:
        while len(list(run_dir.glob("journal/gw*.jsonl"))) < 3 and process.poll() is None:
            time.sleep(0.02)
        moment = draw.randrange(num_lines(run_dir), num_lines(calm.run_dir))
        while num_lines(run_dir) < moment and process.poll() is None:
            time.sleep(0.02)
        hosts.kill()
        run = project.wait(process, run_id="lossy")
    print(run.output)
    check(run, calm)
