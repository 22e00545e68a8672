"""Write the tables of docs/features.md from docs/features.csv: `python docs/make_features.py`.

The page's text above the mark is written by hand. A line of the CSV file is one requirement of a document: what it asks for, how that
is had here, where it differs, and the tests that show it, as pytest names them (separated by blanks, without parameters).
tests/docs/test_features.py holds page, lines and tests together.
"""

from __future__ import annotations

import csv
from pathlib import Path

DOCS = Path(__file__).resolve().parent
TABLE, PAGE = DOCS / "features.csv", DOCS / "features.md"
COLUMNS = ("number", "id", "document", "requirement", "here", "differs", "tests")
DOCUMENTS = {
    "card": "The project's card",
    "000": "Document 000: one engine for generation",
    "001": "Document 001: its design",
    "002": "Document 002: its tasks",
    "003": "Document 003: an InferenceModule for reinforcement learning",
    "004": "Document 004: a trainer's pluggable inference engines",
}
MARK = "<!-- From here on written by docs/make_features.py from docs/features.csv -->\n"


def read_rows() -> list[dict[str, str]]:
    """Return the requirements in their order."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def link(test: str) -> str:
    """Return a link to a test's file, which reads as the sentence that the test's name is."""
    path, _, names = test.partition("::")
    return f"[{names.rpartition('::')[2].removeprefix('test_').replace('_', ' ')}](../{path})"


def how(row: dict[str, str]) -> str:
    """Return how a requirement is had here, and where that differs from what the document says."""
    if not row["here"]:
        return f"*Not here:* {row['differs']}"
    return f"{row['here']} *But:* {row['differs']}" if row["differs"] else row["here"]


def table(rows: list[dict[str, str]]) -> str:
    """Return one document's requirements as a table."""
    lines = ["| no. | it asks for | here | shown by |", "|---|---|---|---|"]
    for row in rows:
        cells = (row["number"], row["requirement"], how(row), "; ".join(map(link, row["tests"].split())))
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return "\n".join(lines)


def page(text: str, rows: list[dict[str, str]]) -> str:
    """Return the whole page: what `text` has above the mark, and a table for each document."""
    tables = (f"\n## {title}\n\n{table([row for row in rows if row['document'] == name])}\n" for name, title in DOCUMENTS.items())
    return text.partition(MARK)[0] + MARK + "".join(tables)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8"), read_rows()), "utf-8")
