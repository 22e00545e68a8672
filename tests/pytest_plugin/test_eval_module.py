"""From eval modules to tests: ids, selection, and every wrong marker, case or option said before anything runs."""

from __future__ import annotations

import re
import textwrap

import pytest

from evalharness.api.errors import BROKEN
from tests.processes import python
from tests.pytest_plugin.project import HEADER, MARK, MODES, Project, Run, environment, eval_module

TEST = "def test_s(case, generation, score):\n    score(x=1)\n"


def nodeids(output: str) -> list[str]:
    return [line for line in output.splitlines() if "::" in line]


class TestIds:
    def test_one_test_per_engine_and_case_and_collecting_opens_no_run(self, project: Project) -> None:
        project.write(test_a=MARK + TEST).script({"text": "x"})
        run = project.run_inline("--collect-only", "-q", "--model", "echo", "--model", "answers.jsonl")
        assert nodeids(run.output) == [f"test_a.py::test_s[fake:{e}-c{i}]" for e in ("echo", "answers") for i in range(4)]
        assert (run.exit_code, run.opened_no_run) == (0, True)
        assert "evalharness" not in run.output.splitlines()[-1]

    def test_collecting_with_workers_asked_for_collects_here(self, project: Project) -> None:
        run = project.write(test_a=MARK + TEST).run_inline("--collect-only", "-q", "-p", "xdist", "-n2")
        assert len(nodeids(run.output)) == 4
        assert run.opened_no_run

    def test_collecting_loads_nothing_heavy(self, project: Project) -> None:
        project.write(test_a=MARK + TEST)
        code = (
            "import sys, pytest; code = pytest.main(sys.argv[1:]); "
            "heavy = [m for m in ('torch', 'transformers', 'vllm', 'pandas', 'numpy', 'PIL') if m in sys.modules]; "
            "print('heavy:', heavy); sys.exit(code)"
        )
        exit_code, output = python("-c", code, *project.command("--collect-only", "-q")[3:], cwd=project.root, env=environment())
        assert (exit_code, "heavy: []" in output) == (0, True), output

    def test_k_selects_by_case_engine_and_module(self, project: Project) -> None:
        project.write(test_a=MARK + TEST, test_b=MARK + TEST)
        assert nodeids(project.run_inline("--collect-only", "-q", "-k", "test_b and c2").output) == ["test_b.py::test_s[fake:echo-c2]"]

    def test_cases_can_be_run_again_by_their_ids(self, project: Project) -> None:
        ids = ["plain", "with space", "a/b.jpg", "x[1]", "é-ü", "日本", "a-fake:echo-b", "\\n", "-k", "50%", "'\""]
        project.write(
            test_a=HEADER
            + f"""
pytestmark = pytest.mark.eval(cases=lambda data: [Case(id=name) for name in {[*ids, "other"]!r}], request=ask)
def test_s(case, generation): assert generation.text == f"ask {{case.id}}"
"""
        )
        collected = nodeids(project.run_inline("--collect-only", "-q").output)[:-1]
        run = project.run_inline(*collected)
        assert run.outcomes == {f"test_s/{case_id}": "pass" for case_id in ids}
        assert [row["nodeid"] for row in run.rows] == collected

    @pytest.mark.parametrize(("limit", "num_cases"), [("1", 1), ("3", 3), ("100", 4)])
    def test_limit_first_keeps_the_first_cases(self, project: Project, limit: str, num_cases: int) -> None:
        run = project.write(test_a=MARK + TEST).run_inline("--limit-first", limit)
        assert [row["case_id"] for row in run.rows] == [f"c{i}" for i in range(num_cases)]

    def test_limit_draws_a_sample_that_shards_share(self, project: Project) -> None:
        generator = MARK.replace("cases=cases", "cases=lambda data: iter(cases(data))")  # is called twice
        taken = []
        for mark in (MARK, generator):
            for part in ((), ("--shard=1/2",), ("--shard=2/2",)):
                run = project.write(test_a=mark + TEST).run_inline("--limit=2", "--run-id", f"r{len(taken)}", *part)
                taken.append([row["case_id"] for row in run.rows])
        assert taken[0] == taken[1] + taken[2] == taken[3] == taken[4] + taken[5]
        assert {case_id in ("c0", "c2") for case_id in taken[0]} == {True, False}  # one of each parity

    def test_the_header_says_what_will_run(self, project: Project) -> None:
        run = project.write(test_a=MARK + TEST).run_inline("--run-id", "first")
        expected = f"evalharness: 4 eval tests on fake:echo; run first -> {project.root / 'reports' / 'first'}"
        assert expected in run.output.splitlines()

    def test_cases_without_engine_are_ordinary_tests_and_a_generation_alone_is_that_of_every_case(self, project: Project) -> None:
        data = "def test_data(case): assert case.group in ('g0', 'g1')\n"
        run = project.write(test_a=MARK + data + "def test_s(generation): assert generation.text.startswith('ask c')\n").run_inline()
        assert run.summary().startswith("8 passed")
        assert [row["test"] for row in run.rows] == ["test_s"] * 4

    def test_a_test_that_scores_without_generating_asks_nothing(self, project: Project) -> None:
        run = project.write(test_a=MARK + "def test_s(case, engine, score): score(x=len(engine.name))\n").run_inline()
        assert [row["scores"] for row in run.rows] == [{"x": 4.0}] * 4
        assert not [line for line in run.journal if line["kind"] == "generation"]


