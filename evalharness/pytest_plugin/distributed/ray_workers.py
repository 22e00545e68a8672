"""`--executor ray`: xdist's workers on the hosts of a Ray cluster, as Ray places them.

Workers join whenever Ray has found room for them: the first begins the run, others come when a host is free or newly started. For one
that has died or was lost another is asked for, which may come at once, later or never; the others do the work meanwhile. All else is as
with workers on this host; `_xdist_internals.WorkersFromElsewhere` gets them into xdist.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import pytest

from evalharness.api.errors import ConfigError
from evalharness.api.redaction import redactor
from evalharness.config import RunConfig
from evalharness.config.checks import possible_backends
from evalharness.hardware.devices import CORES_PER_WORKER, MASK, cards_per_engine, spans_hosts, uses_cards
from evalharness.pytest_plugin.distributed._xdist_internals import WorkersFromElsewhere, on_events
from evalharness.pytest_plugin.distributed.home import FILES, TAKE, HomeFiles, recorded_files, takeover_files
from evalharness.pytest_plugin.distributed.ray_cluster import Cluster, Needs
from evalharness.pytest_plugin.distributed.ray_hosts import Host, WorkerChannel
from evalharness.pytest_plugin.execution.units import UnitKey
from evalharness.pytest_plugin.outcomes import CANNOT_GO_ON
from evalharness.pytest_plugin.session import STATE

CLUSTER = pytest.StashKey[Cluster]()
_TELL_S = 30.0
_WAIT_S = 600.0
"""So long a cluster may be without any worker before the session ends: autoscalers take minutes to start a host."""
_MAX_FAILED_STARTS = 4
_LAST_WORDS_S = 2.0


def cluster_of(config: pytest.Config, run: RunConfig, num_workers: int = 0) -> Cluster:
    """Return the session's cluster, connected on first use; a wrong address is a usage error."""
    if CLUSTER not in config.stash:
        try:
            config.stash[CLUSTER] = Cluster(run.ray_address, num_workers)
        except ConfigError as error:
            raise pytest.UsageError(redactor().text(str(error))) from error
    return config.stash[CLUSTER]


def needs_of(run: RunConfig, cluster: Cluster) -> Needs:
    """Return what a worker of the run needs. Raises `ConfigError`."""
    if run.devices not in (None, "cpu"):
        raise ConfigError(f"--devices {run.devices} names GPUs of this host, but with --executor ray Ray places workers; leave it out")
    if run.share_devices:
        raise ConfigError("--share-devices does not work with --executor ray, which gives each worker GPUs of its own; leave it out")
    if spans_hosts(run):
        if run.distributed_executor_backend != "ray":
            raise ConfigError("with --executor ray, an engine spans hosts by --distributed-executor-backend ray alone")
        return Needs(1, 0, int(run.tensor_parallel_size) * int(run.pipeline_parallel_size))
    if uses_cards(run) and cluster.total("GPU"):
        return Needs(1, cards_per_engine(run))
    real, hides_gpus = {*possible_backends(run)} - {"fake", "openai"}, run.devices == "cpu"
    if not real or cluster.num_own:
        return Needs(hides_gpus=hides_gpus)
    most = max(int(node.get("CPU", 1)) for node in cluster.alive())
    return Needs(most if real == {"vllm"} else min(most, CORES_PER_WORKER), hides_gpus=hides_gpus)


