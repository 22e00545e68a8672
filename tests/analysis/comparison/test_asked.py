from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.comparison.compare import Comparison, compare
from evalharness.analysis.comparison.sides import read_side
from evalharness.api.errors import ComparisonError
from tests.analysis.comparison.runs import ENGINE, cases, pair, run_dir
from tests.report.runs import row

BASE = cases([1.0] * 5)


def compared(base: Path, candidate: Path, **options: Any) -> Comparison:
    return compare(read_side(str(base)), read_side(str(candidate)), **options)


def settings(**pixels: Any) -> dict[str, Any]:
    return {"settings": {"pixel_budget": pixels, "dtype": "float32"}}


OTHER_PROMPT = [*cases([1.0] * 4), row("c004", scores={"f1": 1.0}, prompt_sha256="cd34")]
OTHER_OPTION = cases([1.0] * 5, options={"max_new_tokens": 32})
WHERE = "in stage_a::test_summary"
GRAVE: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "prompts": (OTHER_PROMPT, {}, f"the prompts differ {WHERE} for 1 of 5 cases (text or image), first for c004"),
    "option": (OTHER_OPTION, {}, f"option max_new_tokens differs {WHERE}: 16 in the base, 32 in the candidate"),
    "pixels": (BASE, settings(max_pixels=100), "max_pixels differs: none in the base, 100 in the candidate"),
}


def in_steps(first: str, question: str) -> list[dict[str, Any]]:
    """Five cases whose question is made of the answers to a first step."""
    steps = [[{"text": "seen", "prompt_sha256": first}, {"text": "seen", "prompt_sha256": "aa11"}], [{"prompt_sha256": question}]]
    return cases([1.0] * 5, steps=steps, prompt_sha256=question)


def test_a_question_made_of_other_answers_is_the_same_question(tmp_path: Path) -> None:
    base = run_dir(tmp_path / "base", in_steps("ab12", "cd34"))
    alike = compared(base, run_dir(tmp_path / "cand", in_steps("ab12", "ef56"), {**ENGINE, "fingerprint": "f2"}))
    assert "prompts" not in {difference.field for difference in alike.differences}
    with pytest.raises(ComparisonError, match=f"the prompts differ {WHERE} for 5 of 5 cases"):
        compared(base, run_dir(tmp_path / "other", in_steps("ab13", "cd34"), {**ENGINE, "fingerprint": "f2"}))


@pytest.mark.parametrize("name", GRAVE)
def test_what_was_not_asked_alike_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    samples, engine, text = GRAVE[name]
    base, candidate = run_dir(tmp_path / "base", BASE), run_dir(tmp_path / "cand", samples, {**engine, "fingerprint": "f2"})
    with pytest.raises(ComparisonError, match="base and candidate were not asked the same: ") as refused:
        compared(base, candidate)
    assert text in str(refused.value)
    assert text in [difference.text for difference in compared(base, candidate, anyway=True).differences]


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ({"backend": "vllm"}, "backend differs: hf in the base, vllm in the candidate"),
        ({"template_sha256": "t2"}, "chat template differs: t1 in the base, t2 in the candidate"),
        ({"fingerprint": "f1", "checkpoint": "copy"}, "tiny and copy are the same weights (equal fingerprints)"),
    ],
    ids=["backend", "template", "weights"],
)
def test_circumstances_are_a_warning(tmp_path: Path, engine: dict[str, Any], text: str) -> None:
    base, candidate = run_dir(tmp_path / "base", BASE), run_dir(tmp_path / "cand", BASE, {"fingerprint": "f2", **engine})
    assert text in [difference.text for difference in compared(base, candidate).differences]


def test_another_harness_version_is_a_warning(tmp_path: Path) -> None:
    base, candidate = pair(tmp_path, BASE, BASE)
    text = (candidate / "run.json").read_text().replace('"evalharness": "1"', '"evalharness": "2"')
    (candidate / "run.json").write_text(text)
    assert [difference.text for difference in compared(base, candidate).differences] == [
        "harness version differs: 1 in the base, 2 in the candidate"
    ]


@pytest.mark.parametrize(("temperature", "shown"), [(0.0, []), (0.5, ["seed differs: 0 in the base, 1 in the candidate"])])
def test_a_seed_matters_where_something_was_drawn(tmp_path: Path, temperature: float, shown: list[str]) -> None:
    sides = []
    for seed in (0, 1):
        samples = cases([1.0] * 5, options={"temperature": temperature, "seed": seed})
        sides.append(run_dir(tmp_path / f"s{seed}", samples, {"fingerprint": f"f{seed}"}, config={"seed": {"value": seed}}))
    assert [difference.text for difference in compared(*sides).differences] == shown


def test_an_option_that_the_other_version_did_not_know_is_no_difference(tmp_path: Path) -> None:
    base, candidate = pair(tmp_path, BASE, cases([1.0] * 5, options={"max_new_tokens": 16, "new": None}))
    assert compared(base, candidate).differences == []


def test_other_cases_are_counted(tmp_path: Path) -> None:
    base, candidate = pair(tmp_path, BASE, [*cases([1.0] * 3), row("more", scores={"f1": 1.0})])
    assert "the cases differ in stage_a::test_summary: 3 in both, 2 only in the base, 1 only in the candidate" in [
        difference.text for difference in compared(base, candidate).differences
    ]


def test_no_common_case_is_refused_even_anyway(tmp_path: Path) -> None:
    base, candidate = pair(tmp_path, [row("a")], [row("b")])
    with pytest.raises(ComparisonError, match="base and candidate share no case"):
        compared(base, candidate)
    with pytest.raises(ComparisonError, match="no case was judged on both sides"):
        compared(base, candidate, anyway=True)


def test_the_same_texts_of_two_checkpoints_are_a_warning(tmp_path: Path) -> None:
    other = run_dir(tmp_path / "other", BASE, {"fingerprint": "f2", "checkpoint": "other"})
    found = [difference.text for difference in compared(run_dir(tmp_path / "base", BASE), other).differences]
    assert found == ["tiny and other gave the same answers to all 5 cases of stage_a::test_summary: are they the same weights?"]
    changed = [*cases([1.0] * 4), row("c004", scores={"f1": 1.0}, text="other")]
    other = run_dir(tmp_path / "unlike", changed, {"fingerprint": "f2", "checkpoint": "other"})
    assert compared(tmp_path / "base", other).differences == []


def test_a_test_of_one_side_only_is_a_warning(tmp_path: Path) -> None:
    base, candidate = pair(tmp_path, BASE, [*BASE, row("a", test="test_more")])
    assert [difference.text for difference in compared(base, candidate).differences] == ["stage_a::test_more is only in cand (hf:tiny)"]


def test_two_engines_of_one_run_can_be_compared(tmp_path: Path) -> None:
    samples = [*BASE, *cases([0.5] * 5, engine="hf:other")]
    run = run_dir(tmp_path / "both", samples, engines=[ENGINE, {**ENGINE, "id": "hf:other", "checkpoint": "other", "fingerprint": "f2"}])
    comparison = compare(read_side(f"{run}:tiny"), read_side(f"{run}:other"))
    assert [change.change.difference for change in comparison.metrics if change.metric == "f1"] == [-0.5]
