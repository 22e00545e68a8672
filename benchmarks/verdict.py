"""Measures what a verdict costs: seconds and GPU-seconds from a checkpoint to "regressed" or "harmless", each lever alone and all together.

    python -m benchmarks.verdict FOLDER --kind text-4b --gpus 0,1,2,3        on GPUs: what fits into --limit-s; again: the rest
    python -m benchmarks.verdict FOLDER --kind text-small --cases 600        the same on a CPU, with a tiny model
    python -m benchmarks.verdict FOLDER --kind shipped                       on a CPU: pairs of the shipped checkpoints, Stage-A photos
    python -m benchmarks.verdict FOLDER --kind text-4b table                 the table alone

The measure is `LLM.generate` on the full set (`raw`), on an engine with the harness's arguments, in a process of its own. `whole` is the
harness on the full set; the other ways are `--until-certain`, `--draft-from` the baseline run, `--tune` (the first time it measures), fewer
rows at once, and all of them. Each is a pytest run of its own and starts an engine; *warm* is the work alone, as for the second
checkpoint of a night. Weights are random and the same on both sides, so that the losses are those that the eval plants
(`verdicts/test_verdicts.py`): none, 2, 5 and 10 points; of shipped checkpoints they are what they are. Token ids of all cases that were
asked are compared with those of `whole`.
"GPU-s ÷ raw" gives raw a start as long as the way had itself.
FOLDER keeps results.jsonl, and the ways that it has are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from queue import Queue
from random import Random
from threading import Lock
from typing import Any

from benchmarks.chain import FIRST_PLAIN, Chain, prepare as prepare_chain
from benchmarks.gpu_scaling import KINDS, PROMPT_TOKENS, raw
from evalharness.config import RunConfig

ROOT = Path(__file__).parents[1]
EVAL = ROOT / "benchmarks" / "verdicts" / "test_verdicts.py"
SHIPPED_EVAL, CHECKPOINTS = ROOT / "evals" / "test_stage_a.py", ROOT / "fixtures" / "checkpoints"
SHIPPED = (("final", "final"), ("final", "regressed"), ("middle", "final"), ("middle", "regressed"))
DROPS = (0.0, 0.02, 0.05, 0.10)
LEVERS: dict[str, tuple[str, ...]] = {
    "whole": (),
    "certain": ("--until-certain",),
    "drafts": ("--draft-from", "{base}"),
    "tune": ("--tune",),
    "rows": ("--engine-option", "max_num_seqs={rows}"),
    "certain + rows": ("--until-certain", "--engine-option", "max_num_seqs={rows}"),
    "all": ("--until-certain", "--draft-from", "{base}", "--engine-option", "max_num_seqs={rows}"),
}
"""`--tune` is not among all: rows are bounded there, for the sake of the first verdict and of drafts."""


@dataclass(frozen=True)
class Way:
    """One run of pytest: a lever, on a planted drop or on a pair of shipped checkpoints."""

    lever: str
    drop: float = 0.0
    base: str = ""
    candidate: str = ""

    @property
    def name(self) -> str:
        """The name of the run; unique in the folder."""
        return f"{self.lever.replace(' + ', '-')}-{self.drop:g}-{self.base}-{self.candidate}".strip("-")


def ways(kind: str) -> Iterator[Way]:
    """Yield the runs in the order of their worth, the baselines first."""
    known = {field.name for field in fields(RunConfig)}
    levers = [name for name, options in LEVERS.items() if all(_field(option) in known for option in options if option.startswith("--"))]
    if kind == "shipped":
        for name in dict.fromkeys(base for base, _ in SHIPPED):
            yield Way("base", base=name)
        for lever in levers:
            yield from (Way(lever, base=base, candidate=candidate) for base, candidate in SHIPPED)
        return
    yield Way("base")
    for lever in ("certain", "all", "certain + rows"):
        yield from (Way(lever, drop) for drop in (0.0, 0.05) if lever in levers)
    yield from (Way(lever) for lever in levers if "certain" not in lever and lever != "all")
    yield from (Way(lever, drop) for drop in (0.02, 0.10) for lever in ("certain", "all") if lever in levers)


def _field(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def prepare(folder: Path, shape: str, num_cases: int) -> None:
    """Write checkpoint and prompts; the prompts end with different ids, so that all answers differ."""
    if not (folder / "checkpoint-0").exists():
        (folder / "checkpoint-0").symlink_to(prepare_chain(folder, shape))
    chain, draw = Chain(json.loads((folder / "checkpoint-0" / "config.json").read_text("utf-8"))["vocab_size"]), Random(0)
    unfinished = folder / "prompts.jsonl.new"
    with unfinished.open("w", encoding="utf-8") as lines:
        for number in range(num_cases):
            ids = [draw.randrange(5, FIRST_PLAIN) for _ in range(draw.randint(*PROMPT_TOKENS))]
            lines.write(json.dumps({"id": f"text-{number:05}", "ids": [*ids, chain.start(number, num_cases)]}) + "\n")
    unfinished.rename(folder / "prompts.jsonl")


def run_way(folder: Path, kind: str, way: Way, more: Sequence[str], card: str | None = None) -> dict[str, Any]:
    """Run pytest on a GPU, and return the seconds of it, what was asked and what came of it."""
    base = folder / "runs" / Way("base", base=way.base).name
    rows = 32 if kind == "shipped" else 256  # of 182 photos the default runs all at once
    options = [option.format(base=base, rows=rows) for option in LEVERS.get(way.lever, ())]
    if kind == "shipped":
        module, model = SHIPPED_EVAL, CHECKPOINTS / (way.candidate or way.base)
        options += ["--dtype", "float32"]
    else:
        module, model = EVAL, folder / "checkpoint-0"
        options += ["--data", str(folder), "--max-model-len", "2048"]
    if way.lever != "base":
        options += ["--baseline", str(base)]
    run_dir = folder / "runs" / way.name
    command = [sys.executable, "-m", "pytest", str(module), "-q", "-p", "no:cacheprovider", "--backend", "vllm", "--model", str(model)]
    command += ["--report-dir", str(run_dir.parent), "--run-id", run_dir.name, *options, *more]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env={**_on(card), "VERDICT_DROP": str(way.drop)})
    wall_s = time.perf_counter() - started
    if not (run_dir / "run.json").exists() or done.returncode not in (0, 1):
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
    facts = json.loads((run_dir / "run.json").read_text(encoding="utf-8"))
    gate = next(gate for gate in facts["gates"] if gate["metric"] == "no_regression")
    claim = (gate.get("certain") or {}).get("claim") or ("-" if way.lever == "base" else "no proof" if gate["passed"] else "failed")
    whole = Way("whole", base=way.base, candidate=way.candidate) if kind == "shipped" else Way("base")
    return {
        "wall_s": wall_s,
        "load_s": sum(worker["load_s"] for worker in facts["workers"]),
        "generate_s": sum(entry["generation_s"] for entry in facts["throughput"]),
        "num_asked": sum(row["outcome"] != "skip" for row in rows_of(run_dir)),
        "num_tokens": sum(entry["num_completion_tokens"] for entry in facts["throughput"]),
        "claim": claim,
        "ids": "-" if way.name == whole.name else differing(run_dir, folder / "runs" / whole.name),
    }


def rows_of(run_dir: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a run."""
    with (run_dir / "samples.jsonl").open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def differing(run_dir: Path, whole: Path) -> str:
    """Return of how many answers the ids differ from those of the run that asked all; "-" where that is not there."""
    if not (whole / "samples.jsonl").exists():
        return "-"
    before = {row["case_id"]: row["generation"]["token_ids"] for row in rows_of(whole) if row["generation"]}
    made = [row for row in rows_of(run_dir) if row["generation"] and row["case_id"] in before]
    num = sum(row["generation"]["token_ids"] != before[row["case_id"]] for row in made)
    return f"{num:,} of {len(made):,}"


