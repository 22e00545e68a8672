"""`evalharness bless RUN NAME`: one engine's scores of a run kept as a baseline, a small file to be committed."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

from evalharness.errors import BaselineError
from evalharness.regression_gates import BASELINE_FOLDER, LATEST

__all__ = ["add"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def add(commands: Any) -> None:
    """Add the command to argparse's subparsers."""
    parser = commands.add_parser(
        "bless", help="Keep a run's scores as a baseline for pytest evals --baseline NAME; a small file to commit", allow_abbrev=False
    )
    parser.add_argument("run", metavar="RUN", help="Run directory; RUN_DIR:ENGINE where the run has several engines")
    parser.add_argument("name", metavar="NAME", help="Name of the baseline; an older one of this name is replaced")
    parser.add_argument(
        "--to", type=Path, default=Path(BASELINE_FOLDER), metavar="FOLDER", help=f"Folder of baselines (default: {BASELINE_FOLDER})"
    )
    parser.set_defaults(command=_bless)


def _bless(options: argparse.Namespace) -> int:
    if not _NAME.fullmatch(options.name) or options.name == LATEST or options.name.endswith(".json"):
        raise BaselineError(
            f"{options.name!r} cannot be the name of a baseline; give 1 to 100 letters, digits, '.', '_' or '-', not starting with a mark, "
            f"not ending in .json, and not {LATEST!r}"
        )
    from evalharness.comparison.baselines import write_baseline
    from evalharness.comparison.sheets import was_judged
    from evalharness.comparison.sides import read_side

    side = read_side(options.run)
    if side.notes:
        raise BaselineError(f"{options.run} cannot be blessed: {side.notes[0]}; run it again to its end")
    cases = [line for sheet in side.sheets.values() for line in sheet.cases.values()]
    num_judged = sum(map(was_judged, cases))
    if 2 * num_judged < len(cases) or not num_judged:
        raise BaselineError(f"{options.run} cannot be blessed: only {num_judged} of {len(cases)} cases were judged; look into its report")
    path = options.to / f"{options.name}.json"
    write_baseline(side, path)
    print(f"{path}: {num_judged} of {len(cases)} cases judged, {path.stat().st_size:,} bytes")
    return 0
