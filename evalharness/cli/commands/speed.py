"""`evalharness speed RUN`: how fast a run's engines were, how near the limits of their cards, and what limits them."""

from __future__ import annotations

import json
from pathlib import Path

import click

from evalharness.api.errors import DONE, RecordError
from evalharness.cli.completion import RUN
from evalharness.cli.framework import command, find_run
from evalharness.runs.schema import RunFile


@command(
    "speed",
    examples=["evalharness speed latest", "evalharness speed reports/RUN_ID --json"],
    exit_codes={DONE: "the speed was shown, whatever it was"},
    takes_runs=True,
)
@click.argument("run", metavar="RUN", type=RUN)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list with an object for each engine (default: text)")
def speed(run: str, as_json: bool) -> int:
    """Show where each engine's seconds went, how near its card's limit it came, and what limits it.

    Works from the run's records alone, of a killed run, too: of its journals.
    """
    from evalharness.analysis.speed.engine_speed import engine_speeds
    from evalharness.report.speed import speed_lines
    from evalharness.report.terminal import open_console, print_lines

    run_dir = find_run(run)
    speeds = engine_speeds(_facts(run_dir))
    if as_json:
        print(json.dumps(speeds, allow_nan=False, indent=1))
        return DONE
    if not speeds:
        raise RecordError(f"{run_dir} says of no engine how long it took: nothing was generated in it, or it was scored from a file")
    print_lines(open_console(), speed_lines(speeds))
    return DONE


def _facts(run_dir: Path) -> RunFile:
    """Return run.json, with what the journals say where the run did not come to its end."""
    from evalharness.runs.records import generation_facts, read_records
    from evalharness.runs.run_file import read_run

    run = read_run(run_dir)
    if "throughput" in run or not (run_dir / "journal").is_dir():
        return run
    return {**run, "throughput": generation_facts(read_records(run_dir))["throughput"]}
