"""Scores made again from stored generations: the same as live, from any kind of run, and honest about what is others now."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.backends.hf_models import one_thread
from tests.processes import python
from tests.pytest_plugin.project import MARK, MODES, Project, Run, environment, eval_module

pytestmark = pytest.mark.slow

PLAIN = "def test_s(case, generation): pass\n"
CLOCK = {"run_id", "started_at", "duration_s", "worker"}
CLOCK_OF_RUN = CLOCK - {"worker"} | {"finished_at", "command", "config", "num_workers", "rescored", "problems", "workers", "durations"}


def again(project: Project, run: Run, *arguments: str) -> Run:
    """Return the rescored run."""
    return Run(*project.evalharness("rescore", str(run.run_dir), "--run-id", "again", *arguments), 0.0, project.root, "again")


def without(values: dict[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in names}


def content(run: Run) -> list[dict[str, Any]]:
    return [without(row, CLOCK) for row in run.rows]


def assert_same(live: Run, rescored: Run) -> None:
    """Everything that was judged, and every report, is that of the live run."""
    assert rescored.exit_code == live.exit_code, rescored.output
    assert content(rescored) == content(live)
    facts = without(live.facts, {*CLOCK_OF_RUN, "git", "outputs"})
    assert without(rescored.facts, {*CLOCK_OF_RUN, "git", "outputs"}) == facts
    assert rescored.facts["problems"] == live.facts["problems"]
    assert [entry["path"] for entry in rescored.facts["outputs"]] == [entry["path"] for entry in live.facts["outputs"]]
    assert (rescored.run_dir / "report.csv").read_bytes() == (live.run_dir / "report.csv").read_bytes()
    assert report_lines(rescored) == report_lines(live)


def report_lines(run: Run) -> list[str]:
    """Return report.md without clock, names of the run and what says that it was scored again."""
    # The command, in a fence of its own, is pytest's there, evalharness's here, and `-c …` in a worker of the project's own tests.
    fence = r"(?P<ticks>`{3,})\S*\n.*?\n(?P=ticks)\n"
    text = re.sub(rf"(## Run it again\s+){fence}", r"\1", (run.run_dir / "report.md").read_text("utf-8"), flags=re.DOTALL)
    # Errors are asked again, but here nothing is asked; and a run that was scored again has one before it.
    text = re.sub(rf"(Go on with|What has changed since the run before):\s+{fence}\n", "", text, flags=re.DOTALL)
    lines = text.splitlines()
    own = re.compile(r"# Run|- rescored|\| (started|finished|duration \(s\)|run_id|report_dir|git) ")
    return [re.sub(r" +", " ", re.sub(r"-{2,}", "-", line)) for line in lines if not own.match(line)]


EVAL = eval_module("""
def request(case):
    if case.id == "c3":
        raise KeyError("broken request")
    return ask(case)

def tables(rows):
    return {"Lengths": [{"case": row["case_id"], "chars": len(row["generation"]["text"])} for row in rows]}

def outputs(rows, target):
    (target.folder / "texts.txt").write_text(" ".join(str((row["generation"] or {}).get("text")) for row in rows))

pytestmark = pytest.mark.eval(
    cases=lambda data_dir: cases(data_dir) + [Case(id="c4", invalid="image is broken"), Case(id="é-5", tags={"parity": "odd"})],
    request=request,
    aggregate=lambda rows: {"longest": max(len(row["generation"]["text"]) for row in rows)},
    tables=tables,
    outputs=outputs,
)

@pytest.mark.gate("length >= 6", "longest == 7", "invalid_rate <= 0.2")
def test_gated(case, generation, score, details):
    score(length=len(generation.text))
    details(said=generation.text)
    assert case.id != "c1", "not this one"

@pytest.mark.parametrize("n", [1, 2])
def test_plain(case, generations, n):
    if case.id == "c2":
        pytest.skip("not now")
    assert len(generations) == n