def raw_shipped(name: str) -> dict[str, Any]:
    """Return what `gpu_scaling.raw` returns, of one shipped checkpoint on the photos of Stage-A."""
    from evalharness.api.options import ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
    from evalharness.backends.vllm.backend import VllmBackend
    from evalharness.tasks import stage_a

    backend = VllmBackend(ModelLoadConfig(str(CHECKPOINTS / name), torch_dtype="float32"), VlmPreprocessOptions(), VllmEngineOptions())
    try:
        from PIL import Image, ImageOps
        from vllm import SamplingParams

        asked = [stage_a.request(case) for case in stage_a.load_cases(ROOT / "fixtures" / "site_photos")]
        prompts = []
        for request in asked:
            messages: Any = list(request.messages)
            text = backend.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, enable_thinking=False)
            parts = [part for message in messages if isinstance(message["content"], list) for part in message["content"]]
            paths = [part["image"] for part in parts if part["type"] == "image"]
            images = [ImageOps.exif_transpose(Image.open(path)).convert("RGB") for path in paths]
            prompts.append({"prompt": text, "multi_modal_data": {"image": images}})
        started = time.perf_counter()
        params = SamplingParams(temperature=0.0, max_tokens=1024, stop_token_ids=list(backend.eos_token_ids))
        outputs = backend._engine._llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - started
        num_tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
        return {"calls": [{"seconds": seconds, "num_tokens": num_tokens}], "load_s": backend.describe()["load_s"], "card": "CPU"}
    finally:
        backend.close()


