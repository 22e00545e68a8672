"""`evalharness timeline 'reports/*'`: metrics by training step, the best checkpoint of each, and when every case flipped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from evalharness.api.exit_codes import DONE
from evalharness.cli.framework import command

__all__ = ["timeline"]


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
    trainer_state.json or the name checkpoint-N tells. Writes timeline.html, timeline.csv, timeline_flips.csv, timeline.png
    and timeline.svg; no model is loaded.
    """
    from evalharness.analysis.comparison.timeline import timeline_of
    from evalharness.analysis.comparison.tracks import read_tracks, run_folders
    from evalharness.report.console import open_console, print_lines
    from evalharness.report.terminal import terminal_width
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
