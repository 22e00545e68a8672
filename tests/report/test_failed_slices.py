"""Every slice in which a gate failed is named in every file of a run."""

from __future__ import annotations

from pathlib import Path

from evalharness.pytest_plugin.finish.ci_files import _gate_cases
from evalharness.report.html.broke import failed_gates
from evalharness.report.tables import load_tables
from evalharness.report.writing import terminal_summary, write_reports
from tests.report.runs import gate, row, write_run

NAMES = [f"<b>site {number}</b>" for number in range(12)]


def test_each_failed_slice_is_in_every_file(tmp_path: Path) -> None:
    samples = [row(f"c{number}", scores={"f1": 0.2}, tags={"site": name}) for number, name in enumerate(NAMES)]
    failed = {"tag": "site", "failed_slices": [{"value": name, "measured": 0.2, "n": 1} for name in NAMES]}
    reason = f"12 of 12 values of site: {NAMES[0]} 0.200, needs ≥ 0.80 (n=1); and 11 more"
    one = gate(False, metric="f1", expression="f1[site=*] >= 0.8", value=0.2, threshold=0.8, reason=reason)
    run = write_run(tmp_path, samples, gates=[{**one, **failed}])
    paths = write_reports(run)
    page, table, text = (paths[name].read_text(encoding="utf-8") for name in ("report.html", "report.csv", "report.md"))
    tables = load_tables(run)
    (junit,) = _gate_cases({"problems": [], **tables.run})
    overview = "".join(str(part) for group in failed_gates(tables) for gate in group["gates"] for part in (gate["parts"], gate["rest"]))
    for name in NAMES:
        assert f"stage_a,test_summary,hf:tiny,site,{name},gate_slice,f1[site=*] >= 0.8,0.2,,,,,1" in table
        assert f"site={name}: 0.200 (n=1)" in str(junit[0].text)
        assert text.count(f"{name.replace('<', '&lt;')} ") >= 1
        assert name in overview
    assert "<b>site" not in page
    assert "## Slices that failed" in text
    assert "and 8 more" in page
    assert "12 of 12 values of site" in " ".join(terminal_summary(run).split())


def test_report_md_lists_a_gate_that_failed_in_one_slice_beside_one_that_failed_in_two(tmp_path: Path) -> None:
    slices = [{"value": name, "measured": 0.2, "n": 1} for name in "ab"]
    gates = [
        {**gate(False, metric=metric, expression=f"{metric}[site=*] >= 0.8", value=0.2, threshold=0.8), "failed_slices": failed}
        for metric, failed in (("f1", slices), ("acc", slices[:1]))
    ]
    text = write_reports(write_run(tmp_path, [row("c", scores={"f1": 0.2})], gates=gates))["report.md"].read_text(encoding="utf-8")
    table = text.partition("## Slices that failed")[2].partition("## ")[0]
    assert (table.count("f1"), table.count("acc")) == (2, 1)