""")


@pytest.mark.parametrize("mode", MODES)
def test_everything_is_as_in_the_live_run(project: Project, mode: str) -> None:
    script = project.script({"contains": "ask c0", "error": "out of memory"}, {"contains": "é", "text": "answer "}, {"text": "abcdefg"})
    live = project.write(test_a=EVAL).run("--model", script, mode=mode)
    assert len({row["outcome"] for row in live.rows}) >= 5
    files = contents(live.run_dir)
    assert_same(live, again(project, live))
    assert contents(live.run_dir) == files


def contents(folder: Path) -> dict[Path, tuple[bytes, int]]:
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


SAMPLES = eval_module("""
pytestmark = pytest.mark.eval(cases=cases, request=ask, num_samples=2,
    options=[GenerationOptions(temperature=1.0), GenerationOptions(temperature=0.5, max_new_tokens=5)])

@pytest.mark.gate("short >= 2")
def test_s(case, generations, score):
    score(short=sum(one.finish_reason == "length" for one in generations))
    assert len({one.seed for one in generations}) > 1
""")
STEPS = eval_module("""
def request(case):
    results = []
    for step in range(int(case.id[1:])):
        results += yield [ask(case)] * (step + 1), GenerationOptions(max_new_tokens=2 + step)
    return TextGenerationRequest([{"role": "user", "content": case.id + "".join(one.text for one in results)}])

pytestmark = pytest.mark.eval(cases=cases, request=request)

@pytest.mark.gate("heard >= 0")
def test_s(case, generation, steps, score):
    score(heard=sum(map(len, steps)))
    assert generation.text == case.id + "".join(one.text for step in steps for one in step)
""")


@pytest.mark.parametrize("mode", MODES[::2])
@pytest.mark.parametrize("module", [pytest.param(SAMPLES, id="samples"), pytest.param(STEPS, id="steps")])
def test_several_samples_and_steps_are_as_in_the_live_run(project: Project, mode: str, module: str) -> None:
    live = project.write(test_a=module).run(mode=mode)
    assert live.counts == {"pass": 4}, live.output
    assert_same(live, again(project, live))


def test_a_step_that_failed_is_as_in_the_live_run(project: Project) -> None:
    script = project.script({"contains": "ask c2", "invalid": "no photo"}, {"text": "ask"})
    live = project.write(test_a=STEPS.replace("generation.text ==", "True or generation.text ==")).run_inline("--model", script)
    assert live.counts == {"pass": 3, "invalid": 1}
    rescored = again(project, live)
    assert_same(live, rescored)
    assert rescored.row("c2")["problem"] == "step 1: no photo"


def test_several_engines_and_modules_are_as_in_the_live_run(project: Project) -> None:
    project.script({"text": "abc"})
    live = project.write(test_a=MARK + "def test_s(case, generation, score): score(x=len(generation.text))\n", test_b=SAMPLES).run_inline(
        "--model", "echo", "--model", "answers.jsonl", "-k", "not c2", "--limit", "3"
    )
    assert (len(live.facts["engines"]), len(live.rows)) == (2, 8)
    assert_same(live, again(project, live))


def test_a_run_on_transformers_is_scored_again_without_loading_torch(project: Project, tiny_vlm_checkpoint: Path) -> None:
    module = MARK + "@pytest.mark.gate('x >= 0')\ndef test_s(case, generation, score): score(x=len(generation.token_ids))\n"
    flags = [f"--model={tiny_vlm_checkpoint}", "--dtype=float32", "--max-new-tokens=4"]
    with one_thread():
        live = project.write(test_a=module).run_inline(*flags, backend="hf")
    assert live.exit_code == 0, live.output
    conftest = """
        import sys

        def pytest_unconfigure(config):
            print("loaded:", [name for name in ("torch", "transformers", "vllm") if name in sys.modules])
    """
    project.write(conftest=conftest)
    done = python("-m", "evalharness", "rescore", live.run_dir, "--run-id", "again", cwd=project.root, env=environment())
    assert "loaded: []" in done[1], done
    assert_same(live, Run(*done, 0.0, project.root, "again"))


def test_a_rescored_run_says_so_and_can_be_scored_again(project: Project) -> None:
    live = project.write(test_a=STEPS).run_inline("--run-id", "live")
    rescored = again(project, live)
    assert rescored.facts["rescored"]["run_id"] == "live"
    assert rescored.facts["rescored"]["changes"] == []
    assert "rescored from run live of 20" in (rescored.run_dir / "report.md").read_text("utf-8")
    assert "rescored" in rescored.output
    code, output = project.evalharness("rescore", str(rescored.run_dir), "--run-id", "third", "--report-dir", "elsewhere")
    assert code == 0, output
    rows = [json.loads(line) for line in (project.root / "elsewhere" / "third" / "samples.jsonl").read_bytes().splitlines()]
    assert [without(row, CLOCK) for row in rows] == content(live)
    for _ in range(2):  # without a name the new run lies beside the old one
        assert project.evalharness("rescore", str(live.run_dir))[0] == 0
    names = sorted(path.name for path in (project.root / "reports").iterdir() if path.is_dir())
    assert [re.sub("[0-9a-f]{6}$", "", name) for name in names] == ["again", "live", "live-rescored-", "live-rescored-"]


def test_changed_tests_judge_the_old_generations(project: Project) -> None:
    live = project.write(test_a=MARK + "def test_s(case, generation, score): score(x=1)\n").run_inline()
    changed = (
        MARK
        + """
