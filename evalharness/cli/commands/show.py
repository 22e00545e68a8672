"""`evalharness show RUN [CASE]`: everything that a run recorded about one case, or which cases did not pass."""

from __future__ import annotations

import json
from pathlib import Path

import click

from evalharness.api.errors import DONE, ConfigError, RecordError, did_you_mean
from evalharness.cli.completion import CASE, ENGINE, RUN
from evalharness.cli.framework import PATH, command, find_run
from evalharness.runs.schema import Row


@command(
    "show",
    examples=[
        "evalharness show reports/RUN_ID bbu-install/fail/QC-1/image_1",
        "evalharness show RUN_ID image_17 --engine hf:final --json",
        "evalharness show latest image_17 --overlay objects.png",
    ],
    exit_codes={DONE: "the case was shown, or the cases were listed, whatever their outcome"},
    takes_runs=True,
)
@click.argument("run", metavar="RUN", type=RUN)
@click.argument("case", metavar="[CASE]", type=CASE, required=False)
@click.option(
    "--engine", metavar="ID", type=ENGINE, help="Show only this engine, such as hf:final; the checkpoint's name is enough (default: all)"
)
@click.option("--test", metavar="NAME", help="Show only this test, such as test_summary or stage_a::test_summary (default: all)")
@click.option("--json", "as_json", is_flag=True, help="Print the rows of samples.jsonl, one per line (default: formatted text)")
@click.option(
    "--overlay",
    type=PATH,
    metavar="PICTURE",
    help="Draw reference and prediction of a dense eval's row into this file (default: no drawing)",
)
@click.option("--data", type=PATH, metavar="FOLDER", help="Folder of the images for --overlay (default: the run's)")
def show(run: str, case: str | None, engine: str | None, test: str | None, as_json: bool, overlay: Path | None, data: Path | None) -> int:
    """Show one case of a run: prompt, images, text, raw text, scores, details and problem, per test and engine.

    CASE is a case id or a node id. A part of it is enough if only one case matches; otherwise the matching cases are listed. Without
    CASE, the cases that did not pass are listed, the worst first.
    """
    from evalharness.report.case_view import find_rows, print_row, way_lines, worst_case_lines
    from evalharness.report.terminal import open_console, print_lines

    if case is None and (as_json or overlay is not None):
        raise ConfigError(f"CASE is missing: {'--json' if as_json else '--overlay'} shows one case")
    run_dir, console = find_run(run), open_console()
    if case is None:
        print_lines(console, worst_case_lines(run_dir, engine, test))
        return DONE
    rows = _chosen(find_rows(run_dir, case), engine, test)
    if overlay is not None:
        _draw(rows, run_dir, overlay, data)
    for row in rows:
        if as_json:
            print(json.dumps(row, allow_nan=False))
        else:
            print_row(console, row)
    print_lines(console, way_lines(run_dir, rows) if not as_json else ())
    return DONE


def _chosen(rows: list[Row], engine: str | None, test: str | None) -> list[Row]:
    def named(row: Row) -> tuple[set[str], set[str]]:
        return {str(row.get("engine")), str(row.get("checkpoint"))}, {str(row.get("test")), f"{row.get('eval')}::{row.get('test')}"}

    for flag, wanted, place in (("--engine", engine, 0), ("--test", test, 1)):
        if wanted is None:
            continue
        known = sorted(set().union(*(named(row)[place] for row in rows)))
        rows = [row for row in rows if wanted in named(row)[place]]
        if not rows:
            raise RecordError(f"{flag} {wanted!r} has no row of this case{did_you_mean(wanted, known) or '.'} Known: {', '.join(known)}.")
    return rows


def _draw(rows: list[Row], run_dir: Path, overlay: Path, data: Path | None) -> None:
    from evalharness.runs.run_file import read_run
    from evalharness.tasks.dense.spot_check import draw_row

    if len(rows) != 1:
        raise ConfigError(f"--overlay draws one row, got {len(rows)}; choose with --engine and --test")
    details = rows[0].get("details")
    if not isinstance(details, dict) or not {"image", "truth", "predictions", "pairs"} <= details.keys():
        raise ConfigError("--overlay draws rows of dense evals; this one has no objects")
    folder = data or (read_run(run_dir).get("config", {}).get("data") or {}).get("value")
    if folder is None:
        raise ConfigError("the run does not record where its images are; give --data FOLDER")
    try:
        draw_row(rows[0], Path(folder)).save(overlay)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--overlay {overlay} cannot be written ({error}); give a .png or .jpg file in a folder that exists") from error
