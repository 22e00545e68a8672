"""Compares several workers with one on a simulated engine: the share of parallel engines that the harness leaves unused.

    python -m benchmarks.worker_scaling [--workers 1 4] [--cases 384] [--spread 0.5] [--rounds 3]

The engines of `simulated/conftest.py` wait instead of computing, so that two cores are enough for four of them. The result is the
harness's share only: units, hand-over, tests, ends. Rates are counted as in `gpu_scaling.py`, without start-up. With answers of unequal
length, N engines cannot be N times as fast; the possible rate, `engine_model.shared_queue_s`, is printed beside the measured one.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu_scaling import measured
from benchmarks.simulated.engine_model import num_tokens, shared_queue_s

ROOT = Path(__file__).parents[1]
EVAL = ROOT / "benchmarks" / "simulated" / "test_answers.py"


def run(folder: Path, num_workers: int, num_cases: int, spread: float, number: int, more: Sequence[str] = ()) -> dict[str, Any]:
    """Run pytest once, with `more` options, and return what its journal and run.json say; one worker is a run without -n."""
    run_id = f"{num_workers}-workers-{number}"
    command = [sys.executable, "-m", "pytest", str(EVAL), "-q", "--backend", "fake", "--model", "echo", "--run-id", run_id]
    command += ["--data", str(folder), "--report-dir", str(folder), "-p", "no:cacheprovider"]
    command += [*(["-n", str(num_workers)] if num_workers > 1 else []), *more]
    environment = {**os.environ, "SIMULATED_CASES": str(num_cases), "SIMULATED_SPREAD": str(spread)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-2000:]}")
    facts = json.loads((folder / run_id / "run.json").read_text(encoding="utf-8"))
    return {**measured(folder / run_id), "by_worker": facts["workers"]}


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each run, then the ratios of the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 4], help="Numbers of workers (default: 1 4)")
    parser.add_argument("--cases", type=int, default=384, help="Number of cases (default: 384)")
    parser.add_argument("--spread", type=float, default=0.0, help="How unequal answers are: 0.5 for 16 to 48 tokens (default: 0, 32 each)")
    parser.add_argument("--rounds", type=int, default=3, help="Rounds, all numbers of workers in each; medians count (default: 3)")
    arguments = parser.parse_args(argv)
    rates: dict[int, list[float]] = {num: [] for num in arguments.workers}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(arguments.rounds):
            for num_workers in arguments.workers:
                values = run(Path(folder), num_workers, arguments.cases, arguments.spread, number)
                rates[num_workers].append(values["tokens_per_s"])
                idle = ", ".join(str(worker["idle_share"]) for worker in values["by_worker"])
                units = ", ".join(str(worker["num_units"]) for worker in values["by_worker"])
                ends = ", ".join(f"{seconds:.2f}" for seconds in values["idle_at_end_s"].values())
                print(f"{num_workers} workers: {values['tokens_per_s']:.0f} tok/s, {values['generating_tokens_per_s']:.0f} a worker while")
                print(f"    generating, {values['seconds']:.1f} s; idle {idle}; units {units}; s idle at the end {ends}", flush=True)
    single = statistics.median(rates[arguments.workers[0]])
    lengths = [num_tokens(f"c{number:05}", arguments.spread) for number in range(arguments.cases)]
    for num_workers in arguments.workers[1:]:
        possible = shared_queue_s(lengths, arguments.workers[0]) / shared_queue_s(lengths, num_workers)
        ratio = statistics.median(rates[num_workers]) / single
        print(f"{num_workers} workers ÷ {arguments.workers[0]}: {ratio:.2f}, possible {possible:.2f}")


if __name__ == "__main__":
    main()
