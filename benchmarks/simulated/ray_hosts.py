"""A Ray cluster whose hosts are processes of this machine, to be killed and added while a run goes on.

python -m benchmarks.simulated.ray_hosts 3 --cpus 1      prints its address, then takes `kill`, `add` and, by its end, nothing more
"""

from __future__ import annotations

import argparse
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]


class RayHosts:
    """The cluster as seen from the process that started it."""

    def __init__(self, process: subprocess.Popen[str], address: str) -> None:
        self._process = process
        self.address = address

    def kill(self) -> None:
        """End a host at once, with all that runs there; not the first, which Ray's own records are on."""
        self._do("kill")

    def add(self) -> None:
        """Start one more host."""
        self._do("add")

    def _do(self, command: str) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{command}\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == f"{command} done\n"


@contextlib.contextmanager
def ray_hosts(num_hosts: int, num_cpus: int) -> Iterator[RayHosts]:
    """Start a cluster that ends with the block."""
    command = [sys.executable, "-m", "benchmarks.simulated.ray_hosts", str(num_hosts), "--cpus", str(num_cpus)]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8"
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        address = ""
        for line in process.stdout:
            if line.startswith("address "):
                address = line.split()[1]
                break
        if not address:
            raise RuntimeError("Ray could not be started here")
        try:
            yield RayHosts(process, address)
        finally:
            process.stdin.close()
            process.wait()


def main(argv: Sequence[str] | None = None) -> None:
    """Run a cluster until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("hosts", type=int, help="Number of hosts")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs that each offers, so many workers at most (default: 1)")
    arguments = parser.parse_args(argv)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import psutil
    from ray.cluster_utils import Cluster

    of_host = {"num_cpus": arguments.cpus, "object_store_memory": 80_000_000}
    cluster = Cluster(initialize_head=True, head_node_args={**of_host, "include_dashboard": False})
    others = [cluster.add_node(**of_host, wait=False) for _ in range(arguments.hosts - 1)]
    cluster.wait_for_nodes()
    print(f"address {cluster.address}", flush=True)
    try:
        for command in sys.stdin:
            if command == "kill\n":
                node = others.pop()
                raylets = [psutil.Process(info.process.pid) for info in node.all_processes["raylet"]]
                below = [child for raylet in raylets for child in raylet.children(recursive=True)]
                cluster.remove_node(node, allow_graceful=False)
                for process in below:  # they would notice its end some time
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.kill()
            elif command == "add\n":
                others.append(cluster.add_node(**of_host))
            print(f"{command.rstrip()} done", flush=True)
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main()
