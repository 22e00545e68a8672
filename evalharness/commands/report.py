"""`evalharness report RUN_DIR`: the reports of a run made again from its records."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from evalharness.commands.frame import command
from evalharness.errors import RecordError
from evalharness.exit_codes import DONE

__all__ = ["report"]


@command("report", examples=["evalharness report reports/RUN_ID"])
@click.argument("run_dir", type=click.Path(path_type=Path), metavar="RUN_DIR")
def report(run_dir: Path) -> int:
    """Rebuild the reports of a run from its records, even a killed one; needs no GPU.

    RUN_DIR is the folder of the run, such as reports/RUN_ID. Prints the paths of what was written.
    """
    if not run_dir.is_dir():
        raise RecordError(f"{run_dir} is no folder; give that of a run, such as reports/RUN_ID")
    from evalharness.report.index_page import INDEX, write_index
    from evalharness.report.writing import write_reports  # pandas, so only where it is needed
    from evalharness.run_rebuild import rebuild_run

    if rebuild_run(run_dir):
        print(f"{run_dir}: samples.jsonl was rebuilt from the journal", file=sys.stderr)
    for path in write_reports(run_dir).values():
        print(path)
    if (run_dir.absolute().parent / INDEX).is_file():
        write_index(run_dir.absolute().parent)
    return DONE
