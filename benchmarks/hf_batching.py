"""Compare the hf backend with one request at a time and with raw batches of `generate` sorted by length.

    python -m benchmarks.hf_batching [--model PATH] [--num-prompts 64] [--max-new-tokens 64] [--rounds 3] [--device cpu]
    python -m benchmarks.hf_batching --shape 4b --dtype bfloat16 --ways batches growing fixed       on a GPU

Prints a table of tokens per second (median of the rounds, the ways alternating within a round), ratios, and whether all gave the same
greedy ids as the first. On a GPU the backend runs twice, with a growing cache and with CUDA graphs over one of fixed size. Without
`--model` it makes a checkpoint with the shape of SmolLM2-135M, or of `--shape`, and random weights: the same arithmetic as the real
one, nothing to download.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from evalharness.api.options import ModelLoadConfig, VlmPreprocessOptions
from evalharness.backends.base import Completion, Prompt, SamplingPlan

RAW_BATCH_SIZE = 16
Ids = dict[int, tuple[int, ...]]
WAYS = {
    "one by one": "one by one",
    "batches": f"raw batches of {RAW_BATCH_SIZE}, sorted",
    "growing": "hf backend, growing cache",
    "fixed": "hf backend, cache of fixed size",
}


def make_checkpoint(path: Path) -> Path:
    """Return `path`, now a Llama of 135 million random weights with a byte-level tokenizer."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    from evalharness.backends.hf._transformers import transformers

    config = transformers.LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        max_position_embeddings=8192,
        tie_word_embeddings=True,
        initializer_range=0.05,  # wider than usual: the best token is then clearly best
    )
    transformers.set_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(str(path))
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(["<end>", *alphabet])}, merges=[]))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<end>").save_pretrained(str(path))
    return path


def make_prompts(num_prompts: int, max_new_tokens: int, eos_token_ids: tuple[int, ...]) -> list[Prompt]:
    """Return prompts of 20 to 400 random tokens, most of them short, as chats are."""
    draw = random.Random(0)
    plan = SamplingPlan(
        max_new_tokens=max_new_tokens,
        temperature=0.0,
        top_p=1.0,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        stop_token_ids=eos_token_ids,
        stop_strings=(),
        skip_special_tokens=True,
        seed=0,
        logprobs=False,
        use_cache=True,
        pad_token_id=None,
    )
    lengths = [min(400, 20 + int(draw.expovariate(1 / 120))) for _ in range(num_prompts)]
    ids = [tuple(draw.randrange(10, 250) for _ in range(length)) for length in lengths]
    return [Prompt(index=i, text="", token_ids=row, num_tokens=len(row), plan=plan) for i, row in enumerate(ids)]


def raw_batches(model: Any, prompts: list[Prompt], batch_size: int) -> Ids:
    """Return what a plain loop over `generate` gives, batches sorted by length and padded on the left."""
    import torch
    from transformers import GenerationConfig

    plan = prompts[0].plan
    config = GenerationConfig(
        do_sample=False, max_new_tokens=plan.max_new_tokens, eos_token_id=list(plan.stop_token_ids), pad_token_id=plan.stop_token_ids[0]
    )
    results: Ids = {}
    ordered = sorted(prompts, key=lambda prompt: len(prompt.token_ids), reverse=True)
    for start in range(0, len(ordered), batch_size):
        batch = ordered[start : start + batch_size]
        width = len(batch[0].token_ids)
        gaps = [width - len(prompt.token_ids) for prompt in batch]
        ids = torch.tensor([[0] * gap + list(p.token_ids) for gap, p in zip(gaps, batch, strict=True)], device=model.device)
        mask = torch.tensor([[0] * gap + [1] * (width - gap) for gap in gaps], device=model.device)
        with torch.inference_mode():
            rows = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)[:, width:].tolist()
        for prompt, row in zip(batch, rows, strict=True):
            ends = [row.index(stop) + 1 for stop in plan.stop_token_ids if stop in row]
            results[prompt.index] = tuple(row[: min(ends, default=len(row))])
    return results


