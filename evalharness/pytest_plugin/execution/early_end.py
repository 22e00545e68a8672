"""Ends a test of an eval whose first cases all end in the same error: the others would too, and cost hours or money. Ends an eval, too,
that --until-certain has decided.

What counts is how tests end, so after all that retries: a server's, of a worker that died, of a plugin that runs tests again.
"""

from __future__ import annotations

import pytest

from evalharness.analysis.reasons import normalised
from evalharness.pytest_plugin.outcomes import ItemRecord
from evalharness.runs.partial import NOT_ASKED
from evalharness.runs.samples import NOT_RUN

NUM_FIRST = 16
"""An eval of no more cases is always asked whole. With fewer, the first cases may be alike by chance: of one kind, from one folder."""


class EarlyEnds:
    """Which tests of evals, each on its engine, have ended in this process, and why. Unless it `is_on`, none does."""

    def __init__(self, *, is_on: bool) -> None:
        self._is_on = is_on
        self._first: dict[tuple[str, str, str], dict[str, str] | None] = {}
        """Reasons of a test's first cases; None once one has another, or was judged."""
        self._ended: dict[tuple[str, str, str], str] = {}
        self._decided: dict[tuple[str, str], str] = {}
        """Why an eval needs no more cases on an engine, by engine and path."""
        self._left_out: str | None = None

    def end(self, engine: str, path: str, why: str) -> None:
        """Ask no more cases of an eval on an engine: it is decided."""
        self._decided[engine, path] = why

    def note(self, record: ItemRecord) -> None:
        """Note how a test ended; one that was skipped, or whose case could not be asked, says nothing."""
        first = self._first.setdefault(_key(record), {})
        if not self._is_on or first is None or record.outcome in ("skip", "invalid"):
            return
        reason = normalised(record.problem or "", (record.case.id, record.case.group)) if record.outcome == "error" else None
        if reason is None or any(reason != other for other in first.values()):
            self._first[_key(record)] = None
            return
        first[record.case.id] = reason
        if len(first) == NUM_FIRST:
            self._ended[_key(record)] = f"the first {NUM_FIRST} cases all ended in the same error (--keep-going asks the rest)"

    def leaves_out(self, record: ItemRecord) -> bool:
        """Return whether a test that is about to begin is not to run, as its record then says; nothing of it is set up."""
        path, _, engine = _key(record)
        decided, ended = self._decided.get((engine, path)), self._ended.get(_key(record))
        why = f"{NOT_ASKED}{decided}" if decided is not None else f"{NOT_RUN}{ended}" if ended is not None else None
        if why is not None:
            record.outcome, record.problem, record.started_at = "skip", why, None
        self._left_out = record.problem if why is not None else None
        return why is not None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        """Skip such a test in place of pytest's own setup: around it, other plugins do what they undo at the end."""
        if self._left_out is not None:
            problem, self._left_out = self._left_out, None
            pytest.skip(problem)


def _key(record: ItemRecord) -> tuple[str, str, str]:
    return record.nodeid.partition("::")[0], record.test, record.engine.id
