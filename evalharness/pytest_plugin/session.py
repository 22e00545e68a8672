"""The plugin's state in one pytest session, and where on `config` it is kept."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from evalharness.pytest_plugin.distributed.heartbeat import Heartbeat
from evalharness.pytest_plugin.execution.execution import Execution
from evalharness.pytest_plugin.outcomes import ItemRecord
from evalharness.pytest_plugin.plain_tests import PlainTest
from evalharness.pytest_plugin.progress.showing import Ticker
from evalharness.pytest_plugin.registry import EvalRegistry
from evalharness.pytest_plugin.run_context import RunContext
from evalharness.runs.files import RunLock
from evalharness.runs.measured import DraftFacts
from evalharness.runs.schema import RunFile


class EvalSession:
    """The state of one pytest session: the run, its evals, their execution, and the progress of this process."""

    def __init__(self, context: RunContext, registry: EvalRegistry, execution: Execution) -> None:
        self.context = context
        self.registry = registry
        self.execution = execution
        self.lock: RunLock | None = None
        """Keeps other processes from resuming this run."""
        self.heartbeat: Heartbeat | None = None
        """Tells the controller this worker's signs of life."""
        self.sender: Ticker | None = None
        """Tells the controller how far this worker is."""
        self.current: ItemRecord | None = None
        """The running eval test."""
        self.plain: PlainTest | None = None
        """The running test without a case."""
        self.start: Callable[[], None] = lambda: None
        """Begins the run; called for every engine that is opened, and does nothing if the run has begun or another process begins it."""
        self.is_collected = False
        """Whether the collection came to its end; what it has until then is not what was asked for."""
        self.has_idle_baseline = False
        """Whether there is a baseline, and no gate of this process's tests asks for one."""
        self.has_started_run = False
        self.drafts: DraftFacts | None = None
        """Where --draft-from takes drafts from, in the process that writes run.json."""
        self.run_file_at_start: RunFile = {}

    def close(self) -> None:
        """Stop generating, close the engine that was kept, and close the journal. Idempotent."""
        self.execution.close()
        if self.sender is not None:
            self.sender.stop()
            self.sender = None
        if self.heartbeat is not None:
            self.heartbeat.stop()
            self.heartbeat = None
        self.context.close()


STATE = pytest.StashKey[EvalSession]()
NEW_SESSION = pytest.StashKey[Callable[[Path], EvalSession]]()
"""Makes the session's state from the rootdir where nothing is generated; set before this plugin is configured."""
