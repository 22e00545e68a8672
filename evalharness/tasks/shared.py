"""Shared by the tasks: files of JSON rows, and the header line of answers."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from evalharness.answers.json_text import loads
from evalharness.api.checks import read_regular
from evalharness.api.errors import EvalHarnessError, RecordError
from evalharness.api.requests import GenerationResult
from evalharness.runs.files import write_atomically


def json_lines(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Return rows as JSON in readable UTF-8, one line each."""
    lines = []
    for row in rows:
        try:
            lines.append(f"{json.dumps(dict(row), ensure_ascii=False, allow_nan=False)}\n".encode())
        except UnicodeEncodeError:  # a lone surrogate from a model; escaped, it is read back as the same text
            lines.append(f"{json.dumps(dict(row), allow_nan=False)}\n".encode())
    return b"".join(lines)


def read_lines(path: Path | str, *, name: str = "", error: type[EvalHarnessError] = RecordError) -> Iterator[tuple[str, Any]]:
    """Yield `path:line` and value of each line that is not blank; an `error` where a file or line cannot be read.

    `name` stands for the path before the numbers of lines.
    """
    try:
        # Not splitlines: a text may hold other line ends as they are.
        lines = read_regular(path).decode("utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as problem:
        raise error(f"{path} cannot be read: {problem}") from problem
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield f"{name or path}:{number}", loads(line)
            except ValueError as problem:
                raise error(f"{name or path}:{number} is not JSON: {problem}") from problem


def write_whole(path: Path, content: bytes) -> None:
    """Write a file whole or not at all, and onto the disk; raises `RecordError`."""
    with write_atomically(path, durable=True) as file:
        file.write(content)


def write_lines(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows, one line of JSON each, whole or not at all."""
    write_whole(Path(path), json_lines(rows))


def write_json(path: Path | str, value: Mapping[str, Any], *, ascii_only: bool = False) -> None:
    """Write one JSON object, indented, whole or not at all."""
    write_whole(Path(path), f"{json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, indent=2)}\n".encode())


_HEADER = re.compile(r"<DOMAIN=([^<>{},\s]{1,32})>,\s{0,8}<TASK=([^<>{},\s]{1,32})>")


class Header(NamedTuple):
    """Domain and task of an answer's first line, `<DOMAIN=BBU>, <TASK=SUMMARY>`, as written."""

    domain: str
    task: str


def header_line(domain: str, task: str) -> str:
    """Return the correct header line."""
    return f"<DOMAIN={domain.upper()}>, <TASK={task}>"


def find_header(text: str) -> tuple[Header | None, int]:
    """Return the first header in a text and its end, (None, 0) if there is none."""
    match = _HEADER.search(text)
    return (Header(match[1], match[2]), match.end()) if match else (None, 0)


def is_header(line: str) -> bool:
    """Return whether a line is a header and nothing else."""
    return _HEADER.fullmatch(line.strip()) is not None


def header_matches(header: Header | None, domain: str, task: str) -> bool:
    """Return whether a header names this domain, in any case, and this task."""
    return header is not None and header.domain.lower() == domain and header.task == task


def header_problems(header: Header | None, domain: str, task: str, text: str) -> tuple[str, ...]:
    """Return what is wrong with the header of a text, () if nothing is."""
    if header is None:
        return ("the header line is missing",)
    if not header_matches(header, domain, task):
        return (f"header says {header.domain}, {header.task}",)
    return () if text.split("\n", 1)[0] == header_line(domain, task) else ("the header must be the whole first line",)


def judged_text(generation: GenerationResult) -> str:
    """Return the answer for tasks whose form forbids thoughts: one that nobody asked for stays in it, unless it has no end."""
    thinking = generation.thinking
    return generation.text if thinking is not None and thinking.is_closed and not thinking.is_expected else generation.answer
