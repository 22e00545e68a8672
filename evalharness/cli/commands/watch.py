"""`evalharness watch DIR -- evals …`: evaluates each checkpoint of a training run as it appears, until stopped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from evalharness.api.errors import ConfigError
from evalharness.api.exit_codes import DONE, NOT_PASSED
from evalharness.cli.framework import command, seconds

__all__ = ["watch"]

_OWN = ("--model", "--run-id", "--report-dir")


@command(
    "watch",
    examples=[
        "evalharness watch runs/sft-42 -- evals --backend vllm",
        "evalharness watch runs/sft-42 --idle 3600 --report-dir reports/sft-42 -- evals -k stage_a",
    ],
    exit_codes={DONE: "every run ended with 0", NOT_PASSED: "a run did not"},
)
@click.argument("folder", type=click.Path(path_type=Path), metavar="DIR")
@click.argument("for_pytest", nargs=-1, type=click.UNPROCESSED, metavar="-- PYTEST_ARGUMENTS")
@click.option(
    "--report-dir", type=click.Path(path_type=Path), default=Path("reports"), metavar="FOLDER", help="Folder of the runs (default: reports)"
)
@click.option("--interval", type=seconds, default=10.0, metavar="SECONDS", help="How often to look (default: 10)")
@click.option("--idle", type=seconds, metavar="SECONDS", help="End after so long without a new checkpoint (default: never)")
def watch(folder: Path, for_pytest: Sequence[str], report_dir: Path, interval: float, idle: float | None) -> int:
    """Evaluate each checkpoint of a training run as it appears, until stopped (Ctrl-C).

    DIR is the folder whose checkpoints lie in it: pytest PYTEST_ARGUMENTS --model CHECKPOINT, one at a time, those that are there
    first, in the order of their steps. A checkpoint with a finished run is not evaluated again. PYTEST_ARGUMENTS are those of a run
    without --model: evals --backend vllm
    """
    taken = [part for part in for_pytest if part.partition("=")[0] in _OWN]
    if taken:
        raise ConfigError(f"{taken[0]} is given by the watch itself for each checkpoint; leave it out after `--`")
    if not folder.is_dir():
        raise ConfigError(f"{folder} is no folder; give the folder that training writes its checkpoints into")
    if not for_pytest:
        raise ConfigError("say after `--` what to run, as for pytest: evalharness watch DIR -- evals")
    from evalharness.cli.commands.watching import Watch  # reads checkpoints, so only where it is needed

    watching = Watch(folder, for_pytest, report_dir, interval, idle)
    with watching.stopped_by_signals():
        watching.run()
    return NOT_PASSED if watching.num_failed else DONE
