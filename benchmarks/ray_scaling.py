"""Compares many workers on the hosts of a Ray cluster with one worker, on simulated engines, and with as many workers of one host.

    python -m benchmarks.ray_scaling [--hosts 8] [--workers 64] [--cases 16384] [--spread 0.5]

The hosts are processes of this machine and the engines wait instead of computing (`worker_scaling.py`), so that what is measured is the
harness's own: a socket and a journal kept at home for each worker, one controller for all, the ends of the run. Rates are counted without
start-up. The controller's CPU seconds per case say how many cases a second one controller can take.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.simulated.engine_model import num_tokens, shared_queue_s
from benchmarks.simulated.ray_hosts import ray_hosts
from benchmarks.worker_scaling import run


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each run, then the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=8, help="Number of hosts (default: 8)")
    parser.add_argument("--workers", type=int, default=64, help="Number of workers in all (default: 64)")
    parser.add_argument("--cases", type=int, default=16_384, help="Cases of the many workers; one worker gets its share (default: 16384)")
    parser.add_argument("--spread", type=float, default=0.0, help="How unequal answers are: 0.5 for 16 to 48 tokens (default: 0, 32 each)")
    arguments = parser.parse_args(argv)
    num_workers, num_cases, spread = arguments.workers, arguments.cases, arguments.spread
    started = time.perf_counter()
    rates = {}
    with tempfile.TemporaryDirectory() as folder, ray_hosts(arguments.hosts, -(-num_workers // arguments.hosts)) as hosts:
        print(f"{arguments.hosts} hosts are up after {time.perf_counter() - started:.0f} s", flush=True)
        kinds: dict[str, tuple[int, int, list[str]]] = {
            "one worker": (1, num_cases // num_workers, []),
            f"{num_workers} workers, local": (num_workers, num_cases, []),
            f"{num_workers} workers, Ray": (num_workers, num_cases, ["--executor", "ray", "--ray-address", hosts.address]),
        }
        for number, (kind, (num, cases, more)) in enumerate(kinds.items()):
            before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            values = run(Path(folder), num, cases, spread, number, more)
            after, wall_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - began
            rates[kind] = values["tokens_per_s"]
            idle = [worker["idle_share"] for worker in values["by_worker"]]
            rate, seconds = values["tokens_per_s"], values["seconds"]
            print(f"{kind}: {rate:.0f} tok/s in {seconds:.1f} s, {wall_s:.0f} s in all; idle {min(idle)} to {max(idle)}")
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            of_whom = "the controller" if "Ray" in kind else "all processes"
            print(f"    {cases / seconds:.0f} cases/s; CPU of {of_whom} {cpu_s:.1f} s, {1e3 * cpu_s / cases:.2f} ms a case", flush=True)
    single = rates.pop("one worker")
    lengths = [num_tokens(f"c{number:05}", spread) for number in range(num_cases)]
    share = lengths[: num_cases // num_workers]
    possible = (sum(lengths) / shared_queue_s(lengths, num_workers)) / (sum(share) / shared_queue_s(share, 1))
    for kind, rate in rates.items():
        print(f"{kind} ÷ one: {rate / single:.2f}, possible {possible:.2f}: {rate / single / possible:.3f} of it")


if __name__ == "__main__":
    main()
