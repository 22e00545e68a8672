"""A run that broke off goes on: nothing is generated twice, nothing is lost, and whatever is not as it was is refused."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from evalharness.api.errors import BROKEN, CheckpointError, ConfigError
from evalharness.api.redaction import redactor
from evalharness.config import RunConfig, resolve
from evalharness.pytest_plugin.execution.engine_specs import engine_specs
from evalharness.pytest_plugin.replay.resume import Resumption
from evalharness.runs.files import RunLock
from evalharness.runs.journal import Journal
from evalharness.runs.run_file import write_run_file
from tests.pytest_plugin.project import HEADER, Project, Run

pytestmark = pytest.mark.slow

NUM_CASES = 12
CHECKPOINT = Path(__file__).parents[2] / "fixtures" / "checkpoints" / "final"
CASES = f"\ndef cases(data_dir): return [Case(id=f'c{{i:02}}') for i in range({NUM_CASES})]\n"
TESTS = (
    HEADER
    + CASES
    + """
pytestmark = pytest.mark.eval(cases=cases, request=ask)

@pytest.mark.gate("x >= 1")
def test_s(case, generation, score):
    score(x=len(generation.text))
    assert case.id != "c07"
"""
)
# Each load and each generation leaves a line in a file, whoever makes it.
CONFTEST = """
import pathlib
from evalharness.backends.fake import FakeBackend
from evalharness.api.errors import BackendError
here = pathlib.Path(__file__).parent
complete, start = FakeBackend._complete, FakeBackend.__init__

def note(text):
    with open(here / "made.txt", "a") as file:
        file.write(text + "\\n")

def noted(self, prompt, plugins, *_):
    case = prompt.text.partition("ask ")[2][:3]
    if (here / "broken").exists() and case > "c05":
        raise BackendError("the device failed")
    note(case)
    return complete(self, prompt, plugins)

def loaded(self, *arguments, **keywords):
    note("load")
    start(self, *arguments, **keywords)

FakeBackend._complete, FakeBackend.__init__ = noted, loaded

def pytest_unconfigure(config):  # the next run may be in this process too
    FakeBackend._complete, FakeBackend.__init__ = complete, start
"""
VOLATILE = {"worker", "started_at", "duration_s", "run_id"}


def made(project: Project) -> Counter[str]:
    """Return how often each case was generated, and engines were loaded; from now on it starts at nothing."""
    path = project.root / "made.txt"
    counts = Counter(path.read_text().split()) if path.exists() else Counter()
    path.unlink(missing_ok=True)
    return counts


def content(run: Run) -> list[dict[str, Any]]:
    return [{name: value for name, value in row.items() if name not in VOLATILE} for row in run.rows]


def broken_run(project: Project, tests: str = TESTS, *arguments: str) -> Run:
    """Return a run whose engine broke after six cases."""
    project.write(conftest=CONFTEST, test_a=tests)
    (project.root / "broken").touch()
    run = project.run("--run-id", "r", *arguments)
    (project.root / "broken").unlink()
    made(project)
    return run


def resumed(project: Project, *arguments: str, **keywords: Any) -> Run:
    run = project.run("--resume", "r", *arguments, **keywords)
    return Run(run.exit_code, run.output, run.duration_s, run.root, "r")


def whole_run(project: Project, tests: str = TESTS, *arguments: str) -> tuple[Run, Path, list[bytes]]:
    """Return a run that ended, its journal, and the journal's lines."""
    run = project.write(conftest=CONFTEST, test_a=tests).run("--run-id", "r", *arguments)
    made(project)
    path = run.run_dir / "journal" / "main.jsonl"
    return run, path, path.read_bytes().splitlines(keepends=True)


