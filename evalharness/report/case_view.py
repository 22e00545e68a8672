"""The rows of one case, found by its id, a node id or a unique part of either, and single answers, printed on a terminal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rich.console import Console

from evalharness.api.errors import RecordError
from evalharness.api.options import GenerationOptions
from evalharness.report.earlier_run import find_earlier, run_word
from evalharness.report.tables import load_tables
from evalharness.report.terminal import print_fields, print_heading, print_text, table_lines
from evalharness.report.text import number_text, plural, terminal_text
from evalharness.report.worst import worst_first
from evalharness.runs.run_file import read_run, read_samples
from evalharness.runs.schema import Generation, Row, entries_of, generations_of, items_of, mapping, text_of

NUM_CANDIDATES = 10
NUM_WORST = 30
_ALL_IDS = 100_000


def find_rows(run_dir: Path, wanted: str) -> list[Row]:
    """Return the rows of the case that `wanted` names, one per test and engine. `RecordError` where it names none, or several."""
    exact: list[Row] = []
    partly: dict[str, list[Row]] = {}
    ids: dict[str, None] = {}
    for row in read_samples(run_dir):
        case_id, nodeid = text_of(row.get("case_id")), text_of(row.get("nodeid"))
        if wanted in (case_id, nodeid):
            exact.append(row)
        elif wanted in case_id or wanted in nodeid:
            partly.setdefault(case_id, []).append(row)
        if len(ids) < _ALL_IDS:
            ids[case_id] = None
    if exact:
        return exact
    if len(partly) == 1:
        return next(iter(partly.values()))
    if partly:
        problem = f"{wanted!r} is part of {len(partly):,} case ids of {run_dir}; give more of one"
        raise with_choice(RecordError(problem), run_dir, list(partly))
    close = get_close_matches(wanted, list(ids)[:5000], n=5, cutoff=0.3) or list(ids)[:5]
    problem = f"{run_dir} has no case {wanted!r}; {'did you mean one of these?' if close else 'it has no rows'}"
    raise with_choice(RecordError(problem), run_dir, close)


def with_choice(error: RecordError, run_dir: Path, ids: Sequence[str]) -> RecordError:
    """Return the error with the ids beneath it, one a line, and the command that shows the first."""
    more = [f"… and {len(ids) - NUM_CANDIDATES:,} more"] if len(ids) > NUM_CANDIDATES else []
    command = shlex.join(["evalharness", "show", str(run_dir), ids[0]]) if ids else f"evalharness report {shlex.quote(str(run_dir))}"
    return error.helped_by(command, [*ids[:NUM_CANDIDATES], *more])


def worst_case_lines(run_dir: Path, engine: str | None, test: str | None) -> Iterator[str]:
    """Yield the cases of a run that did not pass, the worst first; `RecordError` where no row is meant."""
    tables = load_tables(run_dir)
    names = [(tables.evals.names[key[0]], tables.tests.names[key[1]], tables.engines.names[key[2]]) for key in tables.row_keys]
    asked = [row for row in worst_first(tables) if is_named(*names[row], tables.checkpoints[names[row][2]], engine, test)]
    rows = [row for row in asked if tables.outcomes[row] not in ("pass", "skip")]
    if not asked:
        known = ", ".join([*tables.engines.names, *dict.fromkeys(f"{key[0]}::{key[1]}" for key in names)])
        raise RecordError(f"{run_dir} has no row {f'of that --engine and --test. Known: {known}.' if known else 'at all'}")
    yield f"{plural(len(rows), 'case')} did not pass, the worst first:" if rows else f"no case failed; {plural(len(asked), 'case')} ran"
    shown = [(tables.outcomes[row], tables.case_ids[row], f"{names[row][0]}::{names[row][1]} on {names[row][2]}") for row in rows]
    cells = [[terminal_text(cell, 120) for cell in line] for line in shown[:NUM_WORST]]
    yield from (f"  {line}" for line in table_lines(cells, 3)) if cells else ()
    if len(rows) > NUM_WORST:
        yield f"  … and {len(rows) - NUM_WORST:,} more, in report.html and samples.csv"
    command = shlex.join(["evalharness", "show", run_word(tables.run, run_dir), tables.case_ids[(rows or asked)[0]]])
    yield f"try: {terminal_text(command, 600)}"


def is_named(eval_name: str, test: str, engine_id: str, checkpoint: str, engine: str | None, wanted_test: str | None) -> bool:
    """Return whether a row's names are those that --engine and --test ask for, None for any."""
    return engine in (None, engine_id, checkpoint) and wanted_test in (None, test, f"{eval_name}::{test}")


def _case_of(row: Row) -> tuple[str, str, str]:
    return text_of(row.get("eval")), text_of(row.get("test")), text_of(row.get("case_id"))


