"""`evalharness report RUN`: the reports of a run made again from its records."""

from __future__ import annotations

import sys

import click

from evalharness.api.exit_codes import DONE
from evalharness.cli.framework import command
from evalharness.cli.runs import find_run

__all__ = ["report"]


@command("report", examples=["evalharness report reports/RUN_ID", "evalharness report latest"])
@click.argument("run", metavar="RUN")
def report(run: str) -> int:
    """Rebuild the reports of a run from its records, even a killed one; needs no GPU.

    RUN is a run directory, the name of one in the report folder, or latest, the complete run that ended last (latest~1: the one
    before). Prints the paths of what was written.
    """
    run_dir = find_run(run)
    from evalharness.report.html.index_page import INDEX, write_index
    from evalharness.report.run_rebuild import rebuild_run
    from evalharness.report.writing import write_reports  # pandas, so only where it is needed

    if rebuild_run(run_dir):
        print(f"{run_dir}: samples.jsonl was rebuilt from the journal", file=sys.stderr)
    for path in write_reports(run_dir).values():
        print(path)
    if (run_dir.absolute().parent / INDEX).is_file():
        write_index(run_dir.absolute().parent)
    return DONE