class TestWhatIsMade:
    def test_only_what_is_missing_is_generated_and_run_json_says_so(self, project: Project, mode: str) -> None:
        before = broken_run(project)
        assert before.exit_code == BROKEN
        assert before.counts == {"pass": 6, "error": 6}
        finished_at = before.facts["finished_at"]
        files = {path: path.read_bytes() for path in before.run_dir.rglob("*") if path.is_file()}
        assert project.run("--resume", "r", "--collect-only", "-q").exit_code == 0
        assert {path: path.read_bytes() for path in before.run_dir.rglob("*") if path.is_file()} == files, "listing a run changes nothing"
        run = resumed(project, mode=mode)
        assert run.exit_code == 0, run.output
        assert run.counts == {"pass": 11, "miss": 1}
        counts = made(project)
        assert counts.pop("load") >= 1
        assert counts == Counter(f"c{i:02}" for i in range(6, NUM_CASES))
        (entry,) = run.facts["resumptions"]
        assert (entry["num_generations_taken"], entry["num_workers"]) == (6, 2 if mode == "n2" else 0)
        assert entry["finished_before"] == finished_at
        assert run.facts["started_at"] < finished_at < entry["started_at"]
        assert run.facts["run_id"] == "r"
        assert "evalharness: resumes a run that has 6 generations: they are not made again" in run.output
        (speed,) = run.facts["throughput"]
        assert speed["num_generations"] + speed["num_untimed_generations"] == NUM_CASES, "what was taken counts once"

    def test_rows_are_those_of_a_run_that_nothing_happened_to(self, project: Project) -> None:
        broken_run(project)
        run, calm = resumed(project), project.run("--run-id", "calm")
        assert content(run) == content(calm)
        assert run.facts["gates"] == calm.facts["gates"]
        assert {row["worker"] for row in run.rows} == {"resumed-001-main"}
        assert (run.run_dir / "report.csv").exists()

    def test_nothing_is_loaded_where_nothing_is_missing(self, project: Project, mode: str) -> None:
        before, _, _ = whole_run(project)
        run = resumed(project, mode=mode)
        assert (run.exit_code, content(run)) == (before.exit_code, content(before))
        assert made(project) == Counter()

    def test_a_run_is_resumed_again_and_again(self, project: Project) -> None:
        project.write(conftest=CONFTEST, test_a=TESTS).run("--run-id", "r", "--maxfail=1")
        for mode in ("n2", "no-xdist", "n2"):
            run = resumed(project, mode=mode)
        assert run.counts == {"pass": 11, "miss": 1}
        assert [entry["num_generations_taken"] for entry in run.facts["resumptions"]] == [NUM_CASES] * 3
        assert {path.stem for path in (run.run_dir / "journal").glob("*.jsonl")} >= {"main", "resumed-001-controller", "resumed-002-main"}
        assert made(project)["load"] == 1

    def test_a_torn_last_line_is_what_is_made_again(self, project: Project) -> None:
        before, path, lines = whole_run(project)
        lines = [line for line in lines if not line.startswith((b'{"kind":"row"', b'{"kind":"unit"'))]
        last = max(number for number, line in enumerate(lines) if line.startswith(b'{"kind":"generation"'))
        path.write_bytes(b"".join(lines[:last]) + lines[last][:100])
        assert content(resumed(project)) == content(before)
        assert made(project) == Counter({"load": 1, "c11": 1})
        path.write_bytes(lines[0])  # a run that had generated nothing begins anew
        for later in path.parent.glob("resumed-*"):
            later.unlink()
        assert content(resumed(project)) == content(before)

    def test_samples_of_a_case_that_are_there_are_kept(self, project: Project) -> None:
        sampled = "pytestmark = pytest.mark.eval(cases=cases, request=ask, num_samples=3, options=GenerationOptions(temperature=1.0))"
        tests = HEADER + CASES + sampled + "\ndef test_s(case, generations): assert len(generations) == 3\n"
        before, path, lines = whole_run(project, tests)
        path.write_bytes(b"".join(line for line in lines if b'"case_id":"c03","sample":1,' not in line))
        run = resumed(project)
        assert made(project) == Counter({"load": 1, "c03": 1})
        assert content(run) == content(before)

    def test_steps_that_were_made_are_kept(self, project: Project) -> None:
        tests = (
            HEADER
            + CASES
            + """
def ask(case):
    (first,) = yield [TextGenerationRequest([{"role": "user", "content": f"ask {case.id}"}])], GenerationOptions()
    return TextGenerationRequest([{"role": "user", "content": first.text + " again"}])
pytestmark = pytest.mark.eval(cases=cases, request=ask)
def test_s(case, generation, steps): assert generation.text == f"{steps[0][0].text} again"
"""
        )
        before, path, lines = whole_run(project, tests)
        path.write_bytes(b"".join(line for line in lines if b'"case_id":"c04"' not in line or line.startswith(b'{"kind":"step"')))
        run = resumed(project)
        assert made(project) == Counter({"load": 1, "c04": 1}), "the question alone"
        assert content(run) == content(before)
        assert resumed(project).counts == {"pass": NUM_CASES}
        assert made(project) == Counter()

    def test_failures_and_invalid_samples_are_asked_again_but_not_what_its_loader_calls_invalid(self, project: Project) -> None:
        tests = HEADER + "from evalharness import VlmGenerationRequest\n"
        tests += "cases = lambda d: [Case(id='c00'), Case(id='c01', invalid='no photo'), Case(id='c02')]\n"
        tests += "def look(case):\n    if case.id != 'c02': return ask(case)\n"
        tests += "    content = [{'type': 'image', 'image': 'c02.png'}, {'type': 'text', 'text': 'ask c02'}]\n"
        tests += "    return VlmGenerationRequest([{'role': 'user', 'content': content}])\n"
        tests += "pytestmark = pytest.mark.eval(cases=cases, request=look)\n@pytest.mark.gate('x>=0')\n"
        tests += "def test_s(case, generation, score): score(x=1)\n"
        project.write(conftest=CONFTEST, test_a=tests)
        before = project.run("--run-id", "r", "--model", project.script({"text": "x"}))
        assert before.counts == {"pass": 1, "invalid": 2}
        Image.new("RGB", (32, 32)).save(project.root / "c02.png")
        made(project)
        run = resumed(project)
        assert run.counts == {"pass": 2, "invalid": 1}
        assert made(project) == Counter({"load": 1, "c02": 1})
        assert resumed(project).counts == {"pass": 2, "invalid": 1}
        assert made(project) == Counter(), "nothing is missing but what can never be asked"

    def test_tests_that_the_run_had_left_out_stay_out(self, project: Project) -> None:
        whole_run(project, TESTS, "-k", "c01 or c02")
        run = resumed(project)
        assert run.outcomes == {"test_s/c01": "pass", "test_s/c02": "pass"}
        assert "10 deselected" in run.output

    def test_what_broke_before_does_not_break_the_exit_code(self, project: Project) -> None:
        tests = TESTS + "    if case.id == 'c11' and not os.path.exists('died'):\n        open('died', 'w').close()\n        os._exit(1)\n"
        project.write(conftest=CONFTEST, test_a=tests)
        before = project.run("--run-id", "r", "-p", "xdist", "-n1", apart=True)
        problems = before.facts["problems"]
        assert (before.exit_code, len(problems)) == (BROKEN, 1)
        assert before.counts == {"pass": 11, "miss": 1}
        assert made(project)["load"] == 1, "a worker that only judges again loads nothing"
        run = resumed(project, mode="n2")
        assert run.exit_code == 0
        assert run.facts["problems"] == []
        assert run.facts["earlier_problems"] == problems

    def test_a_worker_that_dies_while_a_run_is_resumed_is_replaced(self, project: Project) -> None:
        broken_run(project)
        dies = "    if case == 'c09' and not (here / 'died').exists():\n        (here / 'died').touch()\n        import os; os._exit(9)\n"
        project.write(conftest=CONFTEST.replace("    note(case)\n", dies + "    note(case)\n"))
        run = resumed(project, mode="n2")
        assert run.counts == {"pass": 11, "miss": 1}
        counts = made(project)
        assert counts.pop("load") >= 1
        assert counts == Counter(f"c{i:02}" for i in range(6, NUM_CASES))


