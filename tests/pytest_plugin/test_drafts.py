"""--draft-from: where drafts come from, when there are none, and that no answer changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import ConfigError
from evalharness.config import resolve
from evalharness.pytest_plugin.execution.drafts import Drafts, resolve_drafts
from evalharness.report.levers import draft_lines
from tests.backends.hf_models import one_thread
from tests.pytest_plugin.project import HEADER, Project, Run
from tests.pytest_plugin.test_warm_engines import TEMPLATE

EVAL = (
    HEADER
    + """
def request(case):
    (first,) = yield [ask(case)], GenerationOptions(max_new_tokens=20)
    return TextGenerationRequest([{"role": "user", "content": first.text + case.id}])

pytestmark = pytest.mark.eval(cases=cases, request=request)

def test_s(case, generation, score):
    score(n=len(generation.text))
"""
)


def run(project: Project, checkpoint: Path, run_id: str, *arguments: str) -> Run:
    options = (f"--model={checkpoint}", "--dtype=float32", "--device=cpu", "--max-new-tokens=24", "--run-id", run_id)
    with one_thread():
        return project.write(test_a=EVAL).run_inline(*options, *arguments, backend="hf")


def answers(found: Run) -> dict[str, Any]:
    return {
        row["case_id"]: [made["token_ids"] for step in row["steps"] for made in step] + [row["generation"]["token_ids"]]
        for row in found.rows
    }


@pytest.mark.engine
def test_a_run_with_drafts_of_the_one_before_has_the_same_answers(project: Project, hf_text_checkpoint: Path) -> None:
    (hf_text_checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    before = run(project, hf_text_checkpoint, "before")
    found = run(project, hf_text_checkpoint, "after", "--draft-from=latest")
    assert answers(found) == answers(before)
    assert {name: found.facts["drafts"][name] for name in ("asked", "run", "why_off")} == {
        "asked": "latest",
        "run": "before",
        "why_off": "",
    }
    assert "drafts" not in before.facts
    (engine,) = found.facts["throughput"]
    drafts, num_tokens = engine["drafts"], sum(len(ids) for each in answers(found).values() for ids in each)
    assert drafts["num_found"] == drafts["num_answers"] == 2 * len(found.rows)
    assert drafts["num_tokens"] == num_tokens == drafts["num_row_steps"] + drafts["num_taken"]
    assert drafts["num_taken"] > num_tokens / 2
    assert "drafts from run before on hf:" in found.output
    assert "drafts from run before on hf:" in (found.run_dir / "report.md").read_text("utf-8")


@pytest.mark.engine
def test_the_second_checkpoint_of_a_run_takes_drafts_from_the_first(project: Project, hf_text_checkpoint: Path, tmp_path: Path) -> None:
    (hf_text_checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    again = shutil.copytree(hf_text_checkpoint, tmp_path / "again")
    found = run(project, hf_text_checkpoint, "both", f"--model={again}", "--draft-from=latest")
    first, second = (entry.get("drafts") for entry in found.facts["throughput"])
    assert first is None  # nothing to follow, so hf ran as ever
    assert second["num_found"] == second["num_answers"] == len(found.rows)
    assert second["num_taken"] > second["num_tokens"] / 2
    assert "drafts from this run's own answers on hf:again: 8 of 8 answers had one" in " ".join(found.output.split())


def earlier(folder: Path, *throughput: dict[str, Any], name: str = "earlier") -> Path:
    run_dir = folder / name
    (run_dir / "journal").mkdir(parents=True)
    (run_dir / "run.json").write_text(
        json.dumps(
            {"run_id": name, "finished_at": "2026-01-01T00:00:00Z", "throughput": list(throughput), "drafts": {"rate_without": 300.0}}
        )
    )
    return run_dir


def config(folder: Path, **given: Any) -> Any:
    return resolve({"report_dir": str(folder), "backend": ["vllm"], "model": ["x"], **given}, {}, folder)


MADE = {"engine": "vllm:a", "num_generations": 10, "num_completion_tokens": 1000, "generation_s": 4.0}


@pytest.mark.parametrize("asked", [None, "none"])
def test_there_are_no_drafts_unless_asked_for(tmp_path: Path, asked: str | None) -> None:
    run_config, facts = resolve_drafts(config(tmp_path, draft_from=asked))
    assert facts is None
    assert not Drafts(run_config, print).is_on


def test_a_backend_that_takes_no_drafts_is_told_what_was_asked(tmp_path: Path) -> None:
    earlier(tmp_path, {**MADE, "num_completion_tokens": 10})  # drafts would be off, and "none" is not what was asked
    run_config, facts = resolve_drafts(config(tmp_path, draft_from="latest", backend=["fake"]))
    assert (run_config.draft_from, facts) == ("latest", None)


@pytest.mark.parametrize("asked", ["latest", "earlier", "{folder}/earlier"])
def test_a_run_is_found_by_its_name_its_path_or_as_the_latest(tmp_path: Path, asked: str) -> None:
    path = earlier(tmp_path, MADE)
    run_config, facts = resolve_drafts(config(tmp_path, draft_from=asked.format(folder=tmp_path)))
    assert run_config.draft_from == str(path)
    assert facts == {"asked": asked.format(folder=tmp_path), "run": "earlier", "rate_without": 250.0, "why_off": ""}


def test_without_a_complete_run_latest_is_this_runs_own_answers(tmp_path: Path) -> None:
    run_config, facts = resolve_drafts(config(tmp_path, draft_from="latest"))
    assert (run_config.draft_from, facts and facts["run"]) == ("latest", None)
    drafts = Drafts(run_config, print)
    assert drafts.is_on
    assert drafts.of("vllm:a", "e", "one", (0,)) is None


def test_a_run_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--draft-from gone: no run directory with a journal, neither gone nor .*; give a run"):
        resolve_drafts(config(tmp_path, draft_from="gone"))


@pytest.mark.engine
def test_a_resumed_run_goes_on_without_the_run_that_its_drafts_came_from(project: Project, hf_text_checkpoint: Path) -> None:
    (hf_text_checkpoint / "chat_template.jinja").write_text(TEMPLATE)
    before = run(project, hf_text_checkpoint, "before")
    halt = "import pytest\ndef pytest_runtest_logfinish(nodeid):\n    pytest.exit('enough')\n"
    (project.root / "conftest.py").write_text(halt)
    assert run(project, hf_text_checkpoint, "after", "--draft-from=latest").facts["interrupted"] == "enough"
    (project.root / "conftest.py").unlink()
    expected = answers(before)
    shutil.rmtree(before.run_dir)
    resume = (f"--model={hf_text_checkpoint}", "--resume", "after")
    with one_thread():
        found = project.run_inline(*resume, backend=None)
    assert found.exit_code == 0, found.output
    assert answers(found) == expected
    with one_thread():
        given = project.run_inline(*resume, "--draft-from=none", backend=None)
    assert given.exit_code == 0, given.output


@pytest.mark.parametrize(
    ("made", "why"),
    [
        ({**MADE, "num_completion_tokens": 80}, "its answers have 8.0 tokens on average, too few for drafts to pay"),
        ({**MADE, "drafts": {"num_tokens": 900}}, "drafts brought it 250 tokens/s a worker, where there were 300 without"),
    ],
    ids=["short", "slower"],
)
def test_drafts_are_off_where_they_would_not_pay(tmp_path: Path, made: dict[str, Any], why: str) -> None:
    earlier(tmp_path, made)
    run_config, facts = resolve_drafts(config(tmp_path, draft_from="latest"))
    assert not Drafts(run_config, print).is_on
    assert facts is not None
    assert facts["why_off"].startswith(why)
    assert next(draft_lines({"drafts": facts})).startswith(f"no drafts from run earlier: {why}")


def test_a_report_says_what_drafts_brought() -> None:
    sums = {
        "num_drafted": 800,
        "num_taken": 600,
        "num_tokens": 900,
        "num_row_steps": 300,
        "num_found": 9,
        "num_answers": 10,
        "saved_s": 2.5,
    }
    facts: Any = {"drafts": {"asked": "latest", "run": "A", "rate_without": 100.0, "why_off": ""}, "throughput": [{**MADE, "drafts": sums}]}
    (line,) = draft_lines(facts)
    assert line == (
        "drafts from run A on vllm:a: 9 of 10 answers had one; 75% of 800 drafted tokens were the model's own, 3.0 tokens a step; "
        "about 2.5 s saved against this engine's own steps without drafts; 250 tokens/s a worker, 100 without in an earlier run"
        "; not in float32, so near-ties may fall otherwise than without"
    )
    facts["engines"] = [{"id": "vllm:a", "settings": {"dtype": "float32"}}]
    assert next(draft_lines(facts)).endswith("100 without in an earlier run")
    assert [*draft_lines({})] == []
