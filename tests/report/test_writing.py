from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from evalharness.api.errors import RecordError
from evalharness.report.tables import load_tables
from evalharness.report.writing import terminal_summary, write_reports
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import gate, generation, invalid, row, rows, write_run

GOLDEN = Path(__file__).with_name("golden")
FILES = ("report.md", "report.csv", "samples.csv", "report.html")


def golden_run(run_dir: Path) -> Path:
    """Write the run whose reports are in golden/: two engines, every outcome, hostile texts."""
    good = rows(4, tags={"domain": "RRU"}, scores={"valid": 1.0, "f1": 0.75})
    bad = [
        row(
            f"case-{number}",
            engine="vllm:tiny",
            tags={"domain": "BBU"},
            text=text,
            scores={"valid": 0.0},
            outcome="miss",
            problem=f"no JSON: {name}",
        )
        for number, (name, text) in enumerate(HOSTILE_TEXTS.items())
    ]
    rest = [
        invalid("empty.jpg", "empty.jpg holds no bytes"),
        invalid("late", "connection lost", outcome="error"),
        row("cut", generation=generation(finish_reason="length", fallback="hf"), tags={"domain": "RRU"}),
    ]
    return write_run(
        run_dir,
        [*good, *bad, *rest],
        command=["pytest", "evals", "-k", "stage_a"],
        started_at="2030-01-01T00:00:00+00:00",
        exit_code=1,
        gates=[gate(), gate(False, engine="vllm:tiny", value=0.0, reason="0.000, needs ≥ 0.95")],
        engines=[{"id": "hf:tiny", "checkpoint_path": "models/tiny", "backend": "hf", "load_s": 1.25}],
        config={"limit": {"value": 30, "origin": "command line"}},
        tables=[
            {"eval": "stage_a", "test": "test_summary", "engine": engine, "title": "By category", "rows": lines}
            for engine, lines in (
                ("hf:tiny", [{"category": "螺丝", "f1": 0.5, "num": 1200}]),
                ("vllm:tiny", [{"category": "=1+1", "f1": None}]),
            )
        ],
        outputs=[{"eval": "stage_a", "engine": "hf:tiny", "path": "outputs/hf-tiny/x_stage_a.jsonl", "num_bytes": 1234}],
        throughput=[{"engine": "hf:tiny", "generation_s": 2.0, "num_prompt_tokens": 80, "num_completion_tokens": 24, "num_generations": 4}],
    )


def test_the_reports_are_those_kept_in_golden(tmp_path: Path) -> None:
    """After a meant change: UPDATE_GOLDEN=1 pytest tests/report/test_writing.py, and read the difference."""
    for name, path in write_reports(golden_run(tmp_path)).items():
        if path.suffix == ".html":
            continue  # a real browser reads that: tests/browser/
        written = path.read_bytes()
        if os.environ.get("UPDATE_GOLDEN"):
            GOLDEN.mkdir(exist_ok=True)
            (GOLDEN / name).write_bytes(written)
        # Column widths of Markdown tables depend on whether tabulate finds wcwidth.
        assert re.sub(rb" +|-{3,}", b" ", written) == re.sub(rb" +|-{3,}", b" ", (GOLDEN / name).read_bytes())


def test_the_same_run_gives_the_same_bytes(tmp_path: Path) -> None:
    run_dir = golden_run(tmp_path)
    script = "import sys, pathlib; from evalharness.report.writing import write_reports; write_reports(pathlib.Path(sys.argv[1]))"
    written = []
    for seed in ("1", "2"):
        subprocess.run([sys.executable, "-c", script, run_dir], check=True, env={**os.environ, "PYTHONHASHSEED": seed}, timeout=300)
        written.append([(run_dir / name).read_bytes() for name in (*FILES, "tables.csv")])
    assert written[0] == written[1]


def test_all_reports_are_returned_and_nothing_else_is_left(tmp_path: Path) -> None:
    paths = write_reports(write_run(tmp_path, rows(2)))
    assert paths == {name: tmp_path / name for name in FILES}
    assert {path.name for path in tmp_path.iterdir()} == {"run.json", "samples.jsonl", *FILES}
    tables = load_tables(write_run(tmp_path, rows(2)))
    assert write_reports(tables).keys() == set(FILES)
    assert terminal_summary(tables, 80) == terminal_summary(tmp_path, 80)


@pytest.mark.parametrize("missing", ["run.json", "samples.jsonl"])
def test_half_a_run_directory_still_gets_reports(tmp_path: Path, missing: str) -> None:
    write_run(tmp_path, rows(2))
    (tmp_path / missing).unlink()
    assert f"{missing} is missing" in write_reports(tmp_path)["report.md"].read_text(encoding="utf-8")


def test_what_is_missing_or_torn_is_said_in_the_report(tmp_path: Path) -> None:
    paths = write_reports(write_run(tmp_path, []))
    assert "**EMPTY**" in paths["report.md"].read_text(encoding="utf-8")
    assert paths["samples.csv"].read_text(encoding="utf-8").startswith("run_id,nodeid,")
    write_run(tmp_path, rows(2))
    with (tmp_path / "samples.jsonl").open("a") as file:
        file.write('{"run_id": "fi')
    assert "line 3 of samples.jsonl, the last, is torn and left out" in write_reports(tmp_path)["report.md"].read_text(encoding="utf-8")


def test_what_cannot_be_read_or_written_is_an_error_and_leaves_the_old_reports(tmp_path: Path) -> None:
    write_reports(write_run(tmp_path, rows(2)))
    before = [(tmp_path / name).read_bytes() for name in FILES]
    (tmp_path / "samples.jsonl").write_text("{\n{}\n")
    with pytest.raises(RecordError, match="line 1, is not JSON"):
        write_reports(tmp_path)
    assert [(tmp_path / name).read_bytes() for name in FILES] == before
    write_run(tmp_path, rows(2))
    (tmp_path / "report.csv").unlink()
    (tmp_path / "report.csv").mkdir()
    with pytest.raises(RecordError, match=r"report\.csv cannot be written: Is a directory; .*--report-dir"):
        write_reports(tmp_path)


def test_a_million_characters_do_not_reach_the_markdown(tmp_path: Path) -> None:
    text = "=|`<b>\x1b[31m" * 100_000
    paths = write_reports(
        write_run(tmp_path, [row("a", outcome="miss", text=text, problem=text, nodeid=text, scores={text: 1.0}, tags={text: text})])
    )
    assert paths["report.md"].stat().st_size < 20_000
    assert paths["samples.csv"].stat().st_size < 400_000


def test_importing_the_package_and_its_text_functions_is_cheap() -> None:
    script = "import sys, evalharness.report, evalharness.report.text, evalharness.runs.run_file; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", f"import json; {script}"], check=True, capture_output=True, text=True, timeout=300)
    assert not {"numpy", "tabulate", "torch", "pytest"} & set(json.loads(done.stdout))


def test_reports_of_a_run_without_groups_load_no_scipy() -> None:
    script = "import sys, evalharness.pytest_plugin.finish, evalharness.report.terminal; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300)
    assert done.stdout == "False\n"
