"""Has Ray place workers on the hosts of a cluster, and connects them with this process.

An actor (`ray_hosts.py`) reserves what a worker needs and starts its process. Whoever connects must know a secret that only actors get, for
what connects is taken for a worker.

Knows nothing about pytest. Ray is imported only where a cluster is used.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import signal
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.api.installing import missing_package
from evalharness.backends import PLACEMENT_GROUP
from evalharness.hardware.devices import MASK
from evalharness.pytest_plugin.distributed.ray_hosts import START, STARTED, Host, actor_class

_HELLO_S, _START_S = 10.0, 300.0
_MAX_HELLO_BYTES = 1 << 16
_LOOK_S = 0.5
_OF_HOST = ("RAY_", "SLURM_", "KUBERNETES_", MASK, "HOSTNAME")
"""Variables, by how they begin, that say something about one host or job."""


@dataclass(frozen=True)
class Needs:
    """What Ray reserves for each worker."""

    num_cpus: float = 1
    num_gpus: int = 0
    num_places: int = 0
    """For an engine that spans hosts: so many GPUs, wherever they are, one of them where the worker is. The engine fills them."""
    hides_gpus: bool = False
    """Whether the worker is to see none, whatever its host has."""

    def __str__(self) -> str:
        on_any = f" and {self.num_places} GPU on any hosts" if self.num_places else ""
        return f"{self.num_cpus:g} CPU" + (f" and {self.num_gpus} GPU" if self.num_gpus else on_any)


class Cluster:
    """A connection to a Ray cluster, and the workers that were asked of it.

    `on_change()` is called, in other threads, when a worker has connected or one has ended.
    """

    def __init__(self, address: str | None, num_workers: int) -> None:
        try:
            import ray
        except ImportError as error:
            raise ConfigError(missing_package("--executor ray", error, "ray")) from error
        self._ray = ray
        if address is not None and address.startswith("ray://"):
            raise ConfigError(
                f"--ray-address {address} is Ray's client, through which workers cannot connect with the controller; start pytest on a "
                "host of the cluster, such as by `ray job submit`, and leave the address out"
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        self.num_own = 0
        """How many workers a cluster that was started here has room for, whatever they need; 0 of any other."""
        self._connect(address, num_workers)
        self.on_change: Callable[[], None] = lambda: None
        self.hosts: dict[int, Host] = {}
        self._arrived: deque[Host] = deque()
        self._failed: deque[Host] = deque()
        self._token = secrets.token_hex(32)
        self._actor = ray.remote(actor_class())
        self._listener = socket.create_server((ray.util.get_node_ip_address(), 0), backlog=256)
        self._is_closed = threading.Event()
        self._threads = [
            threading.Thread(target=self._accept, name="ray-arrivals", daemon=True),
            threading.Thread(target=self._look, name="ray-ends", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _connect(self, address: str | None, num_workers: int) -> None:
        ray = self._ray
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
        on_sigterm = signal.getsignal(signal.SIGTERM)
        try:
            if address not in (None, "local"):
                _check_reachable(address)
                ray.init(address=address, **quiet)
                return
            if address is None:
                with suppress(ConnectionError):
                    ray.init(address="auto", **quiet)
                    return
            # One's own may have as many processes as the user asks for, as with xdist.
            num_cpus = max(os.cpu_count() or 1, num_workers)
            ray.init(address="local", num_cpus=num_cpus, include_dashboard=False, **quiet)
            self.num_own = num_workers
        except (OSError, ValueError, RuntimeError) as error:
            where = "no Ray cluster could be started here" if address in (None, "local") else f"there is no Ray cluster at {address}"
            raise ConfigError(f"{where}: {error}; see --ray-address, and `ray status`") from error
        finally:
            if signal.getsignal(signal.SIGTERM) is not on_sigterm:
                signal.signal(signal.SIGTERM, on_sigterm)  # Ray's own would end the process, whatever goes on

    def total(self, resource: str) -> float:
        """Return how much of a resource the cluster's hosts have, in use or not."""
        return float(self._ray.cluster_resources().get(resource, 0))

    def alive(self) -> list[Mapping[str, float]]:
        """Return the resources of each host."""
        return [node["Resources"] for node in self._ray.nodes() if node["Alive"]]

    def could_hold(self, needs: Needs) -> bool:
        """Return whether the hosts have what a worker needs, were they idle."""
        if needs.num_places:
            return self.total(self._place) >= needs.num_places
        return any(node.get("CPU", 0) >= needs.num_cpus and node.get("GPU", 0) >= needs.num_gpus for node in self.alive())

    def ask(self, needs: Needs) -> None:
        """Ask for one more worker. It connects when Ray has found room for it."""
        number, group = len(self.hosts), None
        host, port = self._listener.getsockname()[:2]
        options: dict[str, Any] = {"num_cpus": needs.num_cpus, "num_gpus": needs.num_gpus, "max_restarts": 0, "max_task_retries": 0}
        if needs.num_places:
            places = [{self._place: 1.0} for _ in range(needs.num_places)]
            places[0]["CPU"] = places[0].get("CPU", 0.0) + needs.num_cpus
            group = self._ray.util.placement_group(places, strategy="PACK")
            strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
            options["scheduling_strategy"] = strategy(group, placement_group_bundle_index=0)
        actor = self._actor.options(**options).remote(host, port, self._token, number, START, STARTED)
        self._needs = needs
        self.hosts[number] = Host(number, actor, actor.wait.remote(), group)

    @property
    def _place(self) -> str:
        """What an engine that spans hosts takes one of per process: GPUs, or CPUs where there are none."""
        return "GPU" if self.total("GPU") else "CPU"

    def arrived(self) -> Host | None:
        """Return a worker that has connected, once; None if there is none."""
        return self._arrived.popleft() if self._arrived else None

    def failed(self) -> Host | None:
        """Return a worker that ended before it connected, once; None if there is none."""
        return self._failed.popleft() if self._failed else None

    def _accept(self) -> None:
        while not self._is_closed.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed, or out of descriptors for now
                self._is_closed.wait(_LOOK_S)
                continue
            threading.Thread(target=self._welcome, args=(connection,), name="ray-arrival", daemon=True).start()

    def _welcome(self, connection: socket.socket) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError, struct.error):
            self._greet(connection)
            return
        connection.close()

    def _greet(self, connection: socket.socket) -> None:
        connection.settimeout(_HELLO_S)
        facts = json.loads(_receive(connection))
        if not hmac.compare_digest(str(facts["token"]), self._token):
            raise ValueError("a stranger")
        host = self.hosts[facts["number"]]
        host.address, host.cards = str(facts["address"]), "" if self._needs.hides_gpus else facts["cards"]
        own = {"OMP_NUM_THREADS": str(self._num_threads(facts["node"])), **({MASK: ""} if self._needs.hides_gpus else {})}
        if host.group is not None:
            own |= {PLACEMENT_GROUP: host.group.id.hex(), "RAY_ADDRESS": self._ray.get_runtime_context().gcs_address}
        told = {
            "folder": os.getcwd(),
            "environment": {name: value for name, value in os.environ.items() if not name.startswith(_OF_HOST)},
            "own": own,
        }
        content = json.dumps(told).encode("ascii")
        connection.sendall(struct.pack("!I", len(content)) + content)
        connection.settimeout(_START_S)
        if connection.recv(1) != STARTED:
            raise ConnectionError("its process has ended")  # its actor says why
        connection.settimeout(None)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        host.connection = connection
        self._arrived.append(host)
        self.on_change()

    def _num_threads(self, node_id: str) -> int:
        """Return a worker's share of its host's cores."""
        resources: Mapping[str, float] = next((node["Resources"] for node in self._ray.nodes() if node["NodeID"] == node_id), {})
        cores = resources.get("CPU", 1)
        if self.num_own:
            return max(1, (os.cpu_count() or 1) // self.num_own)
        if not self._needs.num_gpus:
            return max(1, int(self._needs.num_cpus))
        return max(1, int(cores * self._needs.num_gpus / max(1, resources.get("GPU", 1))))

    def _look(self) -> None:
        while not self._is_closed.wait(_LOOK_S):
            running = {host.ended: host for host in list(self.hosts.values()) if not host.is_over.is_set()}
            if not running:
                continue
            done, _ = self._ray.wait(list(running), num_returns=len(running), timeout=0)
            for ended in done:
                self._note_end(running[ended])
            if done:
                self.on_change()

    def _note_end(self, host: Host) -> None:
        try:
            host.exit_status, host.problem = self._ray.get(host.ended)
        except Exception as error:  # Ray's own, or what its code raised
            lines = [line for line in str(error).splitlines() if line.strip()]
            host.problem = lines[-1].strip() if lines else type(error).__name__
        host.kill()  # gives back what it reserved
        host.hang_up()
        host.is_over.set()
        if host.connection is None:
            self._failed.append(host)

    def close(self) -> None:
        """End all workers and disconnect; a cluster that was started here ends. Idempotent."""
        if self._is_closed.is_set():
            return
        self._is_closed.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()
        for host in self.hosts.values():
            if not host.is_over.is_set():
                host.kill()
            if host.connection is not None:
                host.connection.close()
        self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise `OSError` where nobody listens at HOST:PORT, for whom Ray would wait minutes; `ValueError` for anything but such an address."""
    host, colon, port = address.rpartition(":")
    if address == "auto":
        return
    if not (colon and port.isdecimal()):
        raise ValueError(f"{address!r} is not HOST:PORT")
    socket.create_connection((host.strip("[]"), int(port)), timeout=_HELLO_S).close()


def _receive(connection: socket.socket) -> bytes:
    """Return one message with its length before it."""
    with connection.makefile("rb", buffering=0) as file:
        (num_bytes,) = struct.unpack("!I", file.read(4))
        if num_bytes > _MAX_HELLO_BYTES:
            raise ValueError("a stranger")
        received = b""
        while len(received) < num_bytes:
            part = file.read(num_bytes - len(received))
            if not part:
                raise ConnectionError("hung up")
            received += part
        return received
