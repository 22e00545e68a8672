"""Requests in steps: what goes to the engine together, what tests, rows and journal get, and what a failure costs."""

from __future__ import annotations

import json
import signal
from collections import Counter
from pathlib import Path

import pytest

from evalharness.cli import main
from tests.pytest_plugin.project import HEADER, MODES, PLAIN, RERUN, Project, Run, eval_module

STEPS = eval_module("""
SHORT = GenerationOptions(max_new_tokens=200)

def chat(text):
    return TextGenerationRequest([{"role": "user", "content": text}])

def request(case):
    number = int(case.id[1:])
    heard = []
    for step in range(number % 3):  # c0 and c3 ask at once, c1 in one step, c2 in two
        results = yield [chat(f"{case.id} step {step} part {part}") for part in range(step + 1)], SHORT
        heard += [result.text for result in results]
    return chat(" / ".join([f"{case.id} asks", *heard]))

pytestmark = pytest.mark.eval(cases=cases, request=request)
""")
TEST = """
@pytest.mark.gate("heard >= 0")
def test_s(case, generation, steps, score):
    score(heard=sum(map(len, steps)))
    assert generation.text == " / ".join([f"{case.id} asks", *(one.text for step in steps for one in step)])

@pytest.mark.gate("pass_rate == 1")
def test_again(case, steps, generations):
    assert [len(step) for step in steps] == {"c1": [1], "c2": [1, 2]}.get(case.id, [])
    steps.clear()
"""
SIZES = {"c0": [], "c1": [1], "c2": [1, 2], "c3": []}


