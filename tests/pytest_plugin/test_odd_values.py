"""One odd value costs at most its own case: whatever a test records or raises, a request function gives, or an aggregate returns."""

from __future__ import annotations

from typing import Any

import pytest

from evalharness.analysis.eval_functions import EvalFunctions, aggregate_rows, table_entries
from evalharness.api.errors import BROKEN
from tests.pytest_plugin.project import MARK, MODES, PLAIN, Project, Run, eval_module

HEAD = """
import datetime, decimal, fractions, pathlib

class Odd:
    def __repr__(self): raise RuntimeError("no repr")
    def __str__(self): raise RuntimeError("no text")
    def __float__(self): raise RuntimeError("no number")
class OddMap(dict):
    def items(self): raise RuntimeError("no items")
class OddError(Exception):
    def __str__(self): raise RuntimeError("no text")
def deep(depth, value=1):
    for _ in range(depth):
        value = [value]
    return value
ends = []
ends.append(ends)
"""
SHORTENED = {
    "big": ("10**5000", "… (an int of 16,610 bits)"),
    "negative": ("-10**5000", "… (an int of 16,610 bits)"),
    "in-a-list": ("[1, 10**5000]", [1, "… (an int of 16,610 bits)"]),
    "in-a-dict": ("{'a': 10**5000}", {"a": "… (an int of 16,610 bits)"}),
    "nan": ("float('nan')", "… (nan)"),
    "infinite": ("[float('-inf')]", ["… (-inf)"]),
    "long": ("2**10000", 2**10000),
    "surrogate": ("{'\\ud800': '\\udfff'}", {"\ud800": "\udfff"}),
}
REFUSED = {
    "keys": ("{10**5000: 1}", "has the key <int that cannot be shown> (int); keys must be texts"),
    "odd": ("Odd()", "must be plain JSON data, got <Odd"),
    "odd-map": ("OddMap(a=1)", "RuntimeError: no items"),
    "cycle": ("ends", "detail 'x'[0] contains itself"),
    "bytes": ("b'a'", "must be plain JSON data, got b'a' (bytes)"),
    "decimal": ("decimal.Decimal('1')", "got Decimal('1') (Decimal)"),
    "date": ("datetime.date(2030, 1, 1)", "got datetime.date(2030, 1, 1) (date)"),
    "path": ("pathlib.Path('a')", "got PosixPath('a') (PosixPath)"),
    "fraction": ("fractions.Fraction(1, 3)", "got Fraction(1, 3) (Fraction)"),
    "many": ("[[0] * 1000] * 3000", "has more than 2,000,000 values"),
}
RAISED = {"raise-big": "ValueError(10**5000)", "raise-odd": "OddError()", "raise-miss": "AssertionError(Odd())"}


def _values() -> str:
    values = {name: source for name, (source, _) in [*SHORTENED.items(), *REFUSED.items()]}
    inside = ", ".join(f"{name!r}: {source}" for name, source in values.items())
    raised = ", ".join(f"{name!r}: {source}" for name, source in RAISED.items())
    return eval_module(f"""{HEAD}
VALUES = {{{inside}, 'deep': deep(100_000), 'levels': deep(300), 'wide': [*[[]] * 300, deep(300)]}}
RAISED = {{{raised}}}
ASKED = {{"asks-big": 10**5000, "asks-odd": Odd(), "asks-none": None, "asks-raises": OddError()}}

def beside(name): return None if name == "many" else VALUES.get(name)  # seconds each time

def odd_request(case):
    if case.id == "asks-raises":
        raise ASKED[case.id]
    return ASKED[case.id] if case.id in ASKED else ask(case)

pytestmark = pytest.mark.eval(
    cases=lambda d: [Case(id=name, reference=beside(name)) for name in (*VALUES, *RAISED, *ASKED, "last")], request=odd_request)

def test_s(case, generation, details, score, record_property):
    score(right=1)
    record_property("p", beside(case.id))
    if case.id in RAISED:
        raise RAISED[case.id]
    details(x=VALUES.get(case.id))
""")