@pytest.mark.gate("y == 6")
def test_s(case, generation, score): (lambda note: note(x=2))(score)
@pytest.mark.gate("y == 6")
def test_new(case, generation, score): score(y=len(generation.text))
"""
    )
    rescored = again(project.write(test_a=changed), live)
    assert {row["scores"].get("x", row["scores"].get("y")) for row in rescored.rows} == {2.0, 6.0}
    assert [(gate["test"], gate["passed"]) for gate in rescored.facts["gates"]] == [("test_s", False), ("test_new", True)]
    assert rescored.exit_code == 1


def test_a_project_that_sets_workers_is_scored_in_one_process(project: Project) -> None:
    live = project.write(test_a=EVAL).run_inline()
    (project.root / "pytest.ini").write_text("[pytest]\naddopts = -p xdist -n2\n")
    rescored = again(project, live)
    assert content(rescored) == content(live)
    assert [path.name for path in (rescored.run_dir / "journal").iterdir()] == ["main.jsonl"]


def test_it_works_from_a_folder_below_the_project(project: Project) -> None:
    (project.root / "evals").mkdir()
    (project.root / "evals" / "test_a.py").write_text(textwrap.dedent(EVAL))
    live = project.run_inline("evals")
    below = Project(project.root / "evals")
    (below.root / "pytest.ini").unlink()
    assert_same(live, Run(*below.evalharness("rescore", str(live.run_dir), "--run-id", "again"), 0.0, project.root, "again"))


def test_an_installed_package_is_no_reason_for_a_warning(project: Project) -> None:
    live = project.write(test_a=EVAL).run_inline()
    metadata = project.root / "site" / "evalharness-0.1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: evalharness\nVersion: 0.1.0\n")
    (metadata / "RECORD").write_text("evalharness/__init__.py,,\n")
    (metadata / "entry_points.txt").write_text(
        "[pytest11]\nevalharness.pytest_plugin = evalharness.pytest_plugin\n"
        "[evalharness.backends]\nfake = evalharness.backends.fake:FakeBackend\n"
    )
    path = os.pathsep.join([str(metadata.parent), *sys.path])
    variables = {**environment(PYTHONPATH=path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": ""}
    _, output = python("-m", "evalharness", "rescore", live.run_dir, cwd=project.root, env=variables)
    assert ("rescored" in output, "warning" in output) == (True, False)


class TestWhatIsOthersNow:
    def changes(self, run: Run) -> dict[tuple[str, str], list[str]]:
        changes = {(change["eval"], change["what"]): change["cases"] for change in run.facts["rescored"]["changes"]}
        changes.pop(("a", "the eval's code differs"), None)  # how the tests below make the others
        return changes

    def test_cases_that_are_gone_or_new_are_named_and_none_gets_a_score_it_has_no_generation_for(self, project: Project) -> None:
        test = "@pytest.mark.gate('x >= 1')\ndef test_s(case, generation, score): score(x=1)\n"
        live = project.write(test_a=MARK + test).run_inline("--run-id", "live")
        changed = MARK.replace("for i in range(4)", "for i in (0, 2, 3, 7)").replace('"even"}', '"straight"}')
        rescored = again(project.write(test_a=changed + test), live)
        assert self.changes(rescored) == {
            ("a", "the case no longer exists"): ["c1"],
            ("a", "its group or tags have changed"): ["c0", "c2"],
            ("a", "the case is new and was never run"): ["c7"],
        }
        assert rescored.outcomes == {"test_s/c0": "pass", "test_s/c2": "pass", "test_s/c3": "pass", "test_s/c7": "skip"}
        assert rescored.row("c7")["problem"] == "not run: no generation of this case is recorded: run live did not have this test for it"
        assert (rescored.row("c7")["scores"], rescored.row("c7")["generation"]) == ({}, None)
        assert not rescored.gate("x >= 1")["passed"]
        report = (rescored.run_dir / "report.md").read_text("utf-8")
        assert "a: since run live, 1 case: the case is new and was never run: c7" in report
        assert "a, the case no longer exists: c1." in report

    @pytest.mark.parametrize(
        ("old", "new", "what"),
        [
            pytest.param('f"ask {case.id}"', 'f"please {case.id}"', "the text of its prompt would be different now", id="text"),
            pytest.param("return Text", "raise KeyError('gone')\n    Text", "its request can no longer be made", id="raises"),
            pytest.param("return Text", "yield [], 1\n    Text", "its request can no longer be made", id="generator"),
        ],
    )
    def test_prompts_that_would_be_others_are_named(self, project: Project, old: str, new: str, what: str) -> None:
        live = project.write(test_a=MARK + PLAIN).run_inline()
        rescored = again(project.write(test_a=MARK.replace(old, new) + PLAIN), live)
        assert self.changes(rescored) == {("a", what): ["c0", "c1", "c2", "c3"]}
        assert rescored.counts == {"pass": 4}

    def test_prompts_of_token_ids_are_told_by_their_ids(self, project: Project) -> None:
        head = MARK.replace(
            "    return TextGenerationRequest(", "    from evalharness import TokenGenerationRequest as T\n    return T(IDS) or ("
        )
        test = "def test_s(case, generation, score): score(n=len(generation.prompt_text))\n"
        live = project.write(test_a=f"IDS = [80, 81]\n{head}{test}").run_inline()
        assert [row["scores"]["n"] for row in live.rows] == [2.0] * 4
        assert self.changes(again(project, live)) == {}
        shutil.rmtree(project.root / "reports" / "again")
        rescored = again(project.write(test_a=f"IDS = [80, 81, 82]\n{head}{test}"), live)
        assert self.changes(rescored) == {("a", "the token ids of its prompt would be others now"): ["c0", "c1", "c2", "c3"]}

    @pytest.mark.parametrize(
        ("old", "new", "what"),
        [
            pytest.param("[ask(case)] *", "[ask(Case(id='x'))] *", "the text of its prompt would be different now", id="text"),
            pytest.param("range(int(case.id[1:]))", "range(1)", "its steps would be different now", id="fewer"),
            pytest.param("(step + 1)", "(step + 2)", "its steps would be different now", id="more-requests"),
        ],
    )
    def test_steps_that_would_be_others_are_named(self, project: Project, old: str, new: str, what: str) -> None:
        live = project.write(test_a=STEPS).run_inline()
        rescored = again(project.write(test_a=STEPS.replace(old, new)), live)
        named = self.changes(rescored)["a", what]
        assert named
        assert set(named) <= {"c0", "c1", "c2", "c3"}
        assert rescored.counts == {"pass": 4}

    def test_images_that_are_others_are_named(self, project: Project) -> None:
        from PIL import Image

        def paint(colours: list[str]) -> None:
            for number, colour in enumerate(colours):
                Image.new("RGB", (32, 32), colour).save(project.root / f"c{number}.png")

        module = """
            import pytest
            from evalharness import Case, VlmGenerationRequest

            def request(case):
                parts = [{"type": "image", "image": f"{case.id}.png"}, {"type": "text", "text": "?"}]
                return VlmGenerationRequest([{"role": "user", "content": parts}])

            pytestmark = pytest.mark.eval(cases=lambda data: [Case(id=f"c{i}") for i in range(3)], request=request)

            def test_s(case, generation): pass
        """
        paint(["red", "blue", "black"])
        live = project.write(test_a=module).run_inline()
        assert live.counts == {"pass": 3}
        paint(["red", "white"])
        (project.root / "c2.png").unlink()
        rescored = again(project, live)
        assert self.changes(rescored) == {
            ("a", "its images would be different now"): ["c1"],
            ("a", "its images cannot be read now"): ["c2"],
        }
        assert rescored.counts == {"pass": 3}

    def test_a_module_that_is_gone_is_a_problem_of_the_run(self, project: Project) -> None:
        live = project.write(test_a=MARK + PLAIN, test_b=MARK + PLAIN).run_inline()
        (project.root / "test_b.py").unlink()
        rescored = again(project, live)
        assert rescored.exit_code != 0
        assert rescored.facts["problems"] == ["test_b.py is not there any more: its tests could not run again"]
        assert {row["eval"] for row in rescored.rows} == {"a"}

    def test_a_test_that_wants_to_generate_is_an_error_that_says_why_it_cannot(self, project: Project) -> None:
        test = "def test_s(case, engine, generation): assert engine.generate_text_batch([ask(case)], GenerationOptions())\n"
        live = project.write(test_a=MARK + test).run_inline("--limit", "1")
        assert live.counts == {"pass": 1}
        rescored = again(project, live)
        assert rescored.counts == {"error": 1}
        assert "engine fake:echo is that of a recorded run and nothing is loaded" in rescored.rows[0]["problem"]


KILLED = (
    MARK.replace("range(4)", "range(12)")
    + """
