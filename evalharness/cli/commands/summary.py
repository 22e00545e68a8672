"""`evalharness summary RUN`: verdict, gates and scores of a run as Markdown, for the page of a CI job."""

from __future__ import annotations

import click

from evalharness.api.exit_codes import DONE
from evalharness.cli.framework import command
from evalharness.cli.runs import find_run

__all__ = ["summary"]


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
    from evalharness.report.ci_summary import ci_summary
    from evalharness.report.tables import load_tables

    click.echo(ci_summary(load_tables(find_run(run))).encode("utf-8", "backslashreplace"), nl=False)
    return DONE
