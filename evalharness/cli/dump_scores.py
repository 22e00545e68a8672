"""Scores files of answers as runs: `gt_vs_pred.jsonl` and `<mission>_stage_a.jsonl`, ours or the original's. No model, no pytest.

The same functions as in live evals make the rows, aggregates, tables and output files; gates and misses by assertion need tests and are
absent.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from evalharness.analysis.eval_functions import EvalFunctions, aggregate_rows, table_entries, write_outputs
from evalharness.api.errors import RecordError
from evalharness.config import RunConfig
from evalharness.runs.command_line import shown_command
from evalharness.runs.run_file import environment_facts, utc_now, write_run_file
from evalharness.runs.samples import count_outcomes
from evalharness.runs.schema import Row, RunFile

_LEGAL = "a gt_vs_pred.jsonl of dense dumps, or a <mission>_stage_a.jsonl of summaries"


def score_dump_file(path: Path, run: RunConfig, command: Sequence[str], *, coordinates: str = "norm1000") -> Path:
    """Score a file's answers and return the new run directory, without reports. Of `run` only folder, id, data, spot and seed count.

    `coordinates` is the coordinate space of a dense dump that does not name it. Raises `RecordError` for a file that cannot be read or
    a run that cannot be written, `ConfigError` for wrong options.
    """
    started_at, started = utc_now(), time.monotonic()
    # `test` is the test that judges such answers in a live run.
    task, name, test, scored, problems = _read(path, run, coordinates)
    run_dir = Path(run.report_dir) / run.run_id
    engine = f"dump:{path.stem}"
    rows = [_row(row, name, test, engine, path, run.run_id) for row in scored]
    _write_samples(run_dir, rows)
    functions = [EvalFunctions(name, path.name, run.data, task.aggregate, None, task.tables, task.outputs)]
    failures: list[str] = []
    facts: RunFile = {
        "run_id": run.run_id,
        "command": shown_command(command, Path.cwd()),
        "started_at": started_at,
        "config": run.to_json(),
        "num_workers": 0,
        "rescored": {"dump": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "changes": []},
        **environment_facts(Path.cwd()),
        "finished_at": utc_now(),
        "interrupted": None,
        "exit_code": 0,
        "engines": [{"id": engine, "backend": "dump", "checkpoint": path.stem, "checkpoint_path": str(path), "settings": {}}],
        "evals": [{"name": name, "path": path.name, "num_cases": len({row["case_id"] for row in rows}), "tests": {test: []}}],
        "gates": [],
        "aggregates": aggregate_rows(functions, rows, failures),
        "tables": table_entries(functions, rows, failures),
        "outputs": write_outputs(functions, rows, run_dir, run, failures),
        "counts": count_outcomes(rows),
        "throughput": [],
        "problems": problems,
        "duration_s": round(time.monotonic() - started, 3),
    }
    if failures:
        raise RecordError(f"{run_dir} is not complete: {'; '.join(failures)}")
    write_run_file(run_dir, facts)
    return run_dir


def _read(path: Path, run: RunConfig, coordinates: str) -> tuple[Any, str, str, list[Row], list[str]]:
    """Return the task of a file's answers, the names of its eval and test, the scored rows, and what no number counts."""
    kind = _kind(path)
    if kind == "dense":
        from evalharness.tasks import dense

        rows = dense.score_dump(path, coordinates=coordinates)
        if not rows:
            raise RecordError(f"{path} holds no image")
        return dense, "dense_dump", "test_objects", rows, []
    from evalharness.tasks import stage_a

    if run.data is None:
        raise RecordError(f"{path.name} holds summaries only; give the folder of the references with --data")
    rows = stage_a.score_summaries(path, run.data)
    problems = [
        f"{count} photos of {mission} have a reference in {run.data} but no summary in {path.name}: no number counts them"
        for mission, count in stage_a.unscored_photos(rows, run.data).items()
    ]
    return stage_a, "stage_a", "test_summary", rows, problems


def _kind(path: Path) -> str:
    """Return "dense" or "stage_a" by what the first row holds; raises `RecordError` for anything else."""
    try:
        with path.open(encoding="utf-8") as lines:
            first = json.loads(next((line for line in lines if line.strip()), "null"))
    except (OSError, UnicodeDecodeError) as error:
        raise RecordError(f"{path} cannot be read ({error}); give {_LEGAL}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{path} does not begin with a line of JSON ({error}); give {_LEGAL}") from error
    keys = set(first) if isinstance(first, Mapping) else set()
    if ({"image_path"} <= keys and keys & {"pred", "gt", "gt_norm1000"}) or "summary" in keys:
        return "dense"
    if {"group_id", "per_image"} <= keys:
        return "stage_a"
    raise RecordError(f"{path} is neither {_LEGAL.replace(', or', ' nor')}: its first row has {', '.join(sorted(keys)) or 'no keys'}")


def _row(row: Row, eval_name: str, test: str, engine: str, path: Path, run_id: str) -> Row:
    """Return the row as samples.jsonl has it."""
    return {
        "nodeid": f"{path.name}::{row['case_id']}",
        "eval": eval_name,
        "test": test,
        "case_id": row["case_id"],
        "group": row.get("group"),
        "tags": row["tags"],
        "engine": engine,
        "checkpoint": path.stem,
        "backend": "dump",
        "outcome": row["outcome"],
        "problem": row["problem"],
        "scores": row["scores"],
        "details": row["details"],
        "options": {},
        "started_at": None,
        "run_id": run_id,
        "worker": None,
        "duration_s": None,
        "prompt_sha256": None,
        "generation": row.get("generation"),
    }


def _write_samples(run_dir: Path, rows: Sequence[Row]) -> None:
    """Write samples.jsonl into a new folder. Raises `RecordError`."""
    try:
        run_dir.mkdir(parents=True)
        with (run_dir / "samples.jsonl").open("w", encoding="ascii") as file:
            file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    except FileExistsError:
        raise RecordError(f"run {run_dir.name!r} exists already in {run_dir.parent}; choose another --run-id") from None
    except OSError as error:
        raise RecordError(f"{run_dir} cannot be written: {error.strerror}; choose another folder with --report-dir") from error