@pytest.fixture(scope="module", params=MODES[::2])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    project = Project(tmp_path_factory.mktemp(f"odd-{request.param}")).write(test_odd=_values())
    return project.run("--junitxml=junit.xml", "-o", "junit_family=xunit1", mode=request.param)


class TestValuesOfTests:
    def test_the_run_goes_on_to_its_end(self, run: Run) -> None:
        assert run.exit_code == BROKEN
        assert run.facts["interrupted"] is None
        assert run.row("last")["outcome"] == "pass"
        assert "skip" not in run.counts

    @pytest.mark.parametrize("name", SHORTENED)
    def test_what_an_answer_may_hold_is_shortened_and_the_answer_judged(self, run: Run, name: str) -> None:
        row = run.row(name)
        assert (row["outcome"], row["details"]) == ("pass", {"x": SHORTENED[name][1]})

    def test_deep_data_is_kept_down_to_a_depth(self, run: Run) -> None:
        for name in ("deep", "levels"):
            row = run.row(name)
            value, depth = row["details"]["x"], 0
            while isinstance(value, list):
                [value], depth = value, depth + 1
            assert (row["outcome"], value, depth) == ("pass", "… (nested more than 200 deep)", 200)

    def test_deep_data_beside_much_other_data_is_read_again(self, run: Run) -> None:
        row = run.row("wide")
        assert (row["outcome"], len(row["details"]["x"])) == ("pass", 301)
        assert (run.run_dir / "report.md").exists()

    @pytest.mark.parametrize("name", REFUSED)
    def test_what_is_no_data_is_an_error_of_its_test_alone(self, run: Run, name: str) -> None:
        row = run.row(name)
        assert row["outcome"] == "error"
        assert REFUSED[name][1] in row["problem"]

    @pytest.mark.parametrize(("name", "outcome"), [("raise-big", "error"), ("raise-odd", "error"), ("raise-miss", "fail")])
    def test_an_error_without_a_text_is_named_by_its_type(self, run: Run, name: str, outcome: str) -> None:
        row = run.row(name)
        assert row["outcome"] == outcome
        assert "that cannot be shown>" in row["problem"]

    @pytest.mark.parametrize("name", ["asks-big", "asks-odd", "asks-none", "asks-raises"])
    def test_what_a_request_function_gives_or_raises_costs_its_case(self, run: Run, name: str) -> None:
        row = run.row(name)
        assert row["outcome"] == "error"
        assert f"request({name})" in row["problem"]


def _aggregated(metrics: Any) -> tuple[dict[str, float], list[str]]:
    functions = EvalFunctions("a", "test_a.py", None, lambda rows: metrics, None, None, None)
    row: Any = {"eval": "a", "test": "t", "engine": "e", "outcome": "pass", "scores": {}}
    problems: list[str] = []
    return {entry["metric"]: entry["value"] for entry in aggregate_rows([functions], [row], problems)}, problems


class TestAggregates:
    def test_none_is_no_value_and_no_problem(self) -> None:
        assert _aggregated({"f1": None, "n": 3}) == ({"n": 3.0}, [])

    @pytest.mark.parametrize("value", ["many", [1], 10**5000, float("nan"), object(), 1j], ids=lambda value: type(value).__name__)
    def test_one_that_is_no_number_costs_no_other(self, value: object) -> None:
        values, problems = _aggregated({"before": 1, "bad": value, "after": True})
        assert values == {"before": 1.0, "after": 1.0}
        [problem] = problems
        assert problem.startswith("test_a.py: aggregate for t on e gave bad=")

    @pytest.mark.parametrize("metrics", [None, 3, [("a", 1)]], ids=["none", "number", "list"])
    def test_what_is_no_mapping_is_a_problem_of_the_run(self, metrics: object) -> None:
        values, problems = _aggregated(metrics)
        assert (values, len(problems)) == ({}, 1)


