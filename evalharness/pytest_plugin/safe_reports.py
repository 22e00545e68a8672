"""Reports of eval tests made safe: they quote generated text, which may steer a terminal, flood it, or stop xdist.

Only control characters, lone surrogates, endless lines and secrets are changed; the exact text is in the rows of the run.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntry, ReprExceptionInfo

from evalharness.api.redaction import redactor
from evalharness.pytest_plugin.outcomes import shorten

__all__ = ["make_safe"]

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
    elif isinstance(longrepr, ReprExceptionInfo):
        _make_traceback_safe(longrepr)
    else:
        report.longrepr = _safe(str(longrepr))


def _plain(value: object) -> object:
    return value if type(value) in _PLAIN else shorten(redactor().text(str(value)))


def _make_traceback_safe(representation: ReprExceptionInfo) -> None:
    chain = representation.chain if isinstance(representation, ExceptionChainRepr) else []
    for traceback, crash, _ in [*chain, (representation.reprtraceback, representation.reprcrash, None)]:
        if crash is not None:
            crash.message = _safe(crash.message)
        if traceback.extraline is not None:
            traceback.extraline = _safe(traceback.extraline)
        for entry in traceback.reprentries:
            _make_entry_safe(entry)
    representation.sections = [(name, _safe(content), mark) for name, content, mark in representation.sections]


def _make_entry_safe(entry: Any) -> None:
    entry.lines = [_safe(line) for line in entry.lines]
    if not isinstance(entry, ReprEntry):
        return
    if entry.reprfuncargs is not None:
        entry.reprfuncargs.args = [(name, _safe(str(value))) for name, value in entry.reprfuncargs.args]
    if entry.reprlocals is not None:
        entry.reprlocals.lines = [_safe(line) for line in entry.reprlocals.lines]


def _safe(text: str, max_chars: int = 2000) -> str:
    text = redactor().text(text)  # before it is cut: half a secret would not be found
    head = text[:max_chars]
    if not head.isprintable():
        head = _UNSAFE.sub(lambda match: match.group().encode("unicode_escape").decode("ascii"), head)
    return head if len(text) <= max_chars else f"{head}… ({len(text) - max_chars} more characters)"
