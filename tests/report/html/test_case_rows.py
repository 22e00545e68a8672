"""Rows go into pages as samples.jsonl has them, line for line, but for what no page shows."""

from __future__ import annotations

import base64
import json
import re
import zlib

import pytest

from evalharness.report.html import cases as case_rows
from evalharness.report.html.cases import PageRows, case_anchor, case_columns, page_ranges
from evalharness.report.tables import load_tables
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import generation, row, rows, write_run


def _rows_of(blocks):
    packed = [re.fullmatch(r'<script type="application/octet-stream" id="rows-\d+">(.*)</script>\n', block) for block in blocks]
    return [json.loads(line) for found in packed if found for line in zlib.decompress(base64.b64decode(found[1])).split(b"\n")]


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")], ids=["compact", "spaced"])
def test_rows_come_back_whole_but_for_ids_and_log_probabilities(tmp_path, separators):
    samples = [row(name, text=text) for name, text in HOSTILE_TEXTS.items()]
    samples.append(row("ids", generation=generation(token_ids=[1, 2], logprobs=[-0.5, -1e-9], text=',"token_ids":[1, 2]')))
    write_run(tmp_path, [])
    (tmp_path / "samples.jsonl").write_text("".join(json.dumps(sample, separators=separators) + "\n" for sample in samples))
    found = _rows_of(PageRows(tmp_path, range(len(samples))).blocks())
    expected = json.loads(json.dumps(samples))
    del expected[-1]["generation"]["token_ids"], expected[-1]["generation"]["logprobs"]
    assert found == expected


def test_an_anchor_can_be_made_of_any_name_and_token_scores_are_left_out():
    line = b'{"a":1,"logprobs":[-0.5,null,"-inf"],"entropies":[0.1,null],"b":["-inf"]}'
    assert case_rows._IDS.sub(b"", line) == b'{"a":1,"b":["-inf"]}'
    assert case_anchor("a", "t", "hf:x", "ä b\ud800") == "case=a%3A%3At%5Bhf%3Ax-%C3%A4%20b%5Cud800%5D"


def test_blocks_and_columns_speak_of_the_same_rows_whatever_lines_are_empty_or_torn(tmp_path, monkeypatch):
    monkeypatch.setattr(case_rows, "_ROWS_PER_BLOCK", 2)
    write_run(tmp_path, [])
    lines = [json.dumps(sample) for sample in rows(5)]
    (tmp_path / "samples.jsonl").write_text("\n" + "\n \n".join(lines) + '\n{"torn": ')
    tables = load_tables(tmp_path)
    (whole,) = page_ranges(tmp_path)
    page = PageRows(tmp_path, whole)
    found = _rows_of(page.blocks())
    columns = case_columns(tables, page, range(5))
    assert [one["case_id"] for one in found] == list(columns["case"]) == [f"case-{number}" for number in range(5)]
    assert columns["blocks"] == [0, 2, 4]


def test_a_page_ends_by_rows_or_by_bytes(tmp_path, monkeypatch):
    write_run(tmp_path, rows(10))
    assert page_ranges(tmp_path) == [range(10)]
    monkeypatch.setattr(case_rows, "ROWS_PER_PAGE", 4)
    assert page_ranges(tmp_path) == [range(4), range(4, 8), range(8, 10)]
    monkeypatch.setattr(case_rows, "BYTES_PER_PAGE", 10)
    assert page_ranges(tmp_path) == [range(number, number + 1) for number in range(10)]
    (tmp_path / "samples.jsonl").unlink()
    assert page_ranges(tmp_path) == [range(0)]


def test_columns_of_a_later_page_are_its_own(tmp_path):
    write_run(tmp_path, [row(f"case-{number}", scores={"f1": number}, tags={"mission": f"m{number}"}) for number in range(6)])
    page = PageRows(tmp_path, range(4, 6))
    list(page.blocks())
    columns = case_columns(load_tables(tmp_path), page, (5, 0, 4))
    assert columns["worst"] == [1, 0]
    assert (columns["case"], columns["scores"], columns["first"]) == (["case-4", "case-5"], {"f1": [4.0, 5.0]}, 4)
    assert [columns["names"]["tag_values"][code] for code in columns["tags"]["mission"]] == ["m4", "m5"]
