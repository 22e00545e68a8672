from __future__ import annotations

from pathlib import Path
from typing import Any

from evalharness.report.html.broke import problem_lines
from evalharness.report.markdown import markdown_report
from evalharness.report.tables import load_tables
from evalharness.report.what_broke import NUM_GATE_LINES, gate_lines, reason_groups, reason_lines, slice_lines, worst_lines, worst_rows
from tests.report.runs import gate, invalid, row, rows, write_run


def lines_of(tmp_path: Path, samples: list[dict[str, Any]], gates: list[dict[str, Any]]) -> list[str]:
    return list(gate_lines(load_tables(write_run(tmp_path, samples, gates=gates))))


def failed(metric: str = "valid", **more: Any) -> dict[str, Any]:
    return gate(False, metric=metric, expression=f"{metric} >= 0.95", **{"reason": "0.500, needs ≥ 0.95", **more})


def test_of_many_failed_gates_those_of_one_test_and_engine_share_a_line(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(5)]
    lines = lines_of(tmp_path, rows(2), [failed(name, engine=engine) for engine in ("hf:early", "hf:final") for name in names])
    assert lines == [
        f"GATES FAILED: stage_a::test_summary on hf:{name}: m0 0.500, needs ≥ 0.95; m1 0.500, needs ≥ 0.95; m2 0.500, needs ≥ 0.95; "
        "and 2 more"
        for name in ("early", "final")
    ]
    lines = lines_of(tmp_path, rows(2), [failed(engine=f"hf:{number}") for number in range(NUM_GATE_LINES + 2)])
    assert len(lines) == NUM_GATE_LINES + 1
    assert lines[-1] == "2 more gates FAILED: see report.md"


def test_a_pass_rate_has_an_interval_too_and_the_gate_of_an_unknown_test_none(tmp_path: Path) -> None:
    samples = [*rows(3), row("z", outcome="miss"), invalid("y")]
    (line,) = lines_of(tmp_path, samples, [failed("pass_rate", reason="0.750, needs ≥ 0.95")])
    assert line.endswith("0.750 [0.301 … 0.954], needs ≥ 0.95")
    (line,) = lines_of(tmp_path, samples, [failed("pass_rate", eval="other")])
    assert line.endswith("0.500, needs ≥ 0.95")


def test_gates_that_could_not_be_judged_have_one_line_per_reason(tmp_path: Path) -> None:
    idle = [failed(judged=False, reason=f"not judged: {number} of 60 cases were not run (Ctrl-C)") for number in range(1, 50)]
    broken = failed("f1", judged=False, reason="not judged: all 60 cases ended in an error: a long reason")
    assert lines_of(tmp_path, rows(2), [*idle, broken]) == [
        "49 gates not judged: not all cases ran",
        "f1 >= 0.95 (stage_a::test_summary on hf:tiny) not judged: all 60 cases ended in an error",
    ]


def test_the_worst_cases_are_of_different_reasons_first(tmp_path: Path) -> None:
    samples = [
        *(row(f"c{number}", outcome="miss", problem="no JSON", scores={"valid": 0.0}) for number in range(3)),
        row("d", outcome="miss", problem="no object", scores={"valid": 0.5}),
        row("pass"),
        invalid("e", "broken", outcome="error"),
    ]
    tables = load_tables(write_run(tmp_path / "reports" / "first", samples))
    assert [tables.case_ids[number] for number in worst_rows(tables)] == ["c0", "d", "c1"]
    assert next(worst_lines(tables)) == "worst cases: evalharness show first c0"
    assert [(group.count, group.outcome) for group in reason_groups(tables)] == [(1, "error"), (3, "miss"), (1, "miss")]


def test_the_command_of_a_case_whose_id_begins_with_a_dash_takes_it_for_no_option(tmp_path: Path) -> None:
    tables = load_tables(write_run(tmp_path / "reports" / "first", [row("-rf", outcome="miss", scores={"valid": 0.0})]))
    assert next(worst_lines(tables)) == "worst case: evalharness show first -- -rf"


def test_a_problem_on_several_engines_is_one_reason(tmp_path: Path) -> None:
    samples = [row("a/1", engine=engine, outcome="miss", problem="a/1 has 3 'x'") for engine in ("hf:early", "hf:final")]
    (group,) = reason_groups(load_tables(write_run(tmp_path, samples)))
    assert (group.count, group.engine) == (2, "hf:early, hf:final")


def test_a_reason_says_of_all_its_cases_only_what_is_true_of_all(tmp_path: Path) -> None:
    samples = [row(f"c{number}", outcome="miss", problem=f"{number} labels, not 9") for number in (7, 8)]
    samples += [row(f"d{number}", outcome="miss", problem="3 lines, not 4") for number in (1, 2)]
    tables = load_tables(write_run(tmp_path, samples))
    where = "stage_a on hf:tiny"
    assert list(reason_lines(tables)) == [
        f"2 miss: … labels, not …; such as: 7 labels, not 9 ({where}: c7, c8)",
        f"2 miss: 3 lines, not 4 ({where}: d1, d2)",
    ]
    assert any("… labels, not …; such as: 7 labels, not 9" in block for block in markdown_report(tables))
    assert [line["of"].reason() for line in problem_lines(tables)] == [group.reason() for group in reason_groups(tables)]


class TestWeakSlices:
    """The terminal names the slice that an average hides, where a gate on the average failed."""

    SAMPLES = tuple(
        row(f"{site}{number}", scores={"valid": float(site != "b")}, tags={"site": site, "half": str(number % 2)})
        for site in "abc"
        for number in range(12)
    )

    def lines(self, tmp_path: Path, *gates: dict[str, Any]) -> list[str]:
        return list(slice_lines(load_tables(write_run(tmp_path, list(self.SAMPLES), gates=list(gates)))))

    def test_the_slice_that_lies_behind_is_named(self, tmp_path: Path) -> None:
        assert self.lines(tmp_path, failed()) == ["weakest slice: site=b of stage_a on hf:tiny: valid 0.000 (n=12), 0.667 over all cases"]

    def test_nothing_is_said_where_all_gates_passed_or_a_gate_on_the_slice_says_it(self, tmp_path: Path) -> None:
        on_slice = failed(tag="site", failed_slices=[{"value": "b", "measured": 0.0, "n": 12}])
        assert self.lines(tmp_path / "passed", gate(True)) == []
        assert self.lines(tmp_path / "slice", failed(), on_slice) == []
        assert self.lines(tmp_path / "other", failed(engine="hf:other")) == []
