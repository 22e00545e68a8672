"""Tests without cases that ask the engine themselves: how they get it, and the run that they leave behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import BROKEN
from tests.pytest_plugin.project import MARK, MODES, Project, Run

HEADER = """
import pytest
from evalharness import GenerationOptions, TextGenerationRequest

def ask(engine, text, **options):
    return engine.generate_text_batch([TextGenerationRequest([{"role": "user", "content": text}])], GenerationOptions(**options))[0].text
"""
TALK = (
    HEADER
    + """
@pytest.fixture(scope="session")
def greeting(engine): return ask(engine, "greeting")
@pytest.fixture
def bot(engine): return lambda text: ask(engine, text)
@pytest.fixture(params=["x", "y"])
def word(request): return request.param
@pytest.fixture
def late(request): return request.getfixturevalue("engine")

def test_first(engine): assert ask(engine, "one") == "one"
def test_greeted(greeting): assert greeting == "greeting"
def test_greeted_again(greeting): pass
def test_several(engine): ask(engine, "a"); ask(engine, "b", temperature=1.0)
def test_bot(bot, word): assert bot(word) == word
class TestMore:
    def test_first(self, bot): assert bot("hi") == "no"
    def test_late(self, request): ask(request.getfixturevalue("engine"), "late")
def test_late(late): ask(late, "later")
@pytest.mark.usefixtures("engine")
def test_used(request): ask(request.getfixturevalue("engine"), "used")
@pytest.mark.parametrize("engine", ["fake"], indirect=True)
def test_indirect(engine): ask(engine, "indirect")
@pytest.mark.parametrize("engine", ["echo", "fake:echo"], indirect=True, ids=["by-checkpoint", "by-id"])
def test_named(engine): ask(engine, "named")
def test_idle(engine): pass
def test_without(): pass
def test_breaks(engine): ask(engine, "x"); raise KeyError("x")
def test_skipped(engine): pytest.skip("not today")
"""
)
ROWS = {
    "test_first/test_first": ("pass", ["one"]),
    "test_greeted/test_greeted": ("pass", ["greeting"]),
    "test_greeted_again/test_greeted_again": ("pass", []),
    "test_several/test_several": ("pass", ["a", "b"]),
    "test_bot/test_bot[x]": ("pass", ["x"]),
    "test_bot/test_bot[y]": ("pass", ["y"]),
    "TestMore::test_first/TestMore.test_first": ("fail", ["hi"]),
    "TestMore::test_late/TestMore.test_late": ("pass", ["late"]),
    "test_late/test_late": ("pass", ["later"]),
    "test_used/test_used": ("pass", ["used"]),
    "test_indirect/test_indirect[fake]": ("pass", ["indirect"]),
    "test_named/test_named[by-checkpoint]": ("pass", ["named"]),
    "test_named/test_named[by-id]": ("pass", ["named"]),
    "test_idle/test_idle": ("pass", []),
    "test_breaks/test_breaks": ("error", ["x"]),
    "test_skipped/test_skipped": ("skip", []),
}


def texts(row: dict[str, Any]) -> list[str]:
    """Return the texts of all generations of a row."""
    return [made["text"] for made in row.get("generations", [row["generation"]]) if made is not None]


@pytest.fixture(scope="module", params=MODES)
def talk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Project(tmp_path_factory.mktemp(f"talk-{request.param}")).write(test_talk=TALK).run("--run-id", "talk", mode=request.param)


def test_each_test_that_asks_is_a_row_with_what_it_asked(talk: Run) -> None:
    found = {f"{row['test']}/{row['case_id']}": (row["outcome"], texts(row)) for row in talk.rows}
    greeted = [name for name, (_, said) in found.items() if said == ["greeting"]]
    for name in ("test_greeted/test_greeted", "test_greeted_again/test_greeted_again"):  # whichever came first on its worker
        assert name in found
        del found[name]
    assert greeted
    assert found == {name: row for name, row in ROWS.items() if "greeted" not in name}
    assert {(row["eval"], row["engine"], row["backend"]) for row in talk.rows} == {("talk", "fake:echo", "fake")}


def test_the_run_has_all_its_files_and_the_exit_code_of_its_outcomes(talk: Run) -> None:
    assert {"run.json", "report.md", "report.csv", "report.html", "samples.csv", "samples.jsonl"} <= {
        p.name for p in talk.run_dir.iterdir()
    }
    assert talk.exit_code == BROKEN == talk.facts["exit_code"]
    assert talk.facts["counts"] == {"pass": 13, "fail": 1, "error": 1, "skip": 1}
    (throughput,) = talk.facts["throughput"]
    assert (throughput["num_generations"], throughput["num_untimed_generations"]) == (sum(len(texts(row)) for row in talk.rows), 0)
    assert "talk · TestMore::test_first" in (talk.run_dir / "report.md").read_text("utf-8")


def test_options_are_those_of_each_call_with_the_seed_that_was_drawn(talk: Run) -> None:
    assert talk.row("test_first")["options"]["temperature"] == 0.0
    greedy, sampled = talk.row("test_several")["options"]
    assert (greedy["seed"], sampled["temperature"]) == (None, 1.0)
    assert sampled["seed"] == talk.row("test_several")["generations"][1]["seed"]


def test_a_session_in_which_nothing_asks_an_engine_leaves_no_run(project: Project) -> None:
    run = project.write(test_a="def test_s(): pass\n").run_inline()
    assert (run.exit_code, run.opened_no_run) == (0, True)


def test_an_eval_without_a_case_in_its_part_leaves_no_run(project: Project) -> None:
    run = project.write(test_a=MARK + "def test_s(case, generation, engine): pass\n").run_inline("--shard", "5/5")
    assert (run.exit_code, run.opened_no_run) == (0, True)


def test_what_a_test_asks_without_taking_the_engine_is_its_own(project: Project) -> None:
    project.write(test_a=HEADER + "held = []\ndef test_s(engine): held.append(engine)\ndef test_t(): ask(held[0], 'from t')\n")
    assert {row["test"]: texts(row) for row in project.run_inline().rows} == {"test_s": [], "test_t": ["from t"]}


def test_modules_of_one_name_and_tests_beside_an_eval_keep_apart(project: Project) -> None:
    for folder in ("plain_one", "plain_two"):
        (project.root / folder).mkdir()
        (project.root / folder / "__init__.py").touch()
        (project.root / folder / "test_same.py").write_text(HEADER + f"def test_s(engine): ask(engine, '{folder}')\n")
    project.write(test_mixed=MARK + "def test_s(case, generation): pass\n" + HEADER + "def test_t(engine): ask(engine, 'beside')\n")
    rows = [(row["eval"], row["test"], texts(row)) for row in project.run_inline().rows if not row["case_id"].startswith("c")]
    assert sorted(rows) == [
        ("mixed.plain", "test_t", ["beside"]),
        ("plain_one/same", "test_s", ["plain_one"]),
        ("plain_two/same", "test_s", ["plain_two"]),
    ]


def test_failed_requests_and_tests_that_run_again(project: Project) -> None:
    project.write(test_a=HEADER + "def test_s(engine): ask(engine, 'bad')\n")
    run = project.run_inline("--model", project.script({"contains": "bad", "invalid": "refused"}, {"text": "x"}), "--run-id", "one")
    assert (run.rows[0]["outcome"], run.rows[0]["generation"]) == ("error", None)
    assert "refused" in run.rows[0]["problem"]
    again = project.run_inline("--resume", "one", backend=None)
    assert [row["outcome"] for row in again.rows] == ["error"]
    code, said = project.evalharness("rescore", "reports/one")
    assert (code, "asked the engine themselves" in said) == (2, True)


REFUSED = {
    "late among several": (
        "def test_s(request): request.getfixturevalue('engine')",
        "this run has 2 engines (fake:a, fake:b), and request",
    ),
    "unknown": ("@pytest.mark.parametrize('engine', ['hff'], indirect=True)\ndef test_s(engine): pass", "engine 'hff' is not in this run"),
    "ambiguous": (
        "@pytest.mark.parametrize('engine', ['fake'], indirect=True)\ndef test_s(engine): pass",
        "engine 'fake' could be fake:a or fake:b; engines of this run: fake:a, fake:b",
    ),
}


@pytest.mark.parametrize(("test", "problem"), REFUSED.values(), ids=REFUSED)
def test_an_engine_that_is_not_clear_is_a_clear_failure(project: Project, test: str, problem: str) -> None:
    for name in ("a", "b"):
        (project.root / f"{name}.jsonl").write_text('{"text": "x"}\n')
    run = project.write(test_a=HEADER + test).run_inline("--model", "a.jsonl,b.jsonl")
    assert run.exit_code != 0
    assert problem in run.output
    assert "Traceback" not in run.output


def test_a_backend_that_is_none_of_the_run_is_skipped(project: Project) -> None:
    test = "@pytest.mark.parametrize('engine', ['fake', 'vllm'], indirect=True)\ndef test_s(engine): ask(engine, 'x')\n"
    run = project.write(test_a=HEADER + test).run_inline("-rs")
    assert run.exit_code == 0
    assert "this run has no engine on vllm: fake:echo" in run.output
    assert run.outcomes == {"test_s/test_s[fake]": "pass"}


def test_a_test_of_cases_cannot_choose_its_engines(project: Project) -> None:
    test = "@pytest.mark.parametrize('engine', ['fake'], indirect=True)\ndef test_s(engine, case, generation): pass\n"
    run = project.write(test_a=MARK + test).run_inline()
    assert "is parametrised with engines, but a test of cases runs on each engine of the run; leave that out" in run.output


def test_an_engine_that_cannot_be_had_fails_a_test_that_asks_late(project: Project) -> None:
    run = project.write(test_a="def test_s(request): request.getfixturevalue('engine')\n").run_inline(backend=None)
    assert run.exit_code == 1
    assert "no checkpoint to evaluate: give --model PATH" in run.output


def test_a_run_id_that_is_taken_is_refused(project: Project, tmp_path: Path) -> None:
    project.write(test_a=HEADER + "def test_s(request): ask(request.getfixturevalue('engine'), 'x')\n")
    project.run_inline("--run-id", "one")
    before = (project.root / "reports/one/samples.jsonl").read_bytes()
    assert "run 'one' already exists" in project.run_inline("--run-id", "one").output
    assert (project.root / "reports/one/samples.jsonl").read_bytes() == before


def test_a_gate_on_a_test_without_cases_is_refused_as_it_would_never_be_judged(project: Project) -> None:
    project.write(test_a=HEADER + "@pytest.mark.gate('pass_rate >= 1')\ndef test_s(engine): ask(engine, 'x')\n")
    assert "test_s has a gate, but no cases to judge; take `case` and `generation` or `score`" in project.run_inline().output


def test_a_test_that_never_ran_has_a_row_that_says_so(project: Project) -> None:
    never = "@pytest.mark.parametrize('n', [1])\ndef test_t(engine, n): pass\n"
    project.write(test_a=HEADER + "def test_s(engine): assert ask(engine, 'x') == 'y'\n" + never)
    run = project.run_inline("-x")
    assert run.outcomes == {"test_s/test_s": "fail", "test_t/test_t[1]": "skip"}
    assert run.row("test_t[1]")["problem"].startswith("not run: stopping after 1 failures")
    assert (run.row("test_t[1]")["eval"], run.row("test_t[1]")["engine"]) == ("a", "fake:echo")


@pytest.mark.slow
def test_a_test_whose_worker_dies_is_an_error_row(project: Project) -> None:
    project.write(test_a=HEADER + "import os\ndef test_s(engine): ask(engine, 'x'); os._exit(3)\ndef test_t(engine): pass\n")
    run = project.run(mode="n2")
    assert run.outcomes == {"test_s/test_s": "error", "test_t/test_t": "pass"}
