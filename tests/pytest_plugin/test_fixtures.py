"""What tests get: scores taken or refused, generations shared, several samples and settings, an eval's own fixtures."""

from __future__ import annotations

from typing import Any
from unittest.mock import ANY

import pytest

from evalharness.analysis.gates import BUILT_IN_METRICS
from evalharness.api.errors import BROKEN
from tests.pytest_plugin.project import HEADER, MARK, MODES, PLAIN, RERUN, Project, Run, eval_module

SCORES = eval_module("""
import numpy as np
from decimal import Decimal

VALUES = {
    "bool": (True, 1.0),
    "int": (3, 3.0),
    "float": (0.25, 0.25),
    "none": (None, None),
    "numpy-float": (np.float32(0.5), 0.5),
    "numpy-double": (np.float64(0.5), 0.5),
    "numpy-int": (np.int64(7), 7.0),
    "numpy-bool": (np.bool_(True), 1.0),
    "numpy-0d": (np.array(2.5), 2.5),
    "nan": (float("nan"), "must be finite, got nan"),
    "inf": (float("inf"), "must be finite, got inf"),
    "numpy-nan": (np.float32("nan"), "must be finite, got nan"),
    "huge": (10**400, "must be finite, got inf"),
    "numpy-1d": (np.array([0.5]), "must be a number or bool, got array([0.5]) (ndarray)"),
    "numpy-many": (np.zeros(3), "must be a number or bool, got array([0., 0., 0.]) (ndarray)"),
    "text": ("0.5", "must be a number or bool, got '0.5' (str)"),
    "list": ([1], "must be a number or bool, got [1] (list)"),
    "complex": (1j, "must be a number or bool, got 1j (complex)"),
    "decimal": (Decimal("0.5"), "must be a number or bool, got Decimal('0.5') (Decimal)"),
    "class": (float, "must be a number or bool, got <class 'float'> (type)"),
    "twice": (1, "was recorded already for this case; give each name once"),
}
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=name, reference=expected) for name, (_, expected) in VALUES.items()], request=ask)

@pytest.mark.gate("error_rate >= 0")
def test_s(case, engine, score):
    if case.id == "twice":
        score(other=1, x=2)
    score(x=VALUES[case.id][0])
""")


