"""Header lines of answers. Run: pytest tests/tasks/test_headers.py"""

from __future__ import annotations

import pytest

from evalharness.tasks.shared import Header, find_header, header_line, header_matches, header_problems, is_header


def test_the_line_that_is_written_is_the_line_that_is_read() -> None:
    line = header_line("rru", "SUMMARY")
    assert (line, find_header(line), is_header(line)) == ("<DOMAIN=RRU>, <TASK=SUMMARY>", (Header("RRU", "SUMMARY"), len(line)), True)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("<DOMAIN=RRU>, <TASK=SUMMARY>\n{}", None),
        ("", "the header line is missing"),
        ("<DOMAIN=BBU>, <TASK=SUMMARY>", "header says BBU, SUMMARY"),
        ("<DOMAIN=RRU>, <TASK=DETECTION>", "header says RRU, DETECTION"),
        ("<DOMAIN=rru>, <TASK=SUMMARY>", "the header must be the whole first line"),
        ("x <DOMAIN=RRU>, <TASK=SUMMARY>", "the header must be the whole first line"),
        ("<DOMAIN=RRU>,  <TASK=SUMMARY>", "the header must be the whole first line"),
    ],
)
def test_what_is_wrong_with_a_header_is_told(text: str, problem: str | None) -> None:
    header, _ = find_header(text)
    assert header_problems(header, "rru", "SUMMARY", text) == (() if problem is None else (problem,))
    assert header_matches(header, "rru", "SUMMARY") == (problem is None or "whole first line" in problem)
