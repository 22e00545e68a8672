"""`evalharness list` and `open`: the runs of a report folder, and their pages in a browser."""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from evalharness.api.errors import BROKEN, DONE, RecordError, did_you_mean
from evalharness.cli.completion import RUN
from evalharness.cli.framework import PATH, command, find_run, report_folder
from evalharness.runs.run_file import LATEST

if TYPE_CHECKING:
    from evalharness.report.html.index_page import Entry

_MOST_IN_TABLE = 20
_VERDICTS = ("passed", "failed", "broken", "none")
_DATE = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d)?)?)?)?)?")
_NARROWEST = 8


def _date(ctx: click.Context, param: click.Parameter, value: str | None) -> str | None:
    if value is not None and not _DATE.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not a date; write 2030-01-31, 2030-01 or 2030-01-31T09:00 (UTC)", ctx, param)
    return value


@command(
    "list",
    examples=[
        "evalharness list",
        "evalharness list --eval stage_a --verdict failed --since 2030-01-31",
        "evalharness list --checkpoint checkpoint-300 --format json",
    ],
    exit_codes={DONE: "the runs were listed, whatever their verdicts"},
)
@click.option(
    "--checkpoint", metavar="TEXT", help="Only runs of an engine whose id has this text, such as hf:final or final (default: all)"
)
@click.option("--eval", "eval_name", metavar="NAME", help="Only runs of this eval (default: all)")
@click.option("--verdict", type=click.Choice(_VERDICTS), help="Only runs with this verdict; none: no gate was judged (default: all)")
@click.option("--since", metavar="DATE", callback=_date, help="Only runs that began on this day or later, in UTC (default: all)")
@click.option("--until", metavar="DATE", callback=_date, help="Only runs that began on this day or before, in UTC (default: all)")
@click.option("--most", type=click.IntRange(min=1), metavar="N", help=f"Only the N newest (default: {_MOST_IN_TABLE} in a table, else all)")
@click.option("--report-dir", type=PATH, metavar="FOLDER", help="Report folder (default: the project's)")
@click.option("--format", "kind", type=click.Choice(["table", "json", "csv"]), default="table", help="How to print them (default: table)")
def list_runs(report_dir: Path | None, kind: str, most: int | None, **filters: str | None) -> int:
    """List the runs of a report folder, newest first: state, verdict, gates, checkpoints and evals.

    A run is "partial" if it holds only part of an eval: after --lf, -k, --limit or a node id.
    """
    from evalharness.report.html.index_page import run_entries

    folder = report_dir or report_folder()
    try:
        entries = run_entries(folder) if report_dir is not None or folder.exists() else []
    except OSError as error:
        raise RecordError(f"{folder} cannot be listed: {error.strerror}; give a report folder").helped_by(
            "evalharness list --help"
        ) from None
    runs = [run for entry in entries if _fits(run := _line(folder, entry), **filters)]
    if not runs:
        _say_none_fits(folder, entries, **filters)
    shown = runs[: most or (_MOST_IN_TABLE if kind == "table" else None)]
    {"table": _print_table, "json": _print_json, "csv": _print_csv}[kind](shown)
    if len(runs) > len(shown):
        print(f"evalharness: {len(runs) - len(shown):,} older not shown; --most {len(runs)} shows all", file=sys.stderr)
    return DONE


def _line(folder: Path, entry: Entry) -> dict[str, Any]:
    """Return what is listed of a run."""
    gates = {state: entry["gates"].get(state, 0) for state in ("passed", "failed", "skipped")}
    counts = entry["counts"]
    is_over = entry["state"] in ("finished", "interrupted")
    verdict = "broken" if entry["exit_code"] == BROKEN else "failed" if gates["failed"] or counts.get("fail") else "passed"
    return {
        "run": entry["name"],
        "state": "partial" if entry["state"] == "finished" and entry["partial"] else entry["state"],
        "verdict": verdict if is_over and (verdict != "passed" or (gates["passed"] and not entry["gates"].get("not judged"))) else "none",
        "gates": gates,
        "started_at": entry["started_at"],
        "duration_s": entry["duration_s"],
        "checkpoints": entry["checkpoints"],
        "evals": [name for name, _ in entry["evals"]],
        "num_cases": dict(entry["evals"]),
        "failed_gates": entry["failed"],
        "problem": entry["problem"],
        "path": str(folder / entry["name"]),
    }


def _fits(
    run: dict[str, Any], checkpoint: str | None, eval_name: str | None, verdict: str | None, since: str | None, until: str | None
) -> bool:
    return (
        (checkpoint is None or any(checkpoint in name for name in run["checkpoints"]))
        and (eval_name is None or eval_name in run["evals"])
        and (verdict is None or verdict == run["verdict"])
        and (since is None or run["started_at"] >= since)
        and (until is None or run["started_at"][: len(until)] <= until)
    )