def ours(backend: Any, prompts: list[Prompt], *, are_fixed: bool) -> Ids:
    """Return what the backend gives, its cache of fixed size or not."""
    backend._steps.are_fixed = are_fixed
    outputs = list(backend.generate(iter(prompts)))
    assert all(isinstance(output, Completion) for output in outputs), outputs
    return {output.index: output.token_ids for output in outputs}


def measure(ways: dict[str, Callable[[], Ids]], rounds: int) -> tuple[dict[str, list[float]], dict[str, Ids]]:
    """Return seconds per round and ids of each way; the ways alternate, so that a slow minute hits all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    ids: dict[str, Ids] = {}
    for _ in range(rounds):
        for name, way in ways.items():
            started = time.perf_counter()
            ids[name] = way()
            seconds[name].append(time.perf_counter() - started)
    return seconds, ids


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare the hf backend with raw transformers loops")
    parser.add_argument("--model", type=Path, help="Checkpoint directory (default: random weights in the shape of SmolLM2-135M)")
    parser.add_argument("--num-prompts", type=int, default=64, help="Number of prompts (default: 64)")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="Tokens to generate per prompt (default: 64)")
    parser.add_argument("--rounds", type=int, default=3, help="Rounds; the median counts (default: 3)")
    parser.add_argument("--dtype", default="float32", help="Data type of the weights (default: float32)")
    parser.add_argument("--device", help="Device to run on (default: the GPU where there is one)")
    parser.add_argument("--shape", default=None, help="A shape of random_checkpoints.py, such as 4b (default: SmolLM2-135M's)")
    parser.add_argument("--ways", nargs="+", choices=WAYS, help="What to compare (default: all that the device has)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        from evalharness.backends.hf.backend import HfBackend

        path = arguments.model or made(Path(folder), arguments.shape)
        backend = HfBackend(ModelLoadConfig(str(path), torch_dtype=arguments.dtype, device=arguments.device), VlmPreprocessOptions())
        prompts = make_prompts(arguments.num_prompts, arguments.max_new_tokens, backend.eos_token_ids)
        has_graphs = backend.model.device.type == "cuda"
        known: dict[str, Callable[[], Ids]] = {
            "one by one": lambda: raw_batches(backend.model, prompts, 1),
            "batches": lambda: raw_batches(backend.model, prompts, RAW_BATCH_SIZE),
            "growing": lambda: ours(backend, prompts, are_fixed=False),
            "fixed": lambda: ours(backend, prompts, are_fixed=True),
        }
        chosen = arguments.ways or [way for way in WAYS if way != "fixed" or has_graphs]
        ours(backend, prompts[:2], are_fixed=False)  # first calls are slow
        ours(backend, prompts[:2], are_fixed="fixed" in chosen)
        seconds, ids = measure({WAYS[way]: known[way] for way in chosen}, arguments.rounds)
        facts = ("torch", "transformers", "dtype", "device", "max_rows_per_batch", "num_batches_halved", "cuda_graphs")
        print({key: value for key, value in backend.describe().items() if key in facts})
        backend.close()
    first = next(iter(ids))
    baseline = ids[first]
    num_tokens = sum(map(len, baseline.values()))
    print(f"{len(prompts)} prompts, {sum(len(p.token_ids) for p in prompts)} tokens in, {num_tokens} tokens out\n")
    print(f"| way | median s | tokens/s | against {first} | same ids |\n|---|---|---|---|---|")
    slowest = statistics.median(seconds[first])
    for name, times in seconds.items():
        median = statistics.median(times)
        same = sum(ids[name][index] == baseline[index] for index in baseline)
        print(f"| {name} | {median:.1f} | {num_tokens / median:.0f} | {slowest / median:.2f} × | {same} of {len(baseline)} |")


def made(folder: Path, shape: str | None) -> Path:
    """Return a folder, now with a checkpoint of random weights."""
    if shape is None:
        return make_checkpoint(folder)
    from benchmarks.random_checkpoints import make_random_checkpoint

    return make_random_checkpoint(shape, folder / shape)


if __name__ == "__main__":
    main()
