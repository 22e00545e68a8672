"""`evalharness bless RUN NAME`: one engine's scores of a run kept as a baseline, a small file to be committed."""

from __future__ import annotations

import re
from pathlib import Path

import click

from evalharness.analysis.judge import BASELINE_FOLDER
from evalharness.api.errors import BaselineError
from evalharness.api.exit_codes import DONE
from evalharness.cli.framework import command
from evalharness.cli.runs import name_side
from evalharness.runs.run_latest import LATEST

__all__ = ["bless"]

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
