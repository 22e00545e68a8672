"""Measures changes of weights on a running engine: another checkpoint, the same weights from memory, sleep and wake.

    python -m benchmarks.live_weights CHECKPOINT OTHER [--backend vllm|hf]

CHECKPOINT and OTHER have one architecture (`gpu_scaling … prepare --checkpoints 2` makes two). After every change the same few prompts
run, one at a time, and the table says whether their greedy ids and log-probabilities equal those of the same weights before. (Random
weights with tied embeddings always repeat the last token.) Without a GPU vLLM cannot sleep, and those lines are absent.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.api.options import GenerationOptions, ModelLoadConfig, VllmEngineOptions
from evalharness.api.requests import TokenGenerationRequest
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine

NUM_PROMPTS, PROMPT_TOKENS, NEW_TOKENS = 4, 100, 24
GIB = 2**30
TOLERANCE = 1e-3
Answers: TypeAlias = list[tuple[tuple[int, ...], tuple[float | None, ...]]]


def open_engine(checkpoint: str, backend: str, *, sleeps: bool) -> Engine:
    """Return an engine on the checkpoint; vLLM with its sleep mode where it can sleep."""
    extra = (("enable_sleep_mode", True),) if sleeps else ()
    options = VllmEngineOptions(max_model_len=2048, extra=extra) if backend == "vllm" else None
    return build_engine(backend, ModelLoadConfig(checkpoint, variant="text"), vllm_options=options)


def answers(engine: Engine) -> Answers:
    """Return ids and log-probabilities behind a few prompts, asked one at a time: bfloat16 rounds by the shape of the batch."""
    draw = random.Random(0)
    options = GenerationOptions(max_new_tokens=NEW_TOKENS, temperature=0.0, eos_token_id=(), seed=0, logprobs=True)
    requests = [TokenGenerationRequest([draw.randrange(5, 500) for _ in range(PROMPT_TOKENS)]) for _ in range(NUM_PROMPTS)]
    results = [engine.generate_token_batch([request], options)[0] for request in requests]
    return [(result.token_ids, tuple(result.logprobs or ())) for result in results]


def are_same(answers: Answers, wanted: Answers) -> bool:
    """Return whether two sets of answers have the same ids, and log-probabilities that differ by no more than rounding."""
    pairs = [pair for (_, logprobs), (_, expected) in zip(answers, wanted, strict=True) for pair in zip(logprobs, expected, strict=True)]
    return [ids for ids, _ in answers] == [ids for ids, _ in wanted] and all(abs((a or 0.0) - (b or 0.0)) <= TOLERANCE for a, b in pairs)


def tensors_of(checkpoint: Path) -> dict[str, Any]:
    """Return a checkpoint's tensors, as a trainer would hold them in memory."""
    from safetensors.torch import load_file

    return {name: tensor for path in sorted(checkpoint.glob("*.safetensors")) for name, tensor in load_file(path).items()}


def used_gib() -> float:
    """Return how much of the card is in use, by whomever; 0 without a card."""
    import torch

    if not torch.cuda.is_available():
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return (total - free) / GIB


def measured(engine: Engine, checkpoint: Path, other: Path, *, sleeps: bool) -> list[dict[str, Any]]:
    """Return one row per change: its seconds, the card's memory after it, and whether answers are as they were with those weights."""
    first = answers(engine)
    rows: list[dict[str, Any]] = []

    def take(what: str, change: Callable[[], Any], wanted: Answers | None) -> None:
        started = time.perf_counter()
        change()
        row = {"what": what, "seconds": time.perf_counter() - started, "used_gib": used_gib()}
        rows.append({**row, "same": None if wanted is None else are_same(answers(engine), wanted)})

    take("load another checkpoint", lambda: engine.weights.reload(str(other)), None)
    second = answers(engine)
    rows[-1]["same"] = not are_same(second, first)  # other weights, other answers
    take("load the first again", lambda: engine.weights.reload(str(checkpoint)), first)
    tensors = tensors_of(other)
    take("take the other's tensors from memory", lambda: engine.weights.sync_from_state_dict(tensors), second)
    if sleeps:
        take("sleep", engine.weights.sleep, None)
        take("wake", engine.weights.wake, second)
        take("sleep again", engine.weights.sleep, None)
        take("wake the weights", lambda: engine.weights.wake("weights"), None)
        take("load the first checkpoint meanwhile", lambda: engine.weights.reload(str(checkpoint)), None)
        take("wake the cache", lambda: engine.weights.wake("kv_cache"), first)
    return rows


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table and, for records, one line of JSON; ends with 1 if answers were not those of the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("other", type=Path)
    parser.add_argument("--backend", choices=("vllm", "hf"), default="vllm")
    arguments = parser.parse_args(argv)
    from evalharness.hardware.devices import installed_cards

    sleeps = arguments.backend == "hf" or bool(installed_cards())  # torch is not asked: it would start CUDA before vLLM forks
    started = time.perf_counter()
    engine = open_engine(str(arguments.checkpoint), arguments.backend, sleeps=sleeps)
    opened_s = time.perf_counter() - started
    with engine:
        rows = [{"what": "open", "seconds": opened_s, "used_gib": used_gib(), "same": None}]
        rows += measured(engine, arguments.checkpoint, arguments.other, sleeps=sleeps)
        facts = {name: value for name, value in engine.backend.describe().items() if name in ("vllm", "torch", "device", "dtype")}
    print(f"\n{arguments.backend}: {facts}\n\n| change | s | GiB in use after it | answers as they should be |\n|---|---|---|---|")
    for row in rows:
        verdict = {None: "", True: "yes", False: "NO"}[row["same"]]
        print(f"| {row['what']} | {row['seconds']:.2f} | {row['used_gib']:.1f} | {verdict} |")
    print(json.dumps({"backend": arguments.backend, **facts, "rows": rows}))
    if any(row["same"] is False for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
