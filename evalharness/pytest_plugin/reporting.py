"""From reports to counts: each phase of an eval test goes into its record, and the reporting process hears of the outcome."""

from __future__ import annotations

import copy
from collections.abc import Generator
from typing import Any

import pytest

from evalharness.errors import RecordError
from evalharness.pytest_plugin.fixtures import stop_for
from evalharness.pytest_plugin.outcomes import ItemRecord, note_report, shorten
from evalharness.pytest_plugin.progress import Progress
from evalharness.pytest_plugin.safe_reports import make_safe
from evalharness.pytest_plugin.session import STATE

CONTROLLER_NAMES = ("main", "controller")
"""What a process that reports is called; all others are workers."""


class Reporting:
    """What the reporting process collects from reports: misses, crashed tests, the live line, the finished run."""

    def __init__(self) -> None:
        self.misses: list[tuple[str, str, str]] = []
        self.crashes: dict[str, str] = {}
        self.put_back: dict[str, str] = {}
        """Tests that a worker died in and that are to run once more; those still here at the end never did."""
        self.progress: Progress | None = None
        self.run: dict[str, Any] | None = None
        self.problem: str | None = None
        self.interrupted: str | None = None
        self.summary = ""


REPORTING = pytest.StashKey[Reporting]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note each phase in the test's record; after the last one, write its row."""
    report = yield
    state = item.config.stash[STATE]
    state.progress.num_signs += 1
    record = state.current
    if record is None or record.nodeid != item.nodeid:
        return report
    note_report(record, report, call)
    _attach(item, record, report)
    if report.when == "teardown":
        try:
            state.test_ended(record, call.duration)
        except RecordError as error:
            stop_for(item.session, error)
        state.current = None
    return report


def _attach(item: pytest.Item, record: ItemRecord, report: pytest.TestReport) -> None:
    """Put what the reporting process needs on the report, as plain types that xdist can carry."""
    make_safe(report)
    if report.when == "teardown" or (report.when == "setup" and report.passed):
        return
    report.evalharness = {  # type: ignore[attr-defined]
        "outcome": record.outcome,
        "problem": record.problem,
        "location": record.miss.location if record.miss is not None else "",
        "num_tokens": item.config.stash[STATE].progress.take_new_tokens(),
    }
    if record.outcome in ("miss", "invalid"):
        # Of the item, not of this report: the JUnit file takes those of the teardown.
        item.user_properties += [("outcome", record.outcome), ("problem", record.problem or "")]


def pytest_report_teststatus(report: Any, config: pytest.Config) -> tuple[str, str, Any] | None:
    """Give misses and invalid samples a name and a letter of their own; the live line stands for all letters."""
    facts = getattr(report, "evalharness", None)
    if facts is None:
        return None
    progress = config.stash[REPORTING].progress
    live = progress is not None and progress.is_live
    if facts["outcome"] == "miss":
        return "miss", "" if live else "m", ("MISS", {"yellow": True})
    if facts["outcome"] == "invalid":
        # In a test without gates it is a failure, which pytest then explains like any other.
        return "failed" if report.failed else "invalid", "" if live else "i", ("INVALID", {"yellow": True})
    return ("passed", "", "PASSED") if live and facts["outcome"] == "pass" else None


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: Any) -> None:
    """Let the reporting process count; `--lf` and `--sw` treat misses and invalid samples as failures."""
    config = reporting_config()
    if config is None:
        return
    reporting = config.stash[REPORTING]
    if report.when in ("teardown", "???"):
        reporting.put_back.pop(report.nodeid, None)
    facts = getattr(report, "evalharness", None)
    if facts is None:
        if report.when == "???":  # xdist's report of a test whose worker died
            reporting.crashes[report.nodeid] = shorten(str(report.longrepr))
        return
    outcome = facts["outcome"]
    if outcome == "miss":
        reporting.misses.append((report.nodeid, facts["location"], facts["problem"]))
    if outcome in ("miss", "invalid") and not report.failed:
        failed = copy.copy(report)
        failed.outcome, failed.when = "failed", "call"
        for name in ("lfplugin", "stepwiseplugin"):
            plugin = config.pluginmanager.get_plugin(name)
            if plugin is not None and hasattr(plugin, "pytest_runtest_logreport"):
                plugin.pytest_runtest_logreport(report=failed)
    if reporting.progress is not None:
        reporting.progress.test_ended(facts["num_tokens"], outcome != "pass")


# pytest_runtest_logreport gets no config, so the reporting process's is kept here between
# configure and unconfigure; nested sessions (pytester in the same process) stack.
_CONFIGS: list[pytest.Config] = []


def reporting_config() -> pytest.Config | None:
    """Return the config of the running session if this is the process that reports."""
    config = _CONFIGS[-1] if _CONFIGS else None
    return config if config is not None and config.stash[STATE].worker in CONTROLLER_NAMES else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Note whose session this is."""
    _CONFIGS.append(session.config)


def forget_config(config: pytest.Config) -> None:
    """Let a session go that has ended, or that broke off."""
    if config in _CONFIGS:
        _CONFIGS.remove(config)