def note(folder: Path, what: str, values: dict[str, Any]) -> None:
    """Add one line to the results."""
    line = json.dumps({"what": what, **values})
    print(line, flush=True)
    with (folder / "results.jsonl").open("a", encoding="utf-8") as file:
        file.write(line + "\n")


def results(folder: Path) -> dict[str, dict[str, Any]]:
    """Return what was measured, by name."""
    path = folder / "results.jsonl"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return {line["what"]: line for line in map(json.loads, lines)}


def table(folder: Path, kind: str) -> None:
    """Print the ways with their seconds, over those of raw with a start as long as the way's own, and without starts (warm)."""
    found = results(folder)
    print("\n| way | loss | verdict | cases | tokens | start s | generate s | wall s | GPU-s ÷ raw | warm ÷ raw | ids that differ |")
    print("|---" * 11 + "|")
    for name, line in found.items():
        if name.startswith("raw"):
            call = line["calls"][0]
            seconds = f"{line['load_s']:.1f} | {call['seconds']:.1f} | {line['wall_s']:.1f}"
            print(f"| `LLM.generate` {name[4:]} on {line['card']} | | | all | {call['num_tokens']:,} | {seconds} | 1 | 1 | |")
    for way in ways(kind):
        if way.name in found:
            line, raw_line = found[way.name], found.get(f"raw {way.candidate or way.base}".strip())
            call_s = 0.0 if raw_line is None else raw_line["calls"][0]["seconds"]
            raw_s = (call_s and call_s + line["load_s"], call_s)  # with the same start: the first one of a machine compiles
            own_s = (line["wall_s"], line["generate_s"])
            ratios = [f"{own / other:.2f}" if other else "" for own, other in zip(own_s, raw_s, strict=True)]
            loss = f"{way.base} → {way.candidate}" if way.candidate else f"{100 * way.drop:g} points"
            seconds = f"{line['load_s']:.1f} | {line['generate_s']:.1f} | {line['wall_s']:.1f}"
            cells = f"{line['claim']} | {line['num_asked']:,} | {line['num_tokens']:,} | {seconds} | {' | '.join(ratios)} | {line['ids']}"
            print(f"| {way.lever} | {loss} | {cells} |", flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Do what is missing, as long as there is time."""
    started = time.monotonic()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("steps", nargs="*", default=["run", "table"], help="run, table (default: both)")
    parser.add_argument("--kind", choices=("shipped", *(kind for kind in KINDS if kind.startswith("text"))), default="text-4b")
    parser.add_argument("--cases", type=int, default=6144, help="Chats of the full set (default: 6144)")
    parser.add_argument("--limit-s", type=float, default=230, help="Start nothing that would end later (default: 230)")
    parser.add_argument("--only", nargs="+", default=[], help="Levers to run, such as certain all (default: every one)")
    parser.add_argument("--gpus", default="", help="GPUs to run steps on side by side, such as 0,1,2,3 (default: one step at a time)")
    parser.add_argument("--raw-s", type=float, help="Seconds of LLM.generate on the full set, where they were measured on this host before")
    parser.add_argument("--raw-of", help=argparse.SUPPRESS)
    parser.add_argument("--pytest", default="", help="More options for pytest, in one string")
    given = parser.parse_intermixed_args(argv)
    folder = given.folder.resolve() / given.kind
    folder.mkdir(parents=True, exist_ok=True)
    if given.raw_of is not None:
        values = raw_shipped(given.raw_of) if given.kind == "shipped" else raw(folder, 1)
        (folder / f"raw-{given.raw_of}.json").write_text(json.dumps(values), encoding="ascii")
        return
    if "run" in given.steps:
        if given.kind != "shipped" and not (folder / "prompts.jsonl").exists():
            prepare(folder, KINDS[given.kind], given.cases)
        if given.raw_s is not None and "raw" not in results(folder):
            call = {"seconds": given.raw_s, "num_tokens": 128 * given.cases}
            note(folder, "raw", {"calls": [call], "load_s": 0.0, "wall_s": given.raw_s, "card": "this host, earlier"})
        run_steps(folder, given, started)
    table(folder, given.kind)


def run_steps(folder: Path, given: argparse.Namespace, started: float) -> None:
    """Run what is missing, a step on each GPU at a time; steps that need the baseline after it."""
    cards: Queue[str | None] = Queue()
    for name in given.gpus.split(",") if given.gpus else [None]:
        cards.put(name)
    writing = Lock()

    def run(name: str, action: Callable[[str | None], dict[str, Any]]) -> None:
        card = cards.get()
        try:
            if time.monotonic() - started + (_LONG_S if name.startswith(("raw", "base", "whole")) else _SHORT_S) > given.limit_s:
                print(f"{name} is left for another call: the same command again", flush=True)
                return
            values = action(card)
            with writing:
                note(folder, name, values)
        finally:
            cards.put(card)

    steps = [(name, action) for name, action in _steps(folder, given) if name not in results(folder)]
    for is_first in (True, False):
        with ThreadPoolExecutor(cards.qsize()) as pool:
            of_stage = [step for step in steps if step[0].startswith(("raw", "base")) == is_first]
            for done in [pool.submit(run, *step) for step in of_stage]:
                done.result()


_LONG_S, _SHORT_S = 140.0, 90.0
"""What a step of all cases, and one that stops early, may take."""


def _on(card: str | None) -> dict[str, str]:
    return {**os.environ, **({} if card is None else {"CUDA_VISIBLE_DEVICES": card})}


def _steps(folder: Path, given: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """Yield name and action of each step; the action takes the GPU that it has to itself."""

    def raw_step(name: str, card: str | None) -> dict[str, Any]:
        """In a process of its own, which gives the card back."""
        command = [sys.executable, "-m", "benchmarks.verdict", str(given.folder), "--kind", given.kind, "--raw-of", name]
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=_on(card))
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        return {**json.loads((folder / f"raw-{name}.json").read_text("ascii")), "wall_s": time.perf_counter() - started}

    names = dict.fromkeys(candidate for _, candidate in SHIPPED) if given.kind == "shipped" else [""]
    for name in names:
        yield f"raw {name}".strip(), lambda card, name=name: raw_step(name, card)
    for way in ways(given.kind):
        if way.lever == "base" or not given.only or way.lever in given.only:
            yield way.name, lambda card, way=way: run_way(folder, given.kind, way, given.pytest.split(), card)


if __name__ == "__main__":
    main()
