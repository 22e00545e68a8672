"""A cache of fixed size gives the ids of one that grows; on a CPU its steps run without graphs, with the same arithmetic.

Run: pytest tests/backends/hf/test_fixed_cache.py
"""

from __future__ import annotations

import shutil
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api.hooks import normalise_plugins
from evalharness.backends.base import Completion
from evalharness.backends.hf import fixed_cache
from evalharness.backends.hf.fixed_cache import FixedDecoder, Unfit, why_not_fixed
from tests.backends.hf_models import END_ID, VOCAB_SIZE, draw_wide, ids, load, make_llama, mixed_prompts, prompt, run
from tests.backends.vllm_models import chat, noise, prompt_of

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("torch_in_one_thread")]


@pytest.fixture(scope="module")
def backend(hf_text_checkpoint: Any) -> Any:
    backend = load(hf_text_checkpoint)
    yield backend
    backend.close()


@pytest.fixture
def steps(backend: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the number of places in each step that a cache of fixed size took."""
    made: list[int] = []
    step = FixedDecoder.step

    def counted(self: FixedDecoder, tokens: Any) -> Any:
        made.append(len(self._tokens))
        return step(self, tokens)

    monkeypatch.setattr(FixedDecoder, "step", counted)
    monkeypatch.setattr(backend, "_steps", fixed_cache.Steps(are_fixed=False))
    return made


def both(backend: Any, prompts: Any, **kwargs: Any) -> tuple[Any, Any]:
    backend._steps.are_fixed = False
    growing = run(backend, prompts, **kwargs)
    backend._steps.are_fixed = True
    return growing, run(backend, prompts, **kwargs)


PLANS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalties": {"repetition_penalty": 1.3, "no_repeat_ngram_size": 2, "extra": (("min_new_tokens", 6),)},
    "sampling": {"temperature": 1.0, "top_p": 0.9},
    "numbers": {"logprobs": True, "entropies": True},
    "stop string": {"stop_strings": ("e", "zz")},
}


@pytest.mark.parametrize("growth", [16, 256], ids=["grows", "fits"])
@pytest.mark.parametrize("values", PLANS.values(), ids=PLANS)
def test_a_cache_of_fixed_size_gives_what_a_growing_one_gives(
    backend: Any, values: dict[str, Any], growth: int, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fixed_cache, "GROWTH", growth)
    growing, fixed = both(backend, mixed_prompts(max_new_tokens=70, **values))
    assert steps
    assert ids(fixed) == ids(growing)
    assert all(isinstance(made, Completion) and made.stopped_by == growing[index].stopped_by for index, made in fixed.items())
    for index, made in fixed.items():
        for name in ("logprobs", "entropies"):
            assert getattr(made, name) == (None if not values.get(name) else pytest.approx(getattr(growing[index], name), abs=1e-4))


def test_rows_leave_their_places_to_be_taken_away_once_half_are_free(backend: Any, steps: list[int]) -> None:
    common = {"stop_token_ids": tuple(range(40, 46)), "max_new_tokens": 90, "temperature": 1.0}
    growing, fixed = both(backend, [prompt(i, [60 + i, 70, 80 + i], seed=i, **common) for i in range(12)])
    assert ids(fixed) == ids(growing)
    assert set(steps) > {12}
    assert steps == sorted(steps, reverse=True)


@pytest.mark.parametrize("shape", ["grouped heads", "qwen3"])
def test_other_shapes_give_the_same(tmp_path: Any, steps: list[int], hf_text_checkpoint: Any, shape: str) -> None:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    sizes: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": VOCAB_SIZE}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "eos_token_id": END_ID}
    model: Any = make_llama(**sizes, **heads) if shape == "grouped heads" else Qwen3ForCausalLM(Qwen3Config(**sizes, **heads))
    draw_wide(model, 3, END_ID)
    shutil.copytree(hf_text_checkpoint, tmp_path / "m")
    model.save_pretrained(tmp_path / "m")
    other = load(tmp_path / "m")
    growing, fixed = both(other, mixed_prompts(max_new_tokens=40))
    assert steps
    assert ids(fixed) == ids(growing)


def test_photos_of_different_sizes_beside_texts_give_the_same(
    hf_vlm_backend: Any, steps: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf_vlm_backend, "_steps", fixed_cache.Steps(are_fixed=False))
    tokenizer = hf_vlm_backend.tokenizer
    photos = {0: [(64, 48)], 2: [(300, 200)], 3: [(33, 200), (64, 64)], 5: [(120, 120)]}
    prompts = []
    for index in range(6):
        images = [noise(*size, seed=index) for size in photos.get(index, ())]
        prompts.append(prompt_of(tokenizer, chat("what is it? " * (1 + index), len(images)), index, images, max_new_tokens=60))
    growing, fixed = both(hf_vlm_backend, prompts)
    assert hf_vlm_backend._steps.are_fixed, hf_vlm_backend._steps.problem
    assert hf_vlm_backend._steps.checked == {True, False}
    assert ids(fixed) == ids(growing)
    assert {index: made.image_grids for index, made in fixed.items()} == {index: made.image_grids for index, made in growing.items()}


def test_a_model_whose_steps_differ_goes_on_with_a_growing_cache(backend: Any, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    forward = FixedDecoder._forward
    monkeypatch.setattr(FixedDecoder, "_forward", lambda self: forward(self).roll(1, -1))
    growing, fixed = both(backend, mixed_prompts())
    assert ids(fixed) == ids(growing)
    assert len(steps) == 1
    assert not backend._steps.are_fixed
    assert "gives other logits with a cache of fixed size" in backend._steps.problem


def test_what_fails_later_is_run_again_from_the_prompts(backend: Any, steps: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: FixedDecoder) -> None:
        raise Unfit("its step cannot be captured: operation not permitted")

    monkeypatch.setattr(fixed_cache, "GROWTH", 16)
    monkeypatch.setattr(FixedDecoder, "_grow", full)
    growing, fixed = both(backend, mixed_prompts(max_new_tokens=60, temperature=1.0))
    assert len(steps) > 8
    assert ids(fixed) == ids(growing)
    assert backend._steps.problem == "its step cannot be captured: operation not permitted"


def test_models_with_more_than_keys_and_values_or_another_attention_are_not_tried(backend: Any, hf_text_checkpoint: Any) -> None:
    assert why_not_fixed(backend.model, None, has_images=False) == "it keeps more than keys and values by row"
    assert why_not_fixed(backend.model, object(), has_images=True) == "it is not known how it places images"
    eager = load(hf_text_checkpoint, attn_implementation="eager")
    assert why_not_fixed(eager.model, object(), has_images=False) == "its attention is 'eager', not 'sdpa'"


class EndsAndBans:
    """Bans in each row what it has said, and ends a row where the sum of its ids can be divided by 23."""

    def ban(self, tokenizer: Any, vocab_size: int) -> Any:
        said: set[int] = set()
        return SimpleNamespace(push=said.add, banned=lambda: said)

    def watch(self, tokenizer: Any) -> Any:
        said: list[int] = []
        return SimpleNamespace(push=lambda token_id: said.append(token_id) or sum(said) % 23 == 0)


def test_plugins_see_the_same_tokens(backend: Any, steps: list[int]) -> None:
    growing, fixed = both(backend, mixed_prompts(max_new_tokens=40, stop_token_ids=()), plugins=normalise_plugins([EndsAndBans()]))
    assert ids(fixed) == ids(growing)
    assert {made.stopped_by for made in fixed.values()} == {"plugin", "length"}
    assert {index: made.stopped_by for index, made in fixed.items()} == {index: made.stopped_by for index, made in growing.items()}


def test_heads_that_share_keys_are_computed_as_sdpa_computes_them() -> None:
    import torch

    from evalharness.backends.hf._transformers import attending_with, transformers

    functions = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS
    own = functions["sdpa"]
    query, key, value = torch.randn(3, 8, 1, 16), torch.randn(3, 2, 40, 16), torch.randn(3, 2, 40, 16)
    mask = torch.rand(3, 1, 1, 40) > 0.3
    module = SimpleNamespace(num_key_value_groups=4, is_causal=True)
    expected, _ = own(module, query, key, value, mask, scaling=0.3)
    with attending_with(fixed_cache._grouped):
        found, _ = functions["sdpa"](module, query, key, value, mask, scaling=0.3)
        whole, _ = functions["sdpa"](module, torch.randn(3, 8, 5, 16), key, value, None, scaling=0.3)
    assert functions["sdpa"] is own
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-5)
    assert whole.shape == (3, 5, 8, 16)
