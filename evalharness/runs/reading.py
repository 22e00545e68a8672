"""What a run directory says: run.json and the rows of samples.jsonl, as plain data. Knows no pandas and no pytest.

Unknown keys are ignored. What can be read is read: a torn last line or an absent file is noted, not fatal. What would make
the numbers wrong (a broken line in the middle, a newer schema) is a `RecordError`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from evalharness.api.errors import RecordError

__all__ = ["FINISHED", "SCHEMA_VERSION", "read_run", "read_samples", "run_state", "sample_lines"]

SCHEMA_VERSION = 1
FINISHED = "finished"


def read_run(run_dir: Path, notes: list[str] | None = None) -> dict[str, Any]:
    """Return run.json. Absent beside a samples.jsonl: an empty mapping, and a line in `notes`. Raises `RecordError`."""
    path = run_dir / "run.json"
    try:
        run = json.loads(path.read_bytes())
    except FileNotFoundError:
        if not (run_dir / "samples.jsonl").exists():
            raise RecordError(f"{run_dir} is no run directory: it holds neither run.json nor samples.jsonl") from None
        _note(notes, "run.json is missing: gates, settings and throughput of this run are not known")
        return {}
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}; check the path and its permissions") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} is not JSON ({error}); the rows in samples.jsonl can be reported without it: move it away") from error
    if not isinstance(run, dict):
        raise RecordError(f"{path} must hold a JSON object, got {type(run).__name__}")
    version = run.get("schema_version", SCHEMA_VERSION)
    if not isinstance(version, int) or version > SCHEMA_VERSION:
        raise RecordError(
            f"{path} has schema_version {version!r}; this evalharness reads up to {SCHEMA_VERSION}: update evalharness to report this run"
        )
    return run


def run_state(run: Mapping[str, Any]) -> str:
    """Return "finished", "interrupted", "killed" (its reports were made later), or "running", where run.json alone cannot know better."""
    if run.get("interrupted"):
        return "interrupted"
    if run.get("rebuilt"):
        return "killed"
    return FINISHED if run.get("finished_at") else "running"


def read_samples(run_dir: Path, notes: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of samples.jsonl in their order, one at a time.

    An absent file yields nothing; a last line that was not finished is left out; `notes` gets a line about either.
    Raises `RecordError`, with the line number, for any other line that is not a JSON object.
    """
    path = run_dir / "samples.jsonl"
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                row = _parse(line, number, path, notes)
                if row is not None:
                    yield row
    except FileNotFoundError:
        remedy = f"; evalharness report {run_dir} makes it from the journal" if (run_dir / "journal").is_dir() else ""
        _note(notes, f"samples.jsonl is missing: no sample of this run can be shown{remedy}")
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}; check the path and its permissions") from error


def sample_lines(run_dir: Path) -> Iterator[bytes]:
    """Yield the lines of samples.jsonl that `read_samples` makes rows of, one for one, not looked into.

    An absent file yields nothing. Raises `RecordError` where the file cannot be read.
    """
    path = run_dir / "samples.jsonl"
    try:
        with path.open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                if (line.endswith(b"\n") and not line.isspace()) or _parse(line, number, path, None) is not None:
                    yield line
    except FileNotFoundError:
        return
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}; check the path and its permissions") from error


def _parse(line: bytes, number: int, path: Path, notes: list[str] | None) -> dict[str, Any] | None:
    if not line.strip():
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        if not line.endswith(b"\n"):
            _note(notes, f"line {number} of samples.jsonl, the last, is torn and left out: the writer was interrupted")
            return None
        remedy = "remove the line, or move the file away: then evalharness report makes it again from journal/"
        raise RecordError(f"{path}, line {number}, is not JSON ({error}); {remedy}") from error
    if not isinstance(row, dict):
        raise RecordError(f"{path}, line {number}, must be a JSON object, got {type(row).__name__}; remove the line")
    return row


def _note(notes: list[str] | None, text: str) -> None:
    if notes is not None:
        notes.append(text)
