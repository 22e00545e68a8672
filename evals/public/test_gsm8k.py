"""GSM8K: word problems of primary school, five worked examples, a free answer (Cobbe et al. 2021, arXiv 2110.14168).

    pytest evals/public/test_gsm8k.py --model CHECKPOINT --data FOLDER

FOLDER holds openai/gsm8k (revision 740312add88f781978c0658806c59bc2815b9866, MIT), `main/test-*.parquet` and `main/train-*.parquet`, or its
repository's `test.jsonl` and `train.jsonl`; examples are drawn from train.

    {"question": "Tom has 4 boxes of 6 pens and gives away 5. How many are left?", "answer": "He has 4*6=<<4*6=24>>24 pens.\\n…\\n#### 19"}

Metrics of lm-eval 0.4.13, task `gsm8k` (version 3.0), equal per item: `exact_match_strict`, the number behind the first `####`;
`exact_match_flexible`, the last number. The latter takes "..." for a number, and "60.00" for another than "60": `right` compares the last
number by its value. `not_found_…` are the answers without any.
https://github.com/EleutherAI/lm-evaluation-harness/tree/v0.4.13/lm_eval/tasks/gsm8k

For a chat model: --as-chat --max-new-tokens 1024.
"""

from __future__ import annotations

import pytest

from evalharness import DecodeOptions, GenerationOptions, StopOptions
from evalharness.answers import by_filter, first_match, last_match, last_number
from evalharness.data import cases_from
from evalharness.prompts import few_shot, template
from evalharness.scores import exact_match

TEST = ("main/test-*.parquet", "*/main/test-*.parquet", "test-*.parquet", "test.jsonl", "gsm8k_test.jsonl")
TRAIN = ("main/train-*.parquet", "*/main/train-*.parquet", "train-*.parquet", "train.jsonl", "gsm8k_train.jsonl")
IGNORED = (",", r"\$", r"(?s).*#### ", r"\.$")
FILTERS = {"strict": first_match(r"#### (\-?[0-9\.\,]+)"), "flexible": last_match(r"(-?[$0-9.,]{2,})|(-?[0-9]+)")}

request = template(
    "Question: {{question}}\nAnswer:",
    target="answer",
    shots=few_shot(cases_from(*TRAIN, needs=("question", "answer")), k=5, sampler="lm_eval"),
)
pytestmark = pytest.mark.eval(
    cases=cases_from(*TEST, needs=("question", "answer"), reference="answer"),
    request=request,
    options=GenerationOptions(
        max_new_tokens=256, stop=StopOptions(stop=("Question:", "</s>", "<|im_end|>")), decode=DecodeOptions(strip_whitespace=False)
    ),
    directions={"not_found_strict": "lower", "not_found_flexible": "lower"},
    optional=True,
)


@pytest.mark.gate("not_found_flexible <= 0.2", "invalid_rate <= 0.02")
def test_number(case, generation, score, details):
    judged = by_filter(
        generation.answer,
        FILTERS,
        exact_match=lambda found: exact_match(found, case.reference, regexes_to_ignore=IGNORED, ignore_case=True),
    )
    number = case.reference.rpartition("#### ")[2]
    last = last_number()(generation.answer).value
    right = exact_match(last, number, as_numbers=True)
    score(**judged.scores, right=right)
    details(**judged.details)
    assert right, f"expected {number}, got {last}"
