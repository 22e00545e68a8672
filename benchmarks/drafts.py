"""Measures drafts: `LLM.generate` on vLLM's defaults, fewer rows at once, and drafted answers, with equal ids counted.

    python -m benchmarks.drafts FOLDER                              what fits into 4 minutes, a step on each GPU at a time; again: the rest
    python -m benchmarks.drafts FOLDER drafted --drafts 0,0.03      one step, with drafts of which 0 and 3 % of the tokens are wrong
    python -m benchmarks.drafts FOLDER --kind small --prompts 8,24  on a CPU, in float32

The checkpoint has the shape of Qwen3-4B and does all of its work, but each token decides the next with a wide margin, so that answers are
known beforehand and no rounding can change them. A draft is such an answer, with tokens replaced, left out and put in; other answers of the
run, which hold all of its few sequences, are not searched. `default` and `rows` are without drafts; `default` is `LLM.generate`
itself, the others are the harness's engine. `flips` asks a trained checkpoint in bfloat16, where near-ties may fall either way: 256 rows at
once, 64, an engine for drafts that is given none, and with the first answers as drafts.
Results go into FOLDER/drafts.jsonl too, and `table` prints them all.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from benchmarks.chain import FIRST_PLAIN, Chain, prepare
from evalharness.api.options import GenerationOptions, ModelLoadConfig, VllmEngineOptions
from evalharness.api.requests import TextGenerationRequest, TokenGenerationRequest
from evalharness.backends.vllm import drafts
from evalharness.backends.vllm.drafts import JournalProposer
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine

ROOT = Path(__file__).parents[1]
STEPS = ("default", "rows", "drafted", "flips")
PROMPT_TOKENS, NEW_TOKENS = 192, 512
ROWS = 256


def hurt(ids: Sequence[int], share: float, draw: Random) -> list[int]:
    """Return ids of which a share is wrong: half replaced, a quarter left out, a quarter put in."""
    made: list[int] = []
    for token_id in ids:
        chance = draw.random()
        if chance >= share * 0.75:
            made.append(token_id)
        if chance < share * 0.5 or share * 0.75 <= chance < share:
            made.append(draw.randrange(5, FIRST_PLAIN))
    return made


def requests_of(chain: Chain, num_prompts: int) -> list[TokenGenerationRequest]:
    """Return prompts that end with different ids."""
    draw = Random(num_prompts)
    heads = ([draw.randrange(5, 500) for _ in range(PROMPT_TOKENS - 1)] for _ in range(num_prompts))
    return [TokenGenerationRequest([*head, chain.start(number, num_prompts)]) for number, head in enumerate(heads)]


def measure(step: str, checkpoint: Path, num_prompts: Sequence[int], shares: Sequence[float]) -> Iterator[dict[str, Any]]:
    """Yield the figures of a step."""
    chain = Chain(json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))["vocab_size"])
    options = GenerationOptions(max_new_tokens=NEW_TOKENS, eos_token_id=())
    with opened(checkpoint, "drafts" if step == "drafted" else step) as engine:
        engine.generate_token_batch(requests_of(chain, 64 if len(num_prompts) > 1 else 4), GenerationOptions(max_new_tokens=24))
        for num in num_prompts:
            requests = requests_of(chain, num)
            wanted = [chain.answer(request.prompt_token_ids[-1], NEW_TOKENS) for request in requests]
            for share in shares if step == "drafted" else (None,):
                given: list[Callable[[], Sequence[int]]] = []
                if share is not None:
                    draw = Random(1)
                    given = [partial(hurt, answer, share, draw) for answer in wanted]
                before, started = engine.work(), time.perf_counter()
                if step == "default":
                    made = raw_answers(engine, requests)
                else:
                    results = dict(engine.stream(requests, options, drafts=given))
                    made = [list(results[number].token_ids) for number in range(num)]  # type: ignore[union-attr]
                seconds = time.perf_counter() - started
                yield {
                    "step": f"{step}, {drafts.MAX_ROWS} rows, {drafts.LONGEST} tokens" if step == "drafted" else step,
                    "prompts": num,
                    "wrong": share,
                    "seconds": round(seconds, 2),
                    "tokens_per_s": round(num * NEW_TOKENS / seconds),
                    "equal": sum(ids == answer for ids, answer in zip(made, wanted, strict=True)),
                    **counts_since(engine, before),
                }


class OwnDrafts(JournalProposer):
    """The proposer without other answers of the run."""

    def __init__(self, vllm_config: Any) -> None:
        super().__init__(vllm_config)
        self._drafter._others.add = lambda ids: None  # type: ignore[method-assign]


def opened(checkpoint: Path, how: str, *, eager: bool | None = None, dtype: str | None = None) -> Engine:
    """Return the engine of a step."""
    drafts._PROPOSER = "benchmarks.drafts.OwnDrafts"
    extra = {"rows": (("max_num_seqs", ROWS),), "few": (("max_num_seqs", 64),)}.get(how, ())
    options = VllmEngineOptions(max_model_len=1024, drafts=how == "drafts", enforce_eager=eager, extra=extra)
    return build_engine("vllm", ModelLoadConfig(str(checkpoint), torch_dtype=dtype, variant="text"), vllm_options=options)


def raw_answers(engine: Engine, requests: Sequence[TokenGenerationRequest]) -> list[list[int]]:
    """Return what `LLM.generate` makes of the prompts."""
    from vllm import SamplingParams

    llm: Any = engine.backend._engine._llm  # type: ignore[attr-defined]
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": list(request.prompt_token_ids)} for request in requests], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def counts_since(engine: Engine, before: dict[str, float]) -> dict[str, Any]:
    """Return what became of the drafts since the engine's work was read."""
    sums = {
        name.removeprefix("draft_"): value - before.get(name, 0.0) for name, value in engine.work().items() if name.startswith("draft_")
    }
    if not sums.get("num_row_steps"):
        return {}
    return {
        "taken": round(sums["num_taken"] / max(1, sums["num_drafted"]), 3),
        "tokens_per_step": round(sums["num_tokens"] / sums["num_row_steps"], 2),
        "saved_s": round(sums["saved_s"] - sums["lost_s"], 2),
    }


