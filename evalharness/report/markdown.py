"""report.md: one run for people, as a GitHub-flavoured Markdown document in which every name and text is escaped."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Any

from evalharness.analysis.speed.engine_speed import engine_speeds
from evalharness.api.checks import short_hash
from evalharness.report.earlier_run import compare_command
from evalharness.report.findings import findings, gate_state, rescored_changes, verdict
from evalharness.report.levers import draft_lines, tuning_lines
from evalharness.report.noise import (
    HEADERS as NOISE_HEADERS,
    NOTE,
    NUM_TEXT_COLUMNS,
    gate_sentences,
    noise_lines,
    noise_summary,
    within_noise,
)
from evalharness.report.score_tables import breakdown_sections, markdown_table, score_sections, table_sections
from evalharness.report.speed import speed_section
from evalharness.report.tables import COUNTS, OUTCOMES, RunTables
from evalharness.report.text import code_block, figure_text, markdown_cell, number_text, plural, terminal_text, when_finite
from evalharness.report.what_broke import legend
from evalharness.runs.command_line import HIDDEN
from evalharness.runs.measured import Throughput, WorkerEntry
from evalharness.runs.schema import GateVerdict, RunFile, entries_of, mapping, text_of

_WORKERS_NOTE = (
    "Idle is the share of the time, from the first load to the last result, in which a worker neither loaded nor generated. "
    "A swap loads a checkpoint's weights into a running engine."
)
_HEADERS = ["worker", "devices", "loads", "swaps", "units", "loading (s)", "generating (s)", "idle"]


def worker_sections(run: RunFile) -> Iterator[str]:
    """Yield "Workers", with how often engines were loaded; parts that run.json lacks are left out."""
    entries = entries_of(run.get("workers"))
    if len(entries) > 1:
        yield from _section("Workers", _WORKERS_NOTE, _HEADERS, [_line(entry) for entry in entries], 2)


def _section(title: str, note: str, headers: list[str], lines: list[list[str]], num_text_columns: int) -> Iterator[str]:
    """Yield heading, note and table of a section; nothing without lines."""
    if lines:
        yield f"## {title}"
        if note:
            yield note
        yield markdown_table(headers, lines, num_text_columns)


def _line(entry: WorkerEntry) -> list[str]:
    devices = entry.get("devices")
    names = [text_of(entry.get("worker")), "not assigned" if devices is None else ", ".join(map(text_of, devices)) or "cpu"]
    counts = [_number(entry.get(name), ",") for name in ("num_loads", "num_swaps", "num_units")]
    seconds = [_number(entry.get(name), ",.1f") for name in ("load_s", "generation_s")]
    return [*(markdown_cell(name) for name in names), *counts, *seconds, _number(entry.get("idle_share"), ".1%")]


def _number(value: Any, form: str) -> str:
    return format(value, form) if isinstance(value, (int, float)) and not isinstance(value, bool) else "-"


NUM_PROBLEM_GROUPS = 20
NUM_OUTPUT_FILES = 50
NUM_CHANGED_CASES = 500

_FILES_NOTE = (
    "Long texts are shortened here. samples.jsonl has them in full, samples.csv one line per sample (cells of up to 32,767 characters),"
    " and report.csv every number of this page, unrounded."
)


def markdown_report(tables: RunTables) -> Iterator[str]:
    """Yield the blocks of report.md, to be set apart by empty lines."""
    yield f"# Run {markdown_cell(text_of(tables.run.get('run_id')) or tables.run_dir.name)}"
    yield from summary_blocks(tables)
    yield from gate_blocks(tables)
    yield from noise_blocks(tables)
    yield from score_sections(tables)
    yield from _aggregates(tables)
    yield from table_sections(tables)
    yield from breakdown_sections(tables)
    yield from _output_files(tables)
    yield from _problems(tables)
    yield from rescored_sections(tables.run)
    yield from _throughput(tables)
    yield from speed_section(engine_speeds(tables.run))
    yield from worker_sections(tables.run)
    yield from settings_sections(tables.run)
    yield from _rerun(tables)


def summary_blocks(tables: RunTables) -> Iterator[str]:
    """Yield verdict, counts, and caveats."""
    word, sentence = verdict(tables)
    yield f"**{word}**: {markdown_cell(sentence, 1000)}."
    if command := go_on_command(tables.run):
        yield "Go on with:"
        yield code_block([command])
    if command := compare_command(tables):
        yield "What has changed since the run before:"
        yield code_block([command])
    counts = [f"{count:,} {name}" for name in (*OUTCOMES, "other") if (count := tables.total(name))]
    yield f"{tables.extent()}, {plural(tables.num_rows, 'sample')}{': ' if counts else ''}{', '.join(counts)}."
    if words := legend(tables, tuple(COUNTS)):
        yield f"{markdown_cell(words[0].upper() + words[1:], 1000)}."
    if caveats := findings(tables, capitals=True):
        yield "Caveats:"
        yield "\n".join(f"- {markdown_cell(caveat, 500)}." for caveat in caveats)
    yield _FILES_NOTE


def gate_blocks(tables: RunTables) -> Iterator[str]:
    """Yield the table of gates, if there are any."""
    headers = ["gate", "passed", "eval", "test", "engine", "reason", "value", "threshold", "n"]
    gates = entries_of(tables.run.get("gates"))
    yield from _section("Gates", "", headers, [_gate_line(gate) for gate in gates], 6)
    lines = [line for gate in gates for line in _slice_lines(gate)]
    yield from _section("Slices that failed", "", ["gate", "eval", "test", "engine", "slice", "value", "n"], lines, 5)


def _slice_lines(gate: GateVerdict) -> Iterator[list[str]]:
    names = [markdown_cell(text_of(gate.get(name))) for name in ("expression", "eval", "test", "engine")]  # type: ignore[arg-type]
    for part in entries_of(gate.get("failed_slices")):
        numbers = figure_text(part.get("measured"), text_of(gate.get("metric"))), text_of(part.get("n"))
        yield [*names, markdown_cell(text_of(part.get("value")) or "(none)"), *map(markdown_cell, numbers)]


def noise_blocks(tables: RunTables) -> Iterator[str]:
    """Yield what the run's repeats say (--noise), if it has any."""
    if summary := noise_summary(tables.run):
        lines = [[markdown_cell(cell, 300) for cell in line] for line in noise_lines(tables.run)]
        yield from _section("Noise", f"{summary[:1].upper()}{summary[1:]}. {NOTE}", NOISE_HEADERS, lines, NUM_TEXT_COLUMNS)
        if sentences := list(gate_sentences(tables.run)):
            yield "\n".join(f"- {markdown_cell(sentence, 500)}." for sentence in sentences)


