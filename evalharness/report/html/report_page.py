"""report.html of a run: what counts on top, every case below; a run of very many cases goes on in report-2.html and so on."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from evalharness.analysis.speed.engine_speed import engine_speeds
from evalharness.report.findings import findings
from evalharness.report.html import broke, overview
from evalharness.report.html.cases import PageRows, case_columns, page_ranges
from evalharness.report.html.page import json_block, write_page
from evalharness.report.html.pictures import PictureFile
from evalharness.report.html.run_before import RunBefore, run_before
from evalharness.report.html.site import compare_command, compare_side
from evalharness.report.markdown import SECRET, option_lines, rerun_command, run_facts
from evalharness.report.noise import HEADERS, NOTE, NUM_TEXT_COLUMNS, gate_sentences, noise_lines, noise_summary
from evalharness.report.tables import COUNTS, RunTables
from evalharness.report.text import duration_text, when_finite
from evalharness.report.what_broke import LEGEND
from evalharness.report.worst import goals, worst_first
from evalharness.report.writing import report_file
from evalharness.runs.measured import Throughput
from evalharness.runs.schema import OF_OTHER_TOOLS, EngineEntry, RunFile, entries_of, items_of, mapping, text_of

# Options that say where and how much was run, not what a case was asked.
_NOT_OF_A_CASE = frozenset({
    "backend", "model", "dtype", "limit", "limit_first", "shard", "spot", "run_id", "resume", "report_dir", "report_html", "baseline",
    "wait", "devices", "share_devices", "hang_timeout", "executor", "ray_address", "tune", "noise", "noise_cases",
})  # fmt: skip


def rerun_commands(run: RunFile) -> dict[str, str]:
    """Return, by engine, the arguments after `pytest NODEID` that run one case again, quoted for a shell; "" for one of another tool."""
    settings = list(_set_for_cases(run))
    commands: dict[str, str] = {}
    for engine in entries_of(run.get("engines")):
        if engine.get("backend") in OF_OTHER_TOOLS:
            commands[text_of(engine.get("id"))] = ""
            continue
        parts = ["--model", text_of(engine.get("checkpoint_path")), "--backend", text_of(engine.get("backend"))]
        if engine.get("dtype"):
            parts += ["--dtype", text_of(engine["dtype"])]
        commands[text_of(engine.get("id"))] = shlex.join([*parts, *settings])
    return commands


def _set_for_cases(run: RunFile) -> Iterator[str]:
    for name, option in mapping(run.get("config")).items():
        entry = mapping(option)
        value, origin = entry.get("value"), text_of(entry.get("origin"))
        was_set = origin.startswith(("command line", "environment"))
        if not was_set or value is None or name in _NOT_OF_A_CASE or SECRET.search(name):
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            yield flag if value else flag.replace("--", "--no-", 1)
        elif isinstance(value, (str, int, float)):
            yield from (flag, str(value))
        else:
            yield from (word for part in items_of(value) for word in (flag, text_of(part)))


_LATER_PAGE = re.compile(r"report-([2-9]|[1-9]\d+)\.html")


def page_name(number: int) -> str:
    """Return the file name of a run's page, counted from 1."""
    return "report.html" if number == 1 else f"report-{number}.html"


def write_report_pages(tables: RunTables) -> dict[str, Path]:
    """Write the pages of a run, remove surplus ones of an earlier report, and return the paths by file name.

    Raises `RecordError` when the rows cannot be read or a page cannot be written.
    """
    ranges = page_ranges(tables.run_dir)
    paths = {name: tables.run_dir / name for name in map(page_name, range(1, len(ranges) + 1))}
    order, before = worst_first(tables), run_before(tables)
    context = _context(tables, order, dict(zip(paths, ranges, strict=True)))
    title = f"{context['run_id']} · evalharness"
    counts = [dict(Counter(tables.outcomes[rows.start : rows.stop])) for rows in ranges]
    copies: dict[PictureFile, bytes | None] = {}
    for number, (path, rows) in enumerate(zip(paths.values(), ranges, strict=True), start=1):
        page = PageRows(tables.run_dir, rows, copies=copies)
        with report_file(path) as file:
            write_page(
                file,
                "report.html.j2",
                path=path,
                title=title,
                styles=("report.css",),
                scripts=("rows.js", "aligned.js", "transcript.js", "photos.js", "case.js", "list.js", "report.js"),
                blocks=_blocks(tables, page, order, before),
                number=number,
                pages=list(zip(paths, ranges, counts, strict=True)),
                **context,
            )
    for path in tables.run_dir.glob("report-*.html"):
        if _LATER_PAGE.fullmatch(path.name) and path.name not in paths:
            path.unlink(missing_ok=True)
    return paths


