"""Compares `pytest … --backend vllm -n N` with `LLM.generate` on the same prompts, on one GPU and on several.

    python -m benchmarks.gpu_scaling FOLDER --kind text-4b                all steps, on one, two and four GPUs
    python -m benchmarks.gpu_scaling FOLDER --kind vl-4b prepare raw      some steps only; FOLDER keeps all results
    python -m benchmarks.gpu_scaling FOLDER --kind text-4b prepare harness table --workers 4 --checkpoints 10

`prepare` writes checkpoints of random weights, prompts and, for vl, photos. `raw` times `LLM.generate` in a process of its
own, on an engine with the harness's arguments: once with texts, to compare the harness with, and once without, its minimum.
`harness` runs pytest on `throughput/test_answers.py` and reads the journal: tokens from first request to last result. `table`
prints FOLDER/results.jsonl.

With N workers the rate is N x tokens / worker-seconds; the seconds of each worker run from its own first request to the last result
of all workers. So start-up does not count, but waiting at the end and swaps between checkpoints do.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.throughput.test_answers import MAX_NEW_TOKENS, load_cases, request
from evalharness import TokenGenerationRequest

ROOT = Path(__file__).parents[1]
STEPS = ("prepare", "raw", "harness", "table")
KINDS = {"text-4b": "4b", "text-1b": "1b", "vl-4b": "vl-4b", "text-small": "small", "vl-small": "small-vl"}
EVAL = ROOT / "benchmarks" / "throughput" / "test_answers.py"
PROMPT_TOKENS = (100, 230)  # of the user's text, where there is no photo; the template adds a few
DRAWN_SIZE, ENLARGED = (352, 288), 2
QUESTION = "What is in this picture? Name what you see, count it, and say what is wrong with it."
MAX_MODEL_LEN = 2048
ENGINE_OPTIONS = ["--backend", "vllm", "--max-model-len", str(MAX_MODEL_LEN)]


def prepare(folder: Path, shape: str, num_cases: int, num_checkpoints: int) -> None:
    """Write what is missing of checkpoints, prompts and photos."""
    from benchmarks.random_checkpoints import make_random_checkpoint

    for number in range(num_checkpoints):
        out = folder / f"checkpoint-{number}"
        if not (out / "config.json").exists():
            make_random_checkpoint(shape, out, seed=number)
    rows = photo_rows(folder, num_cases) if "vl" in shape else text_rows(folder, num_cases)
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def text_rows(folder: Path, num_cases: int) -> list[dict[str, str]]:
    """Return chats of random tokens that are plain words."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "checkpoint-0" / "tokenizer.json"))
    draw = Random(0)
    words = [number for number in range(600) if tokenizer.decode([number]).strip().isascii()]
    texts = (tokenizer.decode(draw.choices(words, k=draw.randint(*PROMPT_TOKENS))) for _ in range(num_cases))
    return [{"id": f"text-{number:05}", "text": text} for number, text in enumerate(texts)]


def photo_rows(folder: Path, num_cases: int) -> list[dict[str, str]]:
    """Return one question per photo, all drawn anew."""
    (folder / "photos").mkdir(exist_ok=True)
    names = [f"photos/{number:05}.jpg" for number in range(num_cases)]
    with ProcessPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        list(pool.map(draw_photo, [folder / name for name in names], range(num_cases), chunksize=16))
    return [{"id": f"photo-{number:05}", "text": QUESTION, "image": name} for number, name in enumerate(names)]


def draw_photo(path: Path, seed: int) -> None:
    """Draw one site photo into a file, unless it is there."""
    from fixtures.scenes.compose import compose
    from fixtures.scenes.draw import draw
    from fixtures.scenes.vocabulary import MISSIONS

    if not path.exists():
        random = Random(seed)
        photo = draw(compose(random, random.choice(sorted(MISSIONS)), *DRAWN_SIZE))
        photo.resize((DRAWN_SIZE[0] * ENLARGED, DRAWN_SIZE[1] * ENLARGED)).save(path, quality=88)


