"""Image prompts through a tiny Qwen3-VL. Run: pytest tests/backends/hf/test_images.py"""

from __future__ import annotations

import gc
import random
import weakref

import pytest

from evalharness.backends.base import Completion, Prompt
from tests.backends.hf_models import ids, load, make_vlm_checkpoint, plan, run

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_in_one_thread")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return make_vlm_checkpoint(tmp_path_factory.mktemp("hf") / "vlm")


@pytest.fixture(scope="module")
def backend(checkpoint):
    backend = load(checkpoint)
    yield backend
    backend.close()


def picture(seed, size):
    from PIL import Image

    draw = random.Random(seed)
    image = Image.new("RGB", size)
    for _ in range(20):
        x, y = draw.randrange(size[0]), draw.randrange(size[1])
        image.paste(tuple(draw.randrange(256) for _ in range(3)), (x, y, min(size[0], x + 40), min(size[1], y + 40)))
    return image


def image_prompt(backend, index, text, images, *, load_images=None, **values):
    parts = [{"type": "image"}] * len(images)
    messages = [{"role": "user", "content": [*parts, {"type": "text", "text": text}]}]
    rendered = backend.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
    return Prompt(
        index=index,
        text=rendered,
        token_ids=tuple(backend.tokenizer(rendered, add_special_tokens=False)["input_ids"]),
        num_tokens=None,
        plan=plan(**{"stop_token_ids": backend.eos_token_ids, "seed": index, "max_new_tokens": 8, **values}),
        load_images=load_images or (lambda: list(images)),
    )


def mixed(backend, **values):
    return [
        image_prompt(backend, 0, "What is it?", [picture(1, (200, 100))], **values),
        image_prompt(
            backend, 1, "Compare the two photos, please, and name what differs.", [picture(2, (64, 64)), picture(3, (300, 300))], **values
        ),
        image_prompt(backend, 2, "x", [picture(4, (640, 120))], **values),
        image_prompt(backend, 3, "no picture at all", [], **values),
        image_prompt(backend, 4, "three", [picture(seed, (90, 70)) for seed in (5, 6, 7)], **values),
    ]


def reference_ids(backend, item):
    """Return what plain transformers gives for one prompt."""
    from transformers import GenerationConfig

    images = item.load_images()
    inputs = backend.processor(text=[item.text], images=images or None, return_tensors="pt")
    eos, pad = list(item.plan.stop_token_ids), backend.tokenizer.pad_token_id
    config = GenerationConfig(do_sample=False, max_new_tokens=item.plan.max_new_tokens, eos_token_id=eos, pad_token_id=pad)
    out = backend.model.generate(**inputs, generation_config=config)
    return tuple(out[0, inputs["input_ids"].shape[1] :].tolist())


def test_a_mixed_batch_gives_the_ids_of_plain_transformers_on_single_prompts(backend):
    prompts = mixed(backend)
    assert ids(run(backend, prompts)) == {item.index: reference_ids(backend, item) for item in prompts}


PLANS = {
    "no cache": {"use_cache": False},
    "sampling": {"temperature": 1.0},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2},
}


@pytest.mark.parametrize("values", PLANS.values(), ids=PLANS.keys())
def test_a_row_of_a_mixed_batch_equals_the_row_alone(backend, values):
    prompts = mixed(backend, **values)
    assert ids(run(backend, prompts)) == {item.index: run(backend, [item])[item.index].token_ids for item in prompts}


@pytest.mark.parametrize(
    "error", [OSError(5, "odd"), TypeError("odd"), RuntimeError("odd"), MemoryError("odd")], ids=lambda e: type(e).__name__
)
def test_what_an_image_processor_raises_is_an_error_unless_it_is_a_refusal(backend, monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(type(backend.processor.image_processor), "__call__", fail)
    outputs = run(backend, [mixed(backend)[0]])
    assert outputs[0].kind == "error"
    assert "odd" in outputs[0].problem


def test_pictures_are_opened_late_and_let_go_after_their_batch(backend, monkeypatch):
    monkeypatch.setattr(backend.batch_sizes, "row_cap", 2)
    opened = []  # pictures cannot be hashed, so no WeakSet
    most = 0

    def num_alive():
        gc.collect()
        return sum(reference() is not None for reference in opened)

    def open_one(seed):
        def load_images():
            nonlocal most
            image = picture(seed, (64, 64))
            opened.append(weakref.ref(image))
            most = max(most, num_alive())
            return [image]

        return load_images

    prompts = [image_prompt(backend, seed, "x", [None], load_images=open_one(seed), max_new_tokens=1) for seed in range(10)]
    outputs = backend.generate(prompts)
    assert opened == []
    assert all(isinstance(output, Completion) for output in outputs)
    assert (len(opened), num_alive()) == (10, 0)
    assert most <= 2


def test_should_stop_is_asked_while_pictures_are_opened(backend):
    opened = []

    def load_images():
        opened.append(1)
        return [picture(1, (64, 64))]

    prompts = [image_prompt(backend, index, "x", [None], load_images=load_images) for index in range(20)]
    assert list(backend.generate(prompts, should_stop=lambda: len(opened) >= 3)) == []
    assert len(opened) == 3