class TestWhatIsRefused:
    def test_other_options(self, project: Project) -> None:
        broken_run(project)
        for arguments, difference in (
            (("--max-new-tokens", "9"), "--max-new-tokens is 9 (command line), but was not set (default)"),
            (("--limit", "3"), "--limit is 3 (command line), but was not set (default)"),
            (("--seed", "1"), "--seed is 1 (command line), but was 0 (default)"),
            (("--run-id", "other"), "--run-id other contradicts --resume r"),
        ):
            run = project.run("--resume", "r", *arguments)
            assert run.exit_code == pytest.ExitCode.USAGE_ERROR
            assert difference in run.output

    @pytest.mark.parametrize(
        ("mode", "old", "new", "difference"),
        [
            ("no-xdist", "range(12)", "range(11)", "the case no longer exists: c11"),
            ("n2", "range(12)", "range(11)", "the case no longer exists: c11"),
            ("no-xdist", "range(12)", "range(13)", "the case is new and was never run: c12"),
            (
                "no-xdist",
                "Case(id=f'c{i:02}')",
                "Case(id=f'c{i:02}', group='g')",
                "its group or tags have changed: c00, c01, c02 and 9 more",
            ),
            ("no-xdist", "ask {case.id}", "tell {case.id}", "the text of its prompt would be different now: c00, c01, c02 and 3 more"),
            ("n2", "ask {case.id}", "tell {case.id}", "the text of its prompt would be different now: c00, c01, c02 and 3 more"),
            (
                "no-xdist",
                "request=ask",
                "request=ask, options=GenerationOptions(max_new_tokens=7)",
                "option max_new_tokens is 7, but was 256",
            ),
            ("no-xdist", "request=ask", "request=ask, options=[GenerationOptions()] * 2", "each case has 2 generations, but had 1"),
        ],
        ids=["gone", "gone, n2", "new", "tags", "prompt", "prompt, n2", "option", "samples"],
    )
    def test_other_evals(self, project: Project, mode: str, old: str, new: str, difference: str) -> None:
        before = broken_run(
            project, TESTS.replace("(case, generation, score)", "(case, generations, score)").replace("generation.text", "'x'")
        )
        journals = sorted((before.run_dir / "journal").iterdir())
        (project.root / "test_a.py").write_text((project.root / "test_a.py").read_text().replace(old, new))
        run = resumed(project, mode=mode)
        assert f"run r cannot be resumed: test_a.py: {difference}" in " ".join(run.output.split())
        assert run.exit_code not in (0, pytest.ExitCode.INTERNAL_ERROR)
        assert made(project) == Counter()
        assert sorted((before.run_dir / "journal").iterdir()) == journals, "the run is left as it was"

    @pytest.mark.parametrize("mode", ["no-xdist", "n2"])
    def test_a_selection_that_leaves_tests_out(self, project: Project, mode: str) -> None:
        broken_run(project)
        run = resumed(project, "-k", "c01", mode=mode)
        assert "11 of its 12 tests are not collected now: test_a.py::test_s[fake:echo-c00]" in run.output
        assert made(project) == Counter()

    def test_a_machine_where_the_engine_would_be_another(self, project: Project) -> None:
        broken_run(project)
        other = "\nFakeBackend.describe = lambda self: {'backend': 'fake', 'dtype': 'bfloat16'}\n"
        project.write(conftest=CONFTEST + other)
        run = project.run("--resume", "r", apart=True)
        assert "run r cannot be resumed: dtype of fake:echo is bfloat16, but was not set" in run.output
        assert run.exit_code == BROKEN
        project.write(conftest=CONFTEST)
        made(project)
        assert resumed(project).counts == {"pass": 11, "miss": 1}
        assert sum(made(project).values()) == 1 + 6

    @pytest.mark.parametrize(("name", "hint"), [("nothing", "see --report-dir"), ("nigthly", "did you mean 'nightly'?")])
    def test_a_run_that_is_not_there(self, project: Project, name: str, hint: str) -> None:
        (project.root / "reports" / "nightly" / "journal").mkdir(parents=True)
        run = project.write(test_a=TESTS).run("--resume", name)
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        assert f"there is no run {name!r} in" in run.output
        assert f"that could be resumed; {hint}" in run.output

    def test_a_run_that_still_goes_on_or_has_a_worker_that_still_writes(self, project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
        before = broken_run(project)
        monkeypatch.setattr("evalharness.pytest_plugin.replay.resume.WRITERS_TIMEOUT_S", 0.3)
        journal = Journal(before.run_dir, "gw0")
        assert "is still being written, by a worker that outlives its run" in project.run("--resume", "r").output
        journal.close()
        lock = RunLock(before.run_dir)
        run = project.run("--resume", "r")
        lock.close()
        assert run.exit_code == pytest.ExitCode.USAGE_ERROR
        assert "run 'r' is still running, or another process resumes it" in run.output
        assert resumed(project).exit_code == 0

    def test_settings_of_a_file(self, project: Project) -> None:
        settings = project.root / "evalharness.toml"
        settings.write_text("max_new_tokens = 3\n")  # which the command line overrules
        broken_run(project, TESTS, "--max-new-tokens", "50")
        run = resumed(project)
        assert run.exit_code == 0, run.output
        settings.write_text("limit = 3\n")
        assert "--limit is 3 (evalharness.toml), but was not set (default)" in project.run("--resume", "r").output
        settings.write_text('resume = "r"\n')
        assert "resume in evalharness.toml would resume one run for ever" in project.run().output


def test_a_run_of_older_journals_without_decoding_is_resumed(project: Project) -> None:
    path = broken_run(project).run_dir / "journal" / "main.jsonl"
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    older = [{name: value for name, value in line.items() if name != "options" or line["kind"] != "eval"} for line in lines]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in older))
    assert resumed(project).exit_code == 0