def _say_none_fits(folder: Path, entries: Sequence[Entry], checkpoint: str | None, eval_name: str | None, **others: str | None) -> None:
    """Say on stderr that no run fits. Raises `RecordError`, with what there is, for a checkpoint or an eval of no run."""
    for flag, wanted, known in (
        ("--checkpoint", checkpoint, {name for entry in entries for name in entry["checkpoints"]}),
        ("--eval", eval_name, {name for entry in entries for name, _ in entry["evals"]}),
    ):
        if known and wanted is not None and not any(wanted in name if flag == "--checkpoint" else wanted == name for name in known):
            raise RecordError(f"{flag} {wanted!r} has no run{did_you_mean(wanted, known) or '.'} Known: {', '.join(sorted(known))}.")
    none = f"none of {len(entries):,} runs is listed" if entries else f"no run in {folder} yet; start one: pytest evals --model PATH"
    print(f"evalharness: {none}", file=sys.stderr)


def _print_json(runs: Sequence[dict[str, Any]]) -> None:
    print(json.dumps(runs, indent=1, allow_nan=False))


def _print_csv(runs: Sequence[dict[str, Any]]) -> None:
    from evalharness.report.text import csv_cell

    names = ("run", "state", "verdict", "gates_passed", "gates_failed", "gates_skipped", "started_at", "duration_s", "checkpoints", "evals")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(names)
    for run in runs:
        flat = {**run, **{f"gates_{state}": count for state, count in run["gates"].items()}}
        flat |= {name: " ".join(run[name]) for name in ("checkpoints", "evals")}
        writer.writerow([csv_cell(flat[name]) for name in names])


def _print_table(runs: Sequence[dict[str, Any]]) -> None:
    from evalharness.report.terminal import OUTCOME_STYLES, open_console, table_lines, terminal_width

    console = open_console()
    if not runs:
        return
    cells = list(_cells(runs, terminal_width()))
    for line, run in zip(table_lines(cells, len(cells[0])), [None, *runs], strict=True):
        style = "" if run is None else {"failed": "red", "broken": "red", "passed": OUTCOME_STYLES["pass"]}.get(run["verdict"], "dim")
        console.print(line, style=style, soft_wrap=True)


def _cells(runs: Sequence[dict[str, Any]], columns: int) -> Iterator[list[str]]:
    """Yield the table's lines; checkpoints and evals share what the others leave, and are cut. A narrow terminal goes without some."""
    from rich.cells import cell_len

    from evalharness.report.columns import fit
    from evalharness.report.text import one_line

    fixed = [["run", "state", "verdict", "began (UTC)", "gates"]]
    fixed += [
        [one_line(run["run"], 60), run["state"], run["verdict"], run["started_at"][:16].replace("T", " "), _gates(run)] for run in runs
    ]
    lists = [["checkpoints", "evals"], *([one_line(", ".join(run[name]), 200) for name in ("checkpoints", "evals")] for run in runs)]
    widths = [max(cell_len(line[column]) for line in fixed) + 2 for column in range(len(fixed[0]))]
    num_shown = next((num for num in (5, 4, 3) if sum(widths[:num]) + 2 * _NARROWEST + 2 <= columns), 3)
    room = columns - sum(widths[:num_shown]) - 2
    wanted = [max(cell_len(line[column]) for line in lists) for column in (0, 1)]
    first = max(_NARROWEST, min(wanted[0], room - min(wanted[1], room // 2)))
    for line, (checkpoints, evals) in zip(fixed, lists, strict=True):
        yield [*line[:num_shown], fit(checkpoints, first), fit(evals, max(_NARROWEST, room - first))]


def _gates(run: dict[str, Any]) -> str:
    judged = run["gates"]["passed"] + run["gates"]["failed"]
    return f"{run['gates']['passed']} of {judged}" if judged else "-"


@command(
    "open",
    examples=["evalharness open", "evalharness open RUN_ID", "evalharness open --all"],
    exit_codes={DONE: "the page was opened, or its path printed"},
    takes_runs=True,
)
@click.argument("run", metavar="[RUN]", default=LATEST, type=RUN)
@click.option("--all", "all_runs", is_flag=True, help="Open the page of all runs, index.html (default: one run's report.html)")
def open_page(run: str, all_runs: bool) -> int:
    """Open a run's page in the browser (default: the latest run's), and print its path.

    Without a browser, as on a server, the path is all: copy the file, or let an editor show it.
    """
    page = report_folder() / "index.html" if all_runs else find_run(run) / "report.html"
    if not page.is_file():
        made_by = "pytest evals" if all_runs else f"evalharness report {page.parent}"
        raise RecordError(f"{page} does not exist: {'no run has ended there' if all_runs else 'this run has no page yet'}").helped_by(
            made_by
        )
    print(page)
    if not _show(page.absolute().as_uri()):
        print("evalharness: no browser could be started; open the file yourself", file=sys.stderr)
    return DONE


def _show(address: str, browser: Callable[[str], bool] | None = None) -> bool:
    """Show a page in the browser; return whether there is one."""
    import webbrowser

    try:
        return (browser or webbrowser.open)(address)
    except webbrowser.Error:
        return False
