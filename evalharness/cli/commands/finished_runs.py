"""`evalharness merge RUN…`: one run of the parts that `--shard` made of it, on as many machines as there were."""

from __future__ import annotations

from pathlib import Path

import click

from evalharness.cli.framework import RUN_CODES, command

__all__ = ["merge"]


@command("merge", examples=["evalharness merge reports/part-1 reports/part-2 --run-id whole"], exit_codes=RUN_CODES)
@click.argument("run_dirs", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="RUN_DIR…")
@click.option(
    "--report-dir", type=click.Path(path_type=Path), metavar="FOLDER", help="Folder that gets the new run (default: that of the first part)"
)
@click.option("--run-id", metavar="ID", help="Name of the new run (default: merged and six random digits)")
def merge(run_dirs: tuple[Path, ...], report_dir: Path | None, run_id: str | None) -> int:
    """Make one run, with one report, of the parts of a run; needs no GPU.

    RUN_DIR… are the folders of all parts (pytest evals --shard 1/8 …), in any order; they are only read.
    """
    from evalharness.pytest_plugin.replay.merging import merge_runs  # pytest, so only where it is needed

    return merge_runs(run_dirs, report_dir=report_dir, run_id=run_id)
