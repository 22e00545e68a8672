"""CSV files for spreadsheets: every cell made safe."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from evalharness.report.text import csv_cell

__all__ = ["write_csv"]


def write_csv(file: TextIO, header: Sequence[str], lines: Iterable[Sequence[Any]]) -> None:
    """Write a header, as it is, and lines of any values, one by one."""
    write = csv.writer(file, lineterminator="\n").writerow
    write(header)
    for line in lines:
        write([csv_cell(cell) for cell in line])
