"""How long pytest takes to collect cases from a file of rows, and how much memory: from a pytest process of its own.

    python -m benchmarks.collecting --rows 100000
    python -m benchmarks.collecting --rows 1000000 --limit 1000 --kinds parquet,jsonl

Rows are 45 words of question, an answer, a group of eight rows and one of 57 subjects. "list" is an eval that makes as many cases of
nothing, which shows what pytest and the harness take themselves; "content" has ids made of what rows hold, the others have a column of ids.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

EVAL = """
import os, pytest
from evalharness import Case, TextGenerationRequest
from evalharness.data import cases_from

def made(data_dir):
    return [Case(id=f"q{{i}}", group=f"d{{i // 8}}", tags={{"subject": f"s{{i % 57}}"}}) for i in range({rows})]

def request(case):
    return TextGenerationRequest([{{"role": "user", "content": case.row["question"]}}])

pytestmark = pytest.mark.eval(cases={cases}, request=request)

def test_exact(case, generation, score):
    score(exact=generation.answer == case.reference)
"""
FROM_FILE = "cases_from({name!r}, group='doc', tags=['subject'], reference='answer'{id})"
ROWS_AT_ONCE = 100_000


def rows(num: int) -> Iterator[list[dict[str, Any]]]:
    """Yield rows, some at a time."""
    draw, words = random.Random(0), [f"word{i}" for i in range(5000)]
    for start in range(0, num, ROWS_AT_ONCE):
        yield [
            {
                "qid": f"q{i}",
                "doc": f"d{i // 8}",
                "subject": f"s{i % 57}",
                "question": " ".join(draw.choices(words, k=45)),
                "answer": str(i),
                "choices": ["yes", "no", str(i)],
            }
            for i in range(start, min(num, start + ROWS_AT_ONCE))
        ]


def write(path: Path, num: int) -> None:
    """Write a file of the kind that its name says; Parquet as pandas does, with a million rows in a row group."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        tables = [pyarrow.Table.from_pylist(some) for some in rows(num)]
        pyarrow.parquet.write_table(pyarrow.concat_tables(tables), path)
        return
    with path.open("w", encoding="utf-8") as file:
        for some in rows(num):
            file.writelines(f"{json.dumps(row)}\n" for row in some)


def collect(folder: Path, cases: str, num: int, options: list[str]) -> str:
    """Return what a pytest process took that collects an eval."""
    (folder / "conftest.py").write_text('pytest_plugins = ["evalharness.pytest_plugin"]\n')
    (folder / "test_it.py").write_text(EVAL.format(rows=num, cases=cases))
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-n0", "test_it.py", "--data", "."]
    began = time.perf_counter()
    with (folder / "out.txt").open("w") as out:
        process = subprocess.Popen(
            [*command, "--backend", "fake", *options], cwd=folder, stdout=out, env={**os.environ, "PYTHONPATH": os.getcwd()}
        )
        _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - began
    last = (folder / "out.txt").read_text().splitlines()[-1]
    if status:
        sys.exit(f"pytest ended with {status}: {last}")
    return f"{seconds:5.1f} s, CPU {usage.ru_utime + usage.ru_stime:5.1f} s, at most {usage.ru_maxrss / 1024:6.0f} MB  ({last})"


def main() -> None:
    """Print a line for each kind of eval."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", type=Path, help="Only write this file (in a process of its own, whose memory counts for no other)")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--kinds", default="list,parquet,content,jsonl", help="list, parquet, content, jsonl, jsonl-content")
    given = parser.parse_args()
    if given.write is not None:
        write(given.write, given.rows)
        return
    options = [] if given.limit is None else ["--limit", str(given.limit)]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for kind in given.kinds.split(","):
            name = "rows.jsonl" if kind.startswith("jsonl") else "rows.parquet"
            if kind != "list" and not (folder / name).exists():
                subprocess.run([sys.executable, "-m", __spec__.name, "--write", folder / name, "--rows", str(given.rows)], check=True)
            cases = "made" if kind == "list" else FROM_FILE.format(name=name, id="" if kind.endswith("content") else ", id='qid'")
            print(f"{kind:14} {collect(folder, cases, given.rows, options)}", flush=True)


if __name__ == "__main__":
    main()
