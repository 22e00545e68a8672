"""Tiny random checkpoints and prompts for the transformers backend's tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.backends.base import BackendOutput, Completion, Prompt, SamplingPlan
from evalharness.backends.torchvision_cpu import register_missing_operators
from evalharness.engine.engine import Engine
from tests.backends.plans import PLAN

END_ID = 0
PAD_ID = 1
VOCAB_SIZE = 260
NUM_PRINTABLE = 94  # the byte-level alphabet starts with "!" to "~"

# Every one of these would change greedy decoding if it reached transformers.
TRAPS = {
    "do_sample": True,
    "temperature": 5.0,
    "top_k": 3,
    "top_p": 0.4,
    "repetition_penalty": 3.0,
    "no_repeat_ngram_size": 1,
    "min_new_tokens": 7,
    "max_new_tokens": 2,
    "suppress_tokens": list(range(20, 80)),
    "num_beams": 3,
    "num_return_sequences": 2,
    "forced_eos_token_id": 5,
    "stop_strings": ["a"],
    "unknown_knob": 1,
}


def make_tokenizer(path: Path, *, with_pad: bool = True) -> None:
    """Write a byte-level tokenizer without merges: ids 0 `<end>`, 1 `<pad>`, then one id per byte."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: position for position, token in enumerate(["<end>", "<pad>", *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True), AddedToken("<pad>", special=True)])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>", **({"pad_token": "<pad>"} if with_pad else {}))
    fast.save_pretrained(str(path))


@contextmanager
def one_thread() -> Iterator[None]:
    """Keep torch to one thread: on models this small, and beside other test workers, threads mostly wait for each other."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def draw_wide(model: Any, seed: int, end_id: int) -> None:
    """Draw a model's weights so wide that greedy choices are clear, and some rows end by themselves."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, parameter in sorted(model.named_parameters()):
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / parameter.shape[1] ** 0.5)
        model.lm_head.weight.mul_(4.0)
        model.lm_head.weight[end_id] *= 1.3


def make_llama(**changes: Any) -> Any:
    """Return a tiny random Llama; the changes go to its config."""
    register_missing_operators()
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32}
    return LlamaForCausalLM(LlamaConfig(**{**sizes, **heads, "max_position_embeddings": 256, **changes}))


def make_text_checkpoint(path: Path, *, seed: int = 0, with_pad: bool = True, generation_config: dict[str, Any] | None = None) -> Path:
    """Return `path`, now a tiny Llama whose weights are drawn wide, so that greedy choices are clear."""
    model = make_llama(vocab_size=VOCAB_SIZE, eos_token_id=END_ID, pad_token_id=PAD_ID)
    import torch

    path.mkdir(parents=True, exist_ok=True)
    draw_wide(model, seed, END_ID)
    with torch.no_grad():
        model.lm_head.weight[PAD_ID] = 0.0  # never generated: where it shows up, it is padding
        model.lm_head.weight[2 + NUM_PRINTABLE :] = 0.0  # bytes that are no text of their own
    model.save_pretrained(str(path))
    make_tokenizer(path, with_pad=with_pad)
    values = {"eos_token_id": END_ID, **TRAPS} if generation_config is None else generation_config
    (path / "generation_config.json").write_text(json.dumps(values))
    return path


def make_vlm_checkpoint(path: Path) -> Path:
    """Return `path`, now the tiny Qwen3-VL of the fixtures."""
    from fixtures.make_tiny_checkpoint import make_tiny_checkpoint

    return make_tiny_checkpoint(path)


def load(path: Path, *, max_pixels: int | None = None, **config: Any) -> Any:
    """Return an `HfBackend` in float32 on the CPU, unless told otherwise."""
    from evalharness.backends.hf.backend import HfBackend

    settings = {"torch_dtype": "float32", "device": "cpu", **config}
    return HfBackend(ModelLoadConfig(str(path), **settings), VlmPreprocessOptions(max_pixels=max_pixels))


def model_of(engine: Engine) -> Any:
    """Return the transformers model that an engine of the hf backend has loaded."""
    from evalharness.backends.hf.backend import HfBackend

    assert isinstance(engine.backend, HfBackend)
    return engine.backend.model


def plan(**values: Any) -> SamplingPlan:
    """Return a greedy plan of 12 tokens with the values changed."""
    return replace(PLAN, **{"max_new_tokens": 12, "stop_token_ids": (END_ID,), "seed": 0, **values})


def prompt(index: int, token_ids: Sequence[int], **values: Any) -> Prompt:
    """Return a text prompt of these ids."""
    return Prompt(index=index, text="", token_ids=tuple(token_ids), num_tokens=len(token_ids), plan=plan(**values))


def mixed_prompts(count: int = 12, **values: Any) -> list[Prompt]:
    """Return prompts of very different lengths, in no order of length; their seeds differ."""
    import random

    draw = random.Random(7)
    return [
        prompt(index, [draw.randrange(2, 258) for _ in range(draw.choice((1, 2, 5, 11, 30, 64)))], **{"seed": 100 + index, **values})
        for index in range(count)
    ]


def run(backend: Any, prompts: Iterable[Prompt], **kwargs: Any) -> dict[int, BackendOutput]:
    """Return the outputs by index; every prompt must have exactly one."""
    outputs: dict[int, Any] = {}
    for output in backend.generate(prompts, **kwargs):
        index = output.index if isinstance(output, Completion) else output[0]
        assert index not in outputs
        outputs[index] = output if isinstance(output, Completion) else output[1]
    return outputs


def ids(outputs: dict[int, Any]) -> dict[int, tuple[int, ...]]:
    """Return the token ids of completions by index."""
    return {index: output.token_ids for index, output in sorted(outputs.items())}
