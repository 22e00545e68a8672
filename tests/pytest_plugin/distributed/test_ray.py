"""`--executor ray`: workers on the hosts of a Ray cluster, of which one comes and one is lost while a run goes on."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.simulated.ray_hosts import RayHosts, ray_hosts
from tests.pytest_plugin.killing import CASES, CONFTEST, EVALS, NUM_CASES, num_lines
from tests.pytest_plugin.project import HEADER, TIMEOUT_S, Project, wait_until
from tests.pytest_plugin.test_random_kills import check

pytest.importorskip("ray", reason="Ray is not installed: pip install 'evalharness[ray]'")
pytestmark = pytest.mark.slow

KILLED_ONCE = """
import os, signal
def killed(self, prompt, plugins, *_):
    try:
        os.rename("lost", "killed")
        os.kill(os.getpid(), signal.SIGKILL)
    except FileNotFoundError:
        pass  # no host has been lost, or another worker was killed
    return slow(self, prompt, plugins)

FakeBackend._complete = killed
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[RayHosts]:
    with ray_hosts(2, num_cpus=1) as started:
        yield started


@pytest.fixture(autouse=True)
def starts_ray(request: pytest.FixtureRequest) -> None:
    """Note what .ci/require_ran.py looks for."""
    request.node.user_properties.append(("starts", "ray"))


@pytest.fixture
def project(tmp_path: Path) -> Project:
    slower = CONFTEST.replace("0.01", "0.12") + KILLED_ONCE
    return Project(tmp_path / "project").write(conftest=slower, **{name: HEADER + CASES + text for name, text in EVALS.items()})


def test_a_new_host_takes_part_and_one_lost_at_random_and_a_killed_worker_change_no_row(project: Project, hosts: RayHosts) -> None:
    calm = project.run("--run-id", "calm")
    assert calm.counts == {"pass": 4 * NUM_CASES - 2, "miss": 2}
    run_dir = project.root / "reports" / "lossy"
    options = ("--executor", "ray", "--ray-address", hosts.address, "-n", "3", "--run-id", "lossy")
    with project.start(*options, mode="xdist") as process:
        wait_until(lambda: list(run_dir.glob("journal/gw*.jsonl")) or process.poll() is not None)
        hosts.add()
        wait_until(lambda: (run_dir / "journal" / "gw2.jsonl").exists() or process.poll() is not None)
        moment = num_lines(run_dir) + random.Random(7).randrange(10)
        while num_lines(run_dir) < moment and process.poll() is None:
            time.sleep(0.02)
        hosts.kill()
        (project.root / "lost").touch()
        run = project.wait(process, run_id="lossy")
    check(run, calm)
    problems = "\n".join(run.facts["problems"])
    assert " was lost with its host " in problems
    assert " (SIGKILL) while " in problems


SPANNING = """
import contextlib, json, socket, struct, sys, time
import ray
from evalharness.backends import PLACEMENT_GROUP
from evalharness.pytest_plugin.distributed.ray_cluster import Cluster, Needs

cluster = Cluster(sys.argv[1], 1)
told = json.dumps({"token": "0" * 64, "number": 0}).encode()
for said in (b"GET / HTTP/1.0\\r\\n\\r\\n", struct.pack("!I", 2) + b"[]", struct.pack("!I", len(told)) + told, struct.pack("!I", 1 << 30)):
    with socket.create_connection(cluster._listener.getsockname()) as stranger, contextlib.suppress(ConnectionResetError):
        stranger.sendall(said)
        assert stranger.recv(1) == b"", "it is turned away"
cluster.ask(Needs(0, 0, 2))
while (host := cluster.arrived()) is None:
    assert cluster.failed() is None
    time.sleep(0.05)
code = f"import os, sys; sys.stdout.write(os.environ[{PLACEMENT_GROUP!r}])"
host.connection.sendall(repr(code).encode() + b"\\n")
assert host.connection.makefile("rb").read().decode() == host.group.id.hex()
places = ray.util.placement_group_table(host.group)["bundles_to_node_id"]
print(len(set(places.values())), host.how_it_ended(), cluster.total("CPU"))
cluster.close()
"""


def test_an_engine_that_spans_hosts_gets_places_on_several_of_them_and_strangers_are_turned_away(hosts: RayHosts) -> None:
    done = subprocess.run([sys.executable, "-c", SPANNING, hosts.address], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    # Ray prints here, too, that the host which the test before killed is dead.
    assert any(line.startswith("2 ('died on ") for line in done.stdout.splitlines()), done.stdout + done.stderr
