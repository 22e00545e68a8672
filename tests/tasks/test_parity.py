"""How far engines agree, on rows as runs hold them. Run: pytest tests/tasks/test_parity.py"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.tasks.parity import compare_engines, compare_generations, differing_settings


def made(
    token_ids: Sequence[int], logprobs: Sequence[float] | None = None, prompt: str = "p", num_prompt_tokens: int = 7
) -> dict[str, Any]:
    text = "".join(chr(0x61 + token_id) for token_id in token_ids)
    return {
        "token_ids": list(token_ids),
        "logprobs": None if logprobs is None else list(logprobs),
        "prompt_sha256": prompt,
        "num_prompt_tokens": num_prompt_tokens,
        "text": text,
    }


def rows(*generations: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"case_id": f"c{i}", "generation": generation} for i, generation in enumerate(generations)]


def entry(engine: str, **settings: Any) -> dict[str, Any]:
    return {"id": engine, "backend": engine.split(":")[0], "dtype": None, "template_sha256": "t", "settings": settings, "load_s": 1.5}


ONE, TWO = "hf:m@float32", "hf:m@bfloat16"
ENGINES = {ONE: entry(ONE, dtype="float32", torch="2.1"), TWO: entry(TWO, dtype="bfloat16", torch="2.1")}


def test_the_first_differing_token_is_the_split_and_has_a_gap_of_its_own() -> None:
    compared = compare_generations(made([1, 2, 3], [-0.1, -0.2, -0.3]), made([1, 2, 3], [-0.1, -0.25, -0.3]))
    assert (compared.same_prompt, compared.split, compared.split_gap) == (True, None, None)
    assert compared.gaps == pytest.approx((0.0, 0.05, 0.0))
    compared = compare_generations(made([1, 2, 3], [-0.1, -0.8, -5.0]), made([1, 4, 3], [-0.1, -0.9, -0.1]))
    assert (compared.split, compared.gaps) == (1, (0.0,))
    assert compared.split_gap == pytest.approx(0.1)
    compared = compare_generations(made([1, 2]), made([1, 3], [-0.1, -0.1]))  # without log-probabilities
    assert (compared.split, compared.gaps, compared.split_gap) == (1, (), None)
    pair = [made([1, 2], [-0.1, -0.2]), made([1], [-0.1])]  # one has ended
    for ours, theirs in (pair, pair[::-1]):
        compared = compare_generations(ours, theirs)
        assert (compared.split, compared.split_gap) == (1, None)
    for change in ({"prompt": "q"}, {"num_prompt_tokens": 8}):
        assert not compare_generations(made([1]), made([1], **change)).same_prompt


def test_engines_that_are_each_sure_of_another_token_are_far_apart() -> None:
    sure = compare_generations(made([1], [-0.01]), made([2], [-0.01])).split_gap
    certain = compare_generations(made([1], [0.0]), made([2], [0.0])).split_gap
    assert sure is not None
    assert sure == pytest.approx(-0.01 - math.log(1 - math.exp(-0.01)))
    assert certain == pytest.approx(-math.log(1e-9))


@given(st.floats(0.001, 0.999), st.floats(0.001, 0.999))
def test_a_split_gap_never_exceeds_the_true_difference_of_the_engines(one: float, other: float) -> None:
    # Two tokens only, so the whole distributions are known; each engine takes its likelier one.
    ours, theirs = (one, 1 - one), (other, 1 - other)
    mine, yours = ours.index(max(ours)), theirs.index(max(theirs))
    if mine != yours:
        gap = compare_generations(made([mine], [math.log(ours[mine])]), made([yours], [math.log(theirs[yours])])).split_gap
        assert gap is not None
        assert 0 <= gap <= max(abs(math.log(a) - math.log(b)) for a, b in zip(ours, theirs, strict=True)) + 1e-9


@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_a_split_is_where_ids_first_differ(ours: list[int], theirs: list[int]) -> None:
    split = compare_generations(made(ours), made(theirs)).split
    assert (split is None) == (ours == theirs)
    if split is not None:
        assert ours[:split] == theirs[:split]
        assert ours[split : split + 1] != theirs[split : split + 1]


def test_each_engine_has_its_metrics_against_the_other() -> None:
    comparison = compare_engines(
        {
            ONE: rows(made([1, 2], [-0.1, -0.2]), made([1, 2], [-0.1, -0.8])),
            TWO: rows(made([1, 2], [-0.1, -0.2]), made([1, 3], [-0.3, -0.9])),
        },
        ENGINES,
    )
    assert comparison.metrics[ONE] == comparison.metrics[TWO]
    assert comparison.metrics[ONE] == {
        "same_prompt": 1.0,
        "same_tokens": 0.5,
        "split_gap_max": pytest.approx(0.1),
        "prefix_gap_mean": pytest.approx(0.2 / 3),
        "prefix_gap_max": pytest.approx(0.2),
    }
    (split,) = comparison.tables[ONE]["first differences"]
    assert (split["case"], split["against"], split["token"], split["here"], split["there"]) == ("c1", TWO, 1, "c", "d")


def test_of_three_engines_the_worst_other_one_counts() -> None:
    three = {ONE: rows(made([1])), TWO: rows(made([1])), "vllm:m": rows(made([2]))}
    metrics = compare_engines(three, {**ENGINES, "vllm:m": entry("vllm:m")}).metrics
    assert {engine: each["same_tokens"] for engine, each in metrics.items()} == {ONE: 0.0, TWO: 0.0, "vllm:m": 0.0}


def test_a_failed_gate_can_name_the_settings_that_differ_and_without_common_cases_there_are_no_metrics() -> None:
    both = {ONE: rows(made([1])), TWO: rows(made([1]))}
    assert compare_engines(both, ENGINES).remarks[ONE] == "the engines differ in dtype (float32 / bfloat16)"
    same = {ONE: ENGINES[ONE], TWO: {**ENGINES[ONE], "id": TWO}}
    assert compare_engines(both, same).remarks[ONE] == "the engines differ in no setting that is known"
    assert compare_engines({**both, TWO: []}, ENGINES).metrics == {}


def test_nested_settings_and_important_settings_of_one_engine_are_compared() -> None:
    hf = entry("hf:m", dtype="float32", torch="2.1", attn_implementation="sdpa", pixel_budget={"max_pixels": 9}, max_rows_per_batch=4)
    vllm = entry("vllm:m", dtype="float32", torch="2.2", vllm="0.32", arguments={"seed": 0}, max_num_seqs=8)
    lines = {line["setting"]: (line["hf:m"], line["vllm:m"]) for line in differing_settings({"hf:m": hf, "vllm:m": vllm})}
    assert lines == {
        "backend": ("hf", "vllm"),
        "attn_implementation": ("sdpa", None),
        "torch": ("2.1", "2.2"),
        "vllm": (None, "0.32"),
        "pixel_budget.max_pixels": (9, None),
    }
