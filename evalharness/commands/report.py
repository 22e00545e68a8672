"""`evalharness report RUN_DIR`: the reports of a run made again from its records."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from evalharness.errors import RecordError

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "report", help="Rebuild the reports of a run from its records, even a killed one; needs no GPU", allow_abbrev=False
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="Folder of the run, such as reports/RUN_ID")
    parser.set_defaults(command=_report)


def _report(options: argparse.Namespace) -> int:
    run_dir: Path = options.run_dir
    if not run_dir.is_dir():
        raise RecordError(f"{run_dir} is no folder; give that of a run, such as reports/RUN_ID")
    from evalharness.report.writing import write_reports  # pandas, so only where it is needed
    from evalharness.run_rebuild import rebuild_run

    if rebuild_run(run_dir):
        print(f"{run_dir}: samples.jsonl was rebuilt from the journal", file=sys.stderr)
    for path in write_reports(run_dir).values():
        print(path)
    return 0