def _gate_line(gate: GateVerdict) -> list[str]:
    passed = {"passed": "yes", "failed": "**NO**"}.get(state := gate_state(gate), state)
    names = [markdown_cell(text_of(name)) for name in (gate.get("eval"), gate.get("test"), gate.get("engine"))]
    names.append(markdown_cell(text_of(gate.get("reason")) or within_noise(gate), 1000))
    value = markdown_cell(figure_text(gate.get("value"), text_of(gate.get("metric"))))
    numbers = [value, *(markdown_cell(text_of(number)) for number in (gate.get("threshold"), gate.get("n")))]
    return [markdown_cell(text_of(gate.get("expression"))), passed, *names, *numbers]


def _aggregates(tables: RunTables) -> Iterator[str]:
    entries: list[Mapping[str, Any]] = [*entries_of(tables.run.get("aggregates"))]
    names = ["eval", *(["test"] if any("test" in entry for entry in entries) else []), "engine", "metric"]
    numbers = ["value", *(["low", "high"] if any("low" in entry for entry in entries) else [])]
    lines = [[*(text_of(entry.get(name)) for name in names), *(number_text(entry.get(name)) for name in numbers)] for entry in entries]
    lines = [[markdown_cell(cell) for cell in line] for line in lines]
    remark = "Metrics over all cases, as the eval computed them."
    yield from _section("Aggregates", remark, [*names, *numbers], lines, len(names))


def _output_files(tables: RunTables) -> Iterator[str]:
    entries = entries_of(tables.run.get("outputs"))
    facts = ((entry.get("path"), entry.get("eval"), entry.get("engine"), entry.get("num_bytes")) for entry in entries)
    lines = [[markdown_cell(text_of(fact), 500) for fact in line] for line in facts]
    note = "Written by the evals for other tools; paths are relative to this page."
    yield from _section("Output files", note, ["file", "eval", "engine", "bytes"], lines[:NUM_OUTPUT_FILES], 3)
    if len(lines) > NUM_OUTPUT_FILES:
        yield f"{plural(len(lines) - NUM_OUTPUT_FILES, 'more file')} left out here; outputs/ holds them."


