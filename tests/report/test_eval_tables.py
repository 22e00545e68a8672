"""Tables of evals: what report.md shows of them, and tables.csv, which has all."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalharness.report.score_tables import (
    NUM_TABLE_COLUMNS,
    NUM_TABLE_LINES,
    NUM_TABLES,
    TABLE_COLUMNS,
    table_sections,
    write_tables_csv,
)
from evalharness.report.tables import load_tables
from tests.report.hostile import HOSTILE_TEXTS, hostile_text
from tests.report.runs import rows, write_run
from tests.report.test_markdown import tables_in


def entry(lines: Any, title: str = "By category", engine: str = "hf:tiny", test: str = "test_summary") -> dict[str, Any]:
    return {"eval": "stage_a", "test": test, "engine": engine, "title": title, "rows": lines}


def markdown_of(tmp_path: Path, *entries: Any) -> str:
    return "\n\n".join(table_sections(load_tables(write_run(tmp_path, rows(1), tables=list(entries))))) + "\n"


def cells_of(tmp_path: Path, *entries: Any) -> list[dict[str, str]]:
    file = io.StringIO()
    write_tables_csv(load_tables(write_run(tmp_path, rows(1), tables=list(entries))), file)
    return list(csv.DictReader(io.StringIO(file.getvalue())))


def test_a_table_has_its_columns_in_order_and_numbers_for_people(tmp_path: Path) -> None:
    report = markdown_of(tmp_path, entry([{"category": "光纤", "f1": 0.81251, "n": 1200}, {"category": "电线", "f1": None, "n": 3}]))
    assert tables_in(report) == {
        "stage_a · test_summary · By category": [
            {"category": "光纤", "f1": "0.813", "n": "1,200"},
            {"category": "电线", "f1": "-", "n": "3"},
        ]
    }


def test_engines_stand_one_below_the_other_in_one_table(tmp_path: Path) -> None:
    report = markdown_of(tmp_path, entry([{"f1": 0.5}], engine="hf:a"), entry([{"f1": 0.25, "more": "x"}], engine="hf:b"))
    assert tables_in(report)["stage_a · test_summary · By category"] == [
        {"engine": "hf:a", "f1": "0.500", "more": "-"},
        {"engine": "hf:b", "f1": "0.250", "more": "x"},
    ]


def test_lines_of_one_name_stand_together(tmp_path: Path) -> None:
    lines = {engine: [{"category": name, "f1": number} for name in ("光纤", "电线")] for number, engine in enumerate(("hf:a", "hf:b"))}
    report = markdown_of(tmp_path, *(entry(mine, engine=engine) for engine, mine in lines.items()))
    (found,) = tables_in(report).values()
    assert list(found[0]) == ["category", "engine", "f1"]
    assert [tuple(line.values()) for line in found] == [
        ("光纤", "hf:a", "0"),
        ("光纤", "hf:b", "1"),
        ("电线", "hf:a", "0"),
        ("电线", "hf:b", "1"),
    ]


def test_lines_that_no_name_tells_apart_stay_as_they_are(tmp_path: Path) -> None:
    report = markdown_of(tmp_path, *(entry([{"word": "x"}, {"word": "x"}], engine=engine) for engine in ("hf:a", "hf:b")))
    (found,) = tables_in(report).values()
    assert [tuple(line.values()) for line in found] == [("hf:a", "x")] * 2 + [("hf:b", "x")] * 2


def test_tests_and_titles_have_tables_of_their_own(tmp_path: Path) -> None:
    found = tables_in(markdown_of(tmp_path, entry([{"a": 1}]), entry([{"a": 2}], title="Other"), entry([{"a": 3}], test="test_b")))
    assert [lines[0]["a"] for lines in found.values()] == ["1", "2", "3"]


def test_what_is_too_long_is_cut_with_a_note_and_whole_in_the_csv(tmp_path: Path) -> None:
    wide = {f"c{number}": number for number in range(NUM_TABLE_COLUMNS + 2)}
    report = markdown_of(tmp_path, entry([wide] * (NUM_TABLE_LINES + 1)))
    (lines,) = tables_in(report).values()
    assert (len(lines), len(lines[0])) == (NUM_TABLE_LINES, NUM_TABLE_COLUMNS)
    assert "1 more row and 2 more columns left out here; tables.csv has them." in report
    assert len(cells_of(tmp_path, entry([wide] * (NUM_TABLE_LINES + 1)))) == (NUM_TABLE_LINES + 1) * (NUM_TABLE_COLUMNS + 2)


def test_too_many_tables_are_counted(tmp_path: Path) -> None:
    report = markdown_of(tmp_path, *(entry([{"a": 1}], title=f"T{number}") for number in range(NUM_TABLES + 3)))
    assert len(tables_in(report)) == NUM_TABLES
    assert "3 more tables left out here; tables.csv has them." in report


def test_an_empty_table_says_so_and_no_tables_are_no_section(tmp_path: Path) -> None:
    assert markdown_of(tmp_path, entry([])).rstrip().endswith("No rows.")
    assert markdown_of(tmp_path) == "\n"


def test_the_csv_has_one_line_per_cell(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, entry([{"category": "光纤", "f1": 0.8125}, {"category": None}]))
    assert list(cells[0]) == TABLE_COLUMNS
    assert [(cell["row"], cell["column"], cell["value"]) for cell in cells] == [
        ("1", "category", "光纤"),
        ("1", "f1", "0.8125"),
        ("2", "category", ""),
    ]


@pytest.mark.parametrize("text", HOSTILE_TEXTS.values(), ids=HOSTILE_TEXTS)
def test_hostile_cells_run_nothing_in_a_spreadsheet(tmp_path: Path, text: str) -> None:
    for cell in cells_of(tmp_path, entry([{text: text}], title=text, engine=text)):
        assert not any(value.lstrip("\u200b\ufeff \t\n").startswith(("=", "+", "-", "@", "＝")) for value in cell.values())


_values = st.one_of(hostile_text, st.integers(), st.floats(), st.none(), st.lists(st.integers(), max_size=2))


@given(
    lines=st.one_of(
        st.none(), st.integers(), st.lists(st.one_of(st.integers(), st.dictionaries(hostile_text, _values, max_size=4)), max_size=4)
    ),
    title=hostile_text,
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_nothing_in_run_json_breaks_the_tables(tmp_path: Path, lines: Any, title: str) -> None:
    report = markdown_of(tmp_path, entry(lines, title=title))
    report.encode("utf-8")
    assert len(tables_in(report)) <= 1
    cells_of(tmp_path, entry(lines, title=title))