class TestTables:
    @pytest.mark.parametrize(
        "bad", [None, [{"a": 10**5000}], [{1: 2}], [{"a": float("nan")}], [3], 3], ids=["none", "big", "key", "nan", "row", "number"]
    )
    def test_one_that_is_none_costs_no_other(self, bad: Any) -> None:
        functions = EvalFunctions("a", "test_a.py", None, None, None, lambda rows: {"before": [], "bad": bad, "after": [{"a": 1}]}, None)
        row: Any = {"eval": "a", "test": "t", "engine": "e", "outcome": "pass", "scores": {}}
        problems: list[str] = []
        assert [entry["title"] for entry in table_entries([functions], [row], problems)] == ["before", "after"]
        [problem] = problems
        assert problem.startswith("test_a.py: tables for t on e ")


CHANGES = """
def change(rows, *more):
    for row in rows:
        row["scores"]["right"] = object()
        row.update(outcome=None, case_id=object())
        row.clear()
    return {}

pytestmark = pytest.mark.eval(cases=cases, request=ask, aggregate=change, tables=change, outputs=change)

@pytest.mark.gate("right >= 1")
def test_s(case, generation, score): score(right=1)
"""


def test_what_an_evals_functions_do_to_their_rows_changes_nothing_else(project: Project) -> None:
    run = project.write(test_a=eval_module(CHANGES)).run()
    assert (run.exit_code, run.counts, run.facts["problems"]) == (0, {"pass": 4}, [])
    assert run.gate("right >= 1")["value"] == 1


@pytest.mark.parametrize("field", ["invalid", "group", "tags", "id"])
def test_a_case_with_an_odd_field_is_named_before_anything_runs(project: Project, field: str) -> None:
    values = {"id": "'a'", field: "Odd()"}
    given = ", ".join(f"{name}={value}" for name, value in values.items())
    marked = f"pytestmark = pytest.mark.eval(cases=lambda d: [Case({given})], request=ask)\ndef test_s(case, generation): pass\n"
    run = project.write(test_a=eval_module(HEAD + marked)).run()
    assert run.exit_code == pytest.ExitCode.INTERRUPTED
    assert "<Odd instance at" in run.output
    assert run.opened_no_run


class TestCommandLine:
    @pytest.mark.parametrize("mode", MODES[::2])
    @pytest.mark.parametrize("expression", ["c0 and (", "c0 c1", "==1"])
    def test_an_expression_that_pytest_refuses_starts_no_run(self, project: Project, expression: str, mode: str) -> None:
        run = project.write(test_a=PLAIN).run("-k", expression, mode=mode)
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        assert f"Wrong expression passed to '-k': {expression}: at column" in run.output
        assert run.opened_no_run

    @pytest.mark.parametrize("mode", MODES[::2])
    @pytest.mark.parametrize("place", ["other", "other/test_far.py"])
    def test_an_eval_outside_of_rootdir_has_its_own_name(self, project: Project, place: str, mode: str) -> None:
        inner = Project(project.root / "inner")
        (project.root / "other").mkdir()
        marked = MARK.replace("request=ask", "request=ask, aggregate=lambda rows: {'n': len(rows)}")
        (project.root / "other" / "test_far.py").write_text(marked + "def test_s(case, generation): pass\n")
        run = inner.run("--rootdir", ".", "-c", "pytest.ini", f"../{place}", mode=mode)
        assert (run.exit_code, run.facts["problems"]) == (0, [])
        assert {(row["eval"], row["test"]) for row in run.rows} == {("far", "test_s")}
        assert [(entry["eval"], entry["value"]) for entry in run.facts["aggregates"]] == [("far", 4)]

    def test_two_files_outside_of_rootdir_whose_tests_have_the_same_ids_are_refused(self, project: Project) -> None:
        inner = Project(project.root / "inner")
        for name in ("a", "b"):
            (project.root / f"test_{name}.py").write_text(PLAIN)
        run = inner.run("--rootdir", ".", "-c", "pytest.ini", "../test_a.py", "../test_b.py")
        assert run.exit_code == pytest.ExitCode.INTERRUPTED
        assert "are both outside of rootdir" in run.output
