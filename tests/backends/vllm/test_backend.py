"""The vLLM backend on a real engine."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.api.errors import BackendError, UnsupportedOption
from evalharness.api.structured_output import StructuredOutput
from evalharness.backends.base import Prompt
from evalharness.backends.checkpoint_reading import pixel_budget
from evalharness.backends.vllm.images import WARM_UP_SIZES, warm_up_prompts
from tests.backends.vllm_models import Reference, chat, completions, noise, plan, prompt_of

if TYPE_CHECKING:
    from evalharness.backends.vllm.backend import VllmBackend

pytestmark = pytest.mark.vllm

TEXTS = ("say yes", "count from one to ten, please", "What is in this picture?", "统计")
LONG = "count from one to ten, please"  # runs into the length cap


def run(backend: VllmBackend, *prompts: Prompt) -> list[Any]:
    return completions(backend.generate(prompts))


@pytest.mark.parametrize(
    "sizes",
    [[(300, 200)], [(64, 48)], [(33, 1000)], [(700, 500), (300, 200)], [(64, 48), (50, 50), (64, 48)]],
    ids=["one", "small", "tall", "two", "three"],
)
def test_greedy_ids_of_images_equal_those_of_transformers(
    vllm_vlm_backend: VllmBackend, reference: Reference, sizes: list[tuple[int, int]]
) -> None:
    images = [noise(*size, seed=position) for position, size in enumerate(sizes)]
    text = chat("what is it?", len(images))
    (done,) = run(vllm_vlm_backend, prompt_of(vllm_vlm_backend.tokenizer, text, images=images))
    inputs = reference.inputs(text, images)
    assert list(done.token_ids) == reference.greedy(text, images)
    assert done.num_prompt_tokens == inputs["input_ids"].shape[1]
    assert [list(grid) for grid in done.image_grids] == inputs["image_grid_thw"].tolist()


def test_an_engine_is_warmed_up_with_plain_photos(vllm_vlm_backend: VllmBackend) -> None:
    prompts = warm_up_prompts(vllm_vlm_backend.processor, vllm_vlm_backend.tokenizer, plan(max_new_tokens=2))
    assert [len(done.image_grids) for done in completions(vllm_vlm_backend.generate(prompts))] == [1] * len(WARM_UP_SIZES)
    assert 0 < vllm_vlm_backend._warm_up() < 60
    nameless = SimpleNamespace(apply_chat_template=vllm_vlm_backend.processor.apply_chat_template)
    assert warm_up_prompts(nameless, vllm_vlm_backend.tokenizer, plan()) == []
    assert warm_up_prompts(SimpleNamespace(), vllm_vlm_backend.tokenizer, plan()) == []


def test_an_image_that_was_asked_before_has_its_grid_again(vllm_vlm_backend: VllmBackend) -> None:
    prompt = prompt_of(vllm_vlm_backend.tokenizer, chat("again?", 1), images=[noise(200, 100, seed=5)])
    first, second = run(vllm_vlm_backend, prompt), run(vllm_vlm_backend, prompt)
    assert first == second
    assert first[0].image_grids == ((1, 6, 12),)


def test_a_stop_id_beyond_the_vocabulary_does_no_harm(vllm_vlm_backend: VllmBackend) -> None:
    changes = {"stop_token_ids": (642, 151645), "extra": (("min_new_tokens", 2),)}
    (done,) = run(vllm_vlm_backend, prompt_of(vllm_vlm_backend.tokenizer, chat("say yes"), **changes))
    assert done.token_ids[-1] == 642


@pytest.mark.parametrize("name", ["presence_penalty", "frequency_penalty"])
def test_penalties_are_honoured(vllm_vlm_backend: VllmBackend, name: str) -> None:
    # The bias leaves a few tokens only, with small steps between them: a penalty must let more of them in.
    bias = ("logit_bias", dict.fromkeys(range(100, 140), 60.0))
    (without,) = run(vllm_vlm_backend, prompt_of(vllm_vlm_backend.tokenizer, chat(LONG), extra=(bias,), max_new_tokens=32))
    (done,) = run(vllm_vlm_backend, prompt_of(vllm_vlm_backend.tokenizer, chat(LONG), extra=(bias, (name, 2.0)), max_new_tokens=32))
    assert len(set(done.token_ids)) > len(set(without.token_ids))


def test_tokens_are_forced_allowed_and_banned_as_asked(vllm_vlm_backend: VllmBackend) -> None:
    tokenizer = vllm_vlm_backend.tokenizer
    forced = ("logit_bias", {"77": 100.0})  # ids may be texts, as in JSON
    extras = ((forced,), (("allowed_token_ids", [50, 60]),), (forced, ("bad_words", [tokenizer.decode([77])])))
    biased, allowed, banned = run(
        vllm_vlm_backend, *(prompt_of(tokenizer, chat(LONG), index, extra=extra) for index, extra in enumerate(extras))
    )
    assert set(biased.token_ids) == {77}
    assert set(allowed.token_ids) <= {50, 60}
    assert 77 not in banned.token_ids


def test_its_own_detection_of_repetition_ends_a_row_and_is_named(vllm_vlm_backend: VllmBackend) -> None:
    extra = (("logit_bias", {77: 100.0}), ("repetition_detection", {"max_pattern_size": 4, "min_count": 5}))
    (done,) = run(vllm_vlm_backend, prompt_of(vllm_vlm_backend.tokenizer, chat(LONG), extra=extra))
    assert done.token_ids == (77,) * 5
    assert (done.stopped_by, done.stop_name) == ("plugin", "repetition_detected")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"temperature": 1.0, "extra": (("min_p", 4.0),)}, r"vLLM refuses these generation options: min_p must be in"),
        ({"extra": (("logit_bias", {5: 300.0}),)}, r"cannot be passed to vLLM: 300.0 is outside of -100.0 to 100.0"),
        ({"logprobs": True, "structured": StructuredOutput(regex="a")}, r"takes log-probabilities after the mask of options.structured"),
        ({"extra": (("logit_bias", 5),)}, r"option logit_bias=5 cannot be passed to vLLM"),
        ({"extra": (("repetition_detection", {"max_pattern_size": 4}),)}, r"option repetition_detection=.* min_count must be >= 2"),
    ],
    ids=["range", "bias", "masked", "type", "repetition"],
)
def test_what_vllm_cannot_honour_is_refused(vllm_vlm_backend: VllmBackend, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsupportedOption, match=problem):
        run(vllm_vlm_backend, prompt_of(vllm_vlm_backend.tokenizer, chat("say yes"), **changes))


def test_prompts_are_pulled_when_there_is_room(vllm_vlm_backend: VllmBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_vlm_backend, "_window", 4)
    pulled, answered, ahead = 0, 0, []

    def prompts() -> Any:
        nonlocal pulled
        for index in range(20):
            pulled += 1
            ahead.append(pulled - answered)
            yield prompt_of(vllm_vlm_backend.tokenizer, chat("say yes"), index, max_new_tokens=1 + index % 5)

    for _ in vllm_vlm_backend.generate(prompts()):
        answered += 1
    assert answered == 20
    assert max(ahead) <= 4 + 1 + 4  # running, the one that waits for room, and results not handed on yet


def test_images_are_opened_when_there_is_room(vllm_vlm_backend: VllmBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_vlm_backend, "_max_pixel_bytes", 0)
    opened, answered, ahead = 0, 0, []

    def load() -> Any:
        nonlocal opened
        opened += 1
        ahead.append(opened - answered)
        return [noise(64, 48, seed=1000 + opened)]  # none that the engine has seen

    token_ids = prompt_of(vllm_vlm_backend.tokenizer, chat("look", 1)).token_ids
    prompts = [Prompt(index, "", token_ids, None, plan(max_new_tokens=2), load) for index in range(10)]
    for _ in vllm_vlm_backend.generate(prompts):
        answered += 1
    assert answered == 10
    assert max(ahead) <= 1 + 1  # the one that runs, and its result not handed on yet


@pytest.mark.parametrize(
    ("wrapped", "kind", "problem"),
    [
        (ValueError("absolute aspect ratio"), "invalid", "vLLM refuses the prompt: absolute aspect ratio"),
        (RuntimeError("out of memory"), "error", "vLLM could not process the prompt: RuntimeError: out of memory"),
    ],
    ids=["refusal", "machine"],
)
def test_what_vllm_wraps_in_its_own_error_says_whose_fault_it_is(
    vllm_vlm_backend: VllmBackend, monkeypatch: pytest.MonkeyPatch, wrapped: Exception, kind: str, problem: str
) -> None:
    tokenizer = vllm_vlm_backend.tokenizer
    processor_class = type(vllm_vlm_backend._engine._llm.renderer)
    real = processor_class.render_cmpl

    def render(renderer: Any, prompts: Any, *rest: Any, **options: Any) -> Any:
        if "multi_modal_data" in prompts[0]:
            raise ValueError("Failed to apply the processor on {...}") from wrapped
        return real(renderer, prompts, *rest, **options)

    monkeypatch.setattr(processor_class, "render_cmpl", render)
    odd = prompt_of(tokenizer, chat("look", 1), 0, [noise(64, 48)])
    outputs = list(vllm_vlm_backend.generate([odd, prompt_of(tokenizer, chat("say yes"), 1)]))
    (failed,) = [output for output in outputs if isinstance(output, tuple)]
    assert failed[0] == 0
    assert failed[1].kind == kind
    assert problem in failed[1].problem
    assert len(outputs) == 2


def test_no_more_grids_are_kept_than_a_limit(vllm_vlm_backend: VllmBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evalharness.backends.vllm.images.MAX_GRIDS", 2)
    tokenizer = vllm_vlm_backend.tokenizer
    prompts = [prompt_of(tokenizer, chat("look", 1), seed, [noise(64, 48, 40 + seed)]) for seed in range(4)]
    first = run(vllm_vlm_backend, *prompts)[0]
    assert vllm_vlm_backend._images is not None
    assert len(vllm_vlm_backend._images._grid_of_hash) == 2
    (forgotten,) = run(vllm_vlm_backend, prompts[0])
    assert forgotten.image_grids == first.image_grids == ((1, 4, 4),)


def test_two_generations_at_once_are_refused(vllm_vlm_backend: VllmBackend) -> None:
    first = vllm_vlm_backend.generate([prompt_of(vllm_vlm_backend.tokenizer, chat(text), index) for index, text in enumerate(TEXTS)])
    next(first)
    with pytest.raises(BackendError, match="generating already"):
        next(vllm_vlm_backend.generate([prompt_of(vllm_vlm_backend.tokenizer, chat("no"))]))
    assert len(list(first)) == len(TEXTS) - 1


def test_description_is_plain_json_without_secrets_or_paths(
    vllm_vlm_backend: VllmBackend, tiny_vlm_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "hidden")
    text = json.dumps(vllm_vlm_backend.describe())
    facts = json.loads(text)
    assert "hidden" not in text
    assert str(tiny_vlm_checkpoint) not in text
    assert facts["pixel_budget_verified"] is True
    assert facts["pixel_budget"] == pixel_budget(vllm_vlm_backend.processor.image_processor)  # as hf records it: runs on either compare
    assert facts["vlm_problem"] is None
    assert facts["arguments"]["dtype"] == "float32"
    assert facts["vllm"]