def raw_prompts(folder: Path, processor: Any) -> Callable[[], list[dict[str, Any]]]:
    """Return what makes `LLM.generate`'s prompts; photos are opened when it is called, as the harness opens them."""
    from PIL import Image

    template = {"tokenize": False, "add_generation_prompt": True, "enable_thinking": False}
    requests = [request(case) for case in load_cases(folder)]
    if all(isinstance(entry, TokenGenerationRequest) for entry in requests):
        return lambda: [{"prompt_token_ids": list(entry.prompt_token_ids)} for entry in requests]
    texts = [processor.apply_chat_template(list(entry.messages), **template) for entry in requests]
    images = [case.reference[1] for case in load_cases(folder)]

    def make() -> list[dict[str, Any]]:
        with_images = zip(texts, images, strict=True)
        return [
            {"prompt": text, "multi_modal_data": {"image": Image.open(path).convert("RGB")}} if path else {"prompt": text}
            for text, path in with_images
        ]

    return make


def raw(folder: Path, num_calls: int) -> dict[str, Any]:
    """Return the seconds of one or two calls of `LLM.generate`: with texts, on a fresh engine, and without."""
    from evalharness.api.options import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
    from evalharness.backends.vllm.backend import VllmBackend

    options = VllmEngineOptions(max_model_len=MAX_MODEL_LEN)
    backend = VllmBackend(ModelLoadConfig(str(folder / "checkpoint-0")), VlmPreprocessOptions(), options)
    try:
        from vllm import SamplingParams  # only now: the backend prepares its environment before it imports vLLM

        llm = backend._engine._llm
        prompts = raw_prompts(folder, backend.processor or backend.tokenizer)
        calls = []
        for detokenize in (True, False)[:num_calls]:
            params = SamplingParams(temperature=0.0, max_tokens=MAX_NEW_TOKENS, ignore_eos=True, detokenize=detokenize)
            started = time.perf_counter()
            outputs = llm.generate(prompts(), params, use_tqdm=False)
            calls.append({"texts": detokenize, "seconds": time.perf_counter() - started, **counted(outputs)})
            llm.reset_prefix_cache()
            llm.llm_engine.reset_mm_cache()
            llm.llm_engine.reset_encoder_cache()
        facts = backend.describe()
    finally:
        backend.close()
    return {"calls": calls, **{name: facts[name] for name in ("vllm", "torch", "load_s", "max_num_seqs", "dtype")}, "card": card()}


def counted(outputs: Sequence[Any]) -> dict[str, int]:
    """Return prompt and completion tokens of vLLM's outputs."""
    num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    return {"num_prompt_tokens": sum(len(output.prompt_token_ids) for output in outputs), "num_tokens": num_tokens}


def card() -> str:
    """Return the name of the first visible card, or that there is none."""
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else "CPU"


def harness(folder: Path, num_workers: int, num_checkpoints: int, more: Sequence[str]) -> dict[str, Any]:
    """Run pytest and return what its journal and run.json say; one worker is a run without -n."""
    run_id = f"{num_workers}-workers-{num_checkpoints}-checkpoints-{time.time_ns()}"
    models = [part for number in range(num_checkpoints) for part in ("--model", str(folder / f"checkpoint-{number}"))]
    command = [sys.executable, "-m", "pytest", str(EVAL), "-q", *ENGINE_OPTIONS, *models, "--data", str(folder)]
    command += ["--run-id", run_id, "--report-dir", str(folder / "runs"), *(["-n", str(num_workers)] if num_workers > 1 else []), *more]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - started
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
    run_dir = folder / "runs" / run_id
    facts = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    engines = [
        {name: engine[name] for name in ("id", "num_loads", "load_s", "num_swaps", "swap_s", "cold_because")} for engine in facts["engines"]
    ]
    return {"checkpoints": num_checkpoints, "wall_s": wall_s, **measured(run_dir), "by_worker": facts["workers"], "engines": engines}


