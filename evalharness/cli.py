"""The `evalharness` command: what is done with a run once it is there. Runs themselves are started with pytest.

Exit codes: 0 done, 1 it could not be done (the message says why), 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import evalharness
from evalharness.errors import EvalHarnessError, RecordError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Raises `SystemExit` 2 for a wrong command line, as argparse does."""
    options = _parser().parse_args(arguments)
    command: Callable[[argparse.Namespace], None] = options.command
    try:
        command(options)
    except EvalHarnessError as error:
        print(f"evalharness: error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="evalharness",
        description="Work with the runs of evals. A run is started with pytest: pytest evals --model PATH",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"evalharness {evalharness.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    report = commands.add_parser(
        "report", help="Rebuild the reports of a run from its records, even a killed one; needs no GPU", allow_abbrev=False
    )
    report.add_argument("run_dir", type=Path, metavar="RUN_DIR", help="Folder of the run, such as reports/RUN_ID")
    report.set_defaults(command=_rebuild_reports)
    return parser


def _rebuild_reports(options: argparse.Namespace) -> None:
    run_dir: Path = options.run_dir
    if not run_dir.is_dir():
        raise RecordError(f"{run_dir} is no folder; give that of a run, such as reports/RUN_ID")
    from evalharness.report.writing import write_reports  # pandas, so only where it is needed
    from evalharness.run_rebuild import rebuild_run

    if rebuild_run(run_dir):
        print(f"{run_dir}: samples.jsonl was rebuilt from the journal", file=sys.stderr)
    for path in write_reports(run_dir).values():
        print(path)