WRONG_MARKERS = [
    ("eval(cases=cases)", "the eval marker needs request=FUNCTION, got None"),
    ("eval(request=ask)", "the eval marker needs cases=FUNCTION, got None"),
    ("eval(cases=cases(None), request=ask)", "the eval marker needs cases=FUNCTION, got \\[Case"),
    ("eval(cases=cases, reqest=ask)", "the eval marker has no 'reqest'; did you mean 'request'\\? Known: cases, request"),
    ("eval(cases, ask)", "the eval marker takes keywords only: cases, request"),
    ("eval(cases=cases, request=ask, num_samples=0)", "num_samples must be an int of at least 1, got 0"),
    ("eval(cases=cases, request=ask, num_samples=True)", "num_samples must be an int of at least 1, got True"),
    ("eval(cases=cases, request=ask, num_samples=2)", "num_samples 2 with greedy decoding gives equal samples"),
    ("eval(cases=cases, request=ask, options={'max_new_tokens': 2})", "options must be GenerationOptions or a list of them"),
    ("eval(cases=cases, request=ask, options=5)", "options must be GenerationOptions or a list of them, got 5"),
    ("eval(cases=cases, request=ask, options=[])", "options must be GenerationOptions or a list of them, got \\[\\]"),
    ("eval(cases=lambda data: [], request=ask)", "<lambda>\\(None\\) found no cases; give a folder that holds some with --data"),
    ("eval(cases=lambda: [Case(id='a')], request=ask)", "too many positional arguments; `cases` is called with one argument, the data"),
    ("eval(cases=lambda data: (Case(id='a') for _ in 'ab'), request=ask)", "returned case ids more than once: 'a'"),
    ("eval(cases=lambda data: [1], request=ask)", "returned 1; every case must be an evalharness.Case"),
    ("eval(cases=lambda data: None, request=ask)", "returned None; it must return a list of evalharness.Case"),
    ("eval(cases=lambda data: [Case(id='a'), Case(id='b'), Case(id='a')], request=ask)", "returned case ids more than once: 'a'"),
    ("eval(cases=lambda data: [Case(id='')], request=ask)", "returned a case with id ''; ids must be printable text"),
    ("eval(cases=lambda data: [Case(id='a\\nb')], request=ask)", "returned a case with id 'a\\\\nb'; ids must be printable text"),
    ("eval(cases=lambda data: [Case(id='a::b')], request=ask)", "returned a case with id 'a::b'; ids must be printable text without '::'"),
    ("eval(cases=lambda data: [Case(id=7)], request=ask)", "returned a case with id 7; ids must be printable text"),
    ("eval(cases=lambda data: [Case(id='a', tags={'n': 1})], request=ask)", "case 'a' with tags {'n': 1}; tags must map names to texts"),
    ("eval(cases=lambda data: [Case(id='a', group=1)], request=ask)", "returned case 'a' with group 1; a group must be text or None"),
    ("eval(cases=lambda data: 1 / 0, request=ask)", "ZeroDivisionError: division by zero"),
    ("eval(cases=lambda data: exit(0), request=ask)", "called sys.exit\\(0\\); raise an error instead"),
    ("evals(cases=cases, request=ask)", "test_s has the marker 'evals'; did you mean 'eval'\\? Markers here are: eval, gate"),
    ("eval(cases=cases, request=ask, gates=['x >= 1'])", "no 'gates'; put gates on a test: @pytest.mark.gate\\('valid >= 0.95'\\)"),
    ("skipif(False, reason='x')", "need pytestmark = pytest.mark.eval\\(...\\) in the module"),
]


