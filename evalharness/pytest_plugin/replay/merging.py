"""One report of a run's parts (`--shard`): their journals are put side by side, and their tests run again on what is stored.

Nothing is generated and no model is loaded; the parts are only read. Aggregates, tables, outputs and gates are those of all
cases together, which no part could know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from evalharness.api.errors import RecordError
from evalharness.config.shards import read_shard
from evalharness.pytest_plugin.replay.rescore import rescore_run
from evalharness.runs.journal import Journal, journal_name, session_of
from evalharness.runs.recorded import RecordedRun
from evalharness.runs.run_file import write_run_file

__all__ = ["merge_runs"]

# What differs between parts without making an answer another one.
_OWN = ("shard", "run_id", "report_dir", "devices", "share_devices", "hang_timeout", "gpu_memory_utilization", "wait", "spot", "resume")
_OF_ENGINE = ("id", "fingerprint", "base_fingerprint", "adapter_fingerprint", "variant", "dtype")
_OF_EVAL = ("options", "plugins")
_OF_PARTS_ALONE = ("throughput", "durations", "rescored", "resumptions")


def merge_runs(run_dirs: Sequence[Path], *, report_dir: Path | None = None, run_id: str | None = None) -> int:
    """Write the run that the parts are of, into a folder of its own, and return its exit code, as that of a run in one piece.

    Raises `RecordError` where a part is missing, comes twice or was asked otherwise than the first.
    """
    parts = _in_order([RecordedRun.read(run_dir) for run_dir in run_dirs])
    for part in parts[1:]:
        _check_alike(parts[0], part)
    target = report_dir or parts[0].run_dir.absolute().parent
    with TemporaryDirectory(prefix="evalharness-merge-") as folder:
        source = Path(folder) / "parts"
        _write_source(source, parts)
        return rescore_run(source, report_dir=target, run_id=run_id or f"merged-{os.urandom(3).hex()}")


def _shard_of(part: RecordedRun) -> tuple[int, int]:
    shard = part.config.shard
    if shard is None:
        raise RecordError(f"{part.run_dir} is no part: it was run without --shard; give the parts of one run")
    return read_shard(shard)


def _in_order(parts: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Return the parts by number; `RecordError` unless each is there once."""
    by_number: dict[int, RecordedRun] = {}
    num_parts = _shard_of(parts[0])[1]
    for part in parts:
        number, of = _shard_of(part)
        if of != num_parts:
            raise RecordError(f"{part.run_dir} is part {number}/{of}, {parts[0].run_dir} one of {num_parts}: they are not of one run")
        if number in by_number:
            raise RecordError(f"{part.run_dir} and {by_number[number].run_dir} are both part {number}/{of}; give each part once")
        by_number[number] = part
    missing = [f"{number}/{num_parts}" for number in range(1, num_parts + 1) if number not in by_number]
    if missing:
        # Of an eval that has cases for no more than all parts the first has one.
        has_few = 1 in by_number and all(entry["num_cases"] <= 1 for entry in by_number[1].records.evals.values())
        why = "; one in which no eval has a case left no run: then run again in fewer parts" if has_few else ""
        todo = f"run it, or go on with it (--resume), and give all {num_parts} parts{why}"
        raise RecordError(f"part {', '.join(missing)} is not given; {todo}")
    return [by_number[number] for number in sorted(by_number)]


def _check_alike(first: RecordedRun, part: RecordedRun) -> None:
    """Raise `RecordError`, naming the difference, for a part that was asked otherwise than the first."""
    for name, value, before in _differences(first, part):
        if value != before:
            raise RecordError(
                f"{part.run_dir} is no part of the run of {first.run_dir}: its {name} is {_shown(value)}, not {_shown(before)}; "
                "run the part again as the others"
            )


def _differences(first: RecordedRun, part: RecordedRun) -> Iterator[tuple[str, Any, Any]]:
    options, before = part.config.to_json(), first.config.to_json()
    yield from ((f"--{name.replace('_', '-')}", options[name]["value"], before[name]["value"]) for name in options if name not in _OWN)
    for key, names in (("engines", _OF_ENGINE), ("evals", _OF_EVAL)):
        here, there = _by_name(part, key), _by_name(first, key)
        if key == "engines":
            yield "engines", sorted(here), sorted(there)
        for known in here.keys() & there.keys():
            yield from ((f"{name} of {known}", here[known].get(name), there[known].get(name)) for name in names)


def _by_name(part: RecordedRun, key: str) -> dict[str, dict[str, Any]]:
    return {spec["id"]: spec for spec in part.records.collected["engines"]} if key == "engines" else part.records.evals


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:80]}…"


def _write_source(source: Path, parts: Sequence[RecordedRun]) -> None:
    """Write a run directory that reads as if one run had written all journals of the parts."""
    (source / "journal").mkdir(parents=True)
    last = 0
    for number, part in enumerate(parts, 1):
        for path in (part.run_dir / "journal").glob("*.jsonl"):
            session = session_of(path.stem)
            last = max(last, session)
            name = journal_name(f"part{number}-{path.stem.removeprefix(journal_name('', session))}", session)
            (source / "journal" / f"{name}.jsonl").symlink_to(path.absolute())
    journal = Journal(source, journal_name("merged", last + 1))
    engines = parts[0].records.collected["engines"]
    nodeids = [nodeid for part in parts for nodeid in part.records.collected["nodeids"]]
    journal.write("collected", {"engines": engines, "nodeids": nodeids})
    for module in dict.fromkeys(module for part in parts for module in part.records.evals):
        entries = [part.records.evals[module] for part in parts if module in part.records.evals]
        cases = {case_id: facts for entry in entries for case_id, facts in entry["cases"].items()}
        journal.write("eval", {**entries[0], "num_cases": len(cases), "cases": cases})
    journal.close()
    first = {name: value for name, value in parts[0].run.items() if name not in _OF_PARTS_ALONE}
    config = {name: value for name, value in parts[0].config.to_json().items() if name != "shard"}
    names = ", ".join(part.run_id for part in parts)
    finished = [str(part.run.get("finished_at") or "") for part in parts]
    workers = [
        {**entry, "worker": f"part{number}-{entry['worker']}"}
        for number, part in enumerate(parts, 1)
        for entry in part.run.get("workers") or ()
    ]
    more = {"run_id": names, "config": config, "workers": workers, "finished_at": max(finished) if all(finished) else None}
    write_run_file(source, {**first, **more})