def auto_num_workers(run: RunConfig, cluster: Cluster) -> int:
    """Return as many workers as the cluster's hosts have room for now. Raises `ConfigError`."""
    needs = needs_of(run, cluster)
    if needs.num_places:
        return max(1, int(cluster.total("GPU")) // needs.num_places)
    wanted = [(name, num) for name, num in (("CPU", needs.num_cpus), ("GPU", needs.num_gpus)) if num]
    return max(1, sum(int(min(node.get(name, 0) // num for name, num in wanted)) for node in cluster.alive()))


class RayWorkers:
    """The session's workers in a cluster. What is called in other threads says so."""

    def __init__(self, config: pytest.Config, on_problem: Callable[[str], None]) -> None:
        self._state = config.stash[STATE]
        self._context = context = self._state.context
        self._cluster = cluster_of(config, context.run, context.num_workers)
        try:
            self._needs = needs_of(context.run, self._cluster)
        except ConfigError as error:
            raise pytest.UsageError(str(error)) from error
        if self._cluster.num_own and not self._cluster.could_hold(self._needs):
            raise pytest.UsageError(f"each worker needs {self._needs}, more than this host has; give --ray-address, or other options")
        self._on_problem = on_problem
        self._num_awaited = 0
        self._num_failed = 0
        self._workers = WorkersFromElsewhere(config, ask=self._ask, look=self._look)
        self._files = HomeFiles(context.run_dir, self._note_failure)
        self._failure: str | None = None
        self._idle_since_s = self._told_s = time.monotonic()

    @property
    def num_expected(self) -> int:
        """How many workers there are, those that were asked for and have not come included."""
        return self._num_awaited + self._workers.num_up

    def begin(self, specs: list[Any]) -> None:
        """Ask for all workers; xdist starts none."""
        self._workers.begin(specs)
        self._cluster.on_change = self._workers.wake
        for _ in range(self._context.num_workers):
            self._ask()

    def _ask(self) -> None:
        self._num_awaited += 1
        self._cluster.ask(self._needs)

    def _look(self) -> None:
        """Let workers in that have connected, note those that could not start, and end a session that waits in vain."""
        if self._failure is not None:
            self._give_up(self._failure)
        while (host := self._cluster.arrived()) is not None:
            self._num_awaited -= 1
            if self._workers.is_over:
                host.kill()
            else:
                self._let_in(host)
        while (host := self._cluster.failed()) is not None:
            self._num_awaited -= 1
            self._note_failed_start(f"a worker could not start on {host.address or 'its host'}: {host.problem}")
        if self._workers.is_over or not self._num_awaited:
            self._workers.expect_no_more()
        self._look_at_clock()

    def _let_in(self, host: Host) -> None:
        def change(spec: Any) -> None:
            spec.env.pop(MASK, None)
            if (self._needs.num_gpus or self._needs.hides_gpus) and host.cards is not None:
                spec.env[MASK] = host.cards

        problem = self._workers.let_in(lambda execmodel: WorkerChannel(host, execmodel), change)
        if problem is None:
            self._num_failed = 0
        else:
            host.is_over.wait(_LAST_WORDS_S)
            host.kill()
            self._note_failed_start(f"a worker died while it started on {host.address}: {host.problem or problem}")

    def say(self, line: str) -> None:
        """Print a line."""
        self._workers.say(line)

    def _note_failed_start(self, problem: str) -> None:
        self._num_failed += 1
        self.say(f"evalharness: {problem}")
        self._on_problem(problem)
        if self._num_failed < _MAX_FAILED_STARTS:
            self._ask()
        elif not self._workers.num_up:
            self._give_up(f"no worker can be started: {_MAX_FAILED_STARTS} could not, the last because {problem}")

    def _look_at_clock(self) -> None:
        now = time.monotonic()
        if self._workers.num_up or self._workers.is_over:
            self._idle_since_s = self._told_s = now
        elif now - self._idle_since_s > _WAIT_S and not self._cluster.could_hold(self._needs):
            self._give_up(
                f"no host of the Ray cluster has what a worker needs ({self._needs}), and none came in {_WAIT_S:g} s; see `ray status`"
            )
        elif now - self._told_s > _TELL_S:
            self._told_s = now
            there = f"{len(self._cluster.alive())} hosts, in all {self._cluster.total('CPU'):g} CPU and {self._cluster.total('GPU'):g} GPU"
            self._workers.say(f"evalharness: waits for Ray to find room for a worker, which needs {self._needs}; the cluster has {there}")

    def _give_up(self, problem: str) -> NoReturn:
        if self._state.has_started_run:
            raise pytest.Session.Interrupted(f"{CANNOT_GO_ON}: {problem}")
        raise pytest.UsageError(redactor().text(problem))

    def _note_failure(self, problem: str) -> None:
        self._failure = problem  # in another thread
        self._workers.wake()

    def configure(self, node: Any) -> dict[str, Any]:
        """Return what a worker is told of being elsewhere, and take the files that it sends."""
        on_events(node, {FILES: self._files.take})
        node.workerinput["workercount"] = self._context.num_workers
        context = self._context
        return {"recorded": recorded_files(context.run_dir, context.session_number, node.gateway) if context.session_number else {}}

    def hand_over(self, node: Any, unit: UnitKey) -> None:
        """Give a worker what has been done of a unit."""
        context = self._context
        if files := takeover_files(context.run_dir, unit, context.session_number, context.journal_name):
            with suppress(OSError):  # it has just died
                node.sendcommand(TAKE, files=files)

    def how_it_ended(self, node: Any) -> tuple[str, bool]:
        """Return how a worker ended, and whether it was lost with its host."""
        channel: WorkerChannel = node.gateway._io
        return channel.host.how_it_ended()

    def close(self) -> None:
        """Wait for no more workers."""
        self._workers.stop()

    def ended(self, node: Any) -> None:
        """Let go of what a worker that has ended had."""
        self._files.ended(self._context.journal_name(node.gateway.id))


def close_cluster(config: pytest.Config) -> None:
    """Disconnect from the session's cluster, if there is one."""
    if CLUSTER in config.stash:
        config.stash[CLUSTER].close()
