"""Measures the noise of vLLM's batches and what its batch-invariant mode costs: the same prompts again, in other order and company.

    python -m benchmarks.noise FOLDER                        both modes, on as many GPUs side by side, else one after the other
    python -m benchmarks.noise FOLDER --modes invariant      one of them; FOLDER keeps the checkpoint and noise.jsonl

Each mode is an engine in a process of its own, with the harness's arguments. The first round asks all prompts in order, each repeat in
another order and in waves of another size, with an empty prefix cache; greedy, up to the cap. An answer *differs* where its ids are not
those of the first round. Tokens per second are those of whole rounds after the first, which warms up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.gpu_scaling import card
from benchmarks.vllm_overhead import make_messages

MODES = ("default", "invariant")
ROOT = Path(__file__).parents[1]
WAVES = (1, 1, 2, 4)
"""Into how many waves each round after the first is divided; again from the start if there are more rounds."""


def rounds(folder: Path, mode: str, num_prompts: int, num_repeats: int, max_new_tokens: int, more: dict[str, Any]) -> dict[str, Any]:
    """Return how often answers of repeats differ from the first, and the speed, of one engine."""
    from evalharness.api.options import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
    from evalharness.backends.base import Prompt, SamplingPlan
    from evalharness.backends.vllm.backend import VllmBackend

    options = VllmEngineOptions(max_model_len=2048, batch_invariant=mode == "invariant", extra=tuple(more.items()))
    backend = VllmBackend(ModelLoadConfig(str(folder / "checkpoint")), VlmPreprocessOptions(), options)
    template = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    chats = make_messages(backend.tokenizer, num_prompts)
    texts = [backend.tokenizer.apply_chat_template(chat, **template) for chat in chats]
    ids = [tuple(backend.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
    plan = SamplingPlan(max_new_tokens, 0.0, 1.0, 1.0, 0, (), (), True, 0, False, True, None)
    answers: list[dict[int, tuple[int, ...]]] = []
    rates = []
    try:
        for number in range(1 + num_repeats):
            order = list(range(num_prompts))
            if number:
                Random(number).shuffle(order)
            num_waves = WAVES[(number - 1) % len(WAVES)] if number else 1
            backend._engine._llm.reset_prefix_cache()
            made: dict[int, tuple[int, ...]] = {}
            started = time.perf_counter()
            for wave in range(num_waves):
                prompts = (Prompt(index, "", ids[index], len(ids[index]), plan) for index in order[wave::num_waves])
                for output in backend.generate(prompts):
                    if isinstance(output, tuple):
                        raise SystemExit(f"prompt {output[0]} failed: {output[1].problem}")
                    made[output.index] = output.token_ids
            if number and num_waves == 1:
                rates.append(sum(map(len, made.values())) / (time.perf_counter() - started))
            answers.append(made)
        facts = backend.describe()
    finally:
        backend.close()
    first, repeats = answers[0], answers[1:]
    splits = [
        next(place for place, (a, b) in enumerate(zip(first[index], again[index], strict=True)) if a != b)
        for again in repeats
        for index in first
        if first[index] != again[index]
    ]
    ever = {index for again in repeats for index in first if first[index] != again[index]}
    return {
        "mode": mode,
        "card": card(),
        **{name: facts[name] for name in ("vllm", "torch", "dtype", "load_s", "max_num_seqs")},
        "environment": facts["environment"].get("VLLM_BATCH_INVARIANT"),
        "num_prompts": num_prompts,
        "num_repeats": num_repeats,
        "tokens_per_s": statistics.median(rates) if rates else None,
        "differing_by_repeat": [sum(first[index] != again[index] for index in first) / num_prompts for again in repeats],
        "differing_ever": len(ever) / num_prompts,
        "first_difference": statistics.median(splits) if splits else None,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    """Return a short table."""
    lines = ["| mode | tok/s | answers that differ, by repeat | in any repeat | median place of the first difference | start, s |"]
    lines.append("|---" * 6 + "|")
    for line in results:
        rate = "" if line["tokens_per_s"] is None else f"{line['tokens_per_s']:,.0f}"
        shares = ", ".join(f"{share:.1%}" for share in line["differing_by_repeat"])
        place = "" if line["first_difference"] is None else f"{line['first_difference']:.0f}"
        lines.append(f"| {line['mode']} | {rate} | {shares} | {line['differing_ever']:.1%} | {place} | {line['load_s']:.0f} |")
    rate_of = {line["mode"]: line["tokens_per_s"] for line in results}
    if all(rate_of.get(mode) for mode in MODES):
        lines.append(f"\ninvariant ÷ default: {rate_of['invariant'] / rate_of['default']:.3f} x")
    head = results[0]
    about = f"{head['num_prompts']} prompts, {head['num_repeats']} repeats"
    return f"{head['card']}, vLLM {head['vllm']}, torch {head['torch']}, {head['dtype']}, {about}\n\n" + "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the modes, each in a process of its own, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="Where the checkpoint (9 GB) and results go")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES), help="What to measure (default: both)")
    parser.add_argument("--shape", default="4b", help="Shape of the random weights (default: 4b)")
    parser.add_argument("--prompts", type=int, default=512, help="Number of prompts (default: 512)")
    parser.add_argument("--repeats", type=int, default=4, help="Repeats after the first round (default: 4)")
    parser.add_argument("--max-new-tokens", type=int, default=128, help="Tokens of each answer (default: 128)")
    parser.add_argument("--engine-options", type=json.loads, default={}, help="More arguments of vLLM, as JSON")
    parser.add_argument("--one", action="store_true", help="Measure the one mode in this process")
    arguments = parser.parse_args(argv)
    folder = arguments.folder.resolve()
    results = folder / "noise.jsonl"
    if arguments.one:
        sizes = arguments.prompts, arguments.repeats, arguments.max_new_tokens
        line = rounds(folder, arguments.modes[0], *sizes, arguments.engine_options)
        with results.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        return
    if not (folder / "checkpoint" / "config.json").exists():
        # In a process of its own: what torch holds of the GPU's memory ends with it.
        make = "import sys; from pathlib import Path; from benchmarks.random_checkpoints import make_random_checkpoint as make"
        made = [sys.executable, "-c", f"{make}; make(sys.argv[1], Path(sys.argv[2]))", arguments.shape, str(folder / "checkpoint")]
        subprocess.run(made, cwd=ROOT, check=True)
    import torch

    cards = (os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(torch.cuda.device_count())))).split(",")
    given = list(argv if argv is not None else sys.argv[1:])
    running: list[subprocess.Popen[bytes]] = []
    for number, mode in enumerate(arguments.modes):
        env = {**os.environ, **({"CUDA_VISIBLE_DEVICES": cards[number]} if len(cards) >= len(arguments.modes) > 1 else {})}
        running.append(subprocess.Popen([sys.executable, "-m", "benchmarks.noise", *given, "--one", "--modes", mode], cwd=ROOT, env=env))
        if len(cards) < len(arguments.modes):
            running[-1].wait()
    codes = [process.wait() for process in running]
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()] if results.exists() else []
    latest = {line["mode"]: line for line in lines}
    if latest:
        print(table([latest[mode] for mode in MODES if mode in latest]))
    if any(codes):
        raise SystemExit(f"modes that failed: {', '.join(mode for mode, code in zip(arguments.modes, codes, strict=True) if code)}")


if __name__ == "__main__":
    main()
