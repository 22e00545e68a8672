"""The evals of given text as they are shipped, on scripted scores: rows, gates, workers, resumed and rescored runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.pytest_plugin.project import Project, Run

ROOT = Path(__file__).parents[2]
CHOICES = [
    {"id": "sky", "prompt": "What colour is the sky?", "choices": ["Blue", "Green", "Bluish green"], "answer": "Blue"},
    {"id": "grass", "text": "Grass is", "choices": [" green", " blue"], "answer": " green"},
    {"id": "night", "prompt": "What colour is the night?", "choices": ["Black", "White"], "answer": "Black"},
]
REFERENCES = [
    {"id": "hello", "prompt": "Greet.", "response": "Hello.", "tags": {"kind": "chat"}},
    {"id": "sea", "text": "The sea is", "response": " blue.", "tags": {"kind": "text"}},
]
# Two nats a character for what is white or green after a colour question, half a nat for anything else.
SCRIPT = [{"contains": "assistant\nGreen", "logprobs": -2.0}, {"contains": "White", "logprobs": -0.1}, {"logprobs": -0.5}]


def given_text(project: Project) -> Project:
    """Write the two shipped evals, rows of our own and a script of scores."""
    for name, rows in (("choices", CHOICES), ("perplexity", REFERENCES)):
        project.write(**{f"test_{name}": (ROOT / "evals" / f"test_{name}.py").read_text("utf-8")})
        (project.root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (project.root / "scores.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SCRIPT))
    return project


def run(project: Project, *options: str, mode: str = "no-xdist") -> Run:
    return project.run("--model=scores.jsonl", "--data=.", *options, mode=mode)


def check(found: Run) -> None:
    rows = {f"{row['eval']}/{row['case_id']}": row for row in found.rows}
    assert [name for name, row in rows.items() if row["outcome"] == "pass"] == ["choices/sky", "perplexity/hello", "perplexity/sea"]
    assert [name for name, row in rows.items() if row["outcome"] == "miss"] == ["choices/grass", "choices/night"]
    assert rows["choices/sky"]["scores"]["acc"] == 1.0
    assert [one["text"] for one in rows["choices/sky"]["steps"][0]] == ["Green", "Bluish green", "Blue"]
    assert rows["choices/night"]["problem"].splitlines()[0] == "'White' is at least as likely as the right 'Black'"
    assert rows["choices/sky"]["generation"]["finish_reason"] == "scored"
    assert rows["choices/sky"]["generation"]["logprobs"] == [-0.5] * 4
    assert rows["choices/grass"]["details"]["choices"][0] == {"text": " green", "logprob": -3.0, "tokens": 6}
    assert rows["perplexity/hello"]["scores"]["num_tokens"] == 7.0  # the end of an answer counts
    assert rows["perplexity/sea"]["scores"]["num_tokens"] == 6.0
    assert found.gate("acc >= 0.80")["value"] == pytest.approx(1 / 3)
    assert found.gate("perplexity <= 1.2")["value"] == pytest.approx(2.718281828**0.5)


def test_scores_of_given_text_are_rows_and_gates_like_any_others(project: Project, mode: str) -> None:
    found = run(given_text(project), mode=mode)
    assert found.exit_code == pytest.ExitCode.TESTS_FAILED, found.output
    check(found)
    [throughput] = found.facts["throughput"]
    assert throughput["num_generations"] == 9
    assert throughput["num_completion_tokens"] == 0  # nothing was generated


def test_a_resumed_run_scores_nothing_twice(project: Project) -> None:
    first = run(given_text(project), "--run-id", "r")
    journal = next((first.run_dir / "journal").glob("*.jsonl"))
    lines = journal.read_bytes().splitlines(keepends=True)
    kept = [line for line in lines if b'"case_id":"night"' not in line]
    assert len(kept) < len(lines)
    journal.write_bytes(b"".join(kept))
    (project.root / "scores.jsonl").write_text('{"contains": "night", "logprobs": -0.5}\n{"error": "it was scored again"}\n')
    shutil.rmtree(project.root / "__pycache__", ignore_errors=True)
    project.run("--resume", "r")
    resumed = Run(0, "", 0.0, project.root, "r")
    assert resumed.row("sky")["scores"]["acc"] == 1.0
    assert resumed.row("night")["outcome"] == "miss"
    assert {row["outcome"] for row in resumed.rows} == {"pass", "miss"}


def test_stored_scores_are_judged_again(project: Project) -> None:
    live = run(given_text(project), "--run-id", "live")
    again = Run(*project.evalharness("rescore", "reports/live", "--run-id", "again"), 0.0, project.root, "again")
    assert {row["nodeid"]: row["scores"] for row in again.rows} == {row["nodeid"]: row["scores"] for row in live.rows}, again.output
    (project.root / "perplexity.jsonl").write_text(json.dumps({**REFERENCES[0], "response": "Good day."}) + "\n")
    _, output = project.evalharness("rescore", "reports/live", "--run-id", "other")
    assert "the response that is scored would be different now" in output


def test_without_rows_the_evals_are_skipped_with_the_reason(project: Project) -> None:
    given_text(project)
    (project.root / "choices.jsonl").unlink()
    found = run(project)
    assert {row["eval"] for row in found.rows} == {"perplexity"}
    assert "2 passed, 1 skipped" in found.summary()
    assert "this eval is optional, and has no data" in run(project, "-rs").output


def test_two_checkpoints_that_score_alike_are_noticed_and_others_are_not(project: Project) -> None:
    given_text(project)
    (project.root / "same.jsonl").write_text((project.root / "scores.jsonl").read_text())
    (project.root / "worse.jsonl").write_text('{"logprobs": -4.0}\n')
    rows = [{"id": f"r{i}", "prompt": "Greet.", "response": "Hello" + "o" * i} for i in range(4)]
    (project.root / "perplexity.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = project.run("--model=scores.jsonl,same.jsonl,worse.jsonl", "--data=.", "test_perplexity.py")
    assert "fake:scores and fake:same gave the same answer to every case of perplexity" in found.output.replace("\n  ", " ")
    assert "fake:worse gave the same answer" not in found.output.replace("\n  ", " ")
