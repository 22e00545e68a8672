"""HellaSwag: which of four endings follows? Multiple choice by likelihood, zero-shot (Zellers et al. 2019, arXiv 1905.07830).

    pytest evals/public/test_hellaswag.py --model CHECKPOINT --data FOLDER

FOLDER holds Rowan/hellaswag (revision 218ec52e09a7e7462a5400043bb9a69a41d06b76, MIT) or `hellaswag_val.jsonl` of its repository. Only the
validation split has labels.

    {"ind": 4, "source_id": "own~4", "activity_label": "Baking", "ctx_a": "A woman …", "ctx_b": "she", "endings": […], "label": "0", …}

Metrics of lm-eval 0.4.13, task `hellaswag` (version 1.0), equal per item: `acc`, the ending with the highest log-probability; `acc_norm`,
the highest per character, which papers report. Guessing gives 0.25.
https://github.com/EleutherAI/lm-evaluation-harness/tree/v0.4.13/lm_eval/tasks/hellaswag
"""

from __future__ import annotations

import re

import pytest

from evalharness.api.errors import ConfigError
from evalharness.data import cases_from
from evalharness.prompts import template
from evalharness.scores import CHOICE_DIRECTIONS, choice_aggregates, choice_scores

FILES = ("data/validation-*.parquet", "*/data/validation-*.parquet", "validation-*.parquet", "hellaswag_val.jsonl", "*/hellaswag_val.jsonl")


def cleaned(text: str) -> str:
    """Return a text without what WikiHow's pages left in it: titles become sentences, other marks in brackets go."""
    text = re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". "))
    return text.replace("  ", " ")


def question_of(row):
    """Return a row as a prompt, its endings and the place of the right one."""
    if row["label"] == "":
        raise ConfigError(f"{row['__file__']} has a row without a label, as HellaSwag's test split has them; give its validation split")
    context = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
    return row | {"prompt": cleaned(context), "choices": [*map(cleaned, row["endings"])], "gold": int(row["label"])}


ask = template("{{prompt}}", choices="choices", target="gold")
COLUMNS = ("ctx_a", "ctx_b", "endings", "label", "ind", "source_id")
pytestmark = pytest.mark.eval(
    # ActivityNet's and WikiHow's rows are numbered apart.
    cases=cases_from(*FILES, needs=COLUMNS, id=("source_id", "ind"), tags=["activity_label"], map=question_of),
    request=ask.ask_choices,
    aggregate=choice_aggregates,
    directions=CHOICE_DIRECTIONS,
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_ending(case, steps, score, details):
    judged = choice_scores(steps[0], ask.choices_of(case), ask.target_of(case))
    score(**judged.scores)
    details(**judged.details)
    assert not judged.problem, judged.problem
