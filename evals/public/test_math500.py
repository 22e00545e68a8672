"""MATH-500: problems of mathematical competitions, zero-shot (Hendrycks et al. 2021, arXiv 2103.03874; Lightman et al. 2023).

    pytest evals/public/test_math500.py --model CHECKPOINT --data FOLDER

FOLDER holds HuggingFaceH4/MATH-500 (revision 6e4ed1a2a79af7d8630a6b768ec859cb5af4d3be, MIT as MATH itself), `test.jsonl`.

    {"problem": "Solve $2x + 6 = 0$ …", "solution": "… $x = \\\\boxed{-3}$.", "answer": "-3", "subject": "Algebra", "level": 1, …}

Metrics, equal per item to those of lm-eval 0.4.13: `exact_match` of its task `hendrycks_math500` (version 1.0), whose prompt this is: what
stands between the first and the last dollar sign is spelled as the solution's box. It misses answers that are written in another way, or
that end with more mathematics; `math_verify`, of its `minerva_math500`, compares values. `not_compared` are the answers without
mathematics, and those that it gave up.
https://github.com/EleutherAI/lm-evaluation-harness/tree/v0.4.13/lm_eval/tasks/hendrycks_math

Needs the extra `metrics`. The cap of 256 tokens is lm-eval's; reasoning needs more (--max-new-tokens 4096), and a chat model --as-chat.
"""

from __future__ import annotations

import pytest

from evalharness import DecodeOptions, GenerationOptions, StopOptions
from evalharness.answers import boxed
from evalharness.data import cases_from
from evalharness.prompts import template
from evalharness.scores import between_dollars, math_spelled_alike, math_verify

COLUMNS = ("problem", "solution", "answer", "subject", "level")

request = template("Problem: {{problem}}\nAnswer:")
pytestmark = pytest.mark.eval(
    cases=cases_from(
        "test.jsonl", "math500.jsonl", "*/test.jsonl", needs=COLUMNS, id="unique_id", reference="solution", tags=["subject", "level"]
    ),
    request=request,
    options=GenerationOptions(max_new_tokens=256, stop=StopOptions(stop=("Problem:",)), decode=DecodeOptions(strip_whitespace=False)),
    directions={"not_compared": "lower"},
    optional=True,
)


@pytest.mark.gate("not_compared <= 0.2", "invalid_rate <= 0.02")
def test_answer(case, generation, score, details):
    wanted = boxed()(case.reference).value or case.row["answer"]
    given = between_dollars()(generation.answer)
    verdict = math_verify(generation.answer, case.reference)
    score(exact_match=math_spelled_alike(given.value or "", wanted), math_verify=verdict.equal, not_compared=bool(verdict.problem))
    details(given=given.to_json(), wanted=wanted, problem=verdict.problem)
    assert verdict.equal, f"expected {wanted}: {verdict.problem or 'got another value'}"
