"""Cases from files of rows, in the shapes that data sets are published in."""

from evalharness.data.cases import RowCase, cases_from
from evalharness.data.finding import read_rows

__all__ = ["RowCase", "cases_from", "read_rows"]
