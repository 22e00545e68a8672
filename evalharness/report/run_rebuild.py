"""The records of a run that was killed, made from its journal; the report then says so, and no gate passes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from evalharness.analysis.run_totals import engine_entries, judge_gates
from evalharness.api.errors import RecordError
from evalharness.runs.reading import read_run
from evalharness.runs.records import generation_facts, read_records
from evalharness.runs.run_file import write_run_file
from evalharness.runs.run_merge import eval_entries, known_nodeids, merge_rows, missing_row
from evalharness.runs.samples import write_samples

__all__ = ["rebuild_run"]

_UNFINISHED = "the run was killed, or still goes on"


def rebuild_run(run_dir: Path) -> bool:
    """Write samples.jsonl and run.json of a run that did not come to its end; return whether that was needed.

    A run that ended and has its samples is left as it is, and so is one without a journal. Raises `RecordError` where
    nothing was recorded.
    """
    run: dict[str, Any] = read_run(run_dir) if (run_dir / "run.json").exists() else {"run_id": run_dir.name}
    has_samples = (run_dir / "samples.jsonl").exists()
    if not (run_dir / "journal").is_dir() or (has_samples and (run.get("finished_at") or not (run_dir / "run.json").exists())):
        return False
    records = read_records(run_dir)
    if not (records.rows or records.collected):
        if has_samples:
            return False
        raise RecordError(f"{run_dir} holds no record of any case: its run ended before the first one; there is nothing to report")
    engines = {spec["id"]: spec for spec in records.collected.get("engines", [])}
    missing = missing_row(engines, records.evals, run.get("run_id") or run_dir.name, _UNFINISHED)
    rows = merge_rows(records, known_nodeids(records.collected.get("nodeids", []), records.evals), missing)
    write_samples(run_dir, rows)
    if run.get("finished_at"):
        return True  # only its samples were lost
    judged = {
        "rebuilt": True,
        "engines": engine_entries(engines.values(), records.engine_lines),
        "evals": eval_entries(records),
        "gates": judge_gates(records.evals, rows, (), interrupted=_UNFINISHED, unfinished=_UNFINISHED),
        "aggregates": [],
        "tables": [],
        "outputs": [],
        "problems": records.problems,
        "counts": dict(Counter(row["outcome"] for row in rows)),
        **generation_facts(records),
    }
    write_run_file(run_dir, {**run, **judged})
    return True