@pytest.fixture(scope="module", params=MODES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Project(tmp_path_factory.mktemp(f"steps-{request.param}")).write(test_a=STEPS + TEST).run(mode=request.param)


def step_lines(run: Run) -> list[dict]:
    return [line for line in run.journal if line["kind"] == "step"]


class TestWhatTestsGet:
    def test_rows_have_the_whole_results_step_by_step(self, run: Run) -> None:
        for row in run.rows:
            assert [len(step) for step in row["steps"]] == SIZES[row["case_id"]]
            for number, step in enumerate(row["steps"]):
                assert [one["text"] for one in step] == [f"{row['case_id']} step {number} part {part}" for part in range(number + 1)]
                assert all({"raw_text", "token_ids", "prompt_text", "prompt_sha256"} <= set(one) for one in step)
            assert row["generation"]["text"].startswith(f"{row['case_id']} asks")

    def test_every_result_is_in_the_journal_once_under_a_key_of_its_own(self, run: Run) -> None:
        assert (run.exit_code, run.counts) == (0, {"pass": 8}), run.output
        keys = Counter((line["engine"], line["eval"], line["case_id"], line["step"], line["request"]) for line in step_lines(run))
        steps = ((case, step, size) for case, sizes in SIZES.items() for step, size in enumerate(sizes))
        assert keys == {("fake:echo", "a", case, step, one): 1 for case, step, size in steps for one in range(size)}
        assert {line["case_id"]: line["steps"] for line in run.journal if line["kind"] == "generation"} == SIZES
        assert sum(entry["num_generations"] for entry in run.facts["throughput"]) == 8

    def test_plain_requests_leave_no_trace_of_steps(self, project: Project) -> None:
        plain = project.write(test_a=PLAIN).run_inline()
        assert all("steps" not in row for row in plain.rows)
        assert all("steps" not in line for line in plain.journal)


@pytest.mark.slow
def test_what_cases_ask_next_goes_to_the_engine_in_one_call(project: Project) -> None:
    project.write(
        conftest="""
            from evalharness.backends.fake import FakeBackend

            real = FakeBackend.generate

            def generate(self, prompts, **more):
                prompts = list(prompts)
                with open("calls", "a") as file:
                    print(len(prompts), file=file)
                return real(self, prompts, **more)

            FakeBackend.generate = generate
        """,
        test_a=STEPS + TEST,
    )
    assert project.run(apart=True).exit_code == 0
    # c0's and c3's question with the first steps of the others; c1's question with c2's second step; c2's question.
    assert (project.root / "calls").read_text().split() == ["4", "3", "1"]


OPTIONS = eval_module("""
def chat(text):
    return TextGenerationRequest([{"role": "user", "content": text}])

def request(case):
    both = [GenerationOptions(max_new_tokens=3), GenerationOptions(max_new_tokens=5, temperature=1.0)]
    first = yield [chat("abcdefgh"), chat("abcdefgh")], both
    again = yield [chat("a"), chat("a")], GenerationOptions(temperature=1.0)
    assert len({one.seed for one in again} | {first[1].seed}) == 3
    return chat(first[0].text + first[1].text)

pytestmark = pytest.mark.eval(cases=cases, request=request, num_samples=2, options=GenerationOptions(temperature=1.0, max_new_tokens=6))

def test_s(case, generations, steps):
    assert [one.text for one in steps[0]] == ["abc", "abcde"]
    assert [one.text for one in generations] == ["abcabc"] * 2
    assert steps[0][0].seed is None
""")


@pytest.mark.parametrize("mode", MODES[::2])
def test_each_request_has_its_options_and_its_seed_and_samples_share_the_steps(project: Project, mode: str) -> None:
    run = project.write(test_a=OPTIONS).run(mode=mode)
    assert run.counts == {"pass": 4}, run.output
    assert len(step_lines(run)) == 16
    assert [line["steps"] for line in run.journal if line["kind"] == "generation"] == [[2, 2]] * 8


def test_decoding_options_of_the_command_line_outrank_those_of_the_steps(project: Project) -> None:
    project.write(test_a=STEPS + "def test_s(case, generation, steps): pass\n")
    run = project.run_inline("--temperature", "0.5", "--max-new-tokens", "3", "--top-p", "0.9")
    steps = [one for row in run.rows for step in row.get("steps", ()) for one in step]
    assert [row["outcome"] for row in run.rows] == ["pass"] * 4
    assert {one["finish_reason"] for one in steps} == {"length"}
    assert len({one["seed"] for one in steps}) == len(steps) == 4  # greedy steps would have none


def test_an_option_of_the_command_line_that_a_step_would_pass_over_is_refused_by_name(project: Project) -> None:
    sampled = STEPS.replace("request=request)", "request=request, options=GenerationOptions(temperature=0.5))")
    run = project.write(test_a=sampled + "def test_s(case, generation): pass\n").run_inline("--top-p", "0.9")
    problem = "step 1: request of a: --top-p 0.9 has no effect with greedy decoding; set a temperature above 0 or leave it out"
    assert {row["problem"] for row in run.rows if row["outcome"] == "error"} == {problem}


def test_the_runs_seed_is_that_of_the_steps(project: Project) -> None:
    project.write(test_a=OPTIONS)
    seeds = [
        [[one["seed"] for step in row["steps"] for one in step] for row in project.run_inline("--seed", seed, "--run-id", run_id).rows]
        for run_id, seed in (("a", "1"), ("b", "1"), ("c", "2"))
    ]
    assert seeds[0] == seeds[1]
    assert seeds[0] != seeds[2]
    assert len({one for row in seeds[0] for one in row if one is not None}) == 12


class TestFailures:
    @pytest.mark.parametrize(
        ("mode", "kind"), [("no-xdist", "error"), ("no-xdist", "invalid"), pytest.param("n2", "error", marks=pytest.mark.slow)]
    )
    def test_a_step_that_fails_is_the_outcome_of_its_case_alone_and_is_named(self, project: Project, mode: str, kind: str) -> None:
        script = project.script({"contains": "c2 step 1 part 1", kind: "no answer"}, {"text": "fine"})
        test = "@pytest.mark.gate('x >= 0')\ndef test_s(case, generation, steps, score): score(x=len(steps))\n"
        run = project.write(test_a=STEPS + test).run("--model", script, mode=mode)
        assert run.outcomes == {"test_s/c0": "pass", "test_s/c1": "pass", "test_s/c2": kind, "test_s/c3": "pass"}
        row = run.row("c2")
        assert row["problem"] == "step 2, request 2 of 2: no answer"
        assert [[one and one["text"] for one in step] for step in row["steps"]] == [["fine"], ["fine", None]]
        assert (row["generation"], row["scores"]) == (None, {})
        (failure,) = [line for line in run.journal if line["kind"] == "step_failure"]
        assert (failure["case_id"], failure["step"], failure["request"], failure["failure"]) == ("c2", 1, 1, kind)

    def test_generators_are_closed_however_they_end(self, project: Project) -> None:
        closing = """
def request(case):
    try:
        yield [ask(case)], GenerationOptions()
        if case.id == "c1":
            raise KeyError("x")
        return ask(case)
    finally:
        with open("closed", "a") as file:
            print(case.id, file=file)

"""
        script = project.script({"contains": "ask c2", "error": "gone"}, {"text": "fine"})
        module = PLAIN.replace("request=ask", "request=request").replace("pytestmark", f"{closing}pytestmark")
        run = project.write(test_a=module).run_inline("--model", script)
        assert run.counts == {"pass": 2, "error": 2}
        assert Counter((project.root / "closed").read_text().split()) == {"c0": 1, "c1": 1, "c2": 1, "c3": 1}

    def test_options_of_the_question_are_refused_before_the_first_step(self, project: Project) -> None:
        marked = STEPS.replace("request=request)", "request=request, options=GenerationOptions(extra_generation_kwargs={'num_beams': 4}))")
        run = project.write(test_a=marked + "def test_s(case, generation): pass\n").run_inline()
        assert (run.counts, step_lines(run)) == ({"error": 4}, [])

    def test_a_test_that_asks_for_steps_where_there_are_none_and_an_async_request_are_refused(self, project: Project) -> None:
        project.write(test_a=PLAIN.replace("generation)", "generation, steps)"), test_b=PLAIN.replace("def ask", "async def ask"))
        run = project.run_inline()
        assert (
            "takes `steps`, but the eval's request has no earlier steps; make it a generator that yields them, or drop `steps`"
            in run.output
        )
        assert "request is an async function; write a function, or a generator function for steps" in run.output
        assert run.opened_no_run


@pytest.mark.slow
def test_a_test_that_runs_again_gets_its_steps_from_the_journal(project: Project) -> None:
    run = project.write(conftest=RERUN, test_a=STEPS + TEST.partition('@pytest.mark.gate("pass_rate')[0]).run(apart=True)
    assert run.counts == {"pass": 4}, run.output
    assert Counter(line["kind"] for line in run.journal)["row"] == 8
    assert len(step_lines(run)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES[::2])
def test_a_killed_run_keeps_its_steps(project: Project, mode: str) -> None:
    killing = "import signal\n\ndef test_s(case, generation, steps):\n    if case.id == 'c3': os.killpg(0, signal.SIGKILL)\n"
    run = project.write(test_a=STEPS + killing).run(mode=mode, apart=True)
    assert run.exit_code == -signal.SIGKILL
    assert main(["report", str(run.run_dir)]) == 0
    done = [row for row in run.rows if row["outcome"] == "pass"]
    assert done
    for row in done:
        assert [len(step) for step in row["steps"]] == SIZES[row["case_id"]]


def test_steps_run_on_transformers_with_images(project: Project, tiny_vlm_checkpoint: Path, tmp_path: Path) -> None:
    from PIL import Image

    from tests.backends.hf_models import one_thread

    Image.new("RGB", (64, 64), "red").save(tmp_path / "photo.png")
    request = f"""
from evalharness import VlmGenerationRequest

def photo(text):
    parts = [{{"type": "image", "image": {str(tmp_path / "photo.png")!r}}}, {{"type": "text", "text": text}}]
    return VlmGenerationRequest([{{"role": "user", "content": parts}}])

def request(case):
    seen = yield [photo("one"), photo("two")], [GenerationOptions(max_new_tokens=2), GenerationOptions(max_new_tokens=4)]
    assert [one.num_completion_tokens for one in seen] == [2, 4]
    return ask(case)

pytestmark = pytest.mark.eval(cases=cases, request=request, options=GenerationOptions(max_new_tokens=3))

def test_s(case, generation, steps):
    assert (generation.num_completion_tokens, [len(one.images) for one in steps[0]]) == (3, [1, 1])
"""
    with one_thread():
        run = project.write(test_a=HEADER + request).run_inline(
            f"--model={tiny_vlm_checkpoint}", "--dtype=float32", "--limit=2", backend="hf"
        )
    assert run.exit_code == 0, run.output
    assert run.counts == {"pass": 2}
    assert json.dumps(run.rows[0]["steps"])
