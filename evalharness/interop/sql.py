"""SQL over runs: DuckDB reads samples.jsonl and run.json where they lie, each time anew, so there is nothing to keep in sync.

A query is one that only reads, and it sees the runs' own files and nothing else: other files, the network and extensions are closed to it.
It runs in a process of its own (`sql_process.py`) with limits of time and memory.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError, MissingDependency, RecordError
from evalharness.api.installing import missing_package
from evalharness.api.temporary import OwnFolder
from evalharness.interop import sql_process
from evalharness.runs.files import check_inside
from evalharness.runs.run_file import read_run


@dataclass(frozen=True)
class QueryResult:
    """The answer to a query: the names of its columns, and its rows of plain JSON values."""

    columns: list[str]
    rows: list[tuple[Any, ...]]


def query(sql: str, runs: Sequence[Path], notes: list[str], *, timeout_s: float = 300, memory_gib: float = 4) -> QueryResult:
    """Return what one reading statement selects from the runs; `notes` gets a line about each run that cannot be read.

    Raises `ConfigError` for a statement that is wrong, does more than read or goes past a limit, `MissingDependency` without duckdb.
    """
    if find_spec("duckdb") is None:
        raise MissingDependency(missing_package("evalharness sql", ImportError("No module named 'duckdb'"), "sql"))
    with _files(runs, notes) as (samples, facts):
        limits = {"timeout_s": timeout_s, "memory_gib": memory_gib}
        answer = _answer({"sql": sql, "samples": list(map(str, samples)), "facts": list(map(str, facts)), **limits})
    if "problem" in answer:
        raise ConfigError(answer["problem"])
    notes += answer["notes"]
    return QueryResult(answer["columns"], [tuple(json.loads(row)) for row in answer["rows"]])


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return what the process answers. Raises `ConfigError` if it ends before."""
    command = [sys.executable, "-c", f"from {sql_process.__name__} import serve; serve()"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, start_new_session=True,
        cwd="/",  # `-c` makes the working folder importable, and it may be anyone's
    ) as process:  # fmt: skip
        try:
            answer, said = process.communicate(json.dumps(question).encode())
        except BaseException:  # Ctrl-C, which its own session keeps from it
            process.kill()
            process.wait()
            raise
    if process.returncode == 0:
        result: dict[str, Any] = json.loads(answer)
        return result
    if process.returncode == -signal.SIGALRM:
        longer = "narrow it (WHERE, LIMIT, --run), or give --timeout more"
        raise ConfigError(f"the query took more than {question['timeout_s']:g} s and was ended; {longer}")
    lines = said.decode(errors="replace").split("\n")
    reason = next((line for line in reversed(lines) if line.strip()), f"signal {-process.returncode}")
    raise ConfigError(f"the process that asks DuckDB ended with code {process.returncode} ({reason.strip()}); narrow the query")


@contextmanager
def _files(runs: Sequence[Path], notes: list[str]) -> Iterator[tuple[list[Path], list[Path]]]:
    """Give the files of samples and of facts of all runs that can be read; of one whose last line is torn, a copy without it."""
    samples: list[Path] = []
    facts: list[Path] = []
    torn: list[Path] = []
    for run in runs:
        try:
            read_run(run)
            for name, kept in (("run.json", facts), ("samples.jsonl", samples)):
                path = run / name
                if path.is_file():
                    check_inside(path, run)
                    (torn if name == "samples.jsonl" and _is_torn(path) else kept).append(path.absolute())
            if not (run / "samples.jsonl").is_file():
                notes.append(f"{run.name} has no samples.jsonl: it is running, or was killed (evalharness report {run} makes one)")
        except RecordError as error:
            notes.append(f"left out: {error}")
    with OwnFolder("sql", None) as folder:
        for path in torn:
            notes.append(f"{path.parent.name}: the last line of samples.jsonl is torn and left out")
            copy = folder / path.parent.name / "samples.jsonl"
            copy.parent.mkdir()
            content = path.read_bytes()
            copy.write_bytes(content[: content.rfind(b"\n") + 1])
            if copy.stat().st_size:
                samples.append(copy)
        yield [path for path in samples if path.stat().st_size], facts


def _is_torn(path: Path) -> bool:
    """Return whether the last line is not whole: without its end, and no JSON."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if size == 0:
            return False
        file.seek(size - 1)
        if file.read(1) == b"\n":
            return False
        file.seek(max(0, size - sql_process.LONGEST_LINE))
        last = file.read().rpartition(b"\n")[2]
    try:
        json.loads(last)
    except (ValueError, RecursionError):
        return True
    return False