def _problems(tables: RunTables) -> Iterator[str]:
    titles = {"error": "Errors", "invalid": "Invalid", "fail": "Failures", "other": "Unknown outcomes", "skip": "Skipped", "miss": "Misses"}
    for outcome, title in titles.items():
        groups = sorted((group for group in tables.problems.values() if group.outcome == outcome), key=lambda group: -group.count)
        lines = []
        for group in groups[:NUM_PROBLEM_GROUPS]:
            cells = (group.reason(), group.eval, group.engine, ", ".join(group.nodeids), group.excerpt)
            lines.append([*(markdown_cell(cell, 700) for cell in cells), f"{group.count:,}"])
        yield from _section(title, "", ["reason", "eval", "engine", "first cases", "first answer", "count"], lines, 5)
        if len(groups) > NUM_PROBLEM_GROUPS:
            num_rows = sum(group.count for group in groups[NUM_PROBLEM_GROUPS:])
            more = plural(len(groups) - NUM_PROBLEM_GROUPS, "more reason")
            yield f"{more}, {plural(num_rows, 'row')}, left out here; samples.csv has them."


def _throughput(tables: RunTables) -> Iterator[str]:
    entries = entries_of(tables.run.get("throughput"))
    note = "Workers generate in parallel; seconds are summed over them, so a rate is per worker, not for the run."
    headers = ["engine", "workers", "worker-seconds", "generations", "prompt tokens", "completion tokens"]
    headers += ["completion tokens/s per worker", "all tokens/s per worker"]
    yield from _section("Throughput", note, headers, [_throughput_line(entry) for entry in entries], 1)
    untimed = [count for count in (entry.get("num_untimed_generations") for entry in entries) if isinstance(count, int) and count]
    if untimed:
        yield f"{plural(sum(untimed), 'generation')} of work units that broke left out, as their time is not known."


def _throughput_line(entry: Throughput) -> list[str]:
    counts = [entry.get("num_generations"), entry.get("num_prompt_tokens"), entry.get("num_completion_tokens")]
    seconds = when_finite(entry.get("generation_s"))
    prompt, completion = map(when_finite, counts[1:])
    total = None if prompt is None or completion is None else prompt + completion
    rates = [count / seconds if count is not None and seconds else None for count in (completion, total)]
    cells = [_number(entry.get("num_workers"), ","), _number(seconds, ",.2f"), *(_number(count, ",") for count in counts)]
    return [markdown_cell(text_of(entry.get("engine"))), *cells, *(_number(rate, ",.1f") for rate in rates)]


SECRET = re.compile(r"(?:^|_)(?:keys?|token|secrets?|password|passwd|credentials?|auth\w*)$", re.IGNORECASE)
"""Names of options whose values are not shown."""
_ENGINE_FACTS = {"checkpoint_path": "path", "fingerprint": "fingerprint", "backend": "backend", "template_sha256": "template"}


def settings_sections(run: RunFile) -> Iterator[str]:
    """Yield "What ran"; parts that run.json lacks are left out."""
    if not run:
        return
    yield "## What ran"
    yield markdown_table(["", "value"], [[name, markdown_cell(value, 1000)] for name, value in run_facts(run)], 2)
    yield from _engine_table(run)
    yield from _option_table(run)


def run_facts(run: RunFile) -> Iterator[tuple[str, str]]:
    """Yield what ran, when and where: names and values; what run.json lacks is left out."""
    for name in ("started_at", "finished_at", "duration_s", "exit_code", "interrupted", "python", "platform"):
        if run.get(name) is not None:
            yield name.replace("_at", "").replace("_s", " (s)").replace("_", " "), value_text(run[name])
    resumptions = entries_of(run.get("resumptions"))
    if resumptions:
        yield "resumed", "; ".join(f"{text_of(resumption.get('started_at'))}, {_taken(resumption)}" for resumption in resumptions)
    for name, known in (("versions", mapping(run.get("versions"))), ("hardware", mapping(run.get("hardware")))):
        facts = [f"{key} {value_text(value)}" for key, value in known.items() if value is not None]
        if facts:
            yield name, ", ".join(facts)
    git = mapping(run.get("git"))
    if git:
        yield "git", text_of(git.get("commit")) + (" with uncommitted changes" if git.get("dirty") else "")
    yield from (("drafts", line) for line in draft_lines(run))
    yield from (("--tune", line) for line in tuning_lines(run))


def _taken(resumption: dict[str, Any]) -> str:
    num = resumption.get("num_generations_taken")
    return f"{plural(num, 'generation')} were there already" if isinstance(num, int) and num != 1 else "1 generation was there already"


def _engine_table(run: RunFile) -> Iterator[str]:
    entries = entries_of(run.get("engines"))
    if not entries:
        return
    yield "### Engines"
    lines = []
    for entry in entries:
        settings = ", ".join(f"{key}={value_text(value)}" for key, value in mapping(entry.get("settings")).items())
        known: Mapping[str, Any] = entry
        facts = [short_hash(text_of(known.get(name))) for name in ("id", *_ENGINE_FACTS)]
        lines.append([markdown_cell(fact, 1000) for fact in (*facts, settings, number_text(entry.get("load_s")))])
    yield markdown_table(["engine", *_ENGINE_FACTS.values(), "settings", "load (s)"], lines, 6)
    for entry in entries:
        if entry.get("chosen"):
            yield f"`--backend auto` chose {markdown_cell(text_of(entry.get('id')))}: {markdown_cell(text_of(entry['chosen']), 1000)}."


