"""Multiple choice by likelihood: the time of lm-evaluation-harness and of our backends on the same questions, and whether numbers agree.

    python -m benchmarks.choices_speed --model CHECKPOINT [--shape arc hellaswag mmlu] [--questions 60] [--rounds 3] [--backend hf vllm]
    python -m benchmarks.choices_speed --model CHECKPOINT --device cuda --dtype bfloat16 --batch-sizes 32 128

The questions are made here, in the shapes of ARC (short choices), HellaSwag (endings of a sentence or two) and five-shot MMLU (letters
behind long prompts with the examples in common). Both sides turn texts into ids and score them on the same device, from the first
request to the last number, models loaded before; rounds alternate, lm-eval with its best of `--batch-sizes`. Prints medians, ratios and the
greatest difference between the sums of log-probabilities.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from evalharness import GenerationOptions, ModelLoadConfig, ScoringRequest, VllmEngineOptions, build_engine

NOUNS = "river valley engine teacher garden window market signal forest bridge planet kitchen winter student machine letter"
VERBS = "carries follows measures repairs paints opens crosses builds finds explains watches collects pushes covers returns"
ADJECTIVES = "old quiet broken bright heavy narrow warm careful distant simple famous hidden green early common"
KINDS = [words.split() for words in (NOUNS, VERBS, ADJECTIVES, "the a of to and in")]
Sums = list[float]


def sentence(draw: random.Random, num_words: int) -> str:
    """Return words that read like a sentence, about a token each."""
    return " ".join(draw.choice(draw.choice(KINDS)) for _ in range(num_words))


def question(shape: str, draw: random.Random) -> tuple[str, list[str]]:
    """Return a context and its choices."""
    if shape == "arc":
        asked = f"Question: Which {sentence(draw, draw.randint(10, 45))}?\nAnswer:"
        return asked, [f" {sentence(draw, draw.randint(1, 9))}" for _ in range(4)]
    if shape == "hellaswag":
        return f"{sentence(draw, draw.randint(20, 90)).capitalize()}.", [f" {sentence(draw, draw.randint(12, 38))}." for _ in range(4)]
    lines = "\n".join(f"{letter}. {sentence(draw, draw.randint(1, 8))}" for letter in "ABCD")
    return f"{sentence(draw, draw.randint(10, 50)).capitalize()}?\n{lines}\nAnswer:", [f" {letter}" for letter in "ABCD"]


def questions(shape: str, num: int, seed: int) -> list[tuple[str, str]]:
    """Return pairs of context and choice."""
    draw = random.Random(seed)
    shots = "".join(f"{context}{draw.choice(choices)}\n\n" for context, choices in (question(shape, draw) for _ in range(5)))
    made = [question(shape, draw) for _ in range(num)]
    return [((shots if shape == "mmlu" else "") + context, choice) for context, choices in made for choice in choices]


def lm_eval_way(model: Any, pairs: Sequence[tuple[str, str]], batch_size: int) -> Sums:
    """Return the sums that lm-eval finds."""
    from lm_eval.api.instance import Instance

    model.batch_size_per_gpu = batch_size
    instances = [Instance("loglikelihood", {}, pair, index) for index, pair in enumerate(pairs)]
    return [total for total, _ in model.loglikelihood(instances, disable_tqdm=True)]


def our_way(engine: Any, encode: Callable[[str, str], tuple[list[int], list[int]]], pairs: Sequence[tuple[str, str]]) -> Sums:
    """Return the sums that an engine finds, of the same ids."""
    outcomes = dict(engine.stream([ScoringRequest(*encode(*pair)) for pair in pairs], GenerationOptions()))
    return [sum(outcomes[place].logprobs) for place in range(len(pairs))]


def timed(way: Callable[[], Sums]) -> tuple[float, Sums]:
    """Return the seconds of a call, and what it gives."""
    began = time.perf_counter()
    sums = way()
    return time.perf_counter() - began, sums


def measure(shape: str, options: argparse.Namespace, model: Any, engines: Mapping[str, Any]) -> None:
    """Print what all ways take for the questions of a shape."""
    first = questions(shape, options.questions, seed=0)
    sizes = {size: timed(partial(lm_eval_way, model, first[: 2 * max(options.batch_sizes)], size))[0] for size in options.batch_sizes}
    best = min(sizes, key=sizes.__getitem__)
    seconds: dict[str, list[float]] = {name: [] for name in ("lm-eval", *engines)}
    for engine in engines.values():
        our_way(engine, model._encode_pair, first[:8])  # the comparison of the first pack, kernels' first use
    for number in range(options.rounds):
        pairs = questions(shape, options.questions, seed=1 + number)  # new ones: a run asks each once
        taken, theirs = timed(partial(lm_eval_way, model, pairs, best))
        seconds["lm-eval"].append(taken)
        for name, engine in engines.items():
            taken, ours = timed(partial(our_way, engine, model._encode_pair, pairs))
            seconds[name].append(taken)
            apart = max(abs(one - other) for one, other in zip(theirs, ours, strict=True))
            print(f"  {name} {taken:.2f} s, lm-eval {seconds['lm-eval'][-1]:.2f} s, sums differ by at most {apart:.2g}", flush=True)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = "".join(f", {name} {medians[name]:.2f} s: {medians['lm-eval'] / medians[name]:.2f} x" for name in engines)
    print(f"{shape}, {4 * options.questions} choices: lm-eval {medians['lm-eval']:.2f} s with batches of {best}{ratios}", flush=True)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--shape", nargs="+", default=["arc", "hellaswag", "mmlu"], choices=["arc", "hellaswag", "mmlu"])
    parser.add_argument("--backend", nargs="+", default=["hf"], choices=["hf", "vllm"])
    parser.add_argument("--questions", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="Of torch; more wait for each other where others use the machine")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    config = ModelLoadConfig(options.model, torch_dtype=options.dtype)
    # On a card the other models have to fit beside vLLM's.
    more = {"vllm_options": VllmEngineOptions(gpu_memory_utilization=0.3)} if options.device == "cuda" else {}
    engines = {backend: build_engine(backend, config, **(more if backend == "vllm" else {})) for backend in options.backend}
    from lm_eval.models.huggingface import HFLM

    model = HFLM(pretrained=options.model, device=options.device, dtype=options.dtype, batch_size=1)
    for shape in options.shape:
        measure(shape, options, model, engines)
    for engine in engines.values():
        engine.close()


if __name__ == "__main__":
    main()