class TestCheckpoints:
    @pytest.fixture
    def began(self, tmp_path: Path) -> tuple[Path, RunConfig]:
        """A run of one real checkpoint that has collected its tests and no more."""
        shutil.copytree(CHECKPOINT, tmp_path / "runs" / "checkpoint-10")
        run = resolve({"model": [str(tmp_path / "runs" / "checkpoint-*")], "backend": "hf"}, {}, tmp_path)
        specs = engine_specs(run, tmp_path)
        write_run_file(tmp_path / "r", {"run_id": "r", "config": run.to_json()})
        journal = Journal(tmp_path / "r", "main")
        journal.write("collected", {"engines": [spec.to_json() for spec in specs], "nodeids": ["test_a.py::test_s[hf:checkpoint-10-c0]"]})
        journal.close()
        return tmp_path, run

    @pytest.mark.parametrize("name", ["chat_template.jinja", "config.json"])
    def test_one_that_was_changed_or_is_gone_is_refused_and_one_that_has_come_since_is_not_of_the_run(
        self, began: tuple[Path, RunConfig], name: str
    ) -> None:
        root, run = began
        shutil.copytree(CHECKPOINT, root / "runs" / "checkpoint-20")
        specs = Resumption.read(root / "r").engine_specs(run, root, print)
        assert [spec.id for spec in specs] == ["hf:checkpoint-10"]
        path = root / "runs" / "checkpoint-10" / name
        path.write_text(path.read_text() + "\n")
        with pytest.raises(ConfigError, match=r"run r cannot be resumed: fingerprint of checkpoint \S+-10 is \w{12}, but was \w{12};"):
            Resumption.read(root / "r").engine_specs(run, root, print)
        shutil.rmtree(path.parent)
        with pytest.raises(CheckpointError, match="checkpoint-10"):
            Resumption.read(root / "r").engine_specs(run, root, print)

    def test_a_run_of_an_older_version_says_why_its_fingerprint_differs(self, began: tuple[Path, RunConfig]) -> None:
        root, run = began
        resumption = Resumption.read(root / "r")
        resumption.engines[:] = [replace(spec, stamp=None, fingerprint="0" * 64) for spec in resumption.engines]
        with pytest.raises(ConfigError, match="an older evalharness, which made other fingerprints, began the run"):
            resumption.engine_specs(run, root, print)


