"""The journal: one JSON line per finished generation and per finished test, flushed at once, so that it survives SIGKILL.

    journal/<worker>.jsonl   {"kind": "eval", …}         once per eval module: name, path, tests, gates
                             {"kind": "engine", …}       once per opened engine: settings, load time
                             {"kind": "generation", …}   one finished generation or failure of (engine, eval, case, sample)
                             {"kind": "unit", …}         one work unit: seconds from first request to last result
                             {"kind": "row", …}          one finished test
Readers ignore unknown kinds and keys, and a torn last line.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from evalharness.errors import RecordError

__all__ = ["Journal", "generation_key", "merge_rows", "read_journals"]

_encode = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":"), check_circular=False).encode


class Journal:
    """Appends to one worker's file; safe to call from several threads."""

    def __init__(self, run_dir: Path, worker: str) -> None:
        self.path = run_dir / "journal" / f"{worker}.jsonl"
        self.worker = worker
        self._lock = threading.Lock()
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        except OSError as error:
            raise RecordError(f"{self.path} cannot be opened: {error.strerror}; choose another folder with --report-dir") from error

    def write(self, kind: str, values: Mapping[str, Any]) -> None:
        """Append one line and hand it to the operating system; raises `RecordError` (disk full, folder gone)."""
        line = memoryview((_encode({"kind": kind, **values}) + "\n").encode("ascii"))
        num_left = len(line)
        try:
            with self._lock:
                try:
                    while num_left:  # a full disk may take a part
                        num_left -= os.write(self._file, line[-num_left:])
                except OSError:
                    if num_left < len(line):  # half a line would spoil the next one; only this process appends
                        os.ftruncate(self._file, os.fstat(self._file).st_size - (len(line) - num_left))
                    raise
        except OSError as error:
            raise RecordError(f"{self.path} cannot be written: {error.strerror}; what is in it so far is kept") from error

    def close(self) -> None:
        """Close the file; may be called twice."""
        with self._lock:
            if self._file >= 0:
                os.close(self._file)
                self._file = -1


def read_journals(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield every complete line of every worker's journal, with its `worker`, in name order; a torn last line is left out."""
    for path in sorted((run_dir / "journal").glob("*.jsonl")):
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    yield {"worker": path.stem, **json.loads(line)}
                except ValueError as error:
                    raise RecordError(f"{path}:{number} is not JSON ({error}); move the line away to read the rest") from error


def merge_rows(
    lines: Iterable[dict[str, Any]], nodeids: Iterable[str], missing_row: Callable[[str], dict[str, Any]]
) -> list[dict[str, Any]]:
    """Return one row per collected test, in collection order, with the generations that its own worker had made by then.

    A test run twice keeps its last row. `missing_row(nodeid)` gives the row of a test
    that never finished.
    """
    generations: dict[tuple[Any, ...], dict[str, Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for line in lines:
        if line["kind"] == "generation":
            generations[_key(line, line["sample"])] = line["generation"]
        elif line["kind"] == "row":
            rows[line["nodeid"]] = _with_generations(line, generations)
    order = dict.fromkeys([*nodeids, *rows])
    return [rows[nodeid] if nodeid in rows else missing_row(nodeid) for nodeid in order]


def generation_key(line: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Return engine, eval, case id and sample of a generation's line."""
    return line["engine"], line["eval"], line["case_id"], line["sample"]


def _key(line: Mapping[str, Any], sample: int) -> tuple[Any, ...]:
    # A crashed worker's cases are asked again by another one, maybe with another answer: each row keeps what it judged.
    return line["worker"], line["engine"], line["eval"], line["case_id"], sample


def _with_generations(line: Mapping[str, Any], generations: Mapping[tuple[Any, ...], dict[str, Any]]) -> dict[str, Any]:
    row = {name: value for name, value in line.items() if name not in ("kind", "num_samples")}
    num_samples = line.get("num_samples", 1)
    found = [generations.get(_key(line, sample)) for sample in range(num_samples)]
    row["generation"] = found[0]
    if num_samples > 1:
        row["generations"] = found
    row["prompt_sha256"] = (found[0] or {}).get("prompt_sha256")
    return row
