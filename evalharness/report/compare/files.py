"""compare.html, compare.md, compare.csv and compare_cases.csv in a folder; the same comparisons give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evalharness.analysis.comparison.compare import Comparison
from evalharness.api.errors import RecordError
from evalharness.report.compare.compare_csv import write_compare_cases_csv, write_compare_csv
from evalharness.report.compare.compare_markdown import comparison_blocks
from evalharness.report.compare.page import write_compare_page
from evalharness.report.files import replacing

__all__ = ["write_comparison"]


def write_comparison(comparisons: Sequence[Comparison], folder: Path) -> list[Path]:
    """Write the four files and return their paths; raises `RecordError` where they cannot be written, or a run cannot be read."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{folder} cannot be made: {error.strerror}; choose another folder with --out") from error
    paths = [folder / name for name in ("compare.html", "compare.md", "compare.csv", "compare_cases.csv")]
    with replacing(paths[0]) as file:
        write_compare_page(comparisons, file, folder)
    with replacing(paths[1]) as file:
        file.write("\n\n".join(comparison_blocks(comparisons)) + "\n")
    with replacing(paths[2]) as file:
        write_compare_csv(comparisons, file)
    with replacing(paths[3]) as file:
        write_compare_cases_csv(comparisons, file)
    return paths
