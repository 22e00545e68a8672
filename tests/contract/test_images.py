"""Images: number, order, sizes, budget. Run: pytest tests/contract/test_images.py"""

from __future__ import annotations

import errno
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from evalharness.api.errors import BackendError, ImageError, PromptTooLong
from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.api.requests import GenerationFailure, VlmGenerationRequest
from evalharness.backends.base import Backend, BackendOutput, Prompt
from evalharness.backends.checkpoint_reading import load_tokenizer_and_processor
from evalharness.engine.backend_contract import FREE, ask, generate, look, noise
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


def test_images_of_several_messages_and_of_the_list_are_in_one_order(engine: Engine) -> None:
    spread = VlmGenerationRequest(
        [
            {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "a"}]},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": [{"type": "image", "image": SMALL}, {"type": "text", "text": "c"}, {"type": "image"}]},
        ],
        images=[WIDE, TALL],
    )
    (result,) = generate(engine, [spread], SHORT)
    assert [(fact["width"], fact["height"]) for fact in result.images] == [WIDE.size, SMALL.size, TALL.size]


def test_any_number_of_images_is_taken(engine: Engine) -> None:
    (result,) = generate(engine, [look(*[noise(64, 48, seed) for seed in range(5)])], SHORT)
    assert (len(result.images), result.prompt_text.count("<|image_pad|>")) == (5, 5)


MISMATCHES = {
    "none": (VlmGenerationRequest([{"role": "user", "content": "hi"}]), "needs at least one image"),
    "too many": (VlmGenerationRequest(look(SMALL).messages, images=[WIDE]), "1 of 1 images in request.images have no placeholder"),
    "too few": (look(SMALL, None), "more image placeholders"),
    "placeholder in the text": (look(SMALL, question="and <|image_pad|>?"), "2 image placeholders"),
}


@pytest.mark.parametrize("bad, problem", MISMATCHES.values(), ids=MISMATCHES.keys())
def test_images_that_do_not_match_the_placeholders_fail_alone(engine: Engine, bad: VlmGenerationRequest, problem: str) -> None:
    outcomes = dict(engine.stream([look(SMALL), bad, ask("hi")], SHORT))
    failed = outcomes[1]
    assert isinstance(failed, GenerationFailure)
    assert failed.kind == "invalid"
    assert isinstance(failed.error, ValueError)
    assert problem in failed.problem
    assert [outcomes[0], outcomes[2]] == generate(engine, [look(SMALL), ask("hi")], SHORT)


def test_a_text_request_with_an_image_fails_alone(engine: Engine) -> None:
    with_image = ask([{"type": "image", "image": SMALL}])  # type: ignore[arg-type]
    outcomes = dict(engine.stream([with_image, ask("hi")], SHORT))
    assert "use VlmGenerationRequest" in outcomes[0].problem  # type: ignore[union-attr]
    assert outcomes[1].finish_reason == "length"  # type: ignore[union-attr]


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK", "I;16", "1"])
def test_images_of_any_mode_are_taken(engine: Engine, tmp_path: Path, mode: str) -> None:
    path = tmp_path / ("photo.jpg" if mode == "CMYK" else "photo.png")
    Image.new(mode, (64, 48)).save(path)
    (result,) = generate(engine, [look(path)], SHORT)
    assert (result.images[0]["width"], result.images[0]["height"]) == (64, 48)


def test_a_file_and_the_same_picture_in_memory_give_the_same(engine: Engine, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    WIDE.save(path)
    results = generate(engine, [look(path), look(str(path)), look(path.read_bytes()), look(WIDE)], SHORT)
    assert len({result.token_ids for result in results}) == 1
    assert len({result.num_prompt_tokens for result in results}) == 1


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


def test_an_image_too_narrow_for_any_model_is_invalid(engine: Engine) -> None:
    outcomes = dict(engine.stream([look(Image.new("RGB", (1, 2000))), look(SMALL)], SHORT))
    assert isinstance(outcomes[0], GenerationFailure)
    assert outcomes[0].kind == "invalid"
    assert outcomes[1].finish_reason == "length"  # type: ignore[union-attr]


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
