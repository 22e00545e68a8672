"""The fixed facts of one process's run, known before collection: options, folders, the process's name, and its journal."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from evalharness.config import RunConfig
from evalharness.runs.journal import Journal, journal_name
from evalharness.runs.run_file import utc_now

if TYPE_CHECKING:
    from evalharness.pytest_plugin.distributed.home import Home
    from evalharness.pytest_plugin.replay.resume import Resumption


@dataclass(frozen=True, eq=False)
class RunContext:
    """The fixed facts of one process; `worker` is "main" without xdist, "gw0"… in a worker, "controller" above them."""

    run: RunConfig
    root: Path
    worker: str = "main"
    num_workers: int = 0
    resumed: Resumption | None = None
    """What the run has already, where this session resumes one."""
    cards: tuple[str, ...] | None = None
    """The GPUs that this process was given, as CUDA_VISIBLE_DEVICES names them; None for whatever is visible."""
    home: Home | None = None
    """How this process writes into the run's folder, where that is on another host."""
    started_at: str = field(default_factory=utc_now)
    started_s: float = field(default_factory=time.monotonic)
    """By the monotonic clock, for the duration of the run."""

    @cached_property
    def run_dir(self) -> Path:
        """The folder of the run; of a worker on another host, its own copy of what it needs from there."""
        return self.home.copy if self.home is not None else Path(self.run.report_dir) / self.run.run_id

    @property
    def is_worker(self) -> bool:
        """Whether a controller started this process, and will start another one if it dies."""
        return self.worker not in ("main", "controller")

    @property
    def session_number(self) -> int:
        """Which session of the run this is: 0 began it."""
        return 0 if self.resumed is None else self.resumed.session

    def journal_name(self, worker: str) -> str:
        """Return the name of the journal of one of this session's processes, which also names the process in rows."""
        return journal_name(worker, self.session_number)

    @cached_property
    def journal(self) -> Journal:
        """This process's journal, opened on first use."""
        name = self.journal_name(self.worker)
        return Journal(self.run_dir, name) if self.home is None else self.home.journal(name)

    def close(self) -> None:
        """Close the journal if it was opened; it opens again at its next use."""
        journal = vars(self).pop("journal", None)
        if journal is not None:
            journal.close()
