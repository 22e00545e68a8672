"""Measures the time from first request to last result: `LLM.generate` alone, our vllm backend, and the whole engine.

    python benchmarks/vllm_overhead.py                         # tiny random model, CPU or GPU
    python benchmarks/vllm_overhead.py --shape 4b              # Qwen3-4B's shape, random bf16 weights (GPU, 8 GB of disk)
    python benchmarks/vllm_overhead.py --model path/to/checkpoint --num-requests 256 --max-new-tokens 128

All three run the same requests in turn, in one process on one engine, for several rounds; the prefix cache is emptied before each.
`LLM.generate` is timed with texts, as people call it, and without, which is its minimum. Our backend returns ids; the engine renders
the chat template, tokenises, decodes and determines the finish reason.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from evalharness.api.options import GenerationOptions, ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
from evalharness.api.requests import GenerationResult, TextGenerationRequest
from evalharness.backends.base import Prompt, SamplingPlan
from evalharness.backends.vllm.backend import VllmBackend
from evalharness.engine.engine import Engine

PROMPT_TOKENS = (100, 230)  # of the user's message; the template adds a few


def make_checkpoint(shape: str, path: Path) -> Path:
    """Write random weights of this shape and a small tokenizer; return the folder."""
    from fixtures.make_tiny_checkpoint import make_tiny_checkpoint

    tiny = path / "tiny"
    make_tiny_checkpoint(tiny)
    if shape == "small":
        return tiny
    from benchmarks.random_checkpoints import make_random_checkpoint

    return make_random_checkpoint(shape, path / "qwen3-4b-shape")


def make_messages(tokenizer: Any, num_requests: int) -> list[list[dict[str, str]]]:
    """Return one chat per request, of random tokens that are plain words."""
    rng = random.Random(0)
    words = [token_id for token_id in range(min(len(tokenizer), 600)) if tokenizer.decode([token_id]).strip().isascii()]
    texts = [tokenizer.decode(rng.choices(words, k=rng.randint(*PROMPT_TOKENS))) for _ in range(num_requests)]
    return [[{"role": "user", "content": text}] for text in texts]


def time_of(run: Callable[[], int], expected_tokens: int) -> float:
    """Return the seconds that `run` takes; it returns how many tokens it generated."""
    start = time.perf_counter()
    num_tokens = run()
    seconds = time.perf_counter() - start
    if num_tokens != expected_tokens:
        raise SystemExit(f"{num_tokens} tokens were generated where {expected_tokens} are right: nothing can be compared")
    return seconds


def contestants(engine: Engine, backend: VllmBackend, num_requests: int, max_new_tokens: int) -> dict[str, Callable[[], int]]:
    """Return name → a function that answers all requests and returns the number of generated tokens."""
    from vllm import SamplingParams

    llm = backend._engine._llm
    messages = make_messages(backend.tokenizer, num_requests)
    template = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    texts = [backend.tokenizer.apply_chat_template(chat, **template) for chat in messages]
    ids = [backend.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    plan = SamplingPlan(max_new_tokens, 0.0, 1.0, 1.0, 0, (), (), True, 0, False, True, None)

    def raw(detokenize: bool) -> int:
        params = SamplingParams(temperature=0.0, max_tokens=max_new_tokens, ignore_eos=True, detokenize=detokenize)
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in ids], params, use_tqdm=False)
        return sum(len(output.outputs[0].token_ids) for output in outputs)

    def ours() -> int:
        prompts = (Prompt(index, "", tuple(prompt), len(prompt), plan) for index, prompt in enumerate(ids))
        return sum(len(output.token_ids) for output in backend.generate(prompts) if not isinstance(output, tuple))

    def whole() -> int:
        # An id that no tokenizer has: every answer runs to the cap, so that all do the same work.
        options = GenerationOptions(max_new_tokens=max_new_tokens, eos_token_id=(), seed=0)  # nothing ends it but the cap
        requests = [TextGenerationRequest(chat) for chat in messages]
        outcomes = [outcome for _, outcome in engine.stream(requests, options)]
        return sum(len(outcome.token_ids) for outcome in outcomes if isinstance(outcome, GenerationResult))

    return {"LLM.generate": lambda: raw(True), "LLM.generate, no texts": lambda: raw(False), "vllm backend": ours, "engine": whole}


def measure(runs: dict[str, Callable[[], int]], rounds: int, expected_tokens: int, reset: Callable[[], Any]) -> dict[str, list[float]]:
    """Return name → seconds per round; the order changes from round to round, and a first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for number in range(rounds + 1):
        names = list(runs)
        names = names[number % len(names) :] + names[: number % len(names)]
        for name in names:
            reset()
            taken = time_of(runs[name], expected_tokens)
            if number:
                seconds[name].append(taken)
    return seconds


def machine() -> str:
    """Return the card, or the processor and its number of cores."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.get_device_name(0)
    return f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}"


def report(seconds: dict[str, list[float]], num_tokens: int, facts: dict[str, Any]) -> None:
    """Print the table and, for records, one line of JSON."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    base, least = medians["LLM.generate"], medians["LLM.generate, no texts"]
    print(f"\n{facts['requests']} requests, {num_tokens} tokens, {facts['machine']}, vLLM {facts['vllm']}, {facts['rounds']} rounds\n")
    print("| what | median s | min–max s | tok/s | × LLM.generate | × without texts |\n|---|---|---|---|---|---|")
    for name, median in medians.items():
        spread = f"{min(seconds[name]):.2f}–{max(seconds[name]):.2f}"
        print(f"| {name} | {median:.2f} | {spread} | {num_tokens / median:,.0f} | {median / base:.3f} | {median / least:.3f} |")
    print(json.dumps(facts | {"seconds": seconds}))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a checkpoint directory (default: random weights of --shape)")
    parser.add_argument("--shape", choices=("small", "4b"), default="small", help="what to make where no --model is given")
    parser.add_argument("--num-requests", type=int, default=256)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-model-len", type=int, default=2048)
    arguments = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.model or str(make_checkpoint(arguments.shape, Path(folder)))
        options = VllmEngineOptions(max_model_len=arguments.max_model_len)
        backend = VllmBackend(ModelLoadConfig(path, variant="text"), VlmPreprocessOptions(), options)
        with Engine(backend) as engine:
            num_tokens = arguments.num_requests * arguments.max_new_tokens
            runs = contestants(engine, backend, arguments.num_requests, arguments.max_new_tokens)
            seconds = measure(runs, arguments.rounds, num_tokens, backend._engine._llm.reset_prefix_cache)
            described = backend.describe()
    facts = {
        "machine": machine(),
        "vllm": described["vllm"],
        "torch": described["torch"],
        "shape": Path(path).name,
        "requests": arguments.num_requests,
        "max_new_tokens": arguments.max_new_tokens,
        "rounds": arguments.rounds,
        "load_s": described["load_s"],
    }
    report(seconds, num_tokens, facts)


if __name__ == "__main__":
    main()
