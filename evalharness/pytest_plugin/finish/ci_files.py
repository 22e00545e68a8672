"""Writes files for CI: gates as test cases of the JUnit file, and a summary on the page of a GitHub job."""

from __future__ import annotations

import os
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalharness.api.errors import RecordError
from evalharness.api.redaction import redactor
from evalharness.api.wording import number_text
from evalharness.report.findings import gate_state
from evalharness.report.markdown import go_on_command
from evalharness.report.tables import RunTables
from evalharness.runs.files import write_atomically
from evalharness.runs.journal import readable
from evalharness.runs.repeats import repeat_number
from evalharness.runs.schema import GateVerdict, RunFile, entries_of

CLASSNAME = "evalharness.analysis.gates"
# What XML 1.0 cannot hold, also escaped.
_ILLEGAL = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def add_to_junit_file(config: pytest.Config, run: RunFile) -> None:
    """Add a test case per gate and per problem of the run to the file of --junitxml, if one was written, and hide secrets in all of it.

    Gates are judged after all tests, when pytest has written the file. Raises `RecordError` if it cannot be changed.
    """
    given = config.getoption("xmlpath", None)
    if not given:
        return
    path = Path(os.path.abspath(os.path.expanduser(os.path.expandvars(given))))
    try:
        tree = ET.parse(path)
        suite = next(tree.getroot().iter("testsuite"), None)
        if suite is None:
            raise RecordError(f"{path} holds no testsuite; gates cannot be added to it")
        _leave_out_repeats(suite)
        _make_clean(suite)
        for case in _gate_cases(run):
            suite.append(case)
            _count(suite, "tests")
            for kind in ("failure", "error", "skipped"):
                if case.find(kind) is not None:
                    _count(suite, {"failure": "failures", "error": "errors"}.get(kind, kind))
        with write_atomically(path, "gates are not in it; run.json has them") as file:
            tree.write(file, encoding="utf-8", xml_declaration=True)
    except (OSError, ET.ParseError) as error:
        raise RecordError(f"gates cannot be added to {path}: {error}; run.json has them") from error


def _leave_out_repeats(suite: ET.Element) -> None:
    """Remove the tests of repeats (--noise), which decide nothing."""
    for case in [case for case in suite.iter("testcase") if repeat_number(case.get("name") or "")]:
        suite.remove(case)
        _count(suite, "tests", -1)
        if case.find("skipped") is not None:
            _count(suite, "skipped", -1)


def _make_clean(suite: ET.Element) -> None:
    """Remove secrets from the texts of the session's other tests (those of evals are clean by now); make names of tests readable."""
    hide = redactor()
    for element in suite.iter():
        for name, value in element.attrib.items():
            element.set(name, readable(hide.known(value)) if element.tag == "testcase" else hide.text(value))
        if element.text:
            element.text = hide.text(element.text)


def _gate_cases(run: RunFile) -> Iterator[ET.Element]:
    for gate in run["gates"]:
        name = f"{gate['expression']} ({gate['eval']}::{gate['test']} on {gate['engine']})"
        state = gate_state(gate)
        if state == "passed":
            yield _case(name)
        else:
            yield _case(name, "failure" if state == "failed" else "skipped", gate["reason"], _slices(gate))
    if run.get("interrupted"):
        go_on = go_on_command(run)
        yield _case("the run came to its end", "error", f"{run['interrupted']}{f'; go on with: {go_on}' if go_on else ''}")
    for number, problem in enumerate(run["problems"], 1):
        yield _case(f"problem {number} of the run", "error", problem)


def _slices(gate: GateVerdict) -> str:
    """Return a line for each slice that failed: "site=north: 0.067 (n=12)"."""
    parts = entries_of(gate.get("failed_slices"))
    return "".join(f"\n{gate['tag']}={part['value']}: {number_text(part['measured'])} (n={part['n']})" for part in parts)


def _case(name: str, kind: str | None = None, message: str = "", more: str = "") -> ET.Element:
    case = ET.Element("testcase", {"classname": CLASSNAME, "name": _legal(name), "time": "0.000"})
    if kind is not None:
        result = ET.SubElement(case, kind, {"message": _legal(message), **({"type": "pytest.skip"} if kind == "skipped" else {})})
        result.text = _legal(message + more)
    return case


def _count(suite: ET.Element, attribute: str, more: int = 1) -> None:
    suite.set(attribute, str(int(suite.get(attribute, "0")) + more))


def _legal(text: str) -> str:
    return _ILLEGAL.sub(lambda match: f"#x{ord(match.group()):02X}", text)


def write_github_summary(tables: RunTables) -> None:
    """Append the run's summary to the file that GitHub names in GITHUB_STEP_SUMMARY; elsewhere do nothing.

    Raises `RecordError` if the file cannot be written.
    """
    path = os.environ.get("GITHUB_STEP_SUMMARY")
    if not path:
        return
    from evalharness.report.markdown import ci_summary

    try:
        with open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(ci_summary(tables))
    except OSError as error:
        raise RecordError(f"the summary cannot be written to {path} (GITHUB_STEP_SUMMARY): {error.strerror}") from error
