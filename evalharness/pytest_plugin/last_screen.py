"""The end of a session on the terminal: equal failures once, our lines in colour, and pytest's last line no greener than the verdict."""

from __future__ import annotations

import copy
import os
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.reasons import normalised
from evalharness.api.wording import plural
from evalharness.pytest_plugin._pytest_internals import change_last_line, failing_line

_STATS = ("failed", "error")
_NUM_SECTION_LINES = 5


class EqualFailures:
    """Shows what many eval tests failed with once: its failing line, where it has one; our lines have the reason, number and first cases.

    pytest's numbers stay as they are. With -vv nothing is left out.
    """

    def __init__(self) -> None:
        self._single: dict[str, list[Any]] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, None, None]:
        """Before pytest's sections leave out what is equal; put it back at the end."""
        stats: dict[str, list[Any]] = terminalreporter.stats
        kept = {name: stats[name] for name in _STATS if name in stats}
        for name, reports in kept.items() if terminalreporter.config.get_verbosity() < 2 else ():
            groups = _groups(reports)
            self._single[name] = [group[0] for group in groups if len(group) == 1]
            shown = (group[0] if len(group) == 1 else _for_all(group) for group in groups)
            stats[name] = [report for report in shown if report is not None]
        try:
            yield
        finally:
            stats.update(kept)

    def before_short_summary(self, terminalreporter: Any) -> None:
        """Leave the reasons of many out of pytest's short summary, which comes next: they stand just above it."""
        terminalreporter.stats.update(self._single)


def _groups(reports: Sequence[Any]) -> list[list[Any]]:
    """Return the reports by reason and place, in the order of the first ones."""
    groups: dict[object, list[Any]] = {}
    for report in reports:
        problem, *own = getattr(report, "evalharness_reason", None) or (None,)
        reason = id(report) if problem is None else (normalised(problem, own), report.when, _place(report))
        groups.setdefault(reason, []).append(report)
    return list(groups.values())


def _place(report: Any) -> object:
    """Return where a traceback ends; None for a failure without one, which is the same wherever it was met."""
    crash = getattr(report.longrepr, "reprcrash", None)
    return None if crash is None else (crash.path, crash.lineno)


def _for_all(group: Sequence[Any]) -> Any:
    """Return a report for all of a group; None if there is nothing to show but their message."""
    report = copy.copy(group[0])
    report.longrepr = failing_line(report.longrepr)
    messages = [message for message, *_ in (getattr(one, "evalharness_reason", None) or [""] for one in group)]
    if report.longrepr and len(set(messages)) > 1:
        pattern = normalised(messages[0], group[0].evalharness_reason[1:])
        report.longrepr = f"{report.longrepr}\nE   (of the first one; what all have in common: {pattern})"
    report.sections = [(title, "\n".join(content.splitlines()[-_NUM_SECTION_LINES:])) for title, content in report.sections]
    path, line, name = report.location
    report.location = path, line, f"{name} and {len(group) - 1:,} more"
    return report if report.longrepr or report.sections else None


def write_lines(terminalreporter: Any, lines: Sequence[str]) -> None:
    """Write our lines, verdicts and remarks in their colour where pytest writes in colour."""
    from evalharness.report.terminal import line_style  # loads numpy: only where there is a run

    for line in lines:  # one by one: a terminal that lacks a character gets that line escaped
        terminalreporter.write_line(line, **dict.fromkeys(line_style(line).split(), True))


def write_places(terminalreporter: Any, run_dir: Path) -> None:
    """Write where the reports lie: the page first, which is a link on terminals that know links."""
    for title, name in (("page", "report.html"), ("report", "report.md")):
        path = run_dir / name
        if path.exists():
            linked = terminalreporter.isatty and terminalreporter.hasmarkup and knows_links(os.environ)
            terminalreporter.write_line(f"{title}: {_link(path) if linked else path}")


def _link(path: Path) -> str:
    return f"\x1b]8;;{path.absolute().as_uri()}\x1b\\{path}\x1b]8;;\x1b\\"


def knows_links(env: Mapping[str, str]) -> bool:
    """Return whether the terminal is one that shows OSC 8 links; others may print them as they are."""
    if env.get("NO_COLOR") or env.get("TERM") == "dumb" or env.get("CI"):
        return False
    vte = env.get("VTE_VERSION", "")
    names = {"iTerm.app", "WezTerm", "vscode", "ghostty", "Hyper", "Tabby", "rio"}
    kinds = ("xterm-kitty", "xterm-ghostty", "alacritty", "foot", "wezterm")
    return bool(
        env.get("TERM_PROGRAM") in names
        or env.get("TERM", "").startswith(kinds)
        or (vte.isdigit() and int(vte) >= 5000)
        or any(env.get(name) for name in ("WT_SESSION", "KONSOLE_VERSION", "KITTY_WINDOW_ID", "DOMTERM"))
    )


def darken_last_line(terminalreporter: Any, verdict: str, gates: Mapping[str, int]) -> None:
    """Have pytest's last line begin with gates that failed or were not judged, in the colour of the verdict where that is a worse one."""
    color = {"FAILED": "red", "BROKEN": "red", "INTERRUPTED": "yellow", "EMPTY": "yellow"}.get(verdict)
    parts = [f"{plural(gates[state], 'gate')} {state}" for state in ("failed", "not judged") if gates.get(state)]
    change_last_line(terminalreporter, parts, color)
