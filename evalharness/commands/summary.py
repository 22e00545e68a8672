"""`evalharness summary RUN_DIR`: verdict, gates and scores of a run as Markdown, for the page of a CI job."""

from __future__ import annotations

from pathlib import Path

import click

from evalharness.commands.frame import command
from evalharness.exit_codes import DONE

__all__ = ["summary"]


@command(
    "summary",
    examples=["evalharness summary reports/RUN_ID", "evalharness summary reports/RUN_ID > page.md"],
    exit_codes={DONE: "printed, whatever the verdict"},
)
@click.argument("run_dir", type=click.Path(path_type=Path), metavar="RUN_DIR")
def summary(run_dir: Path) -> int:
    """Print verdict, gates and scores of a run as Markdown.

    RUN_DIR is the folder of the run, such as reports/RUN_ID. Runs write the same to $GITHUB_STEP_SUMMARY by themselves.
    """
    from evalharness.report.ci_summary import ci_summary
    from evalharness.report.tables import load_tables

    click.echo(ci_summary(load_tables(run_dir)).encode("utf-8", "backslashreplace"), nl=False)
    return DONE
