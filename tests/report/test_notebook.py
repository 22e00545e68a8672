"""A run in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness import open_run
from evalharness.api.errors import RecordError
from tests.docs.pages import blocks
from tests.report.runs import gate, row, write_run

HOSTILE = "<script>alert(1)</script>$x$\x1b[2J\u202e"


@pytest.fixture(autouse=True)
def reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for day, name in enumerate(("old", "new"), 1):
        samples = [row(f"c{number}", text=HOSTILE, scores={"correct": float(number)}, tags={"continent": HOSTILE}) for number in range(2)]
        told = gate(False, expression="correct >= 1", reason=HOSTILE, engine=HOSTILE)
        over_all = {"eval": "stage_a", "test": "test_summary", "engine": "hf:tiny", "metric": HOSTILE, "value": 0.75, "low": 0.5, "high": 1}
        facts = {"gates": [told], "aggregates": [over_all]}
        write_run(tmp_path / "reports" / name, samples, **facts, finished_at=f"2030-01-0{day}T00:00:00.000+00:00")
    return tmp_path / "reports"


def test_a_run_is_named_as_on_the_command_line(reports: Path) -> None:
    assert [open_run(name).path.name for name in ("latest", "latest~1", "old", reports / "new")] == ["new", "old", "old", "new"]
    with pytest.raises(RecordError, match=r"^'olt' is not a run; did you mean 'old'\? in .*reports are: new, old$"):
        open_run("olt")


def test_what_it_shows_is_escaped() -> None:
    run = open_run()
    shown = run._repr_html_()
    assert shown.startswith('<div class="tex2jax_ignore mathjax_ignore">')
    assert "&lt;script&gt;" in shown
    assert not [part for part in ("<script", "\x1b", "\u202e") if part in shown]
    assert "<td>0.500</td>" in shown
    assert "<td>0.750</td><td>0.500 … 1.000</td>" in shown
    assert repr(run).startswith("<Run new: FAILED, the gate failed")
    assert run.facts["run_id"] == "first"


def test_the_code_of_the_page_runs() -> None:
    (block,) = [block for block in blocks("python") if block.page == "docs/other_tools.md"]
    scope: dict[str, Any] = {}
    exec(compile(block.text, str(block), "exec"), scope)
    assert "<script" not in scope["frame"]._repr_html_()
