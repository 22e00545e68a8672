"""`evalharness compare`, `bless` and `timeline`: runs against each other, against a baseline, and along training."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from evalharness.analysis.judge import BASELINE_FOLDER
from evalharness.api.errors import DONE, NOT_PASSED, REFUSED, BaselineError, ComparisonError, EvalHarnessError
from evalharness.api.wording import part_of
from evalharness.cli.completion import RUN
from evalharness.cli.framework import PATH, command, expand_run
from evalharness.runs.run_file import LATEST


@command(
    "compare",
    examples=[
        "evalharness compare reports/A reports/B",
        "evalharness compare latest~1 latest",
        "evalharness compare baselines/nightly.json reports/B:hf:final",
        "evalharness compare reports/A reports/B reports/C --out comparison --lower-is-better loss",
    ],
    exit_codes={DONE: "no regression shown", NOT_PASSED: "a regression shown", REFUSED: "cannot be compared; the message says why"},
    takes_runs=True,
)
@click.argument("base", metavar="BASE", type=RUN)
@click.argument("candidates", metavar="CANDIDATE…", type=RUN, nargs=-1, required=True)
@click.option(
    "--out",
    type=PATH,
    metavar="FOLDER",
    help="Where compare.html, compare.md, compare.csv and compare_cases.csv go (default: the first candidate's run)",
)
@click.option("--anyway", is_flag=True, help="Compare even runs whose requests differ, with a warning (default: refuse)")
@click.option(
    "--lower-is-better",
    multiple=True,
    metavar="METRIC",
    help="A score that is better when lower; repeatable (default: those that the eval's directions or a gate declare)",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Seed of the bootstrap intervals (default: 0)")
def compare(base: str, candidates: Sequence[str], out: Path | None, anyway: bool, lower_is_better: Sequence[str], seed: int) -> int:
    """Compare runs case by case: what got better, what broke, and whether the difference is real.

    BASE and each CANDIDATE is a run, RUN:ENGINE where the run has several engines (the checkpoint's name is enough), or the file of
    a baseline. Cases are paired; docs/comparing.md says how each number is made.
    """
    from evalharness.analysis.comparison.compare import compare as compare_sides
    from evalharness.analysis.comparison.sides import read_side
    from evalharness.report.compare.files import write_comparison
    from evalharness.report.compare.text import comparison_lines
    from evalharness.report.html.index_page import renew_index
    from evalharness.report.terminal import open_console, print_lines, terminal_width

    try:
        side = read_side(expand_run(base))
        comparisons = [
            compare_sides(side, read_side(expand_run(candidate)), anyway=anyway, lower_is_better=lower_is_better, seed=seed)
            for candidate in candidates
        ]
        source = Path(comparisons[0].candidate.source)
        paths = write_comparison(comparisons, out or (source if source.is_dir() else Path()))
        renew_index(paths[0].parent)
    except EvalHarnessError as error:
        raise ComparisonError(f"cannot compare: {error}").helped_by(error.command, error.lines) from error
    print_lines(open_console(), comparison_lines(comparisons, terminal_width()))
    print(*paths, sep="\n")
    return NOT_PASSED if any(comparison.has_regressed for comparison in comparisons) else DONE


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@command(
    "bless",
    examples=["evalharness bless reports/RUN_ID nightly", "evalharness bless latest nightly", "pytest evals --baseline nightly"],
    exit_codes={DONE: "the baseline was written"},
    takes_runs=True,
)
@click.argument("run", metavar="RUN", type=RUN)
@click.argument("name", metavar="NAME")
@click.option(
    "--to", "folder", type=PATH, default=Path(BASELINE_FOLDER), metavar="FOLDER", help=f"Folder of baselines (default: {BASELINE_FOLDER})"
)
@click.option("--partial", is_flag=True, help="Bless even a run that holds only part of an eval (default: refuse)")
def bless(run: str, name: str, folder: Path, partial: bool) -> int:
    """Save a run's scores as a baseline, a small file to commit.

    Give RUN:ENGINE if the run has several engines. NAME is the baseline's name; an older baseline of this name
    is replaced. A run of only part of an eval (after --lf, -k, --limit or a node id) is refused without --partial.
    """
    if not _NAME.fullmatch(name) or name == LATEST or name.endswith(".json"):
        raise BaselineError(
            f"{name!r} cannot be the name of a baseline; give 1 to 100 letters, digits, '.', '_' or '-', starting with a letter or digit, "
            f"not ending in .json, and not {LATEST!r}"
        )
    from evalharness.analysis.comparison.sides import read_side, write_baseline

    path = folder / f"{name}.json"
    side = read_side(expand_run(run))
    if side.notes:
        raise BaselineError(f"{run} cannot be blessed: {side.notes[0]}; run it again to its end")
    if side.stopped:
        what = "; ".join(side.parts.get(name, name) for name in side.stopped)
        raise BaselineError(f"{run} cannot be blessed: it stopped when it was certain, after {what}; bless a run without --until-certain")
    if side.parts and not partial:
        raise BaselineError(f"{run} cannot be blessed: {side.caveats[0]}; bless a whole run, or this one with --partial")
    cases = [line for sheet in side.sheets.values() for line in sheet.cases.values()]
    num_judged = sum(line.was_judged for line in cases)
    if 2 * num_judged < len(cases) or not num_judged:
        raise BaselineError(f"{run} cannot be blessed: only {part_of(num_judged, len(cases), 'case')} had a verdict; look into its report")
    write_baseline(side, path)
    print(f"{path}: {part_of(num_judged, len(cases), 'case')} judged, {path.stat().st_size:,} bytes")
    return DONE


@command(
    "timeline",
    examples=["evalharness timeline 'reports/*'", "evalharness timeline reports/A reports/B --out sft-42"],
    exit_codes={DONE: "the timeline was written"},
    takes_runs=True,
)
@click.argument("runs", metavar="RUN…", type=RUN, nargs=-1, required=True)
@click.option(
    "--out", type=PATH, metavar="FOLDER", help="Where the files go (default: the run's folder, or the folder that holds the runs)"
)
@click.option("--seed", type=click.IntRange(min=0), default=0, metavar="N", help="Seed of the bootstrap intervals (default: 0)")
def timeline(runs: Sequence[str], out: Path | None, seed: int) -> int:
    """Show metrics by training step: intervals, the best checkpoint of each metric, and when every case flipped.

    RUN may also be a pattern in quotes, 'reports/*'. Checkpoints of one folder make one track, ordered by the step in
    trainer_state.json or in the name checkpoint-N. Writes timeline.html, timeline.csv, timeline_flips.csv and
    timeline.svg; no model is loaded.
    """
    from evalharness.analysis.comparison.timeline import read_tracks, run_folders, timeline_of
    from evalharness.report.html.index_page import renew_index
    from evalharness.report.terminal import open_console, print_lines, terminal_width
    from evalharness.report.timeline.files import timeline_lines, write_timelines

    folders = run_folders([expand_run(word) for word in runs])
    notes: list[str] = []
    timelines = [timeline_of(track, seed) for track in read_tracks(folders, notes)]
    parents = {folder.resolve().parent for folder in folders}
    default = folders[0] if len(folders) == 1 else folders[0].parent if len(parents) == 1 else Path()
    paths = write_timelines(timelines, notes, out or default)
    renew_index(paths[0].parent)
    print_lines(open_console(), timeline_lines(timelines, notes, terminal_width()))
    print(*paths, sep="\n")
    return DONE
