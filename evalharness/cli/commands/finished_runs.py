"""`evalharness merge RUN…`: one run of the parts that `--shard` made of it, on as many machines as there were."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from evalharness.api.errors import DONE, ConfigError
from evalharness.cli.framework import RUN_CODES, command, find_run

__all__ = ["merge", "report", "rescore", "summary"]


@command("merge", examples=["evalharness merge reports/part-1 reports/part-2 --run-id whole"], exit_codes=RUN_CODES)
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN_DIR…")
@click.option(
    "--report-dir", type=click.Path(path_type=Path), metavar="FOLDER", help="Folder that gets the new run (default: that of the first part)"
)
@click.option("--run-id", metavar="ID", help="Name of the new run (default: merged and six random digits)")
def merge(run_dirs: tuple[Path, ...], report_dir: Path | None, run_id: str | None) -> int:
    """Make one run, with one report, of the parts of a run; needs no GPU.

    RUN_DIR… are the folders of all parts (pytest evals --shard 1/8 …), in any order; they are only read.
    """
    from evalharness.pytest_plugin.replay.rescore import merge_runs  # pytest, so only where it is needed

    return merge_runs(run_dirs, report_dir=report_dir, run_id=run_id)


# `evalharness report RUN`: the reports of a run made again from its records


@command("report", examples=["evalharness report reports/RUN_ID", "evalharness report latest"])
@click.argument("run", metavar="RUN")
def report(run: str) -> int:
    """Rebuild the reports of a run from its records, even a killed one; needs no GPU.

    RUN is a run directory, the name of one in the report folder, or latest, the complete run that ended last (latest~1: the one
    before). Prints the paths of what was written.
    """
    run_dir = find_run(run)
    from evalharness.report.html.index_page import INDEX, write_index
    from evalharness.report.writing import (
        rebuild_run,
        write_reports,  # pandas, so only where it is needed
    )

    if rebuild_run(run_dir):
        print(f"{run_dir}: samples.jsonl was rebuilt from the journal", file=sys.stderr)
    for path in write_reports(run_dir).values():
        print(path)
    if (run_dir.absolute().parent / INDEX).is_file():
        write_index(run_dir.absolute().parent)
    return DONE


# `evalharness rescore`: scores again, without a model: of a recorded run, or of answers in a file of another tool's form


@command(
    "rescore",
    examples=[
        "evalharness rescore reports/RUN_ID",
        "evalharness rescore latest --tests my_checks.py",
        "evalharness rescore gt_vs_pred.jsonl --coordinates norm1000",
        "evalharness rescore MISSION_stage_a.jsonl --data FOLDER",
    ],
    exit_codes=RUN_CODES,
)
@click.argument("source", metavar="RUN|FILE.jsonl")
@click.option(
    "--tests",
    type=click.Path(path_type=Path),
    metavar="MODULE",
    help="Judge every stored generation by the tests of this file instead (default: the run's own)",
)
@click.option(
    "--data", type=click.Path(path_type=Path), metavar="FOLDER", help="Where cases or references are (default: the run's; the settings')"
)
@click.option(
    "--report-dir", type=click.Path(path_type=Path), metavar="FOLDER", help="Folder that gets the new run (default: the run's; reports)"
)
@click.option("--run-id", metavar="ID", help="Name of the new run (default: that of the source, and that it was rescored)")
@click.option("--spot", metavar="N", help="Cases that evals with spot checks show in outputs/ (default: the run's; none)")
@click.option("--coordinates", metavar="SPACE", help="Space of a dense dump's answers that name none (default: norm1000)")
def rescore(
    source: str,
    tests: Path | None,
    data: Path | None,
    report_dir: Path | None,
    run_id: str | None,
    spot: str | None,
    coordinates: str | None,
) -> int:
    """Run the tests of a run again on its stored generations, into a new run; or score a file of answers; needs no GPU.

    RUN is a run directory, the name of one in the report folder, or latest, the complete run that ended last (latest~1: the one
    before). FILE.jsonl is gt_vs_pred.jsonl or <mission>_stage_a.jsonl. What is given is only read.
    """
    if Path(source).is_file():
        _refuse("--tests", tests, "run directories")
        return _score_file(Path(source), data, report_dir, run_id, spot, coordinates)
    _refuse("--coordinates", coordinates, "files of answers")
    from evalharness.pytest_plugin.replay.rescore import rescore_run  # pytest, so only where it is needed

    return rescore_run(find_run(source), tests=tests, data=data, report_dir=report_dir, run_id=run_id, spot=spot)


def _refuse(flag: str, value: object, only_for: str) -> None:
    if value is not None:
        raise ConfigError(f"{flag} is for {only_for} only; leave it out")


def _score_file(
    source: Path, data: Path | None, report_dir: Path | None, run_id: str | None, spot: str | None, coordinates: str | None
) -> int:
    from evalharness.cli.dump_scores import score_dump_file
    from evalharness.config import resolve
    from evalharness.report.tables import load_tables
    from evalharness.report.writing import terminal_summary, write_reports

    given = {"data": data, "report_dir": report_dir, "run_id": run_id or f"rescored-{os.urandom(3).hex()}", "spot": spot}
    texts = {name: None if value is None else str(value) for name, value in given.items()}
    run = resolve(texts, os.environ, Path.cwd())
    run_dir = score_dump_file(source, run, sys.argv, coordinates=coordinates or "norm1000")
    tables = load_tables(run_dir)
    write_reports(tables)
    print(terminal_summary(tables))
    print(f"report: {run_dir / 'report.md'}")
    return DONE


# `evalharness summary RUN`: verdict, gates and scores of a run as Markdown, for the page of a CI job


@command(
    "summary",
    examples=["evalharness summary reports/RUN_ID", "evalharness summary latest > page.md"],
    exit_codes={DONE: "printed, whatever the verdict"},
)
@click.argument("run", metavar="RUN")
def summary(run: str) -> int:
    """Print verdict, gates and scores of a run as Markdown.

    RUN is a run directory, the name of one in the report folder, or latest, the complete run that ended last (latest~1: the one
    before). Runs write the same to $GITHUB_STEP_SUMMARY by themselves.
    """
    from evalharness.report.markdown import ci_summary
    from evalharness.report.tables import load_tables

    click.echo(ci_summary(load_tables(find_run(run))).encode("utf-8", "backslashreplace"), nl=False)
    return DONE
