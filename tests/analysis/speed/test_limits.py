"""Where seconds went, and the sentence on what limits: the largest share, whatever the numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from evalharness.analysis.speed.limits import Spent, limit, shares

SECONDS = st.floats(0, 1e6)
MAYBE = st.none() | SECONDS
SPENT = st.builds(
    Spent,
    **dict.fromkeys(("load_s", "tests_s", "idle_s", "generation_s", "picture_wait_s", "first_picture_s"), SECONDS),  # type: ignore[arg-type]
    **dict.fromkeys(("prefill_s", "decode_s", "bound_prefill_s", "bound_decode_s", "rows_per_step", "rows_at_once"), MAYBE),  # type: ignore[arg-type]
    **dict.fromkeys(("busy", "rows_possible", "kv_rows", "step_s", "bound_step_s"), MAYBE),  # type: ignore[arg-type]
)


@given(SPENT)
def test_shares_are_all_seconds_and_the_largest_limits(spent: Spent) -> None:
    parts = shares(spent)
    assert sum(parts.values()) == pytest.approx(spent.total_s)
    assert min(parts.values()) >= 0
    name, sentence = limit(spent)
    assert sentence
    if name != "nothing":
        assert parts[name] == max(parts.values())


# 100 s of decoding at 1,024 rows, where the card needs 34: what was measured on an H200.
BUSY = Spent(
    load_s=20,
    generation_s=120,
    prefill_s=20,
    decode_s=100,
    bound_prefill_s=18,
    bound_decode_s=16,
    rows_per_step=900,
    rows_at_once=1024,
    rows_possible=6144,
    step_s=0.060,
    bound_step_s=0.010,
)


@pytest.mark.parametrize(
    ("changes", "name", "words"),
    [
        (
            {"busy": 0.35},
            "decode",
            [
                "a step of 900 rows takes 60.0 ms, of which the card needs 10.0",
                "the card idles 78.0 s (the CPU's work for each step and row) and its kernels take 8.0 s",
            ],
        ),
        ({"busy": 0.95}, "decode", ["; its kernels take 80.0 s longer than it needs and the card idles 6.0 s"]),
        ({}, "decode", ["longer than the card needs", "not measured (no NVML)"]),
        ({"bound_prefill_s": None, "bound_decode_s": None}, "decode", ["take longest"]),
        ({"load_s": 300, "busy": 0.35}, "loading", ["starting engines", "while it generates, decode", "the CPU's work"]),
        ({"tests_s": 300}, "tests", ["tests are slower than the engine"]),
        ({"idle_s": 300}, "idle", ["nothing to do"]),
        ({"picture_wait_s": 90}, "pictures", ["waiting for pictures"]),
        ({"first_picture_s": 70, "picture_wait_s": 10}, "first picture", ["the first picture"]),
        ({"prefill_s": 90, "decode_s": 20}, "prefill", ["reading prompts"]),
        ({"prefill_s": None, "decode_s": None}, "generation", ["not measured on this backend"]),
        ({"bound_prefill_s": 20, "bound_decode_s": 90}, "card", ["the card's own limit", "reading memory of decoding"]),
        ({"bound_prefill_s": 20, "bound_decode_s": 90, "is_bound_by_memory": False}, "card", ["the arithmetic of decoding"]),
        ({"bound_prefill_s": 90, "bound_decode_s": 20}, "card", ["the arithmetic of prompts"]),
        ({"rows_per_step": 60, "rows_possible": 64}, "decode", ["only 64 answers for each worker"]),
        ({"rows_per_step": 60, "kv_rows": 70}, "decode", ["room for about 70 answers"]),
    ],
)
def test_each_limit_has_its_sentence(changes: dict[str, float], name: str, words: list[str]) -> None:
    found, sentence = limit(replace(BUSY, **changes))  # type: ignore[arg-type]
    assert found == name
    for word in words:
        assert word in sentence


def test_nothing_generated_is_limited_by_nothing() -> None:
    assert limit(Spent())[0] == "nothing"