import signal, time

@pytest.mark.gate("x >= 1")
def test_s(case, generation, score):
    score(x=1)
    if case.id == "c10" and os.environ.get("KILL"):
        time.sleep(1)
        os.killpg(0, signal.SIGKILL)
"""
)


@pytest.mark.parametrize("mode", MODES[::2])
def test_a_killed_run_gets_the_scores_of_all_that_it_had_generated(project: Project, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KILL", "1")
    live = project.write(test_a=KILLED).run(mode=mode, apart=True)
    assert live.exit_code == -signal.SIGKILL
    monkeypatch.delenv("KILL")
    generated = {line["case_id"] for line in live.journal if line["kind"] == "generation"}
    rescored = again(project, live)
    assert {row["case_id"] for row in rescored.rows if row["outcome"] == "pass"} == generated
    assert {row["outcome"] for row in rescored.rows if row["case_id"] not in generated} <= {"skip"}
    assert rescored.gate("x >= 1")["passed"] == (len(generated) == 12)
    assert len(rescored.rows) == 12


def test_a_torn_last_line_costs_its_generation_only(project: Project) -> None:
    test = "@pytest.mark.gate('x >= 1')\ndef test_s(case, generation, score): score(x=1)\n"
    live = project.write(test_a=MARK + test).run_inline("--run-id", "live")
    journal = live.run_dir / "journal" / "main.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    cut = next(number for number, line in enumerate(lines) if b'"case_id":"c2"' in line and line.startswith(b'{"kind":"generation"'))
    journal.write_bytes(b"".join(lines[:cut]) + lines[cut][:40])
    facts = without(live.facts, {"finished_at", "gates"})
    (live.run_dir / "run.json").write_text(json.dumps(facts))
    rescored = again(project, live)
    assert rescored.counts == {"pass": 2, "skip": 2}
    assert rescored.row("c2")["problem"].endswith("run live was killed before it, or is still running")
    assert rescored.gate("x >= 1")["reason"] == (
        "not judged: 2 of 4 cases were not run (no generation of this case is recorded: run live was killed before it, or is still running)"
    )


REFERENCES = MARK.replace("cases=cases", "cases=with_references").replace(
    "pytestmark",
    """from collections import UserString  # no plain data: rows do not have it

