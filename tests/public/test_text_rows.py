"""The files of fixtures/public and what evals/public make of each layout in which a benchmark is published."""

from __future__ import annotations

import json
import re
import runpy
import shutil
from pathlib import Path
from typing import Any

import pytest

from fixtures import make_public_text

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "fixtures" / "public"
LAYOUTS = {
    "arc": ("arc", "arc/ai2"),
    "gsm8k": ("gsm8k", "gsm8k/main", "."),
    "hellaswag": ("hellaswag/data", "hellaswag/hellaswag_val.jsonl", "."),
    "humaneval": ("humaneval", "humaneval/HumanEval.jsonl", "."),
    "ifeval": ("ifeval", "ifeval/ifeval_input_data.jsonl", "."),
    "math500": ("math500", "."),
    "mmlu": ("mmlu", "mmlu/hub", "."),
    "mmlu_pro": ("mmlu_pro", "mmlu_pro/data", "."),
    "truthfulqa": ("truthfulqa", "truthfulqa/mc_task.json", "."),
}
"""By eval: what --data may name, the same rows each time."""


def rows_of(name: str, data: str) -> list[dict[str, Any]]:
    module = runpy.run_path(str(ROOT / "evals" / "public" / f"test_{name}.py"))
    return [
        {key: value for key, value in case.row.items() if key != "__file__"} for case in module["pytestmark"].kwargs["cases"](ROWS / data)
    ]


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_benchmark_is_the_same_in_each_of_its_layouts(name: str) -> None:
    first, *others = (rows_of(name, data) for data in LAYOUTS[name])
    assert len(first) >= 3
    comparable = [{key: str(value) if key == "label" else value for key, value in row.items() if key != "set"} for row in first]
    for rows in others:
        assert [{key: str(value) if key == "label" else value for key, value in row.items() if key != "set"} for row in rows] == comparable


def test_the_folders_of_the_authors_archive_are_found_among_other_benchmarks(tmp_path: Path) -> None:
    for split in ("dev", "test"):
        shutil.copytree(ROWS / "mmlu" / split, tmp_path / "mmlu" / "data" / split)
    shutil.copytree(ROWS / "gsm8k", tmp_path / "gsm8k")
    assert rows_of("mmlu", str(tmp_path)) == rows_of("mmlu", "mmlu")


def test_rows_of_hellaswags_two_sources_may_have_one_number(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in (ROWS / "hellaswag" / "hellaswag_val.jsonl").read_text("utf-8").splitlines()]
    text = "".join(
        json.dumps(row | {"ind": 4, "source_id": f"{source}~7"}) + "\n" for row, source in zip(rows, ("film", "page"), strict=False)
    )
    (tmp_path / "hellaswag_val.jsonl").write_text(text)
    module = runpy.run_path(str(ROOT / "evals" / "public" / "test_hellaswag.py"))
    assert [case.id for case in module["pytestmark"].kwargs["cases"](tmp_path)] == ["film~7-4", "page~7-4"]


def test_the_files_are_those_of_the_script(tmp_path: Path) -> None:
    make_public_text.write(tmp_path)
    written = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    for path in sorted(written):
        if path.suffix == ".parquet":
            import pyarrow.parquet

            assert pyarrow.parquet.read_table(ROWS / path).equals(pyarrow.parquet.read_table(tmp_path / path)), path
        else:
            assert (ROWS / path).read_bytes() == (tmp_path / path).read_bytes(), path


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_eval_is_short_and_says_where_its_data_is_from(name: str) -> None:
    path = ROOT / "evals" / "public" / f"test_{name}.py"
    text = path.read_text("utf-8")
    assert len(text.splitlines()) <= 80
    head = text.split('"""')[1]
    assert f"pytest evals/public/{path.name} --model CHECKPOINT --data" in head
    assert any(licence in head for licence in ("MIT", "Apache-2.0", "CC BY"))
    assert re.search(r"\(revision [0-9a-f]{40},\s", head)


def test_a_function_ends_where_a_line_is_not_indented() -> None:
    body_of = runpy.run_path(str(ROOT / "evals" / "public" / "test_humaneval.py"))["body_of"]
    assert body_of("    a = 1\n\n    return a\nprint(a)\n") == "    a = 1\n\n    return a"
    assert body_of("```python\n    x") == ""