def flips(num_prompts: int, dtype: str | None) -> Iterator[dict[str, Any]]:
    """Yield how many answers of a trained checkpoint differ between ways that round differently."""
    checkpoint = ROOT / "fixtures" / "checkpoints" / "final"
    texts = [f"List {number} objects of site {number % 7} with their boxes as JSON." for number in range(num_prompts)]
    requests = [TextGenerationRequest([{"role": "user", "content": text}]) for text in texts]
    options = GenerationOptions(max_new_tokens=128)
    first: list[tuple[int, ...]] = []
    for how in ("rows", "few", "drafts"):
        with opened(checkpoint, how, eager=True, dtype=dtype) as engine:
            for has_drafts in (False, True) if how == "drafts" else (False,):
                given = [partial(tuple, ids) for ids in first] if has_drafts else ()
                before, results = engine.work(), dict(engine.stream(requests, options, drafts=given))
                made = [results[number].token_ids for number in range(num_prompts)]  # type: ignore[union-attr]
                first = first or made
                equal = sum(ids == expected for ids, expected in zip(made, first, strict=True))
                name = f"flips {how}{'' if has_drafts or how != 'drafts' else ', none given'} ({engine.describe()['dtype']})"
                yield {"step": name, "prompts": num_prompts, "equal": equal, **counts_since(engine, before)}