@pytest.fixture(scope="module", params=MODES[::2])
def scored(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Project(tmp_path_factory.mktemp(f"scores-{request.param}")).write(test_a=SCORES).run(mode=request.param)


class TestScores:
    @pytest.mark.parametrize("case_id", ["bool", "int", "float", "numpy-float", "numpy-double", "numpy-int", "numpy-bool", "numpy-0d"])
    def test_numbers_are_taken_as_floats(self, scored: Run, case_id: str) -> None:
        expected = {"bool": 1.0, "int": 3.0, "float": 0.25, "numpy-int": 7.0, "numpy-bool": 1.0, "numpy-0d": 2.5}.get(case_id, 0.5)
        assert (scored.row(case_id)["scores"], scored.row(case_id)["outcome"]) == ({"x": expected}, "pass")

    def test_none_is_no_score(self, scored: Run) -> None:
        assert (scored.row("none")["scores"], scored.row("none")["outcome"]) == ({}, "pass")

    @pytest.mark.parametrize(
        "case_id", ["nan", "inf", "numpy-nan", "huge", "numpy-1d", "numpy-many", "text", "list", "complex", "decimal", "class", "twice"]
    )
    def test_all_else_is_an_error_of_the_test_never_a_score(self, scored: Run, case_id: str) -> None:
        row = scored.row(case_id)
        assert row["outcome"] == "error"
        assert row["problem"].startswith("ScoreError: score 'x' ")
        expected = {"twice": "was recorded already for this case; give each name once", "nan": "must be finite, got nan"}
        assert expected.get(case_id, "must be") in row["problem"]
        assert row["scores"] == ({"other": 1.0, "x": 2.0} if case_id == "twice" else {})

    @pytest.mark.parametrize("name", sorted(BUILT_IN_METRICS))
    def test_no_score_has_the_name_of_a_rate(self, project: Project, name: str) -> None:
        run = project.write(test_a=MARK + f"def test_s(case, engine, score): score({name}=1)\n").run_inline("--limit", "1")
        problem = f"ScoreError: score '{name}' is the name of a built-in metric; give it another name"
        assert (run.rows[0]["problem"], run.rows[0]["scores"]) == (problem, {})

    def test_scores_of_tests_that_broke_are_in_no_mean(self, scored: Run) -> None:
        gate = scored.gate("error_rate >= 0")
        assert gate["value"] == pytest.approx(12 / 21)
        assert gate["reason"].startswith("only 9 of 21 cases had a verdict")


SEVERAL = eval_module("""
pytestmark = pytest.mark.eval(cases=cases, request=ask, num_samples=3,
    options=[GenerationOptions(temperature=1.0, seed=10), GenerationOptions(temperature=0.5, max_new_tokens=5, seed=20)])

def test_first(case, generations):
    assert len({g.seed for g in generations}) == 6
    assert [g.finish_reason for g in generations] == ["stop"] * 3 + ["length"] * 3

@pytest.mark.gate("longest >= 6")
def test_second(case, generations, score):
    score(longest=max(len(g.text) for g in generations))

class TestMore:
    def test_third(self, case, generations):
        generations.clear()

    def test_fourth(self, case, generations):
        assert len(generations) == 6
""")


NUM_BEAMS = eval_module("""
options = GenerationOptions(extra_generation_kwargs={"num_beams": 4})
pytestmark = pytest.mark.eval(cases=cases, request=ask, options=options)
def test_s(case, generation): pass
""")


class TestGenerations:
    @pytest.mark.parametrize("mode", MODES[::2])
    def test_samples_and_settings_come_in_the_markers_order_and_are_made_once(self, project: Project, mode: str) -> None:
        run = project.write(test_a=SEVERAL).run(mode=mode)
        assert run.counts == {"pass": 16}
        made = [(line["case_id"], line["sample"]) for line in run.journal if line["kind"] == "generation"]
        assert sorted(made) == [(f"c{i}", sample) for i in range(4) for sample in range(6)]
        for row in run.rows:
            assert row["generation"] == row["generations"][0]
            assert [(options["max_new_tokens"], options["seed"]) for options in row["options"]] == [(256, 10)] * 3 + [(5, 20)] * 3

    def test_settings_with_seeds_of_their_own_keep_them_apart_under_the_runs_seed(self, project: Project) -> None:
        run = project.write(test_a=SEVERAL).run_inline("--seed", "5")
        assert run.counts == {"pass": 16}
        assert [options["seed"] for options in run.rows[0]["options"]] == [5] * 3 + [15] * 3

    def test_one_generation_is_no_list_in_the_row(self, project: Project) -> None:
        run = project.write(test_a=MARK + "def test_s(case, generations): assert len(generations) == 1\n").run_inline()
        assert all("generations" not in row and row["generation"]["text"] == f"ask {row['case_id']}" for row in run.rows)

    def test_a_sample_that_is_refused_makes_the_case_invalid(self, project: Project) -> None:
        script = project.script({"contains": "c1", "invalid": "no"}, {"text": "long enough"})
        run = project.write(test_a=SEVERAL).run_inline("--model", script)
        assert {row["outcome"] for row in run.rows if row["case_id"] == "c1"} == {"invalid"}
        assert [row["outcome"] for row in run.rows if row["case_id"] != "c1"] == ["pass"] * 12

    def test_command_line_settings_win_over_the_markers(self, project: Project) -> None:
        run = project.write(test_a=PLAIN).run_inline("--max-new-tokens=3", "--seed=5", "--temperature=1")
        assert {row["generation"]["text"] for row in run.rows} == {"ask"}
        assert (run.rows[0]["options"]["max_new_tokens"], run.rows[0]["options"]["seed"]) == (3, 5)

    def test_an_option_that_the_backend_cannot_honour_is_refused_for_every_case(self, project: Project) -> None:
        run = project.write(test_a=NUM_BEAMS).run_inline()
        assert run.exit_code == BROKEN
        assert run.counts == {"error": 4}
        advice = "Leave them out, or allow it with --unsupported-options warn"
        assert f"backend 'fake' cannot honour: num_beams=4. {advice}" in run.rows[3]["problem"]

    def test_an_option_that_the_backend_cannot_honour_is_warned_of_and_recorded_when_allowed(self, project: Project) -> None:
        run = project.write(test_a=NUM_BEAMS).run_inline("--unsupported-options", "warn")
        assert run.counts == {"pass": 4}
        assert {tuple(row["generation"]["ignored_options"]) for row in run.rows} == {("num_beams=4",)}
        assert run.output.count("backend 'fake' ignores: num_beams=4") == 1

    def test_a_warning_that_is_an_error_costs_the_test_that_hears_of_it_not_the_others(self, project: Project) -> None:
        strict = ("-W", "error::evalharness.engine.engine.EngineWarning")
        run = project.write(test_a=NUM_BEAMS).run_inline("--unsupported-options", "warn", *strict)
        assert run.exit_code == BROKEN
        assert list(run.outcomes.values()) == ["error", "pass", "pass", "pass"]
        assert "EngineWarning: backend 'fake' ignores: num_beams=4" in run.rows[0]["problem"]

    def test_a_warning_from_an_engine_that_a_test_asks_itself_comes_at_once(self, project: Project) -> None:
        body = """
def test_s(case, engine):
    if case.id == "c0":
        with pytest.warns(UserWarning, match="ignores: num_beams=4"):
            engine.generate_text_batch([ask(case)], GenerationOptions(extra_generation_kwargs={"num_beams": 4}))
"""
        assert project.write(test_a=MARK + body).run_inline("--unsupported-options", "warn").counts == {"pass": 4}


SAMPLED = eval_module("""
pytestmark = pytest.mark.eval(cases=cases, request=ask, num_samples=2, options=GenerationOptions(temperature=1.0))
def test_s(case, generations): pass
""")


class TestSeeds:
    @staticmethod
    def seeds(run: Run) -> dict[tuple[str, str, int], int]:
        return {
            (row["engine"], row["case_id"], sample): generation["seed"]
            for row in run.rows
            for sample, generation in enumerate(row["generations"])
        }

    def test_every_case_and_sample_has_its_own_and_a_repeated_run_the_same(self, project: Project) -> None:
        project.write(test_a=SAMPLED)
        first, again, other = (project.run_inline("--run-id", name, "--seed", seed) for name, seed in (("a", "7"), ("b", "7"), ("c", "8")))
        assert len(set(self.seeds(first).values())) == 8
        assert self.seeds(first) == self.seeds(again)
        assert not set(self.seeds(first).values()) & set(self.seeds(other).values())
        assert all(0 <= seed < 2**31 for seed in self.seeds(first).values())

    def test_they_depend_on_nothing_but_run_seed_eval_case_and_sample(self, project: Project) -> None:
        project.write(test_a=SAMPLED, test_b=SAMPLED)
        run = project.run_inline("--run-id", "a", "test_a.py")
        fewer = project.run_inline("--run-id", "b", "--num-samples", "1", "-k", "c2", "test_a.py", "--model", project.script({"text": "x"}))
        assert fewer.rows[0]["generation"]["seed"] == self.seeds(run)["fake:echo", "c2", 0]
        other = project.run_inline("--run-id", "c", "test_b.py")
        assert not set(self.seeds(run).values()) & set(self.seeds(other).values())

    def test_greedy_decoding_has_no_need_of_them(self, project: Project) -> None:
        assert {row["generation"]["seed"] for row in project.write(test_a=PLAIN).run_inline("--seed", "3").rows} == {None}


class TestReruns:
    @pytest.mark.parametrize("body", [MARK, SAMPLED.partition("def test_s")[0]], ids=["one", "several"])
    def test_a_test_that_runs_again_gets_the_same_generations(self, project: Project, body: str) -> None:
        test = "def test_s(case, generations): assert generations\ndef test_t(case, generations): assert generations\n"
        run = project.write(conftest=RERUN, test_a=body + test).run_inline()
        assert run.counts == {"pass": 8}, run.rows[0]["problem"]
        made = [(line["case_id"], line["sample"]) for line in run.journal if line["kind"] == "generation"]
        assert len(made) == len(set(made))
        rows = {row["nodeid"]: row for row in run.journal if row["kind"] == "row"}
        assert {row["outcome"] for row in rows.values()} == {"pass"}

    def test_a_failed_generation_stays_failed(self, project: Project) -> None:
        project.write(conftest=RERUN, test_a=PLAIN)
        script = project.script({"contains": "c1", "error": "lost"}, {"contains": "c2", "invalid": "no"}, {"text": "x"})
        run = project.run_inline("--model", script)
        assert list(run.outcomes.values()) == ["pass", "error", "invalid", "pass"]
        assert [row["problem"] for row in run.rows] == [None, "lost", "no", None]


class TestRequests:
    def test_whatever_a_request_raises_is_an_error_of_its_case_alone(self, project: Project) -> None:
        raises = {
            "fails": "pytest.fail('not me')",
            "skips": "pytest.skip('nor me')",
            "exits": "raise SystemExit(3)",
            "interrupts": "raise KeyboardInterrupt",
            "divides": "1 / 0",
            "returns": "return 'text'",
        }
        project.write(
            test_a=HEADER
            + f"""
RAISES = {raises!r}
def build(case):
    exec(f"def broken(): {{RAISES.get(case.id, 'return ask(case)')}}", globals() | {{"case": case}}, found := {{}})
    return found["broken"]()
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=name) for name in [*RAISES, "fine"]], request=build)
def test_s(case, generation): pass
"""
        )
        run = project.run_inline()
        assert run.outcomes == {**{f"test_s/{name}": "error" for name in raises}, "test_s/fine": "pass"}
        problems = {"fails": "Failed: not me", "exits": "SystemExit: 3", "divides": "ZeroDivisionError: division by zero"}
        for name, problem in problems.items():
            assert run.row(name)["problem"].startswith(f"request({name}): {problem} (at ")
        assert run.row("returns")["problem"].startswith("request(returns) gave 'text'; it must give a TextGenerationRequest")

    def test_a_case_may_hold_anything_beside_its_text(self, project: Project) -> None:
        mark = "pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=i, reference=np.zeros(3)) for i in 'ab'], request=ask)\n"
        test = "def test_s(case, generation): assert case.reference.sum() == 0\n"
        assert project.write(test_a=f"{HEADER}import numpy as np\n{mark}{test}").run_inline().counts == {"pass": 2}


class TestOwnFixtures:
    @pytest.mark.parametrize("mode", MODES[::2])
    def test_fixtures_may_build_on_ours_and_replace_them(self, project: Project, mode: str) -> None:
        test = """
@pytest.fixture
def words(generation): return generation.text.split()
@pytest.fixture
def counted(words, score):
    score(words=len(words))
    return words
def test_words(case, counted): assert counted == ["ask", case.id]
def test_only_ours(words): assert words[0] == "ask"

class TestReplaced:
    @pytest.fixture
    def generation(self, generation): return generation.text.upper()
    def test_upper(self, case, generation): assert generation == f"ASK {case.id.upper()}"

class TestScored:
    @pytest.fixture
    def score(self, score): return lambda value: score(own=value)
    def test_own(self, case, generation, score): score(5)
"""
        run = project.write(test_a=MARK + test).run(mode=mode)
        assert run.counts == {"pass": 16}, run.output
        assert run.row("c1", "test_words")["scores"] == {"words": 2.0}
        assert run.row("c1", "TestScored::test_own")["scores"] == {"own": 5.0}
        assert run.row("c2", "TestReplaced::test_upper")["generation"]["text"] == "ask c2"

    def test_a_failing_assertion_in_a_fixture_is_an_error_not_a_miss(self, project: Project) -> None:
        test = """
@pytest.fixture
def parsed(generation): assert generation.text != "ask c1", "not parsed"
@pytest.mark.gate("pass_rate >= 0")
def test_s(case, parsed): pass
"""
        run = project.write(test_a=MARK + test).run_inline()
        assert (run.row("c1")["outcome"], run.row("c1")["problem"][:17]) == ("error", "setup: not parsed")
        assert run.exit_code == BROKEN

    def test_the_engine_can_be_called_directly(self, project: Project) -> None:
        test = """
def test_engine(engine):
    (result,) = engine.generate_text_batch([ask(cases(None)[0])], GenerationOptions())
    assert result.text == "ask c0"
def test_s(case, generation, engine):
    (result,) = engine.generate_text_batch([ask(case)], GenerationOptions())
    assert result.text == generation.text
"""
        run = project.write(test_a=MARK + test).run_inline()
        assert run.summary().startswith("5 passed")
        assert [row["test"] for row in run.rows] == ["test_s"] * 4 + ["test_engine"]

    def test_an_assertion_that_breaks_within_the_engine_is_an_error_not_a_miss(self, project: Project) -> None:
        test = """
@pytest.mark.gate("pass_rate >= 0")
def test_s(case, generation, engine):
    def broken(prompts, **how): assert False, "an invariant"
    engine.backend.generate = broken
    engine.generate_text_batch([ask(case)], GenerationOptions())
"""
        run = project.write(test_a=MARK + test).run_inline("--limit", "1")
        assert run.counts == {"error": 1}

    @pytest.mark.slow
    def test_a_timeout_is_an_error_not_a_miss(self, project: Project) -> None:
        pytest.importorskip("pytest_timeout")
        test = """
@pytest.mark.timeout(0.3, func_only=True)
@pytest.mark.gate("pass_rate >= 0")
def test_s(case, generation):
    import time
    time.sleep(600)
"""
        run = project.write(test_a=MARK + test).run("-p", "pytest_timeout", "--limit", "1", apart=True)
        assert run.counts == {"error": 1}
        assert "Timeout" in run.rows[0]["problem"]
        assert run.exit_code == BROKEN

    def test_expected_failures_are_misses_and_skipped_tests_ask_nothing(self, project: Project) -> None:
        test = "@pytest.mark.xfail(reason='known')\ndef test_s(case, generation): assert case.id == 'c0'\n"
        run = project.write(test_a=MARK + test).run_inline("--run-id", "expected")
        assert run.summary().startswith("3 xfailed, 1 xpassed")
        assert [row["outcome"] for row in run.rows] == ["pass", "miss", "miss", "miss"]
        project.write(test_a=PLAIN.replace("def test_s", "@pytest.mark.skip(reason='later')\ndef test_s"))
        run = project.run_inline("--run-id", "skipped")
        assert [(row["outcome"], row["problem"]) for row in run.rows] == [("skip", "later")] * 4
        assert not [line for line in run.journal if line["kind"] in ("generation", "engine")]


class TestRows:
    def test_a_row_has_every_documented_key(self, project: Project) -> None:
        run = project.write(test_a=MARK + "def test_s(case, generation, score): score(x=1)\n").run_inline("--run-id", "r")
        row: dict[str, Any] = run.rows[0]
        documented = "run_id nodeid eval test case_id group tags engine checkpoint backend outcome problem scores generation prompt_sha256"
        assert set(row) == {*documented.split(), "reference", "options", "worker", "started_at", "duration_s"}
        documented = "text raw_text finish_reason stop_reason num_prompt_tokens num_completion_tokens seed weight_version fallback"
        assert set(row["generation"]) >= {*documented.split(), "ignored_options", "prompt_sha256"}
        assert [row[name] for name in ("run_id", "engine", "checkpoint", "backend", "worker")] == ["r", "fake:echo", "echo", "fake", "main"]
        assert row["duration_s"] > 0
        assert row["started_at"].endswith("+00:00")

    def test_run_json_has_every_documented_key(self, project: Project) -> None:
        facts = project.write(test_a=PLAIN).run_inline().facts
        documented = "schema_version run_id command started_at finished_at duration_s interrupted exit_code config versions python platform"
        assert set(facts) >= {*documented.split(), "hardware", "git", "engines", "evals", "gates", "aggregates", "counts", "throughput"}
        assert set(facts) >= {"workers", "durations", "problems"}
        code = {"test_s": {f"test_a.py::{name}": ANY for name in ("test_s", "pytestmark", "cases", "ask")}}
        assert facts["evals"] == [{"name": "a", "path": "test_a.py", "num_cases": 4, "plugins": [], "tests": {"test_s": []}, "code": code}]
        assert facts["config"]["backend"] == {"value": ["fake"], "origin": "command line"}
        (throughput,) = facts["throughput"]
        assert (throughput["num_generations"], throughput["engine"]) == (4, "fake:echo")