def _option_table(run: RunFile) -> Iterator[str]:
    chosen, default = option_lines(run)
    if chosen or default:
        yield "### Options"
        yield "Set for this run; every other option has its default (run.json lists all)." if chosen else "Every option has its default."
    if chosen:
        yield markdown_table(["option", "value", "set by"], [[markdown_cell(cell) for cell in line] for line in chosen], 3)


def option_lines(run: RunFile) -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
    """Return name, value and origin of the options that were set, and of those that have their default.

    No option holds a secret; one whose name says that it does is shown without its value all the same.
    """
    chosen: list[tuple[str, str, str]] = []
    default: list[tuple[str, str, str]] = []
    for name, option in mapping(run.get("config")).items():
        entry = mapping(option)
        origin = text_of(entry.get("origin")) or "default"
        value = HIDDEN if SECRET.search(name) and entry.get("value") is not None else value_text(entry.get("value"))
        (default if origin == "default" else chosen).append((name, value, origin))
    return chosen, default


def value_text(value: object) -> str:
    """Return a JSON value as short text: a string as it is, a list by its items."""
    if isinstance(value, list):
        return ", ".join(map(value_text, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def rescored_sections(run: RunFile) -> Iterator[str]:
    """Yield the section that names every case that differs; nothing where none does."""
    changes = list(rescored_changes(mapping(run.get("rescored"))))
    if not changes:
        return
    yield "## Cases that have changed"
    yield "They were asked as recorded, but are judged by today's data and tests."
    for eval_name, what, cases, _ in changes:
        more = len(cases) - NUM_CHANGED_CASES
        named = ", ".join(markdown_cell(case, 200) for case in cases[:NUM_CHANGED_CASES])
        yield f"{markdown_cell(eval_name)}, {markdown_cell(what, 300)}: {named}{f' and {more:,} more, in run.json' if more > 0 else ''}."


def _runnable(command: list[str]) -> list[str]:
    """Return the command as one types it; without --run-id and --resume, which are given once."""
    program = PurePath(command[0])
    start = ["python", "-m", program.parent.name] if program.name == "__main__.py" else [program.name]
    once = ("--run-id", "--resume")
    kept = [part for part, before in zip(command[1:], command, strict=False) if before not in once and part.partition("=")[0] not in once]
    return [*start, *kept]


def rerun_command(run: RunFile) -> str:
    """Return the command of the run, quoted for a shell; "" where it is not known."""
    command = run.get("command")
    if not isinstance(command, list) or not command:
        return ""
    return shlex.join(_runnable([terminal_text(text_of(part), 2000) for part in command]))


def go_on_command(run: RunFile) -> str:
    """Return the command that goes on with a run that did not come to its end or met errors; "" where there is nothing to go on with."""
    is_whole = run.get("finished_at") and not run.get("interrupted") and not mapping(run.get("counts")).get("error")
    command = rerun_command(run)
    # A run whose answers are another's is made anew; one with problems of its own alone has all that it can have.
    if not run or is_whole or run.get("rescored") or not f"{command} ".startswith(("pytest ", "python -m pytest ")):
        return ""
    return f"{command} --resume {shlex.quote(terminal_text(text_of(run.get('run_id')), 200))}"


def _rerun(tables: RunTables) -> Iterator[str]:
    command = rerun_command(tables.run)
    if command:
        yield "## Run it again"
        yield code_block([command])
        if tables.problems:
            yield "To run a single case, put its node id (in samples.csv), quoted, in place of the folder."


MAX_BYTES = 900_000
"""GitHub takes a step's summary up to 1 MiB, and drops a longer one whole."""


def ci_summary(tables: RunTables) -> str:
    """Return a run in short for the page of a CI job, headings one level below those of report.md; cut where GitHub would drop it."""
    shown: list[str] = []
    num_bytes = 0
    title = f"# Run {markdown_cell(text_of(tables.run.get('run_id')) or tables.run_dir.name)}"
    for block in (title, *summary_blocks(tables), *gate_blocks(tables), *score_sections(tables)):
        if block.startswith(("# ", "## ", "### ")):
            block = f"#{block}"
        num_bytes += len(block.encode("utf-8", "backslashreplace")) + 2
        if num_bytes > MAX_BYTES:
            shown.append("More is left out here; report.md has it.")
            break
        shown.append(block)
    return "\n\n".join(shown) + "\n"
