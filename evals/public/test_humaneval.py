"""HumanEval: bodies of Python functions, written out but not run (Chen et al. 2021, arXiv 2107.03374).

    pytest evals/public/test_humaneval.py --model CHECKPOINT --data FOLDER

FOLDER holds openai/openai_humaneval (revision 7dce6050a7d6d172f3cc5c32aa97f52fa1a2e544, MIT), `openai_humaneval/test-*.parquet`, or
`HumanEval.jsonl.gz` of its repository.

    {"task_id": "HumanEval/0", "prompt": "def is_even(…):\\n    …", "entry_point": "is_even", "canonical_solution": "…", …}

What a model writes is code that nobody has read, and whether it is right shows only when it runs, which takes a sandbox. Here it is never
run, so **nothing says whether it is right**: `has_body` is the share of answers with any line of a body. The answers go to
`outputs/<engine>/humaneval_samples.jsonl` in the form that the benchmark's own `evaluate_functional_correctness` takes, which runs them and
prints pass@k. Prompt and stops are those of lm-eval 0.4.13, task `humaneval` (version 1.0). For pass@10 add `num_samples=10` to the marker
and give `--temperature 0.2 --top-p 0.95`: each sample becomes a line.
https://github.com/EleutherAI/lm-evaluation-harness/tree/v0.4.13/lm_eval/tasks/humaneval
"""

from __future__ import annotations

import json

import pytest

from evalharness import DecodeOptions, GenerationOptions, StopOptions
from evalharness.data import cases_from
from evalharness.prompts import template

FILES = (
    "openai_humaneval/test-*.parquet",
    "*/openai_humaneval/test-*.parquet",
    "test-*.parquet",
    "HumanEval.jsonl",
    "*/HumanEval.jsonl",
    "HumanEval.jsonl.gz",
    "*/HumanEval.jsonl.gz",
)
COLUMNS = ("task_id", "prompt", "entry_point", "canonical_solution", "test")
STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")


def body_of(text: str) -> str:
    """Return the lines of a function's body at the beginning of a text, up to the first line that is not indented."""
    lines = []
    for line in text.split("\n"):
        if line.strip() and not line.startswith((" ", "\t")):
            break
        lines.append(line)
    return "\n".join(lines).rstrip()


def outputs(rows, target):
    """Write the answers of all samples, a line each."""
    samples = [
        {"task_id": row["case_id"], "completion": one["text"]}
        for row in rows
        for one in (row.get("generations") or [row["generation"]])
        if one is not None
    ]
    (target.folder / "humaneval_samples.jsonl").write_text("".join(json.dumps(sample) + "\n" for sample in samples), encoding="ascii")


pytestmark = pytest.mark.eval(
    cases=cases_from(*FILES, needs=COLUMNS, id="task_id", reference="canonical_solution"),
    request=template("prompt"),
    options=GenerationOptions(max_new_tokens=1024, stop=StopOptions(stop=STOPS), decode=DecodeOptions(strip_whitespace=False)),
    outputs=outputs,
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_body(generations, score):
    bodies = [body_of(one.text) for one in generations]
    score(has_body=sum(bool(body.strip()) for body in bodies) / len(bodies))
    assert all(bodies), "no line of a body"
