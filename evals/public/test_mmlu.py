"""MMLU: questions of 57 subjects, five worked examples of each, multiple choice by likelihood (Hendrycks et al. 2021, arXiv 2009.03300).

    pytest evals/public/test_mmlu.py --model CHECKPOINT --data FOLDER

FOLDER holds the authors' CSV files, `test/*_test.csv` and `dev/*_dev.csv`, or cais/mmlu (revision c30699e8356da336a370243923dbaf21066bb9fe,
MIT): `all/test-*.parquet` or `SUBJECT/test-*.parquet`, with dev beside them, whose first five rows are the examples.

    Which of these is part of the eye?,The retina,The anvil,The tibia,The ileum,A

Metric of lm-eval 0.4.13, group `mmlu` (version 2) with --num_fewshot 5, equal per item: `acc`, the right letter is the most likely of the
four; over all it is the mean over questions, `acc_macro` that over subjects. Tags `subject` and `field` slice it. Guessing gives 0.25.
https://github.com/EleutherAI/lm-evaluation-harness/tree/v0.4.13/lm_eval/tasks/mmlu/default
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from evalharness.data import cases_from
from evalharness.prompts import few_shot, template
from evalharness.scores import CHOICE_DIRECTIONS, all_of, choice_aggregates, choice_scores, macro_over

CSV = ("{0}/*_{0}.csv", "*/{0}/*_{0}.csv", "*/*/{0}/*_{0}.csv")
FILES = (*CSV, "all/{0}-*.parquet", "*/{0}-*.parquet", "*/*/{0}-*.parquet", "{0}-*.parquet")
LETTERS = ("A", "B", "C", "D")
FIELDS = {
    "humanities": "formal_logic|high_school_(european|us|world)_history|international_law|jurisprudence|logical_fallacies|"
    "moral_(disputes|scenarios)|philosophy|prehistory|professional_law|world_religions",
    "social sciences": "econometrics|high_school_(geography|government_and_politics|(macro|micro)economics|psychology)|human_sexuality|"
    "professional_psychology|public_relations|security_studies|sociology|us_foreign_policy",
    "other": "business_ethics|clinical_knowledge|college_medicine|global_facts|human_aging|management|marketing|medical_genetics|"
    "miscellaneous|nutrition|professional_(accounting|medicine)|virology",
}
"""By the authors; all other subjects are STEM."""


def question_of(row):
    """Return a row of a CSV file or of the hub with its subject, its choices and the place of the right one."""
    choices = row["choices"] if "choices" in row else [row[letter] for letter in LETTERS]
    gold = row["answer"] if isinstance(row["answer"], int) else LETTERS.index(row["answer"])
    subject = row["subject"] if "subject" in row else Path(row["__file__"]).stem.rpartition("_")[0]
    field = next((name for name, subjects in FIELDS.items() if re.fullmatch(subjects, subject)), "STEM")
    return {"question": row["question"], "choices": choices, "gold": gold, "subject": subject, "field": field}


def rows_of(split):
    """Return the rows of a split, in any layout."""
    names = [name.format(split) for name in FILES]
    fits = lambda row: "answer" in row and ("choices" in row or "D" in row)  # noqa: E731
    return cases_from(*names, columns=["question", *LETTERS, "answer"], needs=fits, map=question_of, tags=["subject", "field"])


ask = template(
    "{{question.strip()}}\nA. {{choices[0]}}\nB. {{choices[1]}}\nC. {{choices[2]}}\nD. {{choices[3]}}\nAnswer:",
    description="The following are multiple choice questions (with answers) about {{subject | replace('_', ' ')}}.\n\n",
    choices=LETTERS,
    target="gold",
    shots=few_shot(rows_of("dev"), k=5, sampler="first_n", within="subject"),
)
pytestmark = pytest.mark.eval(
    cases=rows_of("test"),
    request=ask.ask_choices,
    aggregate=all_of(choice_aggregates, macro_over("subject", "acc")),
    directions=CHOICE_DIRECTIONS,
    optional=True,
)


@pytest.mark.gate("invalid_rate <= 0.02")
def test_letter(case, steps, score, details):
    judged = choice_scores(steps[0], LETTERS, case.row["gold"])
    score(acc=judged.scores["acc"], **{name: judged.scores[name] for name in ("p_right", "confidence", "brier_score")})
    details(**judged.details)
    assert not judged.problem, judged.problem