def way_lines(run_dir: Path, rows: Sequence[Row]) -> Iterator[str]:
    """Yield where to go on from a case: its page, and, where the run before has the case, its outcomes there and how to see it."""
    if (run_dir / "report.html").is_file():
        yield f"page: {terminal_text(str(run_dir / 'report.html'), 600)}"
    run = read_run(run_dir)
    before = find_earlier(run_dir, run)
    wanted = set(map(_case_of, rows))
    same = [] if before is None else [row for row in read_samples(before) if _case_of(row) in wanted]
    if before is None or not same:
        return
    outcomes = [f"{text_of(row.get('outcome'))} on {text_of(row.get('engine'))}" for row in same[:NUM_CANDIDATES]]
    yield terminal_text(f"in the run before: {', '.join(outcomes)}", 600)
    command = shlex.join(["evalharness", "show", run_word(run, before), text_of(same[0].get("case_id"))])
    yield f"  {terminal_text(command, 600)}"


def print_row(console: Console, row: Row) -> None:
    """Print one row for people: what was asked, what came back, and how it was judged."""
    title = f"{text_of(row.get('case_id'))}: {text_of(row.get('eval'))}::{text_of(row.get('test'))} on {text_of(row.get('engine'))}"
    print_heading(console, title, text_of(row.get("outcome")))
    usual = GenerationOptions().to_json()
    options = {name: value for name, value in mapping(row.get("options")).items() if name not in usual or value != usual[name]}
    scores = {name: number_text(value) for name, value in mapping(row.get("scores")).items()}
    print_fields(
        console,
        {
            "problem": row.get("problem") or None,
            "scores": ", ".join(f"{name} {value}" for name, value in scores.items()) or None,
            "tags": ", ".join(f"{name} {text_of(value)}" for name, value in mapping(row.get("tags")).items()) or None,
            "group": row.get("group"),
            "nodeid": row.get("nodeid"),
            "worker": row.get("worker"),
            "started": row.get("started_at"),
            "options": json.dumps(options, ensure_ascii=False) if options else None,
        },
    )
    generations = generations_of(row)
    if generations:
        print_text(console, "prompt", text_of(generations[0].get("prompt_text")))
    for image in entries_of(generations[0].get("images")) if generations else ():
        print_fields(console, {"image": " ".join(f"{name}={text_of(value)}" for name, value in image.items())})
    for step, requests in enumerate(items_of(row.get("steps")), 1):
        for number, answer in enumerate(entries_of(items_of(requests)), 1):
            _print_generation(console, f"step {step}.{number}: ", answer)
    for number, generation in enumerate(generations, 1):
        _print_generation(console, f"sample {number}: " if len(generations) > 1 else "", generation)
    for name in ("reference", "details"):
        if row.get(name) is not None:
            print_text(console, name, json.dumps(row[name], indent=1, ensure_ascii=False))


def _print_generation(console: Console, prefix: str, generation: Generation) -> None:
    print_text(console, f"{prefix}text", text_of(generation.get("text")), ["bold"])
    print_text(console, f"{prefix}raw text", text_of(generation.get("raw_text")))
    tokens = f"{text_of(generation.get('num_prompt_tokens'))} + {text_of(generation.get('num_completion_tokens'))} tokens"
    stop = generation.get("stop_reason")
    finish = text_of(generation.get("finish_reason")) + ("" if stop is None else f" ({text_of(stop)})")
    shots = ", ".join(map(text_of, items_of(generation.get("shots")))) or None
    remarks = ", ".join(map(text_of, items_of(generation.get("ignored_options")))) or None
    fields = {"finish": f"{finish}, {tokens}", "seed": generation.get("seed"), "fallback": generation.get("fallback"), "shots": shots}
    print_fields(console, {**fields, "remarks": remarks})


def print_answer(console: Console, row: Mapping[str, Any]) -> None:
    """Print one answer (a row of `generate --json`): its text, its raw text and ids, how it ended and how long it took."""
    print_heading(console, f"{row['id']} on {row['engine']}" + (f", sample {row['sample']}" if row["num_samples"] > 1 else ""))
    generation = row["generation"]
    if generation is None:
        print_fields(console, {row["outcome"]: row["problem"]})
        return
    print_text(console, "text", generation["text"], ["bold"])
    print_text(console, "raw text", generation["raw_text"])
    finish = generation["finish_reason"]
    if generation["stop_reason"] is not None:
        finish = f"{finish} ({generation['stop_reason']})"
    num_prompt, num_generated = (generation[f"num_{part}_tokens"] or 0 for part in ("prompt", "completion"))
    print_fields(
        console,
        {
            "finish": finish,
            "tokens": f"{plural(num_prompt, 'prompt token')}, {plural(num_generated, 'generated token')}",
            "time": f"{row['timing']['finished_after_s']:.2f} s after the first request, model loaded in {row['timing']['load_s']:.2f} s",
            "seed": generation["seed"],
            "fallback": generation["fallback"],
            "remarks": ", ".join(generation["ignored_options"]) or None,
            "ids": " ".join(map(str, generation["token_ids"])),
            "overlay": row.get("overlay"),
        },
    )
