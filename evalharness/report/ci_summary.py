"""One run in short, as GitHub-flavoured Markdown for the page of a CI job: verdict, gates, scores."""

from __future__ import annotations

from collections.abc import Iterator

from evalharness.report.collecting import text_of
from evalharness.report.markdown import gate_blocks, summary_blocks
from evalharness.report.score_tables import score_sections
from evalharness.report.tables import RunTables
from evalharness.report.text import markdown_cell

__all__ = ["ci_summary"]

MAX_BYTES = 900_000
"""GitHub takes a step's summary up to 1 MiB, and drops a longer one whole."""


def ci_summary(tables: RunTables) -> str:
    """Return the summary, headings one level below those of report.md; cut between blocks where GitHub would drop it."""
    shown: list[str] = []
    num_bytes = 0
    for block in _blocks(tables):
        num_bytes += len(block.encode("utf-8", "backslashreplace")) + 2
        if num_bytes > MAX_BYTES:
            shown.append("More is left out here; report.md has it.")
            break
        shown.append(block)
    return "\n\n".join(shown) + "\n"


def _blocks(tables: RunTables) -> Iterator[str]:
    yield f"## Run {markdown_cell(text_of(tables.run.get('run_id')) or tables.run_dir.name)}"
    yield from summary_blocks(tables)
    for block in (*gate_blocks(tables), *score_sections(tables)):
        yield f"#{block}" if block.startswith("## ") else block
