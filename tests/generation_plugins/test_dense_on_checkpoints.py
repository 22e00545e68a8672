"""The plugins for dense output on checkpoints that have learned it, all rows in one batch. Run: pytest tests/plugins"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from evalharness import GenerationOptions, GenerationResult, ModelLoadConfig, StructuredOutput, build_engine
from evalharness.engine.engine import Engine
from evalharness.generation_plugins import BalancedJsonStop, DuplicateObjectBan, DuplicateObjectStop, ObjectCap
from evalharness.generation_plugins.dense import _Objects
from evalharness.tasks import dense
from tests.backends.hf_models import one_thread

pytestmark = pytest.mark.engine

FIXTURES = Path(__file__).parents[2] / "fixtures"
OPTIONS = GenerationOptions(max_new_tokens=400)


def requests() -> list[Any]:
    """Return three photos on which the `endless` checkpoint runs on, and three on which it ends."""
    cases = dense.load_cases(FIXTURES / "site_photos")
    runs_on = [case for case in cases if any("尾纤" in one.desc for one in case.reference)]
    ends = [case for case in cases if case not in runs_on and len(case.reference) > 3]
    return [dense.request(case) for case in (*runs_on[:3], *ends[:3])]


@pytest.fixture(scope="module")
def endless() -> Iterator[Engine]:
    with one_thread(), build_engine("hf", ModelLoadConfig(str(FIXTURES / "checkpoints" / "endless"), torch_dtype="float32")) as engine:
        yield engine


def answers(engine: Engine, *plugins: Any, which: slice = slice(None)) -> list[GenerationResult]:
    return engine.generate_vlm_batch(requests()[which], OPTIONS, plugins=plugins)


@pytest.fixture(scope="module")
def free(endless: Engine) -> list[GenerationResult]:
    results = answers(endless)
    assert [result.finish_reason for result in results] == ["length"] * 3 + ["stop"] * 3
    return results


def objects_of(text: str) -> list[str]:
    """Return the complete objects of a dump, as they are compared."""
    objects = _Objects("{")
    return [complete for char in text if (complete := objects.push(char)[1]) is not None]


def num_repeats(results: Sequence[GenerationResult]) -> list[int]:
    return [len(objects_of(result.text)) - len(set(objects_of(result.text))) for result in results]


def test_an_object_cap_of_three_gives_three_objects_in_every_row(endless: Engine, free: list[GenerationResult]) -> None:
    results = answers(endless, ObjectCap(3))
    assert [len(dense.parse_dump(result.text, "rru").objects) for result in results] == [3] * 6
    assert all(said.text.startswith(result.text) for said, result in zip(free, results, strict=True))
    assert {(result.finish_reason, result.stop_reason) for result in results} == {("stop", "object-cap")}
    assert all(result.num_completion_tokens < said.num_completion_tokens for said, result in zip(free, results, strict=True))


def test_balanced_json_ends_rows_and_leaves_those_without_an_end(endless: Engine, free: list[GenerationResult]) -> None:
    results = answers(endless, BalancedJsonStop())
    assert [result.text for result in results] == [result.text for result in free]
    assert [result.stop_reason for result in results] == [None] * 3 + ["balanced-json-stop"] * 3
    assert [result.num_completion_tokens for result in results[3:]] == [result.num_completion_tokens - 1 for result in free[3:]]


def test_the_first_repeat_ends_each_row_that_has_one(endless: Engine, free: list[GenerationResult]) -> None:
    results = answers(endless, DuplicateObjectStop())
    assert num_repeats(results) == [1, 1, 1, 0, 0, 0]
    assert [result.stop_reason for result in results] == ["duplicate-object-stop"] * 3 + [None] * 3
    assert [result.text for result in results[3:]] == [result.text for result in free[3:]]


def test_no_row_of_a_batch_writes_an_object_twice_under_the_ban(endless: Engine, free: list[GenerationResult]) -> None:
    assert min(num_repeats(free)[:3]) > 0, "without it they do"
    results = answers(endless, DuplicateObjectBan())
    assert num_repeats(results) == [0] * 6
    assert [result.text for result in results[3:]] == [result.text for result in free[3:]], "rows without repeats stay as they are"


def test_a_row_under_the_ban_says_the_same_alone(endless: Engine) -> None:
    plugins = (DuplicateObjectBan(), ObjectCap(12))
    assert answers(endless, *plugins, which=slice(1, 2)) == answers(endless, *plugins)[1:2]


@pytest.mark.vllm
@pytest.mark.parametrize("plugin", [ObjectCap(3), BalancedJsonStop(), DuplicateObjectStop()], ids=lambda plugin: plugin.name)
def test_vllm_ends_rows_at_the_same_tokens_as_hf(endless: Engine, vllm_endless: Engine, plugin: Any) -> None:
    ours, theirs = answers(endless, plugin), answers(vllm_endless, plugin)
    assert [result.token_ids for result in theirs] == [result.token_ids for result in ours]
    assert [(result.text, result.stop_reason) for result in theirs] == [(result.text, result.stop_reason) for result in ours]


@pytest.mark.vllm
def test_vllms_structured_outputs_let_through_only_what_fits(vllm_endless: Engine) -> None:
    options = GenerationOptions(max_new_tokens=40, structured=StructuredOutput(regex='\\{"类别": "(标签|尾纤)"\\}'))
    for result in vllm_endless.generate_vlm_batch(requests()[:2], options):
        assert json.loads(result.text)["类别"] in ("标签", "尾纤")
        assert result.finish_reason == "stop"