class Known(Case):
    @property
    def length(self): return len(self.reference)

def with_references(data_dir):
    return [Known(id=case.id, group=case.group, tags=case.tags, reference=UserString(case.id * 2)) for case in cases(data_dir)]

pytestmark""",
    1,
)


class TestOtherTests:
    CHECK = """
        import pytest

        @pytest.mark.gate("chars >= 1", "pass_rate == 1")
        def test_answer(case, generations, score, details):
            score(chars=min(len(one.text) for one in generations))
            details(eval=case.eval, tags=dict(case.tags))
            assert case.id.startswith("c") and case.group in ("g0", "g1")
    """

    def test_every_stored_generation_of_all_evals_is_judged_per_eval(self, project: Project) -> None:
        live = project.write(test_a=MARK + PLAIN, test_b=SAMPLES, helper_check=self.CHECK).run_inline()
        rescored = again(project, live, "--tests", "helper_check.py")
        assert rescored.exit_code == 0, rescored.output
        assert {(row["eval"], row["test"]) for row in rescored.rows} == {("helper_check", f"test_answer[{name}]") for name in "ab"}
        assert [(gate["test"], gate["expression"], gate["n"]) for gate in rescored.facts["gates"]] == [
            (f"test_answer[{name}]", expression, 4) for name in "ab" for expression in ("chars >= 1", "pass_rate == 1")
        ]
        assert rescored.facts["rescored"]["tests"] == "helper_check.py"
        for row in rescored.rows:
            name = row["details"]["eval"]
            (old,) = [one for one in live.rows if (one["eval"], one["case_id"]) == (name, row["case_id"])]
            kept = ("generation", "generations", "options", "group", "tags", "engine", "checkpoint", "prompt_sha256")
            assert {key: row.get(key) for key in kept} == {key: old.get(key) for key in kept}

    def judged(self, project: Project, check: str, *, module: str = REFERENCES, changed: str | None = None, gone: bool = False) -> Run:
        """Return the run that one test of `check` makes of a run of `module`, whose file is then `changed` or gone."""
        live = project.write(test_a=module + PLAIN, helper_check=f"def test_x(case, generation): assert {check}\n").run_inline()
        if gone:
            (project.root / "test_a.py").unlink()
        elif changed is not None:
            project.write(test_a=changed)
        return again(project, live, "--tests", "helper_check.py")

    def test_references_are_those_that_the_evals_loader_gives(self, project: Project) -> None:
        rescored = self.judged(project, "(case.reference, case.length, hasattr(case, 'nothing')) == (case.id * 2, 4, False)")
        assert (rescored.exit_code, rescored.counts) == (0, {"pass": 4}), rescored.output

    def test_a_plain_reference_is_that_of_its_row_and_no_eval_is_loaded(self, project: Project) -> None:
        plain = REFERENCES.replace("UserString(case.id * 2)", "[case.id]")
        rescored = self.judged(project, "case.reference == [case.id]", module=plain, gone=True)
        assert (rescored.exit_code, rescored.counts) == (0, {"pass": 4}), rescored.output

    def test_a_reference_that_is_not_here_any_more_is_an_error_that_says_why(self, project: Project) -> None:
        rescored = self.judged(project, "len(case.reference) == 4", gone=True)
        problem = "a run records id, group and tags of case 'c0'; for more its eval is needed: test_a.py is not here"
        assert (rescored.counts, problem in rescored.row("c0")["problem"]) == ({"error": 4}, True)

    def test_a_reference_of_a_case_that_is_gone_is_an_error_of_that_case(self, project: Project) -> None:
        fewer = REFERENCES.replace("in cases(data_dir)]", "in cases(data_dir)[1:]]") + PLAIN
        rescored = self.judged(project, "len(case.reference) == 4", changed=fewer)
        assert rescored.counts == {"error": 1, "pass": 3}
        assert "eval 'a' has no case 'c0' any more" in rescored.row("c0")["problem"]

    def test_tests_that_ask_for_no_reference_load_no_eval(self, project: Project) -> None:
        assert self.judged(project, "generation.text", changed="raise SystemExit('loaded')").counts == {"pass": 4}

    def test_failures_stay_what_they_were(self, project: Project) -> None:
        script = project.script({"contains": "c1", "invalid": "no"}, {"contains": "c2", "error": "gone"}, {"text": "fine"})
        live = project.write(test_a=MARK + PLAIN, helper_check=self.CHECK).run_inline("--model", script)
        rescored = again(project, live, "--tests", "helper_check.py")
        assert {row["case_id"]: row["outcome"] for row in rescored.rows} == {"c0": "pass", "c1": "invalid", "c2": "error", "c3": "pass"}

    def test_one_generation_of_several_is_refused(self, project: Project) -> None:
        live = project.write(test_b=SAMPLES, helper_check="def test_x(case, generation): pass\n").run_inline("test_b.py")
        code, output = project.evalharness("rescore", str(live.run_dir), "--tests", "helper_check.py")
        assert code != 0
        assert "takes `generation`, but eval 'b' has 4 of each case; take `generations`" in output

    def test_the_modules_own_cases_are_not_loaded(self, project: Project) -> None:
        module = MARK.replace("cases=cases", "cases=lambda data: 1 / 0, aggregate=lambda rows: {'num': len(rows)}")
        live = project.write(test_a=MARK + PLAIN).run_inline()
        project.write(helper_check=module + "def test_x(case, generation): pass\n")
        rescored = again(project, live, "--tests", "helper_check.py")
        assert rescored.counts == {"pass": 4}, rescored.output
        assert [(entry["test"], entry["value"]) for entry in rescored.facts["aggregates"]] == [("test_x[a]", 4.0)]

    def test_what_they_made_is_not_scored_again(self, project: Project) -> None:
        live = project.write(test_a=MARK + PLAIN, helper_check=self.CHECK).run_inline("--run-id", "live")
        made = again(project, live, "--tests", "helper_check.py")
        code, output = project.evalharness("rescore", str(made.run_dir))
        assert (code, "was made with --tests from run live; score that run again" in output) == (2, True)


def test_the_latest_run_is_scored_again(project: Project) -> None:
    project.write(test_a=MARK + PLAIN)
    for name in ("first", "second"):
        project.run_inline("--run-id", name)
    code, output = project.evalharness("rescore", "latest~1", "--run-id", "again")
    assert code == 0
    assert output.startswith(f"evalharness: latest~1 is {project.root / 'reports' / 'first'}\n")
    assert Run(code, output, 0.0, project.root, "again").facts["rescored"]["run_id"] == "first"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Project:
    ran = Project(tmp_path_factory.mktemp("ran")).write(test_a=MARK + PLAIN)
    assert ran.run_inline("--run-id", "live").exit_code == 0
    return ran


class TestRefused:
    @pytest.fixture
    def live(self, project: Project, ran: Project) -> Run:
        return Run(0, "", 0.0, project.take(ran).root, "live")

    def refused(self, project: Project, *arguments: str) -> str:
        code, output = project.evalharness("rescore", *arguments)
        assert code == 2
        assert output.startswith("evalharness: error: ")
        return output

    def test_a_folder_that_is_missing_or_no_run(self, project: Project) -> None:
        assert "nowhere is not a run directory, and " in self.refused(project, "nowhere")
        assert ". is not a run directory" in self.refused(project, ".")

    @pytest.mark.parametrize(
        ("path", "content", "message"),
        [
            pytest.param("journal", None, "has no journal, which holds the full generations", id="no-journal"),
            pytest.param("run.json", None, "has no run.json, so the options of its cases are unknown", id="no-run-json"),
            pytest.param("journal/main.jsonl", "", "holds no record of any case", id="empty-journal"),
            pytest.param("journal/main.jsonl", None, "holds no record of any case", id="no-file-in-the-journal"),
            pytest.param("journal/main.jsonl", "[1, 2]\n", "is not a line of a journal", id="list"),
            pytest.param("journal/main.jsonl", '{"no": "kind"}\n', "is not a line of a journal", id="no-kind"),
            pytest.param("journal/main.jsonl", '{"kind":"row"}\n', "is a row line without 'engine'", id="bare-row"),
            pytest.param(
                "journal/main.jsonl",
                '{"kind":"generation","generation":{}}\n',
                "is a generation line without 'engine'",
                id="bare-generation",
            ),
            pytest.param("run.json", {"schema_version": 99}, "has schema_version 99; this evalharness reads up to", id="newer-version"),
            pytest.param("run.json", {"config": None}, "has no readable options", id="no-options"),
            pytest.param("run.json", {"config": {"seed": {}}}, "has no readable options", id="empty-option"),
            pytest.param("run.json", {"config": {"seed": {"value": "x"}}}, "has no readable options", id="wrong-option"),
        ],
    )
    def test_a_run_without_readable_records(self, project: Project, live: Run, path: str, content: Any, message: str) -> None:
        place = live.run_dir / path
        if content is not None:
            place.write_text(content if isinstance(content, str) else json.dumps({**live.facts, **content}))
        else:
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        assert message in self.refused(project, "reports/live")

    def test_evals_names_and_tests_that_cannot_be_used(self, project: Project, live: Run) -> None:
        assert "run 'live' already exists" in project.evalharness("rescore", "reports/live", "--run-id", "live")[1]
        assert "--run-id must be" in self.refused(project, "reports/live", "--run-id", "../x")
        assert "--tests nothing.py is not a file" in self.refused(project, "reports/live", "--tests", "nothing.py")
        assert "--tests pytest.ini is not a Python file" in self.refused(project, "reports/live", "--tests", "pytest.ini")
        project.write(helper_empty="")
        code, output = project.evalharness("rescore", "reports/live", "--tests", "helper_empty.py")
        assert (code, "collected 0 items" in output) == (2, True)
        (project.root / "test_a.py").unlink()
        assert "the evals of run live are not here: test_a.py; run this in the project" in self.refused(project, "reports/live")

    def test_data_that_is_gone(self, project: Project, live: Run) -> None:
        facts = live.facts
        facts["config"]["data"] = {"value": "/nowhere", "origin": "command line"}
        (live.run_dir / "run.json").write_text(json.dumps(facts))
        assert "cases came from /nowhere, which is not a folder; say with --data" in self.refused(project, "reports/live")
        assert project.evalharness("rescore", "reports/live", "--data", ".")[0] == 0
