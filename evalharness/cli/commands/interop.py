"""`evalharness import TOOL FILE…`: a run of the samples that another tool has logged."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from evalharness.api.errors import ConfigError, RecordError
from evalharness.cli.completion import RUN
from evalharness.cli.framework import PATH, RUN_CODES, command, find_run
from evalharness.config import resolve
from evalharness.config.sources import project_root
from evalharness.runs.schema import IMPORTED_FROM


@command(
    "import",
    examples=[
        "evalharness import lm-eval results/my-model --run-id baseline",
        "evalharness import inspect logs/2030-01-01T00-00-00+00-00_arc_X.eval --gate 'choice >= 0.7'",
        "evalharness import lm-eval out --like latest --score 'exact_match@strict-match=exact_match_strict'",
        "evalharness import lmms-eval logs/model --tag category --gate 'anls[category=*] >= 0.5' --baseline latest",
    ],
    exit_codes=RUN_CODES,
)
@click.argument("tool", type=click.Choice(IMPORTED_FROM))
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE…")
@click.option("--run-id", metavar="ID", help="Name of the run (default: the tool's name and six random digits)")
@click.option("--report-dir", type=PATH, metavar="FOLDER", help="Folder for the run (default: the settings', reports)")
@click.option("--id", "column", metavar="COLUMN", help="Column of the data set's rows that names the cases (default: the tool's own ids)")
@click.option("--tag", "tags", multiple=True, metavar="COLUMN", help="Column that makes slices; may be given several times (default: none)")
@click.option(
    "--gate", "gates", multiple=True, metavar="GATE", help="Gate of each task, as 'acc >= 0.7'; may be given several times (default: none)"
)
@click.option(
    "--like", metavar="RUN", type=RUN, help="Name samples as the cases of this run that ask the same, to compare the two (default: none)"
)
@click.option(
    "--score", "renamed", multiple=True, metavar="THEIRS=OURS", help="Another name for a score; may be given several times (default: none)"
)
@click.option("--baseline", metavar="NAME|PATH|latest", help="Baseline of gates that compare with one (default: none)")
def import_(
    tool: str,
    files: tuple[Path, ...],
    column: str | None,
    tags: tuple[str, ...],
    gates: tuple[str, ...],
    like: str | None,
    renamed: tuple[str, ...],
    **given: object,
) -> int:
    """Make a run of the samples that another tool has logged; needs no GPU and not the tool.

    FILE is a file of samples or of results of lm-eval or lmms-eval (--log_samples), a log of Inspect (.eval or .json), or a folder of them.
    The run has a task's scores as the tool gave them; compare, gates, pages and rescore --tests work on it.
    """
    from evalharness.interop.imported import write_run  # numpy, so only where it is needed
    from evalharness.interop.inspect_log import read_inspect
    from evalharness.interop.lm_eval import read_lm_eval
    from evalharness.interop.same_cases import name_as, rename_scores
    from evalharness.report.html.index_page import renew_index
    from evalharness.report.tables import load_tables
    from evalharness.report.writing import terminal_summary, write_reports

    options = {**given, "run_id": given["run_id"] or f"{tool}-{os.urandom(3).hex()}"}
    chosen = {name: str(value) for name, value in options.items() if value is not None}
    run = resolve(chosen, os.environ, project_root(Path.cwd()))
    try:
        read = read_inspect(files) if tool == "inspect" else read_lm_eval(files, tool)
    except RecordError as error:
        error.helped_by(error.command or "evalharness import --help")
        raise
    rename_scores(read, map(_pair, renamed))
    if like is not None:
        name_as(read, find_run(like))
    done = write_run(read, run, column=column, tags=tags, gates=gates)
    tables = load_tables(Path(run.report_dir) / run.run_id)
    write_reports(tables)
    renew_index(tables.run_dir)
    print(terminal_summary(tables))
    print(f"report: {tables.run_dir / 'report.md'}")
    for notice in read.notices:
        print(f"evalharness: {notice}", file=sys.stderr)
    return done["exit_code"]


def _pair(text: str) -> tuple[str, str]:
    theirs, equals, ours = text.partition("=")
    if not (theirs and equals and ours):
        raise ConfigError(f"--score {text!r} is not THEIRS=OURS, such as 'exact_match@strict-match=exact_match_strict'")
    return theirs, ours
