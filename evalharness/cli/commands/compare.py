"""`evalharness compare BASE CANDIDATE [...]`. Exit codes: 0 no regression shown, 1 a regression, 2 it cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalharness.api.errors import ComparisonError, EvalHarnessError
from evalharness.api.exit_codes import DONE, NOT_PASSED, REFUSED
from evalharness.cli.framework import command
from evalharness.cli.runs import name_side

if TYPE_CHECKING:
    from evalharness.analysis.comparison.compare import Comparison

__all__ = ["compare"]


@command(
    "compare",
    examples=[
        "evalharness compare reports/A reports/B",
        "evalharness compare latest~1 latest",
        "evalharness compare baselines/nightly.json reports/B:hf:final",
        "evalharness compare reports/A reports/B reports/C --out comparison --lower-is-better loss",
    ],
    exit_codes={DONE: "no regression shown", NOT_PASSED: "a regression shown", REFUSED: "cannot be compared; the message says why"},
)
@click.argument("base", metavar="BASE")
@click.argument("candidates", metavar="CANDIDATE…", nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where compare.html, compare.md, compare.csv and compare_cases.csv go (default: the first candidate's run)",
)
@click.option("--anyway", is_flag=True, help="Compare also what was asked differently, with a warning (default: refuse)")
@click.option(
    "--lower-is-better",
    multiple=True,
    metavar="METRIC",
    help="A score that is better when lower; may be given several times (default: those of which the eval or a gate says so)",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Seed of the bootstrap intervals (default: 0)")
def compare(base: str, candidates: Sequence[str], out: Path | None, anyway: bool, lower_is_better: Sequence[str], seed: int) -> int:
    """Compare runs case by case: what got better, what broke, and whether it is real.

    BASE and each CANDIDATE is a run directory, the name of one in the report folder, latest, the complete run that ended last
    (latest~1: the one before), each as RUN:ENGINE where the run has several engines (the checkpoint's name is enough), or a
    baseline's file. Cases are paired; docs/comparing.md says how each number is made.
    """
    try:
        comparisons = _compare(base, candidates, anyway=anyway, lower_is_better=lower_is_better, seed=seed)
        _show(comparisons, out)
    except EvalHarnessError as error:
        raise ComparisonError(f"cannot compare: {error}") from error
    return NOT_PASSED if any(comparison.has_regressed for comparison in comparisons) else DONE


def _compare(base: str, candidates: Sequence[str], *, anyway: bool, lower_is_better: Sequence[str], seed: int) -> list[Comparison]:
    from evalharness.analysis.comparison.compare import compare as compare_sides
    from evalharness.analysis.comparison.sides import read_side

    side = read_side(name_side(base))
    return [
        compare_sides(side, read_side(name_side(candidate)), anyway=anyway, lower_is_better=lower_is_better, seed=seed)
        for candidate in candidates
    ]


def _show(comparisons: list[Comparison], out: Path | None) -> None:
    from evalharness.report.compare.files import write_comparison
    from evalharness.report.compare.terminal import comparison_lines
    from evalharness.report.console import open_console, print_lines
    from evalharness.report.terminal import terminal_width

    source = Path(comparisons[0].candidate.source)
    paths = write_comparison(comparisons, out or (source if source.is_dir() else Path()))
    print_lines(open_console(), comparison_lines(comparisons, terminal_width()))
    for path in paths:
        print(path)
