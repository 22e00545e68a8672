"""`evalharness compare BASE CANDIDATE [...]`. Exit codes: 0 no regression shown, 1 a regression, 2 it cannot be compared."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalharness.analysis.judge import BASELINE_FOLDER
from evalharness.api.errors import DONE, NOT_PASSED, REFUSED, BaselineError, ComparisonError, EvalHarnessError
from evalharness.cli.framework import command, name_side
from evalharness.runs.run_file import LATEST

if TYPE_CHECKING:
    from evalharness.analysis.comparison.compare import Comparison

__all__ = ["bless", "compare", "timeline"]


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
    from evalharness.report.terminal import open_console, print_lines, terminal_width

    source = Path(comparisons[0].candidate.source)
    paths = write_comparison(comparisons, out or (source if source.is_dir() else Path()))
    print_lines(open_console(), comparison_lines(comparisons, terminal_width()))
    for path in paths:
        print(path)


# `evalharness bless RUN NAME`: one engine's scores of a run kept as a baseline, a small file to be committed

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@command(
    "bless",
    examples=["evalharness bless reports/RUN_ID nightly", "evalharness bless latest nightly", "pytest evals --baseline nightly"],
)
@click.argument("run", metavar="RUN")
@click.argument("name", metavar="NAME")
@click.option(
    "--to",
    "folder",
    type=click.Path(path_type=Path),
    default=Path(BASELINE_FOLDER),
    metavar="FOLDER",
    help=f"Folder of baselines (default: {BASELINE_FOLDER})",
)
def bless(run: str, name: str, folder: Path) -> int:
    """Keep a run's scores as a baseline, a small file to commit.

    RUN is a run directory, the name of one in the report folder, or latest, the complete run that ended last (latest~1: the one
    before); RUN:ENGINE where it has several engines. NAME is the baseline's name; an older one of this name is replaced.
    """
    if not _NAME.fullmatch(name) or name == LATEST or name.endswith(".json"):
        raise BaselineError(
            f"{name!r} cannot be the name of a baseline; give 1 to 100 letters, digits, '.', '_' or '-', not starting with a mark, "
            f"not ending in .json, and not {LATEST!r}"
        )
    from evalharness.analysis.comparison.baselines import write_baseline
    from evalharness.analysis.comparison.sheets import was_judged
    from evalharness.analysis.comparison.sides import read_side

    side = read_side(name_side(run))
    if side.notes:
        raise BaselineError(f"{run} cannot be blessed: {side.notes[0]}; run it again to its end")
    cases = [line for sheet in side.sheets.values() for line in sheet.cases.values()]
    num_judged = sum(map(was_judged, cases))
    if 2 * num_judged < len(cases) or not num_judged:
        raise BaselineError(f"{run} cannot be blessed: only {num_judged} of {len(cases)} cases were judged; look into its report")
    path = folder / f"{name}.json"
    write_baseline(side, path)
    print(f"{path}: {num_judged} of {len(cases)} cases judged, {path.stat().st_size:,} bytes")
    return DONE


# `evalharness timeline 'reports/*'`: metrics by training step, the best checkpoint of each, and when every case flipped


@command(
    "timeline",
    examples=["evalharness timeline 'reports/*'", "evalharness timeline reports/A reports/B --out sft-42"],
    exit_codes={DONE: "the timeline was written"},
)
@click.argument("runs", metavar="RUN_DIR…", nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Where the files go (default: the one run's folder, or the folder in which the runs lie)",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Seed of the bootstrap intervals (default: 0)")
def timeline(runs: Sequence[str], out: Path | None, seed: int) -> int:
    """Show metrics by training step: intervals, the best checkpoint of each metric, and when every case flipped.

    RUN_DIR is a run directory or a pattern in quotes, 'reports/*'. Checkpoints of one folder are one track, by the step that
    trainer_state.json or the name checkpoint-N tells. Writes timeline.html, timeline.csv, timeline_flips.csv and
    timeline.svg; no model is loaded.
    """
    from evalharness.analysis.comparison.timeline import read_tracks, run_folders, timeline_of
    from evalharness.report.terminal import open_console, print_lines, terminal_width
    from evalharness.report.timeline.files import timeline_lines, write_timelines

    folders = run_folders(runs)
    notes: list[str] = []
    timelines = [timeline_of(track, seed) for track in read_tracks(folders, notes)]
    parents = {folder.resolve().parent for folder in folders}
    default = folders[0] if len(folders) == 1 else folders[0].parent if len(parents) == 1 else Path()
    paths = write_timelines(timelines, notes, out or default)
    print_lines(open_console(), timeline_lines(timelines, notes, terminal_width()))
    for path in paths:
        print(path)
    return DONE