@pytest.fixture(scope="module")
def wrong_markers(tmp_path_factory: pytest.TempPathFactory) -> Run:
    project = Project(tmp_path_factory.mktemp("wrong"))
    project.write(**{f"test_w{n:02}": f"{HEADER}pytestmark = pytest.mark.{marker}\n{TEST}" for n, (marker, _) in enumerate(WRONG_MARKERS)})
    return project.run_inline()


class TestWrongEvals:
    @pytest.mark.parametrize("number", range(len(WRONG_MARKERS)), ids=[marker for marker, _ in WRONG_MARKERS])
    def test_a_wrong_marker_is_an_error_of_collection(self, wrong_markers: Run, number: int) -> None:
        shown = wrong_markers.output.partition(f" ERROR collecting test_w{number:02}.py __")[2].partition("\n")[2]
        shown = re.split("\n===|\n___", shown)[0]
        message = WRONG_MARKERS[number][1]
        assert re.search(message, shown), shown
        if "ZeroDivision" not in message:
            assert len(shown.splitlines()) < 5

    def test_wrong_markers_end_the_run_before_it_begins(self, wrong_markers: Run) -> None:
        assert wrong_markers.exit_code == pytest.ExitCode.INTERRUPTED
        assert wrong_markers.opened_no_run

    @pytest.mark.parametrize(
        ("test", "message"),
        [
            ("@pytest.mark.gate('x => 1')\n" + TEST, "gate 'x => 1' is not understood; did you mean '>=' in place of '=>'? write"),
            (
                "@pytest.mark.gate('x[party=odd] >= 1')\n" + TEST,
                "no case has the tag 'party'; did you mean 'parity'? tags here are: parity",
            ),
            (
                "@pytest.mark.gate('x[parity=od] >= 1')\n" + TEST,
                "no case has parity=od; did you mean 'odd'? its values here are: even, odd",
            ),
            ("@pytest.mark.gates('x >= 1')\n" + TEST, "test_s has the marker 'gates'; did you mean 'gate'?"),
            ("@pytest.mark.gate\n" + TEST, "the gate marker takes expressions such as 'valid >= 0.95', got none"),
            ("@pytest.mark.gate(x=1)\n" + TEST, "the gate marker takes expressions such as 'valid >= 0.95', got {'x': 1}"),
            ("@pytest.mark.gate(['x >= 1'])\n" + TEST, "gate ['x >= 1'] is not understood"),
            ("@pytest.mark.gate('x >= 1')\ndef test_s(): pass\n", "has a gate, but no cases to judge; take `case` and `generation` or"),
            ("@pytest.mark.gate('x >= 1')\ndef test_s(case): pass\n", "test_s has a gate, but no cases to judge"),
            (f"{TEST}@pytest.mark.eval(cases=cases, request=len)\ndef test_t(case, engine): pass\n", "test_a.py has several eval markers;"),
            (f"pytestmark.kwargs['options'] = [GenerationOptions()] * 2\n{TEST}", "but 2 generations are made per case; take `gen"),
        ],
    )
    def test_a_wrong_test_is_an_error_of_collection(self, project: Project, test: str, message: str) -> None:
        run = project.write(test_a=MARK + test).run_inline()
        assert message in run.output
        assert run.exit_code == pytest.ExitCode.INTERRUPTED
        assert run.opened_no_run

    def test_two_evals_of_one_name_are_refused(self, project: Project) -> None:
        for folder in ("a", "b"):
            (project.root / folder).mkdir()
            (project.root / folder / "test_same.py").write_text(MARK + TEST)
        run = project.run_inline("--import-mode=importlib")
        assert "b/test_same.py and a/test_same.py are both the eval 'same'; rename one of the files, or run them apart" in run.output

    @pytest.mark.parametrize("mode", MODES[::2])
    def test_a_test_id_that_can_be_read_two_ways_is_refused(self, project: Project, mode: str) -> None:
        project.write(test_a=HEADER + "pytestmark = pytest.mark.eval(cases=lambda d: [Case(id='b-c')], request=ask)\n" + TEST)
        for name in ("a.jsonl", "a-b.jsonl"):
            (project.root / name).write_text('{"text": "x"}\n')
        run = project.run("--model", "a.jsonl", "--model", "a-b.jsonl", mode=mode)
        assert "test_s[fake:a-b-c] can be read as a case of several engines" in run.output
        assert run.exit_code not in (0, 3)

    @pytest.mark.parametrize("mode", MODES[::2])
    def test_a_parameter_that_would_merge_two_tests_into_one_metric_is_refused(self, project: Project, mode: str) -> None:
        test = """
            @pytest.mark.gate("right >= 0.5")
            @pytest.mark.parametrize("x", ["a", "a-fake:echo-b"])
            def test_s(x, case, generation, score): score(right=x == "a")
        """
        run = project.write(test_a=MARK + textwrap.dedent(test)).run(mode=mode)
        problem = "test_s[a-fake:echo-b-fake:echo-c0] can be read as the case 'b-fake:echo-c0' of test_s[a], and is 'c0'; give the test's"
        assert problem.replace("c0", "c3") in run.output
        assert run.exit_code not in (0, 3)

    @pytest.mark.parametrize("case_id", ["a-fake:echo-b", "猫-fake:echo-é", "back\\slash", "[x]", "a]-[b"])
    def test_case_ids_may_look_like_other_ids_where_they_are_read_as_they_are(self, project: Project, case_id: str) -> None:
        marked = f"pytestmark = pytest.mark.eval(cases=lambda d: [Case(id={case_id!r}), Case(id='c')], request=ask)\n"
        run = project.write(test_a=HEADER + marked + TEST).run()
        assert [(row["case_id"], row["outcome"]) for row in run.rows] == [(case_id, "pass"), ("c", "pass")]

    def test_parameters_of_other_plugins_are_other_tests(self, project: Project) -> None:
        repeat = """
            import pytest
            @pytest.hookimpl(trylast=True)
            def pytest_generate_tests(metafunc):  # as pytest-repeat does it
                metafunc.fixturenames.append("step")
                metafunc.parametrize("step", range(2), indirect=True, ids=lambda step: f"{step}-of-2")
            @pytest.fixture
            def step(request): return request.param
        """
        run = project.write(test_a=MARK + TEST, conftest=repeat).run()
        assert {row["test"] for row in run.rows} == {"test_s[0-of-2]", "test_s[1-of-2]"}
        assert len(run.rows) == 8

    @pytest.mark.parametrize("mode", MODES[::2])
    def test_one_wrong_module_stops_the_run_and_the_others_are_not_run(self, project: Project, mode: str) -> None:
        project.write(test_a=MARK + TEST, test_b=HEADER + "pytestmark = pytest.mark.eval(cases=cases)\n" + TEST)
        run = project.run(mode=mode)
        assert "needs request=FUNCTION" in run.output
        assert run.exit_code not in (0, 3)
        if mode == "no-xdist":
            assert run.counts == {"skip": 4}
            assert run.rows[0]["problem"] == "not run: 1 error during collection"


