"""The sections of report.md that say what ran: engines, options that are no default, versions, machine, code state."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from evalharness.report.score_tables import markdown_table
from evalharness.report.text import markdown_cell, number_text, one_line, plural
from evalharness.runs.schema import RunFile, entries_of, mapping, text_of

__all__ = ["rescored_remarks", "rescored_sections", "run_facts", "settings_sections", "value_text"]

_ENGINE_FACTS = {
    "checkpoint_path": "path",
    "fingerprint": "fingerprint",
    "backend": "backend",
    "template_sha256": "template",
}


def settings_sections(run: RunFile) -> Iterator[str]:
    """Yield "What ran"; parts that run.json lacks are left out."""
    if not run:
        return
    yield "## What ran"
    yield markdown_table(["", "value"], [[name, markdown_cell(value, 1000)] for name, value in run_facts(run)], 2)
    yield from _engines(run)
    yield from _options(run)


def run_facts(run: RunFile) -> Iterator[tuple[str, str]]:
    """Yield what ran, when and where: names and values; what run.json lacks is left out."""
    for name in ("started_at", "finished_at", "duration_s", "exit_code", "interrupted", "python", "platform"):
        if run.get(name) is not None:
            yield name.replace("_at", "").replace("_s", " (s)").replace("_", " "), value_text(run[name])
    resumptions = entries_of(run.get("resumptions"))
    if resumptions:
        yield "resumed", "; ".join(f"{text_of(one.get('started_at'))}, {_taken(one)}" for one in resumptions)
    for name, known in (("versions", mapping(run.get("versions"))), ("hardware", mapping(run.get("hardware")))):
        facts = [f"{key} {value_text(value)}" for key, value in known.items() if value is not None]
        if facts:
            yield name, ", ".join(facts)
    git = mapping(run.get("git"))
    if git:
        yield "git", text_of(git.get("commit")) + (" with uncommitted changes" if git.get("dirty") else "")


def _taken(resumption: dict[str, Any]) -> str:
    num = resumption.get("num_generations_taken")
    return f"{plural(num, 'generation')} were there already" if isinstance(num, int) and num != 1 else "1 generation was there already"


def _engines(run: RunFile) -> Iterator[str]:
    entries = entries_of(run.get("engines"))
    if not entries:
        return
    yield "### Engines"
    lines = []
    for entry in entries:
        settings = ", ".join(f"{key}={value_text(value)}" for key, value in mapping(entry.get("settings")).items())
        known: Mapping[str, Any] = entry
        facts = [_short_hash(text_of(known.get(name))) for name in ("id", *_ENGINE_FACTS)]
        lines.append([markdown_cell(fact, 1000) for fact in (*facts, settings, number_text(entry.get("load_s")))])
    yield markdown_table(["engine", *_ENGINE_FACTS.values(), "settings", "load (s)"], lines, 6)
    for entry in entries:
        if entry.get("chosen"):
            yield f"`--backend auto` chose {markdown_cell(text_of(entry.get('id')))}: {markdown_cell(text_of(entry['chosen']), 1000)}."


def _options(run: RunFile) -> Iterator[str]:
    config = {name: mapping(option) for name, option in mapping(run.get("config")).items()}
    chosen = {name: option for name, option in config.items() if option.get("origin", "default") != "default"}
    if config:
        yield "### Options"
        yield "Set for this run; every other option has its default (run.json lists all)." if chosen else "Every option has its default."
    if chosen:
        lines = [(name, value_text(option.get("value")), text_of(option["origin"])) for name, option in chosen.items()]
        yield markdown_table(["option", "value", "set by"], [[markdown_cell(cell) for cell in line] for line in lines], 3)


def _short_hash(text: str) -> str:
    """Return a SHA-256 by its first 12 digits; anything else as it is."""
    return text[:12] if re.fullmatch("[0-9a-f]{64}", text) else text


def value_text(value: object) -> str:
    """Return a JSON value as short text: a string as it is, a list by its items."""
    if isinstance(value, list):
        return ", ".join(map(value_text, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


# What a report says of a run whose generations are those of another one: which, and what differs from then

NUM_CASES_IN_REMARK = 3
NUM_CASES = 500


def rescored_remarks(run: RunFile) -> Iterator[str]:
    """Yield that a run was scored again, and each way in which its cases or code differ from then; nothing for a live run."""
    origin = mapping(run.get("rescored"))
    if not origin:
        return
    if origin.get("dump"):
        yield one_line(f"scored from the file {text_of(origin['dump'])}: nothing was generated, no test ran and no gate was judged", 300)
        return
    tests = f" with the tests of {text_of(origin['tests'])}" if origin.get("tests") else ""
    when = f" of {text_of(origin['started_at'])}" if origin.get("started_at") else ""
    yield one_line(f"rescored{tests}: the generations are those of run {text_of(origin.get('run_id'))}{when}, none is new", 300)
    yield from _code_changes(run, origin)
    for eval_name, what, cases, first in _changes(origin):
        named = ", ".join(cases[:NUM_CASES_IN_REMARK]) + (", …" if len(cases) > NUM_CASES_IN_REMARK else "")
        detail = f" ({one_line(first, 150)})" if first else ""
        yield one_line(
            f"{eval_name}: since run {text_of(origin.get('run_id'))}, {plural(len(cases), 'case')}: {what}{detail}: {named}", 400
        )


def _code_changes(run: RunFile, origin: Mapping[str, Any]) -> Iterator[str]:
    now, then = mapping(run.get("git")), mapping(origin.get("git"))
    if now.get("commit") and then.get("commit") and now["commit"] != then["commit"]:
        yield f"the code is at commit {text_of(now['commit'])[:12]} now, and was at {text_of(then['commit'])[:12]} when they were generated"
    versions = mapping(run.get("versions")).get("evalharness"), mapping(origin.get("versions")).get("evalharness")
    if all(versions) and versions[0] != versions[1]:
        yield f"evalharness is {text_of(versions[0])} now, and was {text_of(versions[1])} when they were generated"


def _changes(origin: Mapping[str, Any]) -> Iterator[tuple[str, str, list[str], str]]:
    changes = origin.get("changes")
    for change in changes if isinstance(changes, list) else ():
        entry = mapping(change)
        cases = entry.get("cases")
        if isinstance(cases, list) and cases:
            yield text_of(entry.get("eval")), text_of(entry.get("what")), list(map(text_of, cases)), text_of(entry.get("first"))


def rescored_sections(run: RunFile) -> Iterator[str]:
    """Yield the section that names every case that differs; nothing where none does."""
    found = list(_changes(mapping(run.get("rescored"))))
    if not found:
        return
    yield "## Cases that have changed"
    yield "They were asked as recorded, but are judged by today's data and tests."
    for eval_name, what, cases, _ in found:
        more = len(cases) - NUM_CASES
        named = ", ".join(markdown_cell(case, 200) for case in cases[:NUM_CASES])
        yield f"{markdown_cell(eval_name)}, {markdown_cell(what, 300)}: {named}{f' and {more:,} more, in run.json' if more > 0 else ''}."
