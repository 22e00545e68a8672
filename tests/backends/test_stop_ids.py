"""Stop token ids that a model can never say. Run: pytest tests/backends/test_stop_ids.py"""

from __future__ import annotations

from typing import Any

import pytest

from evalharness.api.errors import ConfigError
from evalharness.backends.fake import FakeTokenizer
from evalharness.backends.stops import check_stop_ids
from tests.backends.vllm_models import plan

BEYOND = ord("z") + 4  # the fake tokenizer's id of "z"


def check(**changes: Any) -> None:
    check_stop_ids(plan(**changes), vocab_size=100, eos_token_ids=(2, 500), tokenizer=FakeTokenizer())


@pytest.mark.parametrize("token_id", [100, BEYOND, 2**31 - 100])
def test_an_id_beyond_the_vocabulary_is_refused_by_number(token_id: int) -> None:
    with pytest.raises(ConfigError, match=rf"stop token id {token_id} would never stop: the model's vocabulary ends at 99"):
        check(stop_token_ids=(2, token_id))


@pytest.mark.parametrize(
    "changes",
    [
        {"stop_token_ids": ()},
        {"stop_token_ids": (0, 99)},
        {"stop_token_ids": (2, 500)},
        {"stop_token_ids": (BEYOND,), "stop_strings": ("z",)},
    ],
    ids=["none", "the last", "the checkpoint's own end", "a string that is looked for"],
)
def test_ids_that_do_no_harm_are_taken(changes: dict[str, Any]) -> None:
    check(**changes)
