"""Commands on finished runs: `evalharness report`, `rescore`, `merge` and `summary`. None loads a model.

`rescore FILE` scores `gt_vs_pred.jsonl` or `<mission>_stage_a.jsonl`, ours or the original's, as a run: the same functions as in live
evals make its rows, aggregates, tables and output files; gates and misses by assertion need tests and are absent.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from evalharness.analysis.eval_functions import EvalFunctions, aggregate_rows, table_entries, write_outputs
from evalharness.api.errors import DONE, ConfigError, RecordError
from evalharness.api.wording import plural
from evalharness.cli.completion import RUN
from evalharness.cli.framework import PATH, RUN_CODES, command, find_run
from evalharness.config import RunConfig, resolve
from evalharness.runs.command_line import shown_command
from evalharness.runs.run_file import environment_facts, read_run, utc_now, write_run_file
from evalharness.runs.samples import count_outcomes
from evalharness.runs.schema import Row, RunFile

_PROJECT = click.option(
    "--project", type=PATH, metavar="FOLDER", help="Project whose evals judge the run, its pytest rootdir (default: the current one)"
)
_BASELINE = click.option("--baseline", metavar="NAME|PATH", help="Baseline of gates that compare with one (default: the run's)")


@command("merge", examples=["evalharness merge reports/part-1 reports/part-2 --run-id whole"], exit_codes=RUN_CODES, takes_runs=True)
@click.argument("runs", type=RUN, nargs=-1, required=True, metavar="RUN…")
@click.option("--report-dir", type=PATH, metavar="FOLDER", help="Folder for the new run (default: the first part's)")
@click.option("--run-id", metavar="ID", help="Name of the new run (default: merged- and six random digits)")
@click.option("--data", type=PATH, metavar="FOLDER", help="Folder of the cases (default: the parts')")
@_PROJECT
@_BASELINE
def merge(runs: tuple[str, ...], **given: Any) -> int:
    """Merge the parts of a sharded run into one run with one report; needs no GPU.

    RUN… are all parts (pytest evals --shard 1/8 …), in any order; they are not changed.
    """
    from evalharness.pytest_plugin.replay.rescore import merge_runs  # pytest, so only where it is needed

    return merge_runs([find_run(word) for word in runs], **given)


@command(
    "report",
    examples=["evalharness report reports/RUN_ID", "evalharness report latest"],
    exit_codes={DONE: "the reports were written, whatever the verdict"},
    takes_runs=True,
)
@click.argument("run", metavar="RUN", type=RUN)
def report(run: str) -> int:
    """Rebuild the reports of a run, even of a killed one, from its records; needs no GPU.

    Prints the paths of the files that it wrote. To read a report: evalharness open RUN.
    """
    run_dir = find_run(run)
    from evalharness.report.html.index_page import renew_index
    from evalharness.report.markdown import go_on_command
    from evalharness.report.writing import rebuild_run, write_reports  # numpy and tabulate, so only where they are needed

    if rebuild_run(run_dir):
        print(f"{run_dir}: samples.jsonl was rebuilt from the journal", file=sys.stderr)
    print(*write_reports(run_dir).values(), sep="\n")
    renew_index(run_dir)
    if command := go_on_command(read_run(run_dir)):
        print(f"go on: {command}", file=sys.stderr)
    return DONE


@command(
    "rescore",
    examples=[
        "evalharness rescore reports/RUN_ID",
        "evalharness rescore latest --tests my_checks.py",
        "evalharness rescore gt_vs_pred.jsonl --coordinates norm1000",
        "evalharness rescore MISSION_stage_a.jsonl --data FOLDER",
    ],
    exit_codes=RUN_CODES,
    takes_runs=True,
)
@click.argument("source", metavar="RUN|FILE", type=RUN)
@click.option(
    "--tests", type=PATH, metavar="MODULE", help="Judge every stored generation with the tests in this file (default: the run's tests)"
)
@click.option(
    "--data", type=PATH, metavar="FOLDER", help="Folder of the cases or references (default: the run's; for a FILE the settings')"
)
@click.option("--report-dir", type=PATH, metavar="FOLDER", help="Folder for the new run (default: the run's; for a FILE reports)")
@click.option("--run-id", metavar="ID", help="Name of the new run (default: RUN-rescored- and six random digits)")
@click.option("--spot", metavar="N", help="Cases that evals with spot checks show in outputs/ (default: the run's; for a FILE 0)")
@_PROJECT
@_BASELINE
@click.option("--coordinates", metavar="SPACE", help="Coordinate space of a dense dump that does not name it (default: norm1000)")
def rescore(source: str, tests: Path | None, coordinates: str | None, **changes: Any) -> int:
    """Score stored generations again, those of a run or of a file, as a new run; needs no GPU.

    FILE is gt_vs_pred.jsonl or <mission>_stage_a.jsonl. The source is not changed.
    """
    is_file = Path(source).is_file()
    of_runs = {"tests": tests, "project": changes.pop("project"), "baseline": changes.pop("baseline")}
    not_for = of_runs if is_file else {"coordinates": coordinates}
    if wrong := next((name for name, value in not_for.items() if value is not None), None):
        raise ConfigError(f"--{wrong} is for {'run directories' if is_file else 'files of answers'} only; leave it out")
    if is_file:
        return _score_file(Path(source), coordinates or "norm1000", changes)
    from evalharness.pytest_plugin.replay.rescore import rescore_run  # pytest, so only where it is needed

    return rescore_run(find_run(source), **of_runs, **changes)


def _score_file(source: Path, coordinates: str, changes: Mapping[str, Any]) -> int:
    from evalharness.report.tables import load_tables
    from evalharness.report.writing import terminal_summary, write_reports

    options = {**changes, "run_id": changes["run_id"] or f"rescored-{os.urandom(3).hex()}"}
    run = resolve({name: None if value is None else str(value) for name, value in options.items()}, os.environ, Path.cwd())
    tables = load_tables(_score_dump(source, run, sys.argv, coordinates=coordinates))
    write_reports(tables)
    print(terminal_summary(tables))
    print(f"report: {tables.run_dir / 'report.md'}")
    return DONE


@command(
    "summary",
    examples=["evalharness summary reports/RUN_ID", "evalharness summary latest > page.md"],
    exit_codes={DONE: "printed, whatever the verdict"},
    takes_runs=True,
)
@click.argument("run", metavar="RUN", type=RUN)
def summary(run: str) -> int:
    """Print the verdict, gates and scores of a run as Markdown.

    In GitHub Actions, each run appends the same to $GITHUB_STEP_SUMMARY.
    """
    from evalharness.report.markdown import ci_summary
    from evalharness.report.tables import load_tables

    click.echo(ci_summary(load_tables(find_run(run))).encode("utf-8", "backslashreplace"), nl=False)
    return DONE


_LEGAL = "a gt_vs_pred.jsonl of dense dumps, or a <mission>_stage_a.jsonl of summaries"


def _score_dump(path: Path, run: RunConfig, command: Sequence[str], *, coordinates: str = "norm1000") -> Path:
    """Score a file's answers and return the new run directory, without reports. Of `run` only folder, id, data, spot and seed count.

    `coordinates` is the coordinate space of a dense dump that does not name it. Raises `RecordError` for a file that cannot be read, a
    run that cannot be written, or a function of the task that fails.
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
        "outputs": write_outputs(functions, rows, run_dir, run, failures)[0],
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
        f"{plural(count, 'photo')} of {mission} with a reference in {run.data}, but without a summary in {path.name}: in no number"
        for mission, count in stage_a.unscored_photos(rows, run.data).items()
    ]
    return stage_a, "stage_a", "test_summary", rows, problems


def _kind(path: Path) -> str:
    """Return "dense" or "stage_a" by what the first row holds; raises `RecordError` for anything else."""
    try:
        with path.open(encoding="utf-8-sig") as lines:
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
    nodeid = f"{path.name}::{row['case_id']}"
    place: Row = {"nodeid": nodeid, "eval": eval_name, "test": test, "engine": engine, "checkpoint": path.stem, "backend": "dump"}
    unknown: Row = {"options": {}, "started_at": None, "worker": None, "duration_s": None, "prompt_sha256": None, "generation": None}
    return {**place, **unknown, "group": None, "run_id": run_id, **row}


def _write_samples(run_dir: Path, rows: Sequence[Row]) -> None:
    """Write samples.jsonl into a new folder. Raises `RecordError`."""
    try:
        run_dir.mkdir(parents=True)
        with (run_dir / "samples.jsonl").open("w", encoding="ascii") as file:
            file.writelines(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    except FileExistsError:
        raise RecordError(f"run {run_dir.name!r} already exists in {run_dir.parent}; choose another --run-id") from None
    except OSError as error:
        raise RecordError(f"{run_dir} cannot be written: {error.strerror}; choose another folder with --report-dir") from error