LACKING = eval_module("""
def cases(data_dir):
    return [Case(id=line) for line in (data_dir / "lacking.txt").open()]
pytestmark = pytest.mark.eval(cases=cases, request=ask)

@pytest.mark.parametrize("way", ["left", "right"])
def test_way(way, case, generation): pass

def test_engine(engine): pass
""")


WAY = "test_lacking.py::test_way[fake:echo-left-c9]"


@pytest.mark.slow
class TestCasesThatCannotBeLoaded:
    """They stop a run only where their eval is asked for."""

    @pytest.fixture
    def lacking(self, project: Project) -> Project:
        (project.root / "photos").mkdir()
        return project.write(test_a=MARK + TEST, test_lacking=LACKING)

    @pytest.mark.parametrize("mode", MODES[::2])
    def test_k_that_leaves_the_eval_out_needs_no_data_of_it(self, lacking: Project, mode: str) -> None:
        run = lacking.run("--data", "photos", "-k", "test_a", mode=mode)
        assert (run.exit_code, run.counts) == (0, {"pass": 4})
        assert "lacking.txt" not in run.output

    @pytest.mark.parametrize(
        "selection",
        [["-k", "not lacking"], ["--deselect", "test_lacking.py"], ["test_a.py", "test_lacking.py", "-k", "test_s"]],
        ids=["not", "deselect", "named and deselected"],
    )
    def test_other_selections_do_likewise(self, lacking: Project, selection: list[str]) -> None:
        assert lacking.run_inline("--data", "photos", *selection).counts == {"pass": 4}

    @pytest.mark.parametrize(
        "selection",
        ["", "-k lacking or c1", "-k test_engine", "test_lacking.py::test_way", WAY, "--collect-only"],
        ids=["all", "one of them", "without case", "test", "case", "collect-only"],
    )
    def test_who_asks_for_the_eval_is_told_once_and_nothing_runs(self, lacking: Project, selection: str) -> None:
        run = lacking.run_inline("--data", "photos", *filter(None, selection.partition(" ")[::2]))
        assert run.exit_code in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.USAGE_ERROR)
        assert run.output.count("_ ERROR collecting test_lacking.py _") == 1
        assert "E   FileNotFoundError: [Errno 2] No such file or directory" in run.output
        assert "no-cases" not in run.output
        assert run.opened_no_run or run.counts.keys() == {"skip"}

    @pytest.mark.slow
    def test_workers_tell_as_well(self, lacking: Project) -> None:
        run = lacking.run("--data", "photos", mode="n2")
        assert run.exit_code not in (0, 3)
        assert "_ ERROR collecting test_lacking.py _" in run.output
        assert "E   FileNotFoundError: [Errno 2]" in run.output

    def test_lf_does_not_pass_over_what_failed_and_cannot_be_loaded_now(self, lacking: Project) -> None:
        (lacking.root / "photos" / "lacking.txt").write_text("c8")
        lacking.write(test_lacking=LACKING.replace("generation): pass", "generation): assert way == 'left'"))
        assert lacking.run_inline("--data", "photos", "--run-id", "first").exit_code == 1
        (lacking.root / "photos" / "lacking.txt").unlink()
        run = lacking.run_inline("--data", "photos", "--lf", "--run-id", "second")
        assert "E   FileNotFoundError: [Errno 2]" in run.output
        assert run.exit_code == pytest.ExitCode.INTERRUPTED


