"""Commands on finished runs: `evalharness report`, `rescore`, `merge` and `summary`. None loads a model."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from evalharness.api.errors import DONE, ConfigError
from evalharness.cli.framework import PATH, RUN_CODES, command, find_run


@command("merge", examples=["evalharness merge reports/part-1 reports/part-2 --run-id whole"], exit_codes=RUN_CODES, takes_runs=True)
@click.argument("runs", nargs=-1, required=True, metavar="RUN…")
@click.option("--report-dir", type=PATH, metavar="FOLDER", help="Folder for the new run (default: the first part's)")
@click.option("--run-id", metavar="ID", help="Name of the new run (default: merged- and six random digits)")
def merge(runs: tuple[str, ...], report_dir: Path | None, run_id: str | None) -> int:
    """Merge the parts of a sharded run into one run with one report; needs no GPU.

    RUN… are all parts (pytest evals --shard 1/8 …), in any order; they are only read.
    """
    from evalharness.pytest_plugin.replay.rescore import merge_runs  # pytest, so only where it is needed

    return merge_runs([find_run(word) for word in runs], report_dir=report_dir, run_id=run_id)


@command("report", examples=["evalharness report reports/RUN_ID", "evalharness report latest"], takes_runs=True)
@click.argument("run", metavar="RUN")
def report(run: str) -> int:
    """Rebuild the reports of a run, even of a killed one, from its records; needs no GPU.

    Prints the paths of the files that it wrote.
    """
    run_dir = find_run(run)
    from evalharness.report.html.index_page import INDEX, write_index
    from evalharness.report.writing import rebuild_run, write_reports  # numpy and tabulate, so only where they are needed

    if rebuild_run(run_dir):
        print(f"{run_dir}: samples.jsonl was rebuilt from the journal", file=sys.stderr)
    print(*write_reports(run_dir).values(), sep="\n")
    if (run_dir.absolute().parent / INDEX).is_file():
        write_index(run_dir.absolute().parent)
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
@click.argument("source", metavar="RUN|FILE")
@click.option(
    "--tests", type=PATH, metavar="MODULE", help="Judge every stored generation by the tests of this file (default: the run's tests)"
)
@click.option(
    "--data", type=PATH, metavar="FOLDER", help="Folder of the cases or references (default: the run's; for a FILE the settings')"
)
@click.option("--report-dir", type=PATH, metavar="FOLDER", help="Folder for the new run (default: the run's; for a FILE reports)")
@click.option("--run-id", metavar="ID", help="Name of the new run (default: the run's name, -rescored- and six random digits)")
@click.option("--spot", metavar="N", help="Cases that evals with spot checks show in outputs/ (default: the run's; for a FILE 0)")
@click.option("--coordinates", metavar="SPACE", help="Coordinate space of a dense dump that does not name it (default: norm1000)")
def rescore(source: str, tests: Path | None, coordinates: str | None, **changes: Any) -> int:
    """Score stored generations again, those of a run with its tests or those in a file, into a new run; needs no GPU.

    FILE is gt_vs_pred.jsonl or <mission>_stage_a.jsonl. The source is only read.
    """
    is_file = Path(source).is_file()
    flag, value, only_for = ("--tests", tests, "run directories") if is_file else ("--coordinates", coordinates, "files of answers")
    if value is not None:
        raise ConfigError(f"{flag} is for {only_for} only; leave it out")
    if is_file:
        return _score_file(Path(source), coordinates or "norm1000", changes)
    from evalharness.pytest_plugin.replay.rescore import rescore_run  # pytest, so only where it is needed

    return rescore_run(find_run(source), tests=tests, **changes)


def _score_file(source: Path, coordinates: str, changes: Mapping[str, Any]) -> int:
    from evalharness.cli.dump_scores import score_dump_file
    from evalharness.config import resolve
    from evalharness.report.tables import load_tables
    from evalharness.report.writing import terminal_summary, write_reports

    options = {**changes, "run_id": changes["run_id"] or f"rescored-{os.urandom(3).hex()}"}
    run = resolve({name: None if value is None else str(value) for name, value in options.items()}, os.environ, Path.cwd())
    tables = load_tables(score_dump_file(source, run, sys.argv, coordinates=coordinates))
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
@click.argument("run", metavar="RUN")
def summary(run: str) -> int:
    """Print the verdict, gates and scores of a run as Markdown.

    In GitHub Actions, every run writes the same to $GITHUB_STEP_SUMMARY by itself.
    """
    from evalharness.report.markdown import ci_summary
    from evalharness.report.tables import load_tables

    click.echo(ci_summary(load_tables(find_run(run))).encode("utf-8", "backslashreplace"), nl=False)
    return DONE
