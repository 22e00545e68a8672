"""Parts of a run put together: the run that it would have been in one piece, and nothing else is taken for a part."""

from __future__ import annotations

from typing import Any

import pytest

from evalharness.config.options import cases_of_shard
from tests.cli.commands.test_rescore import EVAL
from tests.pytest_plugin.project import MODES, Project, Run, eval_module

pytestmark = pytest.mark.slow

TESTS = eval_module("""
pytestmark = pytest.mark.eval(
    cases=lambda d: [Case(id=f"c{i}", group=f"g{i // 2}") for i in range(10)],
    request=ask,
    aggregate=lambda rows: {"longest": max(len(row["generation"]["text"]) for row in rows)},
    tables=lambda rows: {"Cases": [{"case": row["case_id"]} for row in rows]},
)

@pytest.mark.gate("x >= 4.5")
def test_s(case, generation, score):
    score(x=int(case.id[1:]))
    assert case.id != "c3"
""")
VOLATILE = {"run_id", "worker", "started_at", "duration_s"}


def parts_of(project: Project, num: int, *arguments: str, tests: str = TESTS) -> list[Run]:
    project.write(test_a=tests)
    return [project.run("--run-id", f"p{i}", "--shard", f"{i}/{num}", *arguments) for i in range(1, num + 1)]


def merged(project: Project, *parts: Run) -> tuple[int, str]:
    return project.evalharness("merge", *(str(part.run_dir) for part in parts), "--run-id", "whole")


def scores(run: Run) -> list[str]:
    """Return report.csv without what it says of speed and workers."""
    lines = (run.run_dir / "report.csv").read_text("utf-8").splitlines()
    return [line for line in lines if any(part in line for part in (",gate,", ",x,", "pass"))]


class TestParts:
    def test_each_case_is_in_one_part(self) -> None:
        cases = list(range(11))
        parts = [cases_of_shard(cases, f"{i}/4") for i in range(1, 5)]
        assert sorted(case for part in parts for case in part) == cases
        assert {len(part) for part in parts} == {2, 3}
        assert cases_of_shard(cases, None) == cases

    def test_a_part_runs_its_cases_only(self, project: Project) -> None:
        first, second = parts_of(project, 2, "--limit-first", "5")
        assert [row["case_id"] for row in first.rows] == ["c0", "c2", "c4"]
        assert [row["case_id"] for row in second.rows] == ["c1", "c3"]

    @pytest.mark.parametrize("mode", MODES)
    def test_an_eval_with_fewer_cases_than_parts_is_skipped_where_it_has_none(self, project: Project, mode: str) -> None:
        project.write(test_a=TESTS, test_b=TESTS.replace("range(10)", "range(1)"))
        run = project.run("--shard", "2/2", mode=mode)
        assert {row["eval"] for row in run.rows} == {"a"}
        assert "1 skipped" in run.output


class TestMerging:
    def test_the_whole_is_the_run_in_one_piece(self, project: Project) -> None:
        parts = parts_of(project, 3)
        one = project.run("--run-id", "one")
        code, output = merged(project, *reversed(parts))
        whole = Run(code, output, 0.0, project.root, "whole")
        assert code == one.exit_code == 0, output

        def content(run: Run) -> list[dict[str, Any]]:
            return [{name: value for name, value in row.items() if name not in VOLATILE} for row in run.rows]

        assert content(whole) == content(one)
        for name in ("gates", "aggregates", "tables", "counts", "evals"):
            assert whole.facts[name] == one.facts[name], name
        assert scores(whole) == scores(one)
        assert [entry["num_generations"] for entry in whole.facts["throughput"]] == [10]

    def test_parts_that_were_resumed_or_ran_with_workers_are_parts_too(self, project: Project) -> None:
        parts_of(project, 2)
        project.run("--resume", "p1")
        parts = [Run(0, "", 0.0, project.root, name) for name in ("p1", "p2")]
        code, output = merged(project, *parts)
        assert code == 0, output
        assert Run(code, output, 0.0, project.root, "whole").counts == {"pass": 9, "miss": 1}

    def test_an_eval_that_a_part_has_nothing_of_is_whole(self, project: Project) -> None:
        project.write(test_b=TESTS.replace("range(10)", "range(1)"))
        parts = parts_of(project, 2)
        code, output = merged(project, *parts)
        assert Run(code, output, 0.0, project.root, "whole").counts == {"pass": 10, "miss": 1}, output

    def test_the_eval_with_every_kind_of_outcome_is_merged_too(self, project: Project) -> None:
        parts = parts_of(project, 2, tests=EVAL)
        one = project.run("--run-id", "one")
        code, output = merged(project, *parts)
        assert code == one.exit_code, output
        assert Run(code, output, 0.0, project.root, "whole").outcomes == one.outcomes


class TestRefusals:
    @pytest.mark.parametrize(
        ("chosen", "problem"),
        [((0, 2), "part 2/3 is not given"), ((0, 1, 1, 2), "are both part 2/3; give each part once")],
        ids=["missing", "twice"],
    )
    def test_a_part_that_is_missing_or_comes_twice(self, project: Project, chosen: tuple[int, ...], problem: str) -> None:
        parts = parts_of(project, 3)
        code, output = merged(project, *(parts[number] for number in chosen))
        assert (code, problem in output) == (2, True), output
        assert not (project.root / "reports" / "whole").exists()

    def test_more_parts_than_cases_are_said_to_be_too_many(self, project: Project) -> None:
        parts = parts_of(project, 3, tests=TESTS.replace("range(10)", "range(2)"))
        assert not parts[2].run_dir.exists()
        code, output = merged(project, *parts[:2])
        output = " ".join(output.split())
        assert (code, "one in which no eval has a case left no run: then run again in fewer parts" in output) == (2, True), output

    def test_a_run_that_is_no_part(self, project: Project) -> None:
        project.write(test_a=TESTS).run("--run-id", "one")
        code, output = project.evalharness("merge", "one", "--run-id", "whole")  # by its name, as all commands take runs
        assert (code, "is not a part: it was run without --shard" in output) == (2, True), output

    def test_parts_of_another_number_or_that_were_asked_otherwise(self, project: Project) -> None:
        first = parts_of(project, 2)[0]
        code, output = merged(project, first, project.run("--run-id", "third", "--shard", "2/3"))
        assert (code, "is part 2/3" in output and "they are not of one run" in output) == (2, True), output
        code, output = merged(project, first, project.run("--run-id", "longer", "--shard", "2/2", "--max-new-tokens", "9"))
        assert (code, "its --max-new-tokens is 9, not null; run the part again" in " ".join(output.split())) == (2, True), output
