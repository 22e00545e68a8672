"""`evalharness merge RUN…`: one run of the parts that `--shard` made of it, on as many machines as there were."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

__all__ = ["add"]


def add(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "merge",
        help="Make one run, with one report, of the parts of a run (pytest evals --shard 1/8 …); needs no GPU",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN_DIR", help="Folders of all parts, in any order; only read")
    parser.add_argument("--report-dir", type=Path, metavar="FOLDER", help="Folder that gets the new run (default: that of the first part)")
    parser.add_argument("--run-id", metavar="ID", help="Name of the new run (default: merged and six random digits)")
    parser.set_defaults(command=_merge)


def _merge(options: argparse.Namespace) -> int:
    from evalharness.pytest_plugin.merging import merge_runs  # pytest, so only where it is needed

    return merge_runs(options.runs, report_dir=options.report_dir, run_id=options.run_id)
