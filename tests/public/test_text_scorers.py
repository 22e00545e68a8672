"""The scorers of evals/public on many texts, hostile ones among them: what lm-eval's filters and metrics say of each."""

from __future__ import annotations

import random
import runpy
import time
from typing import Any

import pytest

from evalharness.answers import Extractor
from evalharness.scores import exact_match, math_spelled_alike
from tests.public.test_text_benchmarks import PIECES, ROOT

pytestmark = pytest.mark.slow
LATEX = (
    r"\frac",
    r"\sqrt",
    r"\text{ ",
    "{",
    "}",
    "/",
    "=",
    "1",
    "2",
    "x",
    "0.5",
    ".5",
    " ",
    r"\dfrac",
    r"\left",
    r"^\circ",
    "$",
    r"\%",
    ",",
    "-",
    "3/4",
)


def eval_names(name: str) -> dict[str, Any]:
    """Return what the module of an eval defines."""
    return runpy.run_path(str(ROOT / "evals" / "public" / f"test_{name}.py"))


@pytest.mark.parametrize(
    ("name", "task", "references", "options"),
    [
        ("gsm8k", "gsm8k/gsm8k", ("a\n#### 19", "#### 1,320", "#### -5", "#### 60"), {"ignore_case": True}),
        ("mmlu_pro", "mmlu_pro/mmlu_pro_math", ("A", "B", "C"), {}),
    ],
)
def test_filters_find_and_score_what_lm_eval_does(name: str, task: str, references: tuple[str, ...], options: dict[str, Any]) -> None:
    from lm_eval.api.metrics import exact_match_hf_evaluate
    from lm_eval.filters.extraction import RegexFilter

    from tests.public.lm_eval_oracle import official_config

    module, config, draw = eval_names(name), official_config(task), random.Random(name)
    filters: dict[str, Extractor] = module["FILTERS"]
    (metric,) = config["metric_list"]
    keywords = {key: value for key, value in metric.items() if key.startswith(("ignore", "regexes"))}
    num_right = 0
    for _ in range(400):
        text, reference = "".join(draw.choices(PIECES, k=draw.randint(0, 8))), draw.choice(references)
        for entry, extract in zip(config["filter_list"], filters.values(), strict=False):
            theirs = RegexFilter(**{key: value for key, value in entry["filter"][0].items() if key != "function"})
            ((found,),) = theirs.apply([[text]], [{}])
            score = exact_match_hf_evaluate([found], [reference], **keywords)["exact_match"]
            ours = exact_match(extract(text).value, reference, regexes_to_ignore=module.get("IGNORED", ()), **options)
            assert ours == score, (entry["name"], text, reference)
            num_right += ours
    assert num_right > 10


def test_mathematics_is_spelled_alike_as_lm_eval_has_it() -> None:
    from lm_eval.tasks.hendrycks_math.utils import is_equiv

    draw, num_alike = random.Random(1), 0
    for number in range(4000):
        given = "".join(draw.choices(LATEX, k=draw.randint(0, 6)))
        wanted = given.replace(r"\dfrac", r"\frac").replace(" ", "") if number % 2 else "".join(draw.choices(LATEX, k=draw.randint(0, 3)))
        assert math_spelled_alike(given, wanted) == is_equiv(given, wanted), (given, wanted)
        num_alike += math_spelled_alike(given, wanted)
    assert 1000 < num_alike < 3500


@pytest.mark.parametrize("piece", ["-", "$1,", "#### ", "answer is ", "(A", r"\frac", r"\text{ ", "a=1/2"])
def test_no_text_is_slow(piece: str) -> None:
    extractors = [extract for name in ("gsm8k", "mmlu_pro") for extract in eval_names(name)["FILTERS"].values()]
    text, started = piece * 40_000, time.process_time()
    for extract in extractors:
        extract(text)
    math_spelled_alike(text, "1")
    assert time.process_time() - started < 2
