"""IFEval: are instructions followed that a program can check? (Zhou et al. 2023, arXiv 2311.07911)

    pytest evals/public/test_ifeval.py --model CHECKPOINT --data FOLDER

FOLDER holds google/IFEval (revision 966cd89545d6b6acfd7638bc708b98261ca58e84, Apache-2.0), `ifeval_input_data.jsonl`, or `input_data.jsonl`
of its repository. Needs the extra `ifeval`.

    {"key": 9000, "prompt": "Write two …", "instruction_id_list": ["punctuation:no_comma", …], "kwargs": [{}, …]}

Metrics of lm-eval 0.4.13, task `ifeval` (version 4.0), which are the authors', equal per item: `prompt_level_strict_acc`,
`prompt_level_loose_acc`, all instructions of a prompt are followed, and over all instructions `inst_level_strict_acc`,
`inst_level_loose_acc`; loosely, an answer may also follow without its first or last line or its asterisks. `…_corrected`: the strict ones
where the authors' checks are known to be wrong (`evalharness/scores/ifeval.py` says which).
https://github.com/EleutherAI/lm-evaluation-harness/tree/v0.4.13/lm_eval/tasks/ifeval

The benchmark is for chat models: --as-chat asks them so, as lm-eval's --apply_chat_template does.
"""

from __future__ import annotations

import pytest

from evalharness import DecodeOptions, GenerationOptions
from evalharness.data import cases_from
from evalharness.prompts import template
from evalharness.scores import ifeval, ifeval_aggregate

FILES = ("ifeval_input_data.jsonl", "*/ifeval_input_data.jsonl", "input_data.jsonl", "*/input_data.jsonl", "train-*.parquet")
COLUMNS = ("key", "prompt", "instruction_id_list", "kwargs")

pytestmark = pytest.mark.eval(
    cases=cases_from(*FILES, needs=COLUMNS, id="key"),
    request=template("prompt"),
    options=GenerationOptions(max_new_tokens=1280, decode=DecodeOptions(strip_whitespace=False)),
    aggregate=ifeval_aggregate,
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_instructions(case, generation, score, details):
    row = case.row
    followed = ifeval(generation.answer, row["instruction_id_list"], row["kwargs"])
    score(**followed.scores)
    details(**followed.details)
    broken = [name for name, is_followed in zip(followed.names, followed.strict, strict=True) if not is_followed]
    assert not broken, f"not followed: {', '.join(broken)}"
