"""What reports say of runs that were scored again."""

from __future__ import annotations

from typing import Any

import pytest

from evalharness.report.findings import rescored_remarks
from evalharness.report.markdown import NUM_CHANGED_CASES, rescored_sections

ORIGIN: dict[str, Any] = {"run_id": "live", "started_at": "2026-01-01T00:00:00+00:00", "changes": []}


def run(**more: Any) -> dict[str, Any]:
    return {"rescored": {**ORIGIN, **more}}


def change(*cases: str, what: str = "the case is new", first: str | None = None) -> dict[str, Any]:
    return {"eval": "a", "what": what, "cases": list(cases), "first": first}


def test_the_run_or_file_that_generated_is_named() -> None:
    (remark,) = rescored_remarks(run())
    assert remark == "rescored from run live of 2026-01-01T00:00:00+00:00: no new generations"
    (remark,) = rescored_remarks(run(tests="checks.py"))
    assert remark.startswith("rescored with the tests of checks.py from run live ")
    (remark,) = rescored_remarks({"rescored": {"dump": "gt_vs_pred.jsonl"}})
    assert remark == "scored from the file gt_vs_pred.jsonl: nothing was generated, no test ran and no gate was judged"
    assert [*rescored_remarks({}), *rescored_sections({})] == []


@pytest.mark.parametrize(
    ("now", "then", "num"), [("a" * 40, "b" * 40, 2), ("a" * 40, "a" * 40, 1), (None, "a" * 40, 1)], ids=["other", "same", "unknown"]
)
def test_another_state_of_the_code_is_said(now: str | None, then: str, num: int) -> None:
    remarks = list(rescored_remarks({**run(git={"commit": then}), "git": {"commit": now}}))  # type: ignore[typeddict-item]
    assert len(remarks) == num
    if num == 2:
        assert remarks[1] == "the code is at commit aaaaaaaaaaaa now, and was at bbbbbbbbbbbb when they were generated"
    remarks = list(rescored_remarks({**run(versions={"evalharness": "0.1"}), "versions": {"evalharness": "0.2"}}))  # type: ignore[typeddict-item]
    assert remarks[1:] == ["evalharness is 0.2 now, and was 0.1 when they were generated"]


def test_each_change_has_its_cases_and_very_many_are_counted() -> None:
    found = run(changes=[change("c1", "c2", "c3", "c4", first="KeyError"), change("c9", what="gone")])
    assert list(rescored_remarks(found))[1:] == [
        "a: since run live, 4 cases: the case is new (KeyError): c1, c2, c3, …",
        "a: since run live, 1 case: gone: c9",
    ]
    sections = list(rescored_sections(found))
    assert sections[0] == "## Cases that have changed"
    assert sections[2:] == ["a, the case is new: c1, c2, c3, c4.", "a, gone: c9."]
    (*_, last) = rescored_sections(run(changes=[change(*(f"c{number}" for number in range(NUM_CHANGED_CASES + 1234)))]))
    assert last.endswith(f"c{NUM_CHANGED_CASES - 1} and 1,234 more, in run.json.")
    (*_, last) = rescored_sections(run(changes=[change("c|1\n# x", what="<b>")]))
    assert "\n" not in last
    assert "<b>" not in last


@pytest.mark.parametrize("changes", [None, 3, ["x"], [{}], [{"cases": "x"}], [{"cases": []}], [{"cases": [None], "eval": 3}]], ids=repr)
def test_what_is_no_list_of_changes_stops_no_report(changes: object) -> None:
    list(rescored_remarks(run(changes=changes)))
    list(rescored_sections(run(changes=changes)))