def _blocks(tables: RunTables, page: PageRows, order: Sequence[int], before: RunBefore | None) -> Iterator[str]:
    yield from page.blocks()
    yield json_block("cases-index", case_columns(tables, page, order))
    yield json_block("goals", [[*key, *goal] for key, goal in goals(tables).items()])
    yield json_block("run-before", before.on_page(tables, page.rows) if before else None)
    yield json_block("rerun", rerun_commands(tables.run))
    yield json_block("pictures-missing", page.num_missing)


def _context(tables: RunTables, order: Sequence[int], pages: Mapping[str, range]) -> dict[str, Any]:
    run, aims = tables.run, goals(tables)
    chosen, default = option_lines(run)
    return {
        "run_id": text_of(run.get("run_id")) or tables.run_dir.name,
        "verdict": overview.verdict_of(tables),
        "facts": _headline_facts(tables),
        "outcomes": overview.outcome_counts(tables),
        "words": overview.words(tables),
        "terms": [(COUNTS[name], LEGEND[name]) for name in ("malformed", "length_cap", "empty")],
        "cards": overview.score_cards(tables),
        "failed_gates": broke.failed_gates(tables),
        "worst": broke.worst_cases(tables, order, aims, pages),
        "remarks": findings(tables, capitals=True),
        "weak": [*broke.weak_lines(tables), *broke.weak_slices(tables, aims)],
        "problems": broke.problem_lines(tables),
        "breakdowns": overview.breakdowns(tables, aims),
        "given_tables": overview.given_tables(tables),
        "noise": _noise(run),
        "run_facts": list(run_facts(run)),
        "engines": [_engine(entry) for entry in entries_of(run.get("engines"))],
        "options_chosen": chosen,
        "options_default": default,
        "outputs": [text_of(entry.get("path")) for entry in entries_of(run.get("outputs"))],
        "throughput": [_throughput(entry) for entry in entries_of(run.get("throughput"))],
        "speeds": [speed for speed in engine_speeds(run) if speed["num_steps"] or speed["bound_s"] is not None],
        "command": rerun_command(run),
        "compare_command": _compare_command(tables),
        "num_rows": tables.num_rows,
    }


def _noise(run: RunFile) -> dict[str, Any] | None:
    """Return what the run's repeats say (--noise); None where there were none."""
    summary = noise_summary(run)
    headers = [(name, NUM_TEXT_COLUMNS <= place < len(HEADERS) - 1) for place, name in enumerate(HEADERS)]
    texts = {"summary": summary[:1].upper() + summary[1:], "note": NOTE, "gates": list(gate_sentences(run))}
    return {**texts, "headers": headers, "lines": noise_lines(run)} if summary else None


def _compare_command(tables: RunTables) -> str:
    """Return the command that compares the run's last engine with its first, "" where it has only one."""
    engines = tables.engines.names
    return compare_command(*(compare_side(tables.run_dir, name) for name in (engines[0], engines[-1]))) if len(engines) > 1 else ""


def _headline_facts(tables: RunTables) -> list[str]:
    run, facts = tables.run, [tables.extent()]
    if started := text_of(run.get("started_at")):
        facts.append(f"{started[:10]} {started[11:16]} UTC")
    if isinstance(run.get("duration_s"), (int, float)):
        facts.append(duration_text(run["duration_s"]))
    git = mapping(run.get("git"))
    if git.get("commit"):
        facts.append(f"commit {text_of(git['commit'])[:12]}{' + changes' if git.get('dirty') else ''}")
    return facts


def _engine(entry: EngineEntry) -> dict[str, Any]:
    settings = [(name, text_of(value)) for name, value in mapping(entry.get("settings")).items()]
    path, load_s = text_of(entry.get("checkpoint_path")), entry.get("load_s")
    facts = [("checkpoint", path), ("backend", text_of(entry.get("backend"))), ("fingerprint", text_of(entry.get("fingerprint"))[:16])]
    facts += [("chat template", text_of(entry.get("template_sha256"))[:16]), ("base", text_of(entry.get("base_path")))]
    facts += [("chosen by auto", text_of(entry.get("chosen"))), ("loading", f"{load_s:.1f} s" if isinstance(load_s, (int, float)) else "")]
    facts += [(f"training {name}", text_of(value)) for name, value in mapping(entry.get("training")).items()]
    return {"id": text_of(entry.get("id")), "name": PurePath(path).name, "facts": [fact for fact in facts if fact[1]], "settings": settings}


def _throughput(entry: Throughput) -> dict[str, Any]:
    seconds, tokens = when_finite(entry.get("generation_s")), when_finite(entry.get("num_completion_tokens"))
    rate = tokens / seconds if tokens is not None and seconds else None
    return {"of": entry, "engine": text_of(entry.get("engine")), "rate": rate}
