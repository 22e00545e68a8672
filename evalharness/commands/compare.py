"""`evalharness compare BASE CANDIDATE [...]`. Exit codes: 0 no regression shown, 1 a regression, 2 it cannot be compared."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalharness.errors import EvalHarnessError

if TYPE_CHECKING:
    from evalharness.comparison.changes import Comparison

__all__ = ["add"]

_EPILOG = """
A RUN is a run directory, RUN_DIR:ENGINE where a run has several engines (the checkpoint's name is enough), or a baseline's
file. Cases are paired; docs/comparing.md says how each number is made.

exit codes: 0 no regression shown, 1 a regression shown, 2 cannot be compared (the message says why)
"""


def add(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "compare",
        help="Compare runs case by case: what got better, what broke, and whether it is real",
        description="Compare one or more candidates with a base, case by case.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("base", metavar="BASE", help="RUN to compare with")
    parser.add_argument("candidates", metavar="CANDIDATE", nargs="+", help="RUN to judge")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FOLDER",
        help="Where compare.md, compare.csv and compare_cases.csv go (default: the first candidate's run)",
    )
    parser.add_argument("--anyway", action="store_true", help="Compare also what was asked differently, with a warning (default: refuse)")
    parser.add_argument(
        "--lower-is-better", action="append", default=[], metavar="METRIC",
        help="A score that is better when lower; may be given several times (default: those of which the eval or a gate says so)",
    )  # fmt: skip
    parser.add_argument("--seed", type=_seed, default=0, metavar="N", help="Seed of the bootstrap intervals (default: 0)")
    parser.set_defaults(command=_run)


def _seed(text: str) -> int:
    seed = int(text)
    if seed < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {text}")
    return seed


def _run(options: argparse.Namespace) -> int:
    try:
        comparisons = _compare(options)
        _show(options, comparisons)
    except EvalHarnessError as error:
        from evalharness.report.safe_text import one_line

        print(f"evalharness: error: cannot compare: {one_line(str(error), 2000)}", file=sys.stderr)
        return 2
    return int(any(comparison.has_regressed for comparison in comparisons))


def _compare(options: argparse.Namespace) -> list[Comparison]:
    from evalharness.comparison.changes import compare
    from evalharness.comparison.sides import read_side

    base = read_side(options.base)
    return [
        compare(base, read_side(candidate), anyway=options.anyway, lower_is_better=options.lower_is_better, seed=options.seed)
        for candidate in options.candidates
    ]


def _show(options: argparse.Namespace, comparisons: list[Comparison]) -> None:
    from evalharness.report.compare_files import write_comparison
    from evalharness.report.compare_terminal import comparison_lines
    from evalharness.report.terminal import terminal_width

    source = Path(comparisons[0].candidate.source)
    folder = options.out or (source if source.is_dir() else Path())
    paths = write_comparison(comparisons, folder)
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a terminal that lacks a character gets it escaped
    for line in comparison_lines(comparisons, terminal_width()):
        print(line)
    for path in paths:
        print(path)
