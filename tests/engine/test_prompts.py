"""Requests → prompts: tokens, counts, stops, images, what is refused. Run: pytest tests/engine/test_prompts.py"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from PIL import Image

from evalharness.api.errors import ImageError, PromptTooLong, RequestError, TemplateError
from evalharness.api.images import MadeImage
from evalharness.api.options import ChatTemplateOptions, GenerationOptions
from evalharness.api.requests import TextGenerationRequest, VlmGenerationRequest
from evalharness.backends.base import Prompt
from evalharness.backends.fake import FakeBackend, FakeTokenizer
from evalharness.engine.prompts import PreparedRequest, PromptBuilder, prompt_sha256
from tests.backends.plans import PLAN

OPTIONS = GenerationOptions(max_new_tokens=8)


def text(content: Any = "hi") -> TextGenerationRequest:
    return TextGenerationRequest([{"role": "user", "content": content}])


def look(*parts: Any, images: Any = (), verify: bool = False) -> VlmGenerationRequest:
    content = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
    return VlmGenerationRequest([{"role": "user", "content": content}], images=images, verify=verify)


def photo(colour: str = "red", size: tuple[int, int] = (64, 48)) -> Image.Image:
    return Image.new("RGB", size, colour)


def png(picture: Image.Image) -> bytes:
    file = BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


def part(source: Any = None) -> dict[str, Any]:
    return {"type": "image"} if source is None else {"type": "image", "image": source}


def build(
    request: Any, options: GenerationOptions = OPTIONS, *, backend: Any = None, template: ChatTemplateOptions | None = None
) -> PreparedRequest:
    return PromptBuilder(backend or FakeBackend.from_answers(["x"]), template or ChatTemplateOptions()).build(3, request, options)


class RealBackend(FakeBackend):
    """The scripted backend with the tokenizer and processor of a real checkpoint."""

    @classmethod
    def on(cls, processor: Any, *, max_model_len: int | None = None) -> RealBackend:
        backend = cls.from_answers(["x"], max_model_len=max_model_len)
        assert isinstance(backend, RealBackend)
        backend.tokenizer = processor.tokenizer
        backend.processor = processor
        backend.eos_token_ids = (642, 640)
        return backend


@pytest.fixture(scope="module")
def processor(tiny_vlm_checkpoint: Path) -> Any:
    from evalharness.backends.torchvision_cpu import register_missing_operators

    register_missing_operators()
    from transformers import AutoProcessor

    return AutoProcessor.from_pretrained(tiny_vlm_checkpoint)


def test_a_text_is_rendered_and_tokenised_once() -> None:
    prompt = build(text()).prompt
    assert prompt.text == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert prompt.token_ids == tuple(FakeTokenizer().encode(prompt.text))
    assert (prompt.index, prompt.num_tokens, prompt.has_images) == (3, len(prompt.token_ids), False)


def test_no_special_tokens_are_added_when_a_prompt_is_tokenised(processor: Any) -> None:
    prompt = build(text(), backend=RealBackend.on(processor)).prompt
    assert list(prompt.token_ids) == processor.tokenizer(prompt.text, add_special_tokens=False)["input_ids"]


def test_a_text_request_with_image_parts_is_refused() -> None:
    with pytest.raises(RequestError, match="a TextGenerationRequest has 2 image parts; use VlmGenerationRequest"):
        build(text([part(photo()), part()]))


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_half_a_surrogate_pair_is_refused(processor: Any, real: bool) -> None:
    backend = RealBackend.on(processor) if real else None
    with pytest.raises(RequestError, match=r"the prompt holds '\\ud83d' at character \d+, half of a surrogate pair"):
        build(text("smile \ud83d"), backend=backend)


@pytest.mark.parametrize("real", [False, True], ids=["fake", "real"])
def test_a_placeholder_written_into_a_text_is_refused(processor: Any, real: bool) -> None:
    backend = RealBackend.on(processor) if real else None
    problem = r"the rendered prompt has 1 image placeholder \(<\|image_pad\|>\) for 0 images; write no placeholder into"
    with pytest.raises(ImageError, match=problem):
        build(text("see <|image_pad|>"), backend=backend)
    with pytest.raises(ImageError, match=r"has 2 image placeholders \(<\|image_pad\|>\) for 1 image;"):
        build(look(part(photo()), "see <|image_pad|>"), backend=backend)


def test_a_video_placeholder_is_refused(processor: Any) -> None:
    with pytest.raises(RequestError, match=r"has a video placeholder \(<\|video_pad\|>\); videos cannot be asked"):
        build(text("see <|video_pad|>"), backend=RealBackend.on(processor))


@pytest.mark.parametrize("kind", ["audio", "input_audio", "video", "image_url", "input_image", "file"])
@pytest.mark.parametrize("has_image", [False, True], ids=["text", "image"])
def test_a_part_of_another_kind_than_text_and_image_is_refused(kind: str, has_image: bool) -> None:
    parts = [{"type": "text", "text": "what?"}, {"type": kind, kind: "a.wav"}]
    with pytest.raises(RequestError, match=f"^a message has a part of type '{kind}'; parts are texts, .* or images, .*other media cannot"):
        build(look(part(photo()), *parts) if has_image else text(parts))


def of_length(num_tokens: int, max_new_tokens: int) -> Prompt:
    return Prompt(0, "", (5,) * num_tokens, num_tokens, replace(PLAN, max_new_tokens=max_new_tokens))


FITS = [(10, 5, 15), (14, 1, 15), (10, 5, None)]
TOO_LONG = [
    (15, 1, 15, r"the prompt has 15 tokens, the context 15; shorten it or use smaller images \(--max-pixels\)"),
    (99, 1, 15, r"the prompt has 99 tokens, the context 15"),
    (
        10,
        6,
        15,
        r"prompt \(10 tokens\) \+ max_new_tokens \(6\) exceed the context of 15; lower --max-new-tokens to at most 5 or shorten the prompt",
    ),
]


@pytest.mark.parametrize("num_tokens, max_new_tokens, max_model_len", FITS)
def test_what_fits_the_context_passes(num_tokens: int, max_new_tokens: int, max_model_len: int | None) -> None:
    of_length(num_tokens, max_new_tokens).check_length(num_tokens, max_model_len)


@pytest.mark.parametrize("num_tokens, max_new_tokens, max_model_len, problem", TOO_LONG, ids=["full", "longer", "sum"])
def test_what_exceeds_the_context_is_refused(num_tokens: int, max_new_tokens: int, max_model_len: int, problem: str) -> None:
    with pytest.raises(PromptTooLong, match=f"^{problem}"):
        of_length(num_tokens, max_new_tokens).check_length(num_tokens, max_model_len)


def test_sampling_options_reach_the_plan_and_greedy_ones_drop_them() -> None:
    plan = build(text(), GenerationOptions(do_sample=False, temperature=0.7, top_p=0.5)).prompt.plan
    assert (plan.temperature, plan.top_p, plan.seed) == (0.0, 1.0, None)
    options = GenerationOptions.from_mapping(
        {
            **{"max_new_tokens": 5, "temperature": 1, "top_p": 1, "repetition_penalty": 2, "no_repeat_ngram_size": 3, "seed": 9},
            **{"logprobs": True, "use_cache": False, "pad_token_id": 0, "stop": {"stop": ["XY"], "stop_token_ids": [99]}},
            **{"decode": {"skip_special_tokens": False}, "extra_generation_kwargs": {"top_k": 4, "min_p": 0.1}},
        }
    )
    plan = build(text(), options).prompt.plan
    assert (plan.max_new_tokens, plan.temperature, plan.top_p, plan.repetition_penalty) == (5, 1.0, 1.0, 2.0)
    assert (plan.no_repeat_ngram_size, plan.seed, plan.logprobs, plan.use_cache, plan.pad_token_id) == (3, 9, True, False, 0)
    assert (plan.stop_token_ids, plan.stop_strings, plan.skip_special_tokens) == ((2, 0, 99), ("XY",), False)
    assert plan.extra == (("min_p", 0.1), ("top_k", 4))


def test_a_seed_is_drawn_for_each_sampled_request_that_has_none() -> None:
    builder = PromptBuilder(FakeBackend.from_answers(["x"]), ChatTemplateOptions())
    seeds = {builder.build(i, text(), GenerationOptions(temperature=1.0)).prompt.plan.seed for i in range(20)}
    assert None not in seeds
    assert len(seeds) > 15  # of 2^31: two equal ones come up once in 10^7 runs


@pytest.mark.parametrize("eos, expected", [(None, (2, 0)), (0, (0,)), ((7, 0), (7, 0)), ((), ())], ids=["unset", "zero", "list", "empty"])
def test_given_eos_ids_replace_those_of_the_checkpoint(eos: Any, expected: tuple[int, ...]) -> None:
    prepared = build(text(), GenerationOptions(eos_token_id=eos))
    assert prepared.prompt.plan.stop_token_ids == expected
    assert prepared.stops.eos_token_ids == set(expected)


def test_images_are_taken_in_message_order_from_parts_and_list() -> None:
    first, second, third = photo("red"), photo("green"), photo("blue")
    request = VlmGenerationRequest(
        [{"role": "user", "content": [part(), {"type": "text", "text": "and"}, part(second)]}, {"role": "user", "content": [part()]}],
        images=[first, third],
    )
    prepared = build(request)
    assert prepared.prompt.load_images is not None
    assert [image.getpixel((0, 0)) for image in prepared.prompt.load_images()] == [(255, 0, 0), (0, 128, 0), (0, 0, 255)]
    assert prepared.prompt.text.count("<|image_pad|>") == 3


MISMATCHES = {
    "too few": (look(part(), part(), images=[photo()]), r"more image placeholders.*2.*1"),
    "too many": (look(part(), images=[photo(), photo()]), "1 of 2 images in request.images without a placeholder"),
    "only in the list": (look("what?", images=[photo()]), "1 of 1 image in request.images without a placeholder"),
    "none": (look("what?"), "a VlmGenerationRequest needs at least one image; use TextGenerationRequest"),
    "null": (look({"type": "image", "image": None}), "more image placeholders"),
    "bare text": (VlmGenerationRequest([{"role": "user", "content": "hi"}]), "needs at least one image"),
}


@pytest.mark.parametrize("request_, problem", MISMATCHES.values(), ids=MISMATCHES.keys())
def test_images_that_do_not_match_the_placeholders_are_refused(request_: VlmGenerationRequest, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        build(request_)


def test_a_message_that_the_template_cannot_take_beside_images_is_an_error_of_the_request() -> None:
    messages = [{"role": "user", "content": [part(photo())]}, {"content": [part()]}]
    with pytest.raises(TemplateError, match="refuses these messages"):
        build(VlmGenerationRequest(messages, images=[photo()]))


def test_the_real_template_takes_messages_without_content_beside_images(processor: Any) -> None:
    messages = [{"role": "assistant", "tool_calls": []}, {"role": "user", "content": [part(photo())]}]
    prompt = build(VlmGenerationRequest(messages), backend=RealBackend.on(processor)).prompt
    assert prompt.text.startswith("<|im_start|>assistant\n<|im_end|>\n<|im_start|>user\n<|vision_start|>")


def test_the_template_never_sees_a_picture_and_the_caller_keeps_it() -> None:
    seen: list[Any] = []

    class Watching(FakeTokenizer):
        def apply_chat_template(self, messages: Any, **options: Any) -> Any:
            seen.extend(messages[0]["content"])
            return super().apply_chat_template(messages, **options)

    backend, picture = FakeBackend.from_answers(["x"]), photo()
    backend.processor = Watching()
    request = look(part(picture), "what?")
    build(request, backend=backend)
    assert seen[:2] == [{"type": "image"}, {"type": "text", "text": "what?"}]
    assert request.messages[0]["content"][0]["image"] is picture


def test_the_tokenizer_renders_texts_and_the_processor_images() -> None:
    class Named(FakeTokenizer):
        def __init__(self, name: str) -> None:
            self._name = name

        def apply_chat_template(self, messages: Any, **options: Any) -> Any:
            return self._name + str(super().apply_chat_template(messages, **options))

    backend = FakeBackend.from_answers(["x"])
    backend.tokenizer, backend.processor = Named("tokenizer"), Named("processor")
    assert build(text(), backend=backend).prompt.text.startswith("tokenizer")
    assert build(look(part(photo())), backend=backend).prompt.text.startswith("processor")


def test_pictures_are_opened_late_and_not_kept(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    photo().save(path)
    prepared = build(look(part(str(path))))
    path.unlink()
    assert prepared.prompt.load_images is not None
    with pytest.raises(ImageError, match=r"photo\.png"):
        prepared.prompt.load_images()


def test_size_and_hash_of_each_image_are_noted_when_it_is_opened_and_the_file_that_it_was_made_from(tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    photo(size=(30, 20)).save(path)
    small = MadeImage(png(photo(size=(15, 10))), path)
    prepared = build(look(part(path), part(small)))
    assert prepared.images is not None
    assert not prepared.images.facts
    assert prepared.prompt.load_images is not None
    prepared.prompt.load_images()
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    whole, made = prepared.images.facts
    assert whole == {"width": 30, "height": 20, "sha256": sha256, "path": str(path)}
    assert (made["width"], made["sha256"]) == (15, hashlib.sha256(small).hexdigest())
    assert (made["path"], made["file_sha256"]) == (str(path), sha256)


@pytest.mark.parametrize(
    "sizes", [[(64, 48)], [(300, 200)], [(33, 1000)], [(2000, 1500), (50, 50)], [(64, 64), (64, 64), (20, 90)]], ids=str
)
def test_the_length_of_an_image_prompt_is_what_the_processor_makes_of_it(processor: Any, sizes: list[tuple[int, int]]) -> None:
    pictures = [photo(size=size) for size in sizes]
    prompt = build(look(*map(part, pictures), "what?"), backend=RealBackend.on(processor)).prompt
    encoded = processor(text=[prompt.text], images=pictures, return_tensors="pt")
    assert prompt.num_tokens == encoded["input_ids"].shape[1]


def test_an_image_prompt_that_is_too_long_once_expanded_is_refused_before_its_picture_is_opened(processor: Any, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    photo(size=(2000, 1500)).save(path)
    num_tokens = build(look(part(path)), backend=RealBackend.on(processor)).prompt.num_tokens or 0
    assert num_tokens > 100
    with pytest.raises(PromptTooLong, match=rf"prompt \({num_tokens} tokens\) \+ max_new_tokens \(8\)"):
        build(look(part(path)), backend=RealBackend.on(processor, max_model_len=num_tokens + 7))


def test_the_hash_tells_prompts_and_pictures_apart_and_nothing_else() -> None:
    def of(words: str, *hashes: str) -> str:
        return prompt_sha256(build(text(words)).prompt, [{"sha256": value} for value in hashes])

    assert of("a") == of("a")
    assert len({of("a"), of("b"), of("a", "0"), of("a", "1"), of("a", "0", "1"), of("a", "1", "0")}) == 6


@pytest.mark.parametrize(("size", "is_taken"), [((64, 32), True), ((64, 48), False), ((300, 300), False)], ids=str)
def test_an_image_off_the_patch_grid_that_is_not_resized_is_invalid(size: tuple[int, int], is_taken: bool) -> None:
    backend = FakeBackend.from_answers(["x"])
    backend.processor.image_processor = SimpleNamespace(do_resize=False, patch_size=16, merge_size=2)  # type: ignore[attr-defined]
    request = look(part(photo(size=size)))
    if is_taken:
        assert build(request, backend=backend).prompt.num_tokens is None  # the backend counts
        return
    problem = rf"image 0 has {size[0]} x {size[1]} pixels, and without resizing \(do_resize=False\) both sides must be multiples of 32"
    with pytest.raises(ImageError, match=problem):
        build(request, backend=backend)
