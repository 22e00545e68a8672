"""`evalharness rescore`: scores again, without a model: of a recorded run, or of answers in a file of another tool's form."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from evalharness.errors import ConfigError

__all__ = ["add"]

_ONLY_RUN = {"tests": "--tests"}
_ONLY_DUMP = {"coordinates": "--coordinates"}


def add(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "rescore",
        help="Run the tests of a run again on its stored generations, into a new run; or score a file of answers; needs no GPU",
        allow_abbrev=False,
    )
    parser.add_argument(
        "source",
        type=Path,
        metavar="RUN_DIR|FILE.jsonl",
        help="Folder of the run, such as reports/RUN_ID; or gt_vs_pred.jsonl or <mission>_stage_a.jsonl; only read",
    )
    parser.add_argument("--tests", type=Path, metavar="MODULE", help="Judge every stored generation by the tests of this file instead")
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="Where cases or references are (default: the run's; the settings')")
    parser.add_argument("--report-dir", type=Path, metavar="FOLDER", help="Folder that gets the new run (default: the run's; reports)")
    parser.add_argument("--run-id", metavar="ID", help="Name of the new run (default: that of the source, and that it was rescored)")
    parser.add_argument("--spot", metavar="N", help="Cases that evals with spot checks show in outputs/ (default: the run's; none)")
    parser.add_argument("--coordinates", metavar="SPACE", help="Space of a dense dump's answers that name none (default: norm1000)")
    parser.set_defaults(command=_rescore)


def _rescore(options: argparse.Namespace) -> int:
    is_dump = options.source.is_file()
    for name, flag in (_ONLY_RUN if is_dump else _ONLY_DUMP).items():
        if getattr(options, name) is not None:
            raise ConfigError(f"{flag} is for {'run directories' if is_dump else 'files of answers'} only; leave it out")
    if is_dump:
        return _score_file(options)
    from evalharness.pytest_plugin.rescore_run import rescore_run  # pytest, so only where it is needed

    given = {name: getattr(options, name) for name in ("data", "report_dir", "run_id", "spot")}
    return rescore_run(options.source, tests=options.tests, **given)


def _score_file(options: argparse.Namespace) -> int:
    from evalharness.config import resolve
    from evalharness.dump_scores import score_dump_file
    from evalharness.report.tables import load_tables
    from evalharness.report.writing import terminal_summary, write_reports

    given = {name: getattr(options, name) for name in ("data", "report_dir", "run_id", "spot")}
    given["run_id"] = options.run_id or f"rescored-{os.urandom(3).hex()}"
    texts = {name: None if value is None else str(value) for name, value in given.items()}
    run = resolve(texts, os.environ, Path.cwd())
    run_dir = score_dump_file(options.source, run, sys.argv, coordinates=options.coordinates or "norm1000")
    tables = load_tables(run_dir)
    write_reports(tables)
    print(terminal_summary(tables))
    print(f"report: {run_dir / 'report.md'}")
    return 0