def table(path: Path) -> None:
    """Print all results."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    base = {row["prompts"]: row["tokens_per_s"] for row in rows if row["step"] == "default"}
    print(
        "| step | prompts | wrong in drafts | tok/s | x default | taken | tokens a row and step | equal answers | saved by its count (s) |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for row in rows:
        rate, wrong = row.get("tokens_per_s"), row.get("wrong")
        ratio = f"{rate / base[row['prompts']]:.2f}" if rate and row["prompts"] in base else ""
        cells = (row["step"], row["prompts"], "" if wrong is None else f"{wrong:.0%}", rate or "", ratio)
        print("|", *(f"{cell} |" for cell in (*cells, *(row.get(name, "") for name in ("taken", "tokens_per_step", "equal", "saved_s")))))


def run_steps(options: argparse.Namespace) -> int:
    """Run steps side by side, one on each GPU, until the time is over."""
    started, prepared = time.monotonic(), prepare(options.folder, options.kind)
    print(f"prepared {prepared} in {time.monotonic() - started:.0f} s", flush=True)
    cards = _cards()
    waiting = [step for step in STEPS if step in (options.steps or STEPS)]
    if not options.again:
        waiting = [step for step in waiting if not (options.folder / f"drafts-{step}.done").exists()]
    running: dict[str, tuple[str, subprocess.Popen[bytes]]] = {}
    failed = 0
    while (waiting or running) and time.monotonic() - started < options.limit_s:
        for card in cards:
            if card not in running and waiting:
                step = waiting.pop(0)
                log = (options.folder / f"drafts-{step}.log").open("wb")
                command = [sys.executable, "-m", "benchmarks.drafts", *sys.argv[1:], "--only", step]
                environ = {**os.environ, **({"CUDA_VISIBLE_DEVICES": card} if card else {})}
                running[card] = step, subprocess.Popen(command, cwd=ROOT, env=environ, stdout=log, stderr=subprocess.STDOUT)
        for card, (step, process) in list(running.items()):
            if process.poll() is not None:
                del running[card]
                print(f"{step}: exit code {process.returncode} after {time.monotonic() - started:.0f} s", flush=True)
                if process.returncode == 0:
                    (options.folder / f"drafts-{step}.done").touch()
                else:
                    failed = 1
                    print((options.folder / f"drafts-{step}.log").read_text(errors="replace")[-3000:])
        time.sleep(0.5)
    for step, process in running.values():
        process.terminate()
        print(f"{step}: stopped at the limit of {options.limit_s} s")
    if waiting:
        print("left for another call:", *waiting)
    return failed


def _cards() -> list[str]:
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    try:
        listed = subprocess.run(["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"], capture_output=True, text=True, check=False)
    except OSError:
        return [""]
    return listed.stdout.split() or [""]


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", nargs="*", choices=[*STEPS, "table", []])
    parser.add_argument("--kind", default="4b", choices=["4b", "1b", "small"])
    parser.add_argument("--prompts", default="64,1024")
    parser.add_argument("--drafts", default="0.03,0,1")
    parser.add_argument("--longest", type=int, default=drafts.LONGEST, help="Drafted tokens of a row in one step")
    parser.add_argument("--rows", type=int, default=drafts.MAX_ROWS, help="Rows at once with drafts")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], help="Of the checkpoint that is asked for flips")
    parser.add_argument("--again", action="store_true", help="Run steps that are done once more")
    parser.add_argument("--limit-s", type=float, default=230)
    parser.add_argument("--only", choices=STEPS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    results = options.folder / "drafts.jsonl"
    if options.only:
        prompts, shares = [int(num) for num in options.prompts.split(",")], [float(share) for share in options.drafts.split(",")]
        checkpoint = options.folder / f"chain-{options.kind}"
        drafts.LONGEST, drafts.MAX_ROWS = options.longest, options.rows
        rows = flips(max(prompts), options.dtype) if options.only == "flips" else measure(options.only, checkpoint, prompts, shares)
        for row in rows:
            print(row, flush=True)
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")
        return 0
    failed = 0 if options.steps == ["table"] else run_steps(options)
    table(results)
    return failed


if __name__ == "__main__":
    raise SystemExit(main())
