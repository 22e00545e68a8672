"""What the index of a reports folder says of each run, from run.json alone, kept in a cache: a thousand runs are looked at in a moment."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.api.errors import RecordError
from evalharness.report.collecting import mapping, text_of
from evalharness.runs.lock import is_written_now
from evalharness.runs.reading import read_run, run_state

__all__ = ["Entry", "run_entries"]

Entry: TypeAlias = "dict[str, Any]"
"""name, state, started_at, duration_s, checkpoints, evals, counts, gates, failed, scores, problem: plain JSON."""

CACHE = ".index.json"
_CACHE_VERSION = 1
MAX_NAMES, MAX_SCORES, MAX_FAILED = 40, 40, 20
_NAME_CHARS = 200
_UNFINISHED = {True: "running", False: "killed", None: "unfinished"}
"""What a run without an end is, by whether a process holds it."""


def run_entries(report_dir: Path) -> list[Entry]:
    """Return an entry per run directory, the one that started last first; folders that hold no run.json are none.

    Never raises for a run: one that cannot be read is an entry that says so. Raises `OSError` where the folder cannot be listed.
    """
    cache = _read_cache(report_dir / CACHE)
    kept: dict[str, list[Any]] = {}
    entries: list[Entry] = []
    for folder in report_dir.iterdir():
        try:
            about = (folder / "run.json").stat()
        except (OSError, ValueError):
            continue
        known = cache.get(folder.name)
        if isinstance(known, list) and known[:2] == [about.st_mtime_ns, about.st_size]:
            entry = known[2]
        else:
            entry = _entry(folder)
        if entry["state"] != "running":  # its run.json may be replaced within the clock's resolution
            kept[folder.name] = [about.st_mtime_ns, about.st_size, entry]
        else:
            entry = {**entry, "state": _UNFINISHED[is_written_now(folder)]}
        entries.append(entry)
    if kept != cache:
        _write_cache(report_dir / CACHE, kept)
    return sorted(entries, key=lambda entry: (entry["started_at"], entry["name"]), reverse=True)


def _read_cache(path: Path) -> dict[str, Any]:
    try:
        cache = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    runs = mapping(cache).get("runs") if mapping(cache).get("version") == _CACHE_VERSION else {}
    return {name: one for name, one in mapping(runs).items() if isinstance(one, list) and len(one) == 3 and _is_entry(one[2])}


def _is_entry(entry: object) -> bool:
    return isinstance(entry, dict) and {"name", "state", "started_at", "scores", "gates"} <= set(entry)


def _write_cache(path: Path, runs: Mapping[str, Any]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    with suppress(OSError):  # it only saves time
        partial.write_text(json.dumps({"version": _CACHE_VERSION, "runs": runs}, ensure_ascii=True, allow_nan=False), "ascii")
        partial.replace(path)


def _entry(folder: Path) -> Entry:
    entry: Entry = {"name": folder.name, "started_at": "", "duration_s": None, "checkpoints": [], "evals": [], "counts": {},
                    "gates": {}, "failed": [], "scores": [], "problem": ""}  # fmt: skip
    try:
        run = read_run(folder)
    except RecordError as error:
        return {**entry, "state": "broken", "problem": str(error)[:500]}
    engines = [one for one in _list(run, "engines") if one]
    gates = _list(run, "gates")
    words = Counter("not asked" if gate.get("passed") is None else "passed" if gate.get("passed") is True else "failed" for gate in gates)
    return {
        **entry,
        "state": run_state(run),
        "started_at": text_of(run.get("started_at"))[:40],
        "duration_s": run["duration_s"] if isinstance(run.get("duration_s"), (int, float)) else None,
        "checkpoints": [_name(one.get("id")) for one in engines[:MAX_NAMES]],
        "evals": [[_name(one.get("name")), _count(one.get("num_cases"))] for one in _list(run, "evals")[:MAX_NAMES]],
        "counts": {name: count for name, count in mapping(run.get("counts")).items() if isinstance(count, int)},
        "gates": dict(words),
        "failed": [_failed(gate) for gate in gates if gate.get("passed") is False][:MAX_FAILED],
        "scores": _scores(gates),
        "problem": text_of(run.get("interrupted"))[:500],
    }  # fmt: skip


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None


def _failed(gate: Mapping[str, Any]) -> str:
    return f"{_name(gate.get('expression'))} on {_name(gate.get('engine'))}"


def _scores(gates: list[Mapping[str, Any]]) -> list[list[Any]]:
    """Return eval, test, engine, metric, value and whether it passed, of every gate on a number."""
    return [
        [
            *(_name(gate.get(name)) for name in ("eval", "test", "engine", "metric")),
            round(float(gate["value"]), 6),
            gate.get("passed") is True,
        ]
        for gate in gates
        if isinstance(gate.get("value"), (int, float)) and gate.get("threshold") is not None
    ][:MAX_SCORES]


def _name(value: object) -> str:
    return text_of(value)[:_NAME_CHARS]


def _list(run: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = run.get(name)
    return [mapping(one) for one in found] if isinstance(found, list) else []
