"""`evalharness summary RUN_DIR`: verdict, gates and scores of a run as Markdown, for the page of a CI job."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "summary",
        help="Print verdict, gates and scores of a run as Markdown; runs write the same to $GITHUB_STEP_SUMMARY by themselves",
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="Folder of the run, such as reports/RUN_ID")
    parser.set_defaults(command=_summary)


def _summary(options: argparse.Namespace) -> int:
    from evalharness.report.ci_summary import ci_summary
    from evalharness.report.tables import load_tables

    sys.stdout.buffer.write(ci_summary(load_tables(options.run_dir)).encode("utf-8", "backslashreplace"))
    return 0
