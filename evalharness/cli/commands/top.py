"""`evalharness top [RUN]`: how far a running run is, from its folder alone: in another terminal, or on another machine that shares it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from evalharness.api.errors import DONE, RecordError
from evalharness.cli.completion import RUN
from evalharness.cli.framework import command, find_run, report_folder
from evalharness.runs.progress import PROGRESS, read_progress, seconds_since_written, state_without_end
from evalharness.runs.run_file import read_run, run_state

_LOOK_EVERY_S = 2.0


@command(
    "top",
    examples=["evalharness top", "evalharness top nightly --once", "evalharness top /shared/reports/nightly"],
    exit_codes={DONE: "the progress was shown, whatever it was"},
)
@click.argument("run", metavar="[RUN]", required=False, type=RUN)
@click.option("--once", is_flag=True, help="Print it once (default: on a terminal, look again every two seconds until the run ends)")
def top(run: str | None, once: bool) -> int:
    """Show how far a running run is: answers, tokens per second and time left, by engine and worker.

    RUN is its folder, or its name in the report folder; by default the run that was heard of last. A running session writes its progress
    into its folder every 15 seconds, so this works from another terminal and from every machine that shares the folder.
    """
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    run_dir = _newest() if run is None else find_run(run)
    console = Console(highlight=False, soft_wrap=False)
    if once or not console.is_terminal:
        print("\n".join(_lines(run_dir)))
        return DONE
    with Live(console=console, auto_refresh=False) as live:
        while True:
            is_running = _state(run_dir) == "running"
            live.update(Text("\n".join(_lines(run_dir)), no_wrap=True, overflow="ellipsis"), refresh=True)
            if not is_running:
                return DONE
            time.sleep(_LOOK_EVERY_S)


def _newest() -> Path:
    """Return the running run that was heard of last, else the one that began last. Raises `RecordError` where there is none."""
    folder = report_folder()
    heard: list[tuple[bool, float, Path]] = []
    for path in folder.glob("*/run.json"):
        is_running = state_without_end(path.parent) == "running"  # a killed run has a record, too; one of seconds has none yet
        with suppress(OSError):
            heard.append((is_running, max(file.stat().st_mtime for file in (path, path.with_name(PROGRESS)) if file.exists()), path.parent))
    if not heard:
        raise RecordError(f"there is no run in {folder}; start one: pytest evals --model PATH, or give the folder of one")
    return max(heard)[2]


def _state(run_dir: Path) -> str:
    state = run_state(read_run(run_dir))
    return state_without_end(run_dir) if state == "running" else state


def _lines(run_dir: Path) -> Iterator[str]:
    """Yield a line on the run's state, then its progress while it runs, or what to type next."""
    from evalharness.report.progress import progress_page
    from evalharness.report.text import duration_text, one_line

    run, progress, since_s = read_run(run_dir), read_progress(run_dir), seconds_since_written(run_dir)
    state, name = _state(run_dir), one_line(run_dir.resolve().name, 100)
    if state not in ("running", "killed", "unfinished"):
        yield f"{name}: {state}; evalharness summary {name} shows its results"
        return
    heard = "" if since_s is None else f", as of {duration_text(since_s)} ago"
    yield f"{name}: {state}{heard}"
    if progress is not None:
        yield from progress_page(progress if state == "running" else replace(progress, left_s=None, workers=()))
    elif state == "running":
        yield "  it has just begun: its progress comes within 15 s"
    if state != "running":
        from evalharness.report.markdown import go_on_command  # numpy and all that reports are made of

        yield f"  what it has is kept; go on: {go_on_command(run) or f'pytest evals --resume {name}'}"