def test_another_file_of_answers_is_noticed(project: Project) -> None:
    project.write(test_a=TESTS)
    first = project.run_inline("--model", project.script({"text": "x"}), "--run-id", "r")
    assert first.facts["engines"][0]["fingerprint"] is not None
    project.script({"text": "y"})
    resumed = project.run_inline("--resume", "r")
    assert resumed.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "run r cannot be resumed: fingerprint of checkpoint " in resumed.output
    assert "the script of answers must be the one that the run began with" in " ".join(resumed.output.split())


def test_a_secret_option_that_the_record_hides_is_given_again(tmp_path: Path) -> None:
    then = resolve({"engine_option": ["hf_token=abc123", "seed=1"]}, {}, tmp_path)
    shown: Any = redactor().data(then.to_json())
    resumption: Any = Resumption.__new__(Resumption)
    resumption.recorded = SimpleNamespace(config=RunConfig.from_json(shown), run_dir=tmp_path / "run", run_id="run")
    with pytest.raises(ConfigError, match="--engine-option hf_token is a secret that its record hides; give it again"):
        resumption.options(resolve({}, {}, tmp_path), tmp_path)
    again = resumption.options(then, tmp_path)
    assert dict(again.engine_option) == {"hf_token": "abc123", "seed": 1}


def test_a_run_of_a_cluster_says_where_it_goes_on_without_one(tmp_path: Path) -> None:
    then = resolve({"executor": "ray", "ray_address": "head:6379"}, {}, tmp_path)
    resumption: Any = Resumption.__new__(Resumption)
    resumption.recorded, resumption.notices = SimpleNamespace(config=then, run_dir=tmp_path / "run", run_id="run"), []
    here = resumption.options(resolve({}, {}, tmp_path), tmp_path)
    assert (here.executor, here.ray_address) == ("local", None)  # a run's file decides on no address
    (notice,) = resumption.notices
    assert "made with --executor ray, and is resumed without: on this host alone" in notice
    assert notice.endswith("give the same command with --executor ray --ray-address head:6379")
    assert resumption.options(resolve({"executor": "ray"}, {}, tmp_path), tmp_path).executor == "ray"
    assert len(resumption.notices) == 1
