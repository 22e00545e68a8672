"""Images: number, order, sizes, budget. Run: pytest tests/contract/test_images.py"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import BackendError, ImageError, PromptTooLong
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.requests import GenerationFailure
from evalharness.backends.base import Backend, BackendOutput, Prompt
from evalharness.backends.checkpoint_reading import load_tokenizer_and_processor
from evalharness.engine.backend_contract import FREE, ask, generate, look, noise, outcomes_of
from evalharness.engine.engine import Engine
from tests.backends.vllm_models import BUDGET
from tests.contract.stand_ins import CONTEXT, StandIn

SHORT = replace(FREE, max_new_tokens=8)
WIDE, TALL, SMALL = noise(300, 200, 1), noise(80, 410, 2), noise(64, 48, 3)
SIZES = {"small": (64, 48), "wide": (300, 200), "tall": (33, 1000), "large": (2000, 1500), "odd": (131, 77)}


def prompt_tokens(engine: Engine, width: int, height: int) -> int:
    (result,) = generate(engine, [look(noise(width, height))], replace(FREE, max_new_tokens=1))
    assert result.num_prompt_tokens is not None
    return result.num_prompt_tokens


class OddPicture(StandIn):
    """Stands before a backend; opening the pictures of the second prompt raises `error`."""

    def __init__(self, backend: Backend, error: Exception) -> None:
        super().__init__(backend)
        self.error = error

    def generate(self, prompts: Iterable[Prompt], **options: Any) -> Iterator[BackendOutput]:
        return super().generate((replace(p, load_images=self.refuse) if p.index == 1 else p for p in prompts), **options)

    def refuse(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        pytest.param(RuntimeError("odd"), "error", id="code"),
        pytest.param(ValueError("odd"), "error", id="a ValueError of others"),
        pytest.param(KeyError("odd"), "error", id="a KeyError"),
        pytest.param(OSError(errno.EIO, "odd"), "error", id="disk"),
        pytest.param(MemoryError("odd"), "error", id="memory"),
        pytest.param(OSError(errno.EMFILE, "odd"), "error", id="files"),
        pytest.param(BackendError("odd"), "error", id="machine"),
        pytest.param(ImageError("odd"), "invalid", id="picture"),
    ],
)
def test_whatever_a_pictures_loading_raises_fails_its_own_request_only(engine: Engine, error: Exception, kind: str) -> None:
    asked = [look(SMALL), look(WIDE), ask("hi"), look(TALL)]
    outcomes = dict(Engine(OddPicture(engine.backend, error)).stream(asked, SHORT))
    failed = outcomes.pop(1)
    assert isinstance(failed, GenerationFailure)
    assert (failed.kind, "odd" in failed.problem) == (kind, True)
    assert [outcomes[i] for i in (0, 2, 3)] == generate(engine, [asked[i] for i in (0, 2, 3)], SHORT)


def test_verify_reports_size_hash_grid_and_token_counts(real_engine: Engine) -> None:
    (result,) = generate(real_engine, [look(WIDE, SMALL, verify=True)], SHORT)
    for fact, picture in zip(result.images, (WIDE, SMALL), strict=True):
        assert (fact["width"], fact["height"], len(fact["sha256"])) == (*picture.size, 64)
        assert fact["expected_prompt_tokens"] == fact["actual_prompt_tokens"] == result.num_prompt_tokens
    num_image_tokens = sum(fact["grid"][0] * fact["grid"][1] * fact["grid"][2] // 4 for fact in result.images)
    num_text_tokens = len(real_engine.tokenizer.encode(result.prompt_text, add_special_tokens=False)) - 2
    assert result.num_prompt_tokens == num_text_tokens + num_image_tokens


def test_prompt_tokens_include_those_of_the_images(real_engine: Engine) -> None:
    processor = real_engine.processor
    for size in SIZES.values():
        (result,) = generate(real_engine, [look(noise(*size))], replace(FREE, max_new_tokens=1))
        encoded = processor(text=[result.prompt_text], images=[noise(*size)], return_tensors="pt")
        assert result.num_prompt_tokens == encoded["input_ids"].shape[1]


def test_an_image_prompt_that_is_too_long_once_expanded_is_not_truncated(real_engine: Engine) -> None:
    num_tokens = prompt_tokens(real_engine, 300, 200)
    options = replace(FREE, max_new_tokens=CONTEXT - num_tokens + 1)
    outcomes = dict(real_engine.stream([look(WIDE), look(SMALL)], [options, SHORT]))
    assert isinstance(outcomes[0], GenerationFailure)
    assert isinstance(outcomes[0].error, PromptTooLong)
    assert f"prompt ({num_tokens} tokens)" in outcomes[0].problem
    assert outcomes[1].finish_reason == "length"  # type: ignore[union-attr]


def test_max_pixels_is_an_area_that_bounds_the_image_tokens(real_engine: Engine, tiny_vlm_checkpoint: Path) -> None:
    generate(real_engine, [look(SMALL)], SHORT)  # refused by a model of texts alone
    _, declared = load_tokenizer_and_processor(ModelLoadConfig(str(tiny_vlm_checkpoint)), VlmPreprocessOptions())
    assert declared is not None
    size = dict(real_engine.processor.image_processor.size)
    assert (size["longest_edge"], size["shortest_edge"]) == (BUDGET.max_pixels, dict(declared.image_processor.size)["shortest_edge"])
    around, saved = set(), []
    for width, height in SIZES.values():
        with_budget, without = (
            processor._get_num_multimodal_tokens(image_sizes=[(height, width)])["num_image_tokens"][0]
            for processor in (real_engine.processor, declared)
        )
        if width < 10 * height < 100 * width:  # no edge is made shorter than one token, so a strip takes more
            assert with_budget <= size["longest_edge"] // 32**2
        around.add(prompt_tokens(real_engine, width, height) - with_budget)
        saved.append(without - with_budget)
    assert len(around) == 1
    assert max(saved) > 0


def test_an_image_prompt_of_the_budget_is_kept_and_one_token_more_fails_alone(engine: Engine) -> None:
    request = look(noise(90, 60))
    (kept,) = generate(engine, [request], SHORT)
    assert kept.num_prompt_tokens is not None
    budgets = [replace(SHORT, max_prompt_tokens=kept.num_prompt_tokens - less) for less in (0, 1)]
    good, bad = outcomes_of(engine, [request, request], budgets)
    assert good == kept
    assert isinstance(bad, GenerationFailure)
    assert (bad.kind, type(bad.error)) == ("invalid", PromptTooLong)
    assert bad.problem.startswith(f"the prompt has {kept.num_prompt_tokens} tokens, max_prompt_tokens is {kept.num_prompt_tokens - 1}; ")
