"""What a report says of a run whose generations are those of another one: which, and what differs from then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from evalharness.report.collecting import mapping, text_of
from evalharness.report.text import markdown_cell, one_line
from evalharness.report.wording import plural

__all__ = ["rescored_remarks", "rescored_sections"]

NUM_CASES_IN_REMARK = 3
NUM_CASES = 500


def rescored_remarks(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield that a run was scored again, and each way in which its cases or code differ from then; nothing for a live run."""
    origin = mapping(run.get("rescored"))
    if not origin:
        return
    if origin.get("dump"):
        yield one_line(f"scored from the file {text_of(origin['dump'])}: no answer was made, no test was run and no gate asked", 300)
        return
    tests = f" by the tests of {text_of(origin['tests'])}" if origin.get("tests") else ""
    when = f" of {text_of(origin['started_at'])}" if origin.get("started_at") else ""
    yield one_line(f"scored again{tests}: the generations are those of run {text_of(origin.get('run_id'))}{when}, none was made", 300)
    yield from _code_changes(run, origin)
    for eval_name, what, cases, first in _changes(origin):
        named = ", ".join(cases[:NUM_CASES_IN_REMARK]) + (", …" if len(cases) > NUM_CASES_IN_REMARK else "")
        detail = f" ({one_line(first, 150)})" if first else ""
        yield one_line(
            f"{eval_name}: since run {text_of(origin.get('run_id'))}, {plural(len(cases), 'case')}: {what}{detail}: {named}", 400
        )


def _code_changes(run: Mapping[str, Any], origin: Mapping[str, Any]) -> Iterator[str]:
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


def rescored_sections(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section that names every case that differs; nothing where none does."""
    found = list(_changes(mapping(run.get("rescored"))))
    if not found:
        return
    yield "## Cases that are others now"
    yield "They were asked as the recorded run had them; what they are judged by is today's."
    for eval_name, what, cases, _ in found:
        more = len(cases) - NUM_CASES
        named = ", ".join(markdown_cell(case, 200) for case in cases[:NUM_CASES])
        yield f"{markdown_cell(eval_name)}, {markdown_cell(what, 300)}: {named}{f' and {more:,} more, in run.json' if more > 0 else ''}."
