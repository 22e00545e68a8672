"""The parts of xdist used beyond its documented hooks: starts of workers, their tests, commands, messages, and why a session ends.

In a worker, xdist is a plugin without a name. It is imported only where it runs. `tests/pytest_plugin/distributed/test_xdist_internals.py`
fails if a release drops a part.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import pytest

_END_OF_QUEUE = object()
_MAX_STARTS = 4
_WAKE_S = 0.5


def _interactor(config: pytest.Config) -> Any:
    """Return the plugin object that xdist registers in this worker."""
    return next(plugin for plugin in config.pluginmanager.get_plugins() if hasattr(plugin, "torun"))


def queued_tests(config: pytest.Config) -> Callable[[], list[int] | None]:
    """Return a function that gives the positions of this worker's queued tests, in order, or None if its end is unchanged.

    Some tests at the front may have run already.
    """
    interactor = _interactor(config)
    last: Any = _END_OF_QUEUE

    def look() -> list[int] | None:
        nonlocal last
        with interactor.torun.lock() as waiting:
            if waiting and waiting[-1] is last:
                return None  # looked through once for each message of the controller: there may be thousands
            queued = [interactor.nextitem_index, *waiting]
        last = queued[-1]
        return [position for position in queued if isinstance(position, int)]

    return look


def on_command(config: pytest.Config, name: str, action: Callable[[Mapping[str, Any]], None]) -> None:
    """Have `action` called with the arguments of a controller's command (`node.sendcommand`) that xdist itself does not know."""
    interactor = _interactor(config)
    others = interactor.handle_command

    def handle(command: Any) -> None:
        if isinstance(command, tuple) and command[0] == name:
            action(command[1])
        else:
            others(command)

    interactor.handle_command = handle


def send_event(config: pytest.Config, name: str, values: Mapping[str, Any]) -> None:
    """Send the controller an event of our own, with plain values; for any thread. It is lost where the controller has gone."""
    with suppress(OSError):
        _interactor(config).sendevent(name, **values)


def send_before_events(config: pytest.Config, flush: Callable[[], None]) -> Callable[..., None]:
    """Have `flush` called before each event that this worker sends, in any thread.

    Returns what sends an event of our own without that, `send(name, **plain values)`. `OSError` where the controller has gone.
    """
    interactor = _interactor(config)
    send: Callable[..., None] = interactor.sendevent

    def flush_and_send(name: str, **values: Any) -> None:
        flush()
        send(name, **values)

    interactor.sendevent = flush_and_send
    return send


def on_events(node: Any, actions: Mapping[str, Callable[[dict[str, Any]], None]]) -> None:
    """Have `actions` take the values of a worker's events of our own; in execnet's thread. Call it before the worker is set up."""
    others = node.process_from_remote

    def process(event: Any) -> None:
        if isinstance(event, tuple) and event[0] in actions:
            actions[event[0]](event[1])
        else:
            others(event)

    node.process_from_remote = process


def stop_reason(config: pytest.Config) -> str | None:
    """Return why the controller ends the session: -x, --maxfail, Ctrl-C or `pytest.exit` in a worker; None if it does not."""
    reason = getattr(config.pluginmanager.get_plugin("dsession"), "shouldstop", False)
    return str(reason) if reason else None


def start_again_what_dies_starting(config: pytest.Config, on_death: Callable[[str], None]) -> None:
    """Have a worker that dies while it starts be started again, a few times; `on_death` is told of each. Call it before the first start.

    xdist replaces workers that have started; before, their end is an error that ends the session.
    """
    from execnet import HostNotFound, RemoteError

    manager = getattr(config.pluginmanager.get_plugin("dsession"), "nodemanager")  # noqa: B009  # as types know no dsession
    start = manager.setup_node

    def setup_node(spec: Any, putevent: Any) -> Any:
        for num_left in reversed(range(_MAX_STARTS)):
            try:
                return start(spec, putevent)
            except (EOFError, OSError, HostNotFound, RemoteError) as error:
                if not num_left:
                    raise pytest.UsageError(
                        f"no worker can be started: {_MAX_STARTS} died while they started, the last with {error!r}"
                    ) from error
                on_death(f"a worker ({spec}) died while it started: {type(error).__name__}; another one is started")
                spec.id = None  # that of the dead one stays taken
        raise AssertionError("unreachable")

    manager.setup_node = setup_node


def kill_worker(node: Any) -> None:
    """End a worker's process at once, wherever it runs."""
    node.gateway._io.kill()


def num_workers_of(config: pytest.Config) -> int:
    """Return how many workers xdist will start."""
    from xdist.workermanage import parse_tx_spec_config

    return len(parse_tx_spec_config(config))


class WorkersFromElsewhere:
    """Workers that xdist does not start itself: `let_in` adds one that has come, and `ask()` is called for one to replace another.

    `look()` is called in the main thread between two events of workers, after each `wake` and now and then. Made before xdist starts any.
    """

    def __init__(self, config: pytest.Config, ask: Callable[[], None], look: Callable[[], None]) -> None:
        self._config = config
        session: Any = config.pluginmanager.get_plugin("dsession")
        self._session = session
        self._manager = session.nodemanager
        self._specs: list[Any] = []
        self._ask = ask
        self._active: set[Any] = session._active_nodes
        self._stop = threading.Event()
        session._clone_node = self._replace
        session.worker_evalharness_look = look

    def begin(self, specs: list[Any]) -> None:
        """Take all specifications from xdist, so that it starts no workers. It waits for those to come."""
        self._specs = list(specs)
        specs.clear()
        self._config.option.tx = ["popen"]  # the first begins
        self._active.add(self)
        threading.Thread(target=self._wake_now_and_then, name="workers-elsewhere", daemon=True).start()

    def wake(self) -> None:
        """Have `look` called; for any thread."""
        self._session.queue.put(("evalharness_look", {}))

    def _wake_now_and_then(self) -> None:
        while not self._stop.wait(_WAKE_S):
            self.wake()

    def _replace(self, node: Any) -> None:
        self._active.add(self)
        self._ask()

    @property
    def is_over(self) -> bool:
        """Whether the session is ending and needs no more workers."""
        return bool(self._session.shuttingdown)

    @property
    def num_up(self) -> int:
        """How many workers are up, or starting."""
        return len(self._active) - (self in self._active)

    def let_in(self, channel_of: Callable[[Any], Any], change: Callable[[Any], None]) -> str | None:
        """Add a worker, at the other end of a channel such as execnet makes; return why it died at once, None if it has not.

        `change` may change the specification that it gets.
        """
        from execnet import RemoteError, XSpec
        from execnet.gateway_bootstrap import HostNotFound, bootstrap

        group = self._manager.group
        spec = self._specs.pop(0) if self._specs else XSpec("execmodel=main_thread_only//popen")
        group.allocate_id(spec)
        change(spec)

        def make_gateway(spec: Any) -> Any:
            gateway = bootstrap(channel_of(group.execmodel), spec)
            gateway.spec = spec
            group._register(gateway)
            return gateway

        group.makegateway = make_gateway
        try:
            self._active.add(self._manager.setup_node(spec, self._session.queue.put))
        except (EOFError, OSError, HostNotFound, RemoteError, AssertionError) as error:
            return f"{type(error).__name__}: {error}"
        return None

    def expect_no_more(self) -> None:
        """Have the session end with its last worker."""
        self._active.discard(self)

    def say(self, line: str) -> None:
        """Print a line."""
        if self._session.terminal:
            self._session.terminal.write_line(line)

    def stop(self) -> None:
        """Wake nobody any more."""
        self._stop.set()