def journal_lines(run_dir: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield worker and contents of every line."""
    for path in sorted((run_dir / "journal").glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                yield path.stem, json.loads(line)


def measured(run_dir: Path) -> dict[str, Any]:
    """Return tokens, worker-seconds and their rate, see the module's docstring."""
    begun: dict[str, float] = {}
    opening: list[float] = []
    ended: defaultdict[str, float] = defaultdict(float)
    generation_s = 0.0
    totals = {"num_generations": 0, "num_prompt_tokens": 0, "num_tokens": 0}
    for worker, line in journal_lines(run_dir):
        if line["kind"] == "engine" and "load_s" in line:
            opening.append(line["ended_s"] - line["load_s"])
        if line["kind"] == "unit":
            begun.setdefault(worker, line["ended_s"] - line["generation_s"])
            ended[worker] = max(ended[worker], line["ended_s"])
            generation_s += line["generation_s"]
        if line["kind"] == "generation":
            totals["num_generations"] += 1
            totals["num_prompt_tokens"] += line["generation"]["num_prompt_tokens"]
            totals["num_tokens"] += line["generation"]["num_completion_tokens"]
    last = max(ended.values())
    worker_s = sum(last - first for first in begun.values())
    return {
        "workers": len(begun),
        **totals,
        "worker_s": worker_s,
        "seconds": worker_s / len(begun),
        "tokens_per_s": len(begun) * totals["num_tokens"] / worker_s,
        "generating_tokens_per_s": totals["num_tokens"] / generation_s,
        "working_s": last - min(opening),
        "idle_at_end_s": {worker: round(last - end, 2) for worker, end in ended.items()},
    }


def note(folder: Path, kind: str, what: str, values: dict[str, Any]) -> None:
    """Add one line to the results."""
    line = json.dumps({"kind": kind, "what": what, **values})
    print(line, flush=True)
    with (folder.parent / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def table(folder: Path, kind: str) -> None:
    """Print what was measured of this kind."""
    rows = [json.loads(line) for line in (folder.parent / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row["kind"] == kind]
    raws = [row for row in rows if row["what"] == "raw"]
    singles = [row["tokens_per_s"] for row in rows if row["what"] == "harness" and row["workers"] == row["checkpoints"] == 1]
    base = raws[-1]["calls"][0] if raws else None
    base_rate = base["num_tokens"] / base["seconds"] if base else None
    if raws:
        print(f"\n{kind}: {raws[-1]['card']}, vLLM {raws[-1]['vllm']}, torch {raws[-1]['torch']}, {raws[-1]['dtype']}")
    print(
        "\n| what | tokens in | tokens out | s | tok/s | ÷ LLM.generate | ÷ one worker | loads + swaps | idle share |\n" + "|---" * 9 + "|"
    )
    for row in raws:
        for call in row["calls"]:
            name = "LLM.generate" + ("" if call["texts"] else ", no texts")
            rate = call["num_tokens"] / call["seconds"]
            print(f"| {name} | {call['num_prompt_tokens']} | {call['num_tokens']} | {call['seconds']:.2f} | {rate:,.0f} | | | | |")
    for row in rows:
        if row["what"] == "harness":
            rate = row["tokens_per_s"]
            ratios = [f"{rate / other:.3f}" if other else "" for other in (base_rate, singles[0] if singles else None)]
            loads = f"{sum(w['num_loads'] for w in row['by_worker'])} + {sum(w['num_swaps'] for w in row['by_worker'])}"
            idle = ", ".join(str(w["idle_share"]) for w in row["by_worker"])
            name = f"{row['workers']} workers, {row['checkpoints']} checkpoints"
            numbers = f"{row['num_prompt_tokens']} | {row['num_tokens']} | {row['seconds']:.2f} | {rate:,.0f}"
            print(f"| {name} | {numbers} | {' | '.join(ratios)} | {loads} | {idle} |")


def main(argv: Sequence[str] | None = None) -> None:
    """Do the steps of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="Where checkpoints, runs and results go; 9 GB a checkpoint of 4b")
    parser.add_argument("steps", nargs="*", default=list(STEPS), help=f"What to do, of {', '.join(STEPS)} (default: all)")
    parser.add_argument("--kind", choices=KINDS, default="text-4b", help="Shape of the weights and kind of prompts (default: text-4b)")
    parser.add_argument("--cases", type=int, default=6144, help="Number of prompts (default: 6144)")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="Workers of each harness run (default: 1 2 4)")
    parser.add_argument("--checkpoints", type=int, default=1, help="Checkpoints of each harness run (default: 1)")
    parser.add_argument("--calls", type=int, choices=(1, 2), default=2, help="Calls of LLM.generate: the first makes texts (default: 2)")
    parser.add_argument("--pytest", default="", help="More options for pytest, in one string")
    arguments = parser.parse_intermixed_args(argv)
    folder = arguments.folder.resolve() / arguments.kind
    folder.mkdir(parents=True, exist_ok=True)
    if "prepare" in arguments.steps:
        prepare(folder, KINDS[arguments.kind], arguments.cases, arguments.checkpoints)
    if "raw" in arguments.steps:
        note(folder, arguments.kind, "raw", raw(folder, arguments.calls))
    if "harness" in arguments.steps:
        for num_workers in arguments.workers:
            note(folder, arguments.kind, "harness", harness(folder, num_workers, arguments.checkpoints, arguments.pytest.split()))
    if "table" in arguments.steps:
        table(folder, arguments.kind)


if __name__ == "__main__":
    main()
