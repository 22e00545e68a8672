"""Collects what the reporting process learns of tests, its own or workers': misses, crashes, why a session ends early.

Reports of eval tests quote generated text, which may steer a terminal, flood it, or stop xdist; `make_safe` changes them before they leave.
"""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest

from evalharness.api.redaction import redactor
from evalharness.pytest_plugin._pytest_internals import change_texts
from evalharness.pytest_plugin.outcomes import shorten
from evalharness.pytest_plugin.progress import Progress
from evalharness.runs.schema import RunFile

__all__ = ["CONTROLLER_NAMES", "REPORTING", "Reporting", "make_safe"]

CONTROLLER_NAMES = ("main", "controller")
"""The names of processes that report; all others are workers."""


class Reporting:
    """Misses, crashed tests, the live line and the finished run of a process that reports; a plugin of its session."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.misses: list[tuple[str, str, str]] = []
        self.crashes: dict[str, str] = {}
        self.put_back: dict[str, str] = {}
        """Tests that run once more because their worker died; those still here at the end never did."""
        self.progress: Progress | None = None
        self.run: RunFile | None = None
        self.problem: str | None = None
        self.interrupted: str | None = None
        self.summary = ""

    def pytest_report_teststatus(self, report: Any) -> tuple[str, str, Any] | None:
        """Give misses and invalid samples a name and a letter of their own; the live line stands for all letters."""
        facts = getattr(report, "evalharness", None)
        if facts is None:
            return None
        live = self.progress is not None and self.progress.is_live
        if facts["outcome"] == "miss":
            return "miss", "" if live else "m", ("MISS", {"yellow": True})
        if facts["outcome"] == "invalid":
            # In a test without gates it is a failure, which pytest then explains like any other.
            return "failed" if report.failed else "invalid", "" if live else "i", ("INVALID", {"yellow": True})
        return ("passed", "", "PASSED") if live and facts["outcome"] == "pass" else None

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: Any) -> None:
        """Count; `--lf` and `--sw` treat misses and invalid samples as failures."""
        if report.when in ("teardown", "???"):
            self.put_back.pop(report.nodeid, None)
        facts = getattr(report, "evalharness", None)
        if facts is None:
            if report.when == "???":  # xdist's report of a test whose worker died
                self.crashes[report.nodeid] = shorten(str(report.longrepr))
            return
        outcome = facts["outcome"]
        if outcome == "miss":
            self.misses.append((report.nodeid, facts["location"], facts["problem"]))
        if outcome in ("miss", "invalid") and not report.failed:
            self._report_as_failed(report)
        if self.progress is not None:
            self.progress.test_ended(facts["num_tokens"], outcome != "pass")

    def _report_as_failed(self, report: Any) -> None:
        failed = copy.copy(report)
        failed.outcome, failed.when = "failed", "call"
        for name in ("lfplugin", "stepwiseplugin"):
            plugin = self._config.pluginmanager.get_plugin(name)
            if plugin is not None and hasattr(plugin, "pytest_runtest_logreport"):
                plugin.pytest_runtest_logreport(report=failed)

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Note why the session breaks off: Ctrl-C, `pytest.exit`, or pytest's own reason."""
        self.interrupted = shorten(str(excinfo.value)) or "interrupted by the user"


REPORTING = pytest.StashKey[Reporting]()


_MAX_SECTION_CHARS = 20_000
# All control characters but newline and tab, bidi controls, line separators, lone surrogates.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")
_PLAIN = (bool, int, float, type(None))


def make_safe(report: pytest.TestReport) -> None:
    """Change the report's texts in place so that terminals, JUnit files and xdist can take them."""
    if report.sections:
        report.sections = [(name, _safe(content, _MAX_SECTION_CHARS)) for name, content in report.sections]
    if report.user_properties:
        report.user_properties = [(str(name), _plain(value)) for name, value in report.user_properties]
    if hasattr(report, "wasxfail"):
        report.wasxfail = _safe(report.wasxfail)
    longrepr: Any = report.longrepr
    if longrepr is None:
        return
    if isinstance(longrepr, tuple):  # a skip: path, line, reason
        path, line, reason = longrepr
        report.longrepr = path, line, _safe(reason)
    elif not change_texts(longrepr, _safe):
        report.longrepr = _safe(str(longrepr))


def _plain(value: object) -> object:
    return value if type(value) in _PLAIN else shorten(redactor().text(str(value)))


def _safe(text: str, max_chars: int = 2000) -> str:
    text = redactor().text(text)  # before it is cut: half a secret would not be found
    head = text[:max_chars]
    if not head.isprintable():
        head = _UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), head)
    return head if len(text) <= max_chars else f"{head}… ({len(text) - max_chars} more characters)"