@pytest.mark.slow
class TestWrongOptions:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--backend", "fak"], "--backend 'fak' is unknown; did you mean 'fake'? Known: auto, fake, hf, max, openai, vllm."),
            (["--backend", "fake", "--limit", "0"], "--limit"),
            (["--backend", "fake", "--enforce-eager"], "--enforce-eager is honoured by vllm only, but the run is on --backend fake"),
            (["--backend", "hf", "--model", "nowhere"], "nowhere"),
            (["--backend", "fake", "--cache-dir", "test_a.py"], "test_a.py/answers-2.sqlite cannot be used: "),
        ],
    )
    def test_a_wrong_option_is_a_usage_error(self, project: Project, arguments: list[str], message: str) -> None:
        run = project.write(test_a=MARK + TEST).run_inline(*arguments, backend=None)
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        (error,) = [line for line in run.output.splitlines() if line.startswith("ERROR: ")]
        assert message in error
        assert run.opened_no_run

    @pytest.mark.parametrize(
        "wrong", [("--limit", "two"), ("--backend", "hf", "--model", "nowhere"), ("--resume", "nothing")], ids=" ".join
    )
    def test_help_is_shown_whatever_is_wrong(self, project: Project, wrong: tuple[str, ...]) -> None:
        (project.root / "evalharness.toml").write_text("limt = 2")
        run = project.run_inline(*wrong, "--help", backend=None)
        assert (run.exit_code, "evals of checkpoints (evalharness):" in run.output) == (0, True)
        assert run.opened_no_run

    def test_an_option_without_effect_under_the_evals_own_decoding_is_refused(self, project: Project) -> None:
        run = project.write(test_a=MARK + TEST).run_inline("--top-p", "0.5")
        assert run.exit_code not in (0, 3)
        assert "--top-p 0.5 has no effect with greedy decoding" in run.output

    @pytest.mark.slow
    def test_a_wrong_option_with_workers_is_a_usage_error(self, project: Project) -> None:
        run = project.write(test_a=MARK + TEST).run(mode="n2", backend="fak")
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        assert "did you mean 'fake'?" in run.output

    def test_a_script_with_a_broken_row_is_said_in_each_error_row(self, project: Project) -> None:
        run = project.write(test_a=MARK + TEST).run_inline("--model", project.script({"txt": "x"}))
        assert run.exit_code == BROKEN
        assert run.counts == {"error": 4}
        assert "answers.jsonl:1 is not a script row" in run.rows[0]["problem"]

    def test_watch_names_the_command_that_watches(self, project: Project) -> None:
        run = project.run_inline("--watch", "runs/sft-42")
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        assert "--watch runs/sft-42 is a separate command, as each checkpoint gets its own run and exit code: " in run.output
        assert "evalharness watch runs/sft-42 -- evals …" in run.output

    def test_markers_and_options_are_documented(self, project: Project) -> None:
        assert "@pytest.mark.gate(*expressions): conditions on" in project.run_inline("--markers").output
        assert re.search(r"--limit-first=N\s+Run only the first N cases of each eval", project.run_inline("--help").output)

    @pytest.mark.parametrize("shown", ["--help", "--version", "--markers"])
    def test_help_comes_whatever_else_is_on_the_command_line(self, project: Project, shown: str) -> None:
        run = project.run_inline("--limit", "2", shown)
        assert run.exit_code == 0, run.output
        assert "Error" not in run.output

    @pytest.mark.parametrize("where", ["environment", "file"])
    def test_options_from_elsewhere_count_and_their_origin_is_recorded(self, project: Project, where: str) -> None:
        project.write(test_a=MARK + TEST)
        if where == "file":
            (project.root / "evalharness.toml").write_text("limit = 2\n")
        run = project.run_inline(env={"EVALHARNESS_LIMIT": "2"} if where == "environment" else {})
        origin = {"environment": "environment EVALHARNESS_LIMIT", "file": "evalharness.toml"}[where]
        assert run.facts["config"]["limit"] == {"value": 2, "origin": origin}
        assert len(run.rows) == 2
