"""Sessions that are not about evals, or that lack parts of pytest: the plugin stays out of the way."""

from __future__ import annotations

import gc

import pytest

from tests.pytest_plugin.project import HEADER, MARK, MODES, PLAIN, Project

pytestmark = pytest.mark.slow

FOREIGN = """
import os, pytest

@pytest.fixture(params=["sqlite", "postgres"])
def engine(request): return request.param
@pytest.fixture
def case(): return "lower"
@pytest.fixture
def score(engine): return len(engine)
@pytest.fixture
def generation(): return 3

def test_database(engine, score): assert score == len(engine)
def test_letters(case, generation): assert (case, generation) == ("lower", 3)
@pytest.mark.parametrize("case", ["a", "b"])
def test_own_parameters(case): assert case in "ab"
@pytest.mark.parametrize("name", ["fake:echo-x", "hf:tiny-y"])
def test_ids_like_ours(name): pass
def test_threads(): assert "OMP_NUM_THREADS" not in os.environ
"""


class TestWithoutEvals:
    @pytest.mark.parametrize("mode", MODES)
    def test_fixtures_and_ids_of_others_are_left_alone(self, project: Project, mode: str) -> None:
        run = project.write(test_a=FOREIGN).run(mode=mode, backend=None)
        assert run.exit_code == 0, run.output
        assert run.summary().startswith("8 passed")
        assert run.opened_no_run
        assert "evalharness:" not in run.output
        assert "= evalharness =" not in run.output

    def test_a_failing_foreign_test_is_shown_as_ever(self, project: Project) -> None:
        project.write(test_a="def test_a(record_property):\n    record_property('o', object())\n    print('\\x1b[31mred')\n    assert 0\n")
        run = project.run_inline(backend=None)
        assert run.exit_code == 1
        assert "\x1b[31mred" in run.output

    def test_collection_leaves_the_garbage_collector_as_it_was(self, project: Project) -> None:
        own = "import gc\nassert gc.isenabled()\ndef test_a(): assert gc.isenabled()\n"
        run = project.write(test_a=own, test_b="1 / 0").run_inline("test_a.py", backend=None)
        assert run.exit_code == 0, run.output
        assert project.run_inline(backend=None).exit_code == 2
        assert gc.isenabled()

    def test_the_garbage_collector_runs_while_an_eval_loads_its_cases(self, project: Project) -> None:
        load = "import gc\ndef load(data_dir):\n    assert gc.isenabled()\n    yield Case(id=str(gc.isenabled()))\n"
        mark = "pytestmark = pytest.mark.eval(cases=load, request=ask)\ndef test_a(case): assert case.id == 'True'\n"
        assert project.write(test_a=HEADER + load + mark).run_inline().exit_code == 0

    def test_xdist_hands_out_tests_itself(self, project: Project) -> None:
        many = "import pytest\n@pytest.mark.parametrize('i', range(40))\ndef test_a(i): pass\n"
        conftest = """
def pytest_sessionfinish(session):
    scheduler = getattr(session.config.pluginmanager.get_plugin("dsession"), "sched", None)
    if scheduler is not None:
        print("scheduler:", type(scheduler._chosen).__name__)
"""
        run = project.write(test_a=many, conftest=conftest).run(mode="n2", backend=None)
        assert run.summary().startswith("40 passed")
        assert "scheduler: LoadScheduling" in run.output

    @pytest.mark.parametrize("dist", ["loadfile", "each"])
    def test_other_ways_of_distribution_work(self, project: Project, dist: str) -> None:
        run = project.write(test_a="def test_a(): pass\n").run("--dist", dist, mode="n2", backend=None)
        assert run.exit_code == 0

    def test_a_session_without_tests_says_so(self, project: Project) -> None:
        assert project.run_inline(backend=None).exit_code == pytest.ExitCode.NO_TESTS_COLLECTED
        assert project.run_inline().exit_code == pytest.ExitCode.NO_TESTS_COLLECTED

    def test_nothing_of_the_engine_is_loaded(self, project: Project) -> None:
        project.write(test_a="import sys\ndef test_a(): assert not {'torch', 'numpy', 'pandas', 'PIL'} & set(sys.modules)\n")
        run = project.run(backend=None, apart=True)
        assert run.exit_code == 0, run.output


