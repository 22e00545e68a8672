"""An engine's speed from the records of a run: by hand, from planted costs of steps, and from damaged and older runs."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from evalharness.analysis.speed.bound import Work
from evalharness.analysis.speed.engine_speed import engine_speed, engine_speeds, first_picture_s, split_steps, step_cost
from evalharness.backends.work import WorkSums
from evalharness.checkpoints.model_shape import shape_of
from evalharness.report.speed import speed_lines, speed_section
from tests.checkpoints.shapes import QWEN3_4B, dense

SHAPE = shape_of(QWEN3_4B, dense(QWEN3_4B), "bfloat16").to_json()


def entry(**changes: Any) -> Any:
    """Return what run.json says of 6,144 x (184 -> 128) on an H200 in 47 s, six steps of seven at 1,024 rows."""
    work = Work.of_equal(6144, 184, 128)
    answers = {name: value for name, value in asdict(work).items() if name not in ("num_kept_tokens", "num_patches", "sum_patch_squares")}
    sums = {"num_steps": 768.0, "step_s": 46.0, "step_rows": 786432.0, "new_rows": 6144.0, "shared_steps": 0.0, "plain_steps": 762.0}
    sums |= {"plain_s": 40.0, "plain_rows": 780288.0, "plain_row_squares": 780288.0 * 1024, "plain_row_seconds": 40.0 * 1024}
    sums |= {"energy_j": 18_800.0, "busy_looks": 47.0, "busy_sum": 23.5}
    return {
        "engine": "vllm:x",
        "num_workers": 1,
        "generation_s": 47.0,
        "num_generations": 6144,
        "num_prompt_tokens": 6144 * 184,
        "num_completion_tokens": 6144 * 128,
        "load_s": 40.0,
        "tests_s": 2.0,
        "idle_s": 0.0,
        "answers": answers,
        "work": sums,
        "cost": {"card": "NVIDIA H200", "num_cards": 1, "shape": SHAPE, "rows_at_once": 1024, "kv_tokens": 1_000_000},
        **changes,
    }


def test_an_h200_by_hand() -> None:
    speed = engine_speed(entry())
    assert speed["tokens_per_s"] == pytest.approx(6144 * 128 / 47)
    assert speed["bound_tokens_per_s"] == pytest.approx(50_270, rel=0.001)
    assert speed["share_of_bound"] == pytest.approx(15.64 / 47, rel=0.001)
    assert speed["mfu"] == pytest.approx(1.4719e16 / 989.4e12 / 47, rel=0.001)
    assert speed["mbu"] == pytest.approx(3.4938e13 / 4.8e12 / 47, rel=0.001)
    assert (speed["prefill_s"], speed["decode_s"]) == (6.0, 40.0)
    assert speed["j_per_token"] == pytest.approx(18_800 / 786_432)
    assert (speed["watts"], speed["busy"]) == (400.0, 0.5)
    assert speed["unknown"] == {}
    assert speed["limited_by"] == "loading"


def test_a_card_that_is_not_known_is_said_and_nothing_is_guessed() -> None:
    for cost, why in (
        ({"card": "NVIDIA H900"}, "NVIDIA H900 is not in the table"),
        ({"card": "Tesla T4"}, "has no figure for bfloat16"),
        ({"card": None, "card_unknown": "it ran on cpu"}, "it ran on cpu"),
    ):
        speed = engine_speed(entry(cost={**entry()["cost"], **cost}))
        assert why in speed["unknown"]["card"]
        assert [speed[name] for name in ("mfu", "mbu", "bound_s", "share_of_bound")] == [None] * 4
        assert speed["prefill_s"] == 6.0
        assert why in "\n".join(speed_lines([speed]))


def test_a_run_of_an_older_version_says_so() -> None:
    old = {name: entry()[name] for name in ("engine", "generation_s", "num_completion_tokens", "num_prompt_tokens", "num_workers")}
    (speed,) = engine_speeds({"throughput": [old]})  # type: ignore[typeddict-item]
    assert speed["tokens_per_s"] == pytest.approx(6144 * 128 / 47)
    assert "older version" in "\n".join(speed_lines([speed]))
    assert list(speed_section([speed])) == []
    assert engine_speeds({}) == []


def test_steps_of_a_part_of_the_answers_are_not_taken_for_all() -> None:
    speed = engine_speed(entry(answers={**entry()["answers"], "num_answers": 12_288}))
    assert "of a part of the answers" in speed["unknown"]["prefill, decode"]
    assert (speed["prefill_s"], speed["mbu"], speed["num_steps"]) == (None, None, None)
    assert engine_speed(entry(answers={**entry()["answers"], "num_answers": 6144}))["prefill_s"] == 6.0


def test_drafts_are_seen_by_tokens_of_a_row() -> None:
    speed = engine_speed(entry(work={**entry()["work"], "num_steps": 384.0, "step_rows": 393_216.0}))
    assert speed["tokens_per_row"] == 2.0
    assert "2.00 tokens for each in a step" in "\n".join(speed_lines([speed]))


def test_several_cards_and_workers_have_their_limits_together() -> None:
    one = engine_speed(entry())
    both = engine_speed(entry(cost={**entry()["cost"], "num_cards": 2}))
    assert both["bound_s"] == pytest.approx((one["bound_s"] or 0) / 2)
    assert engine_speed(entry(num_workers=4))["bound_s"] == pytest.approx(one["bound_s"])
    many = engine_speed(entry(num_workers=48))  # 128 answers for each: smaller steps, which read the weights more often
    assert (many["bound_s"] or 0) > (one["bound_s"] or 0)


def test_pictures_whose_size_is_not_known_are_said_to_be_left_out() -> None:
    answers = {**entry()["answers"], "num_pictures": 3}
    assert "vision tower" in engine_speed(entry(answers=answers))["unknown"]


STEPS = st.lists(st.tuples(st.integers(1, 1024), st.booleans()), min_size=2, max_size=60)


@given(STEPS, st.floats(0.001, 0.1), st.floats(1e-6, 1e-3), st.floats(0.01, 1.0))
def test_planted_costs_of_steps_are_found(steps: list[tuple[int, bool]], fixed: float, each: float, reading: float) -> None:
    work, now, prefill, decode, before = WorkSums(), 1000.0, 0.0, 0.0, 0
    work._last_s = now
    plain: set[int] = set()
    for num_rows, reads in steps:
        work.leave(before)
        going = num_rows - 1 if reads else num_rows
        work._num_rows = going
        own = fixed + each * going if going else 0.0
        now += own + (reading if reads else 0.0)
        prefill, decode, before = prefill + (reading if reads else 0.0), decode + own, num_rows
        plain |= set() if reads else {num_rows}
        work.step(num_rows, now)
    sums = work.read()
    found = split_steps(sums)
    assert sum(value or 0.0 for value in found) == pytest.approx(prefill + decode)
    if len(plain) > 1:
        assert np.allclose(step_cost(sums) or (), (fixed, each), rtol=0.02, atol=1e-4)
        assert np.allclose(found, (prefill, decode), rtol=0.02, atol=1e-2)  # type: ignore[arg-type]


def test_the_first_picture_is_what_it_took_more_than_later_prompts() -> None:
    sums = {"num_steps": 100.0, "plain_steps": 90.0, "step_s": 40.0, "plain_s": 2.0, "num_first_pictures": 1.0, "first_picture_s": 20.0}
    assert first_picture_s(sums) == pytest.approx(18.0)
    assert first_picture_s({**sums, "plain_steps": 99.0}) is None
    assert first_picture_s({}) is None


KEYS = st.sampled_from([*entry(), *entry()["work"], *SHAPE, "x"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from([*entry()]), JSON), st.dictionaries(st.sampled_from([*entry()["work"]]), JSON))
def test_whatever_a_run_holds_its_speed_can_be_shown(damage: dict[str, Any], sums: dict[str, Any]) -> None:
    whole = entry()
    for values in ({**whole, **damage}, {**whole, "work": {**whole["work"], **sums}}, {**whole, "cost": {**whole["cost"], **damage}}):
        speeds = engine_speeds({"throughput": [values]})  # type: ignore[typeddict-item]
        assert all(line.isprintable() for line in speed_lines(speeds))
        json.dumps(speeds, allow_nan=False)
        "".join(speed_section(speeds))


@pytest.mark.parametrize("damage", [{"merge": 0, "num_merger_params": 3}, {"num_experts": 2, "experts_per_token": 5}], ids=str)
def test_a_shape_that_no_model_has_is_none(damage: dict[str, Any]) -> None:
    whole = entry()
    whole["cost"]["shape"] = {**SHAPE, **damage}
    (speed,) = engine_speeds({"throughput": [whole]})
    assert speed["unknown"]["model"] == "its record is damaged"


def test_a_rate_that_is_no_number_is_left_out() -> None:
    (speed,) = engine_speeds({"throughput": [entry(generation_s=1e-320)]})
    assert speed["tokens_per_s"] is None
