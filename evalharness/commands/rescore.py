"""`evalharness rescore RUN_DIR`: the tests of a run again, on the generations that it stored."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "rescore",
        help="Run the tests of a run again on its stored generations, into a new run; needs no model and no GPU",
        allow_abbrev=False,
    )
    parser.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="Folder of the run, such as reports/RUN_ID; it is only read")
    parser.add_argument("--tests", type=Path, metavar="MODULE", help="Judge every stored generation by the tests of this file instead")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="Where the cases are now (default: where the run had them from)")
    parser.add_argument("--report-dir", type=Path, metavar="FOLDER", help="Folder that gets the new run (default: that of the run)")
    parser.add_argument("--run-id", metavar="ID", help="Name of the new run (default: the run's, and that it was rescored)")
    parser.set_defaults(command=_rescore)


def _rescore(options: argparse.Namespace) -> int:
    from evalharness.pytest_plugin.rescore_run import rescore_run  # pytest, so only where it is needed

    return rescore_run(options.run_dir, tests=options.tests, data=options.data, report_dir=options.report_dir, run_id=options.run_id)