class TestWithEvals:
    @pytest.mark.parametrize("dist", ["worksteal", "each"])
    def test_other_ways_of_distribution_are_refused(self, project: Project, dist: str) -> None:
        run = project.write(test_a=PLAIN).run("--dist", dist, mode="n2")
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        assert f"ERROR: --dist {dist} cannot run evals: they are handed out in work units; leave --dist out, -n alone does it" in run.output
        assert run.opened_no_run

    def test_workers_named_by_tx_are_counted(self, project: Project) -> None:
        project.write(test_a=MARK.replace("range(4)", "range(40)") + "def test_s(case, generation): pass\n")
        run = project.run("-p", "xdist", "--tx", "2*popen", "--dist", "load", apart=True)
        assert run.counts == {"pass": 40}
        assert run.facts["num_workers"] == 2
        assert {row["worker"] for row in run.rows} == {"gw0", "gw1"}

    def test_more_workers_than_cases_do_no_harm(self, project: Project) -> None:
        run = project.write(test_a=PLAIN).run("--limit", "1", mode="n2")
        assert (run.exit_code, run.counts) == (0, {"pass": 1})

    @pytest.mark.parametrize("plugin", ["cacheprovider", "terminal", "xdist", "junitxml", "stepwise", "warnings", "logging"])
    def test_pytest_without_one_of_its_parts_still_reports(self, project: Project, plugin: str) -> None:
        test = "@pytest.mark.gate('pass_rate >= 0')\ndef test_s(case, generation): assert case.id != 'c1', 'x'\n"
        run = project.write(test_a=MARK + test).run_inline("-p", f"no:{plugin}")
        assert run.exit_code == 0
        assert run.counts == {"pass": 3, "miss": 1}
        assert (run.run_dir / "report.md").exists()

    def test_sessions_within_a_session_do_not_mix(self, project: Project) -> None:
        test = """
def test_s(case, generation):
    assert generation.text == f"ask {case.id}"
    inner = f"inner-{case.id}"
    os.makedirs(inner)
    with open(f"{inner}/test_inner.py", "w") as file:
        file.write(open(__file__).read().split("def test_s")[0] + "def test_i(case, generation): assert case.id != 'c3'\\n")
    options = ["-p", "evalharness.pytest_plugin", "--backend", "fake", "--run-id", inner]
    code = pytest.main([*options, "-q", inner, "--rootdir", inner, "--import-mode=importlib"])
    assert code == 1
"""
        run = project.write(test_a=MARK + test).run("--run-id", "outer", apart=True)
        assert run.counts == {"pass": 4}
        assert run.facts["evals"][0]["name"] == "a"

    def test_an_unrelated_conftest_that_fails_keeps_the_rows(self, project: Project) -> None:
        conftest = "def pytest_sessionfinish(session): raise RuntimeError('conftest is broken')\n"
        run = project.write(conftest=conftest, test_a=PLAIN).run(apart=True)
        assert run.exit_code != 0
        assert sum(line["kind"] == "row" for line in run.journal) == 4

    ALIKE = "import pytest\n@pytest.mark.parametrize('name', [f'fake:echo-c{i}' for i in range(5)])\ndef test_s(name): pass\n"

    @pytest.mark.parametrize("mode", MODES)
    def test_a_test_whose_id_reads_like_ours_is_none_of_the_evals(self, project: Project, mode: str) -> None:
        project.write(test_a=PLAIN + self.ALIKE.replace("test_s", "test_alike"), test_b=self.ALIKE)
        run = project.run(mode=mode)
        assert run.summary().startswith("14 passed")
        assert (run.exit_code, run.counts) == (0, {"pass": 4})
        assert {row["test"] for row in run.rows} == {"test_s"}
        assert "evalharness: 4 eval tests" in run.output

    def test_such_tests_alone_make_no_run(self, project: Project) -> None:
        run = project.write(test_b=self.ALIKE).run(mode="n2")
        assert run.summary().startswith("5 passed")
        assert run.opened_no_run

    def test_tests_of_both_kinds_share_workers(self, project: Project) -> None:
        project.write(
            test_a=MARK.replace("range(4)", "range(30)") + "def test_s(case, generation): pass\ndef test_helper(): pass\n",
            test_b="import pytest\n@pytest.mark.parametrize('i', range(30))\ndef test_b(i): pass\n",
        )
        run = project.run(mode="n2")
        assert run.summary().startswith("61 passed")
        assert run.counts == {"pass": 30}

    def test_random_order_changes_no_row(self, project: Project) -> None:
        conftest = "import random\ndef pytest_collection_modifyitems(items): random.Random(3).shuffle(items)\n"
        test = "def test_s(case, generation): assert generation.text.endswith(case.id)\ndef test_t(case, generation): pass\n"
        (project.root / "b.jsonl").write_text("".join(f'{{"contains": "c{i}", "text": "from b c{i}"}}\n' for i in range(4)))
        run = project.write(conftest=conftest, test_a=MARK + test, test_b=MARK + test).run_inline("--model", "echo,b.jsonl")
        assert run.counts == {"pass": 32}
        for row in run.rows:
            assert row["generation"]["text"] == ("from b " if row["checkpoint"] == "b" else "ask ") + row["case_id"]
