"""Where an engine's seconds go on a GPU: runs evals on random weights and prints `evalharness speed` of each run.

    python -m benchmarks.engine_speed FOLDER --kind text-4b vl-4b hf-4b

text-4b: 3,072 chats in vLLM; vl-4b: 1,024 photos; hf-4b: 64 chats with the transformers backend. Each answers with 128 tokens. Checks what
a run cannot be without: steps that add up to the time, shares that add up to all of it, energy and use where NVML is there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu_scaling import EVAL, ROOT, prepare
from evalharness.analysis.speed.engine_speed import engine_speeds
from evalharness.hardware.nvml import nvml_cards
from evalharness.report.speed import speed_lines
from evalharness.runs.run_file import read_run

KINDS: dict[str, tuple[str, str, int]] = {
    "text-4b": ("4b", "vllm", 3072),
    "vl-4b": ("vl-4b", "vllm", 1024),
    "hf-4b": ("4b", "hf", 64),
    "text-small": ("small", "vllm", 64),
    "hf-small": ("small", "hf", 64),
}
NUM_LOOKS = 100


def run(folder: Path, kind: str) -> None:
    """Run one kind and print its speed."""
    shape, backend, num_cases = KINDS[kind]
    data = folder / (shape if backend == "vllm" else f"{shape}-few")
    data.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / shape / "checkpoint-0"
    if data.name != shape and checkpoint.exists():
        (data / "checkpoint-0").symlink_to(checkpoint.absolute())
    prepare(data, shape, num_cases, 1)
    run_id = f"{kind}-{time.time_ns()}"
    command = [sys.executable, "-m", "pytest", str(EVAL), "-q", "--backend", backend, "--model", str(data / "checkpoint-0")]
    command += ["--data", str(data), "--run-id", run_id, "--report-dir", str(folder / "runs")]
    command += ["--max-model-len", "2048"] if backend == "vllm" else []
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{kind} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-1000:]}")
        return
    facts = read_run(folder / "runs" / run_id)
    speeds = engine_speeds(facts)
    print(f"--- {kind}: {num_cases} cases, {time.perf_counter() - started:.0f} s in all", flush=True)
    print(*speed_lines(speeds), sep="\n")
    print(*problems(speeds[0]) or ["adds up"], sep="\n")
    print(json.dumps({"work": facts["throughput"][0].get("work"), "answers": facts["throughput"][0].get("answers")}), flush=True)


def problems(speed: Any) -> list[str]:
    """Return what does not add up."""
    found = []
    total = sum(speed[name] or 0.0 for name in ("load_s", "generation_s", "tests_s", "idle_s"))
    if abs(sum(speed["shares"].values()) - total) > 0.01 * total:
        found.append(f"shares {sum(speed['shares'].values()):.1f} s are not {total:.1f} s")
    steps = (speed["prefill_s"] or 0.0) + (speed["decode_s"] or 0.0)
    if steps > 1.02 * speed["generation_s"]:
        found.append(f"steps of {steps:.1f} s in {speed['generation_s']:.1f} s of generating")
    if nvml_cards(None) and (speed["energy_j"] is None or speed["busy"] is None):
        found.append("NVML is there, but gave no energy or no use")
    return found


def main() -> None:
    """Run the kinds that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Where checkpoints and runs go; 9 GB a checkpoint of 4b")
    parser.add_argument("--kind", nargs="+", choices=KINDS, default=["text-4b", "vl-4b", "hf-4b"], help="What to run (default: all of 4b)")
    arguments = parser.parse_args()
    for card in nvml_cards(None):
        started = time.perf_counter()
        for _ in range(NUM_LOOKS):
            card.energy_j(), card.busy()
        print(f"{card.name}: {card.energy_j()} J, busy {card.busy()}, {(time.perf_counter() - started) / NUM_LOOKS * 1e6:.0f} µs a look")
    for kind in arguments.kind:
        run(arguments.folder, kind)


if __name__ == "__main__":
    main()
