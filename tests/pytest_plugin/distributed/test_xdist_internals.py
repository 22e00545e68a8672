"""What `distributed/_xdist_internals.py` uses of xdist's private parts is there; run this after an update of xdist."""

from __future__ import annotations

import importlib
import inspect
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.pytest_plugin.distributed import _xdist_internals as internals

xdist = pytest.importorskip("xdist")

PARTS = [
    ("xdist.dsession", "DSession.worker_errordown"),
    ("xdist.remote", "TestQueue.lock"),
    ("xdist.remote", "WorkerInteractor.handle_command"),
    ("xdist.remote", "WorkerInteractor.sendevent"),
    ("xdist.scheduler", "LoadScheduling"),
    ("xdist.workermanage", "NodeManager.setup_node"),
    ("xdist.workermanage", "WorkerController.process_from_remote"),
    ("xdist.workermanage", "WorkerController.send_runtest_some"),
    ("xdist.workermanage", "WorkerController.sendcommand"),
    ("xdist.workermanage", "WorkerController.shutting_down"),
    ("xdist.workermanage", "parse_tx_spec_config"),
]


def lacks(part: str) -> str:
    """Return what a test says where this xdist has no such part."""
    return f"pytest-xdist {xdist.__version__} has no {part}: mend pytest_plugin/distributed/_xdist_internals.py"


@pytest.mark.parametrize(("module", "part"), PARTS, ids=[part for _, part in PARTS])
def test_a_part_that_the_plugin_uses_is_there(module: str, part: str) -> None:
    value: Any = importlib.import_module(module)
    for name in part.split("."):
        value = getattr(value, name, None)
        assert value is not None, lacks(f"{module}.{part}")


def test_the_queue_of_a_worker_can_be_read_under_its_lock() -> None:
    from xdist.remote import TestQueue, WorkerInteractor

    for name in ("self.torun = ", "self.nextitem_index = "):
        assert name in inspect.getsource(WorkerInteractor), lacks(f"remote.WorkerInteractor.{name.split()[0].removeprefix('self.')}")
    queue = TestQueue(threading)
    queue.put(4)
    queue.put(5)
    interactor = SimpleNamespace(torun=queue, nextitem_index=3)
    look = internals.queued_tests(config_with(interactor))
    assert look() == [3, 4, 5]
    assert look() is None, "nothing came in"
    queue.put(6)
    interactor.nextitem_index = queue.get()
    assert look() == [4, 5, 6]


def config_with(interactor: object) -> Any:
    return SimpleNamespace(pluginmanager=SimpleNamespace(get_plugins=lambda: [object(), interactor]))


def test_a_command_of_ours_does_not_reach_xdist_and_all_others_do() -> None:
    theirs: list[Any] = []
    interactor = SimpleNamespace(torun=None, handle_command=theirs.append)
    ours: list[Any] = []
    internals.on_command(config_with(interactor), "stop", ours.append)
    interactor.handle_command(("stop", {"reason": "why"}))
    interactor.handle_command(("runtests", {"indices": [1]}))
    interactor.handle_command("end marker")
    assert (ours, theirs) == ([{"reason": "why"}], [("runtests", {"indices": [1]}), "end marker"])


def test_an_event_of_ours_does_not_reach_xdist_and_all_others_do() -> None:
    from xdist.remote import WorkerInteractor
    from xdist.workermanage import WorkerController

    assert "channel.setcallback(self.handle_command" in inspect.getsource(WorkerInteractor), lacks("a handler that can be replaced")
    setup = inspect.getsource(WorkerController.setup)
    assert setup.index("pytest_configure_node") < setup.index("setcallback(self.process_from_remote"), lacks("a callback set late")
    theirs: list[Any] = []
    node = SimpleNamespace(process_from_remote=theirs.append)
    ours: list[Any] = []
    internals.on_events(node, {"ours": ours.append})
    interactor = SimpleNamespace(torun=None, sendevent=lambda name, **values: node.process_from_remote((name, values)))
    internals.send_event(config_with(interactor), "ours", {"a": 1})
    node.process_from_remote(("logstart", {"nodeid": "x"}))
    node.process_from_remote("end marker")
    assert (ours, theirs) == ([{"a": 1}], [("logstart", {"nodeid": "x"}), "end marker"])


def test_the_controller_says_why_it_ends_a_session_and_kills_a_worker() -> None:
    from execnet.gateway_io import Popen2IOMaster
    from xdist.dsession import DSession

    assert "self.shouldstop" in inspect.getsource(DSession), lacks("dsession.DSession.shouldstop")
    for reason, expected in (("stopping after 1 failures", "stopping after 1 failures"), (False, None)):
        session = SimpleNamespace(shouldstop=reason)
        config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda name, session=session: session))
        assert internals.stop_reason(config) == expected
    assert hasattr(Popen2IOMaster, "kill"), lacks("worker that can be killed (execnet's Popen2IOMaster.kill)")
    killed: list[bool] = []
    internals.kill_worker(SimpleNamespace(gateway=SimpleNamespace(_io=SimpleNamespace(kill=lambda: killed.append(True)))))
    assert killed == [True]


class Starting:
    """A node manager whose first workers die while they start."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.ids: list[str | None] = []

    def setup_node(self, spec: Any, putevent: Any) -> str:
        self.ids.append(spec.id)
        spec.id = spec.id or f"gw{len(self.ids)}"
        if self.errors:
            raise self.errors.pop(0)
        return "node"


def starting(*errors: Exception) -> tuple[Starting, list[str]]:
    manager, deaths = Starting(*errors), []
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda name: SimpleNamespace(nodemanager=manager)))
    internals.start_again_what_dies_starting(config, deaths.append)
    return manager, deaths


@pytest.mark.parametrize("error", [EOFError("couldn't load message header"), BrokenPipeError(), OSError("cannot send")], ids=repr)
def test_a_worker_that_dies_while_it_starts_is_started_again_under_another_id(error: Exception) -> None:
    manager, deaths = starting(error, error)
    assert manager.setup_node(SimpleNamespace(id="gw7"), None) == "node"
    assert manager.ids == ["gw7", None, None]
    assert len(deaths) == 2


def test_workers_that_all_die_while_they_start_end_the_session_with_a_reason() -> None:
    manager, deaths = starting(*[EOFError()] * 9)
    with pytest.raises(pytest.UsageError, match="no worker can be started: 4 died while they started, the last with EOFError"):
        manager.setup_node(SimpleNamespace(id=None), None)
    assert len(deaths) == 3


def test_another_error_at_a_start_is_left_alone() -> None:
    manager, _ = starting(ValueError("a hook is broken"))
    with pytest.raises(ValueError, match="a hook is broken"):
        manager.setup_node(SimpleNamespace(id=None), None)
