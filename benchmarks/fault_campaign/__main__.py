"""Runs campaigns side by side; see `benchmarks/fault_campaign/__init__.py`."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path

import benchmarks.fault_campaign as package
from benchmarks.fault_campaign.campaign import SIZES, VICTIMS, Strike, campaign
from benchmarks.fault_campaign.faults import FAULTS


def table(strikes: Sequence[Strike]) -> str:
    """Return one Markdown row per fault and victim: how often, in which phases, with which exit codes."""
    lines = ["| fault | struck | times | at the start / working / at the end | exit codes |", "|---|---|---|---|---|"]
    for fault, victim in sorted({(strike.fault, strike.victim) for strike in strikes}):
        here = [strike for strike in strikes if (strike.fault, strike.victim) == (fault, victim)]
        phases = Counter(strike.phase for strike in here)
        codes = ", ".join(f"{code} × {count}" for code, count in sorted(Counter(strike.exit_code for strike in here).items()))
        shown = " / ".join(str(phases[phase]) for phase in ("start", "working", "end"))
        lines.append(f"| {fault} | {victim} | {len(here)} | {shown} | {codes} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 if any run differs or anything stays behind."""
    parser = argparse.ArgumentParser(description=package.__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", choices=tuple(SIZES), default="fake")
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=list(VICTIMS[:3]))
    parser.add_argument("--kinds", nargs="+", choices=FAULTS, default=list(FAULTS), help="of faults; all of them if not said")
    parser.add_argument("--faults", type=int, default=20, help="how many in all")
    parser.add_argument("--jobs", type=int, default=1, help="campaigns side by side, each in a folder and with a seed of its own")
    parser.add_argument("--minutes", type=float, default=600.0, help="strike no more after this; runs under way are ended")
    parser.add_argument("--seed", type=int, default=1, help="of the first campaign; the next ones count on")
    parser.add_argument("--output", type=Path, help="faults.json, and the runs in which something was wrong (default: a new folder)")
    options = parser.parse_args(arguments)
    if "engine" in options.victims and options.backend != "vllm":
        parser.error("only vLLM has an engine process: --backend vllm")
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # started by nohup: the runs would inherit it, and no hangup would strike them
    started = time.monotonic()
    options.output = options.output or Path(tempfile.mkdtemp(prefix="evalharness-fault-campaign-"))
    numbers = [options.faults // options.jobs + (job < options.faults % options.jobs) for job in range(options.jobs)]
    pool = ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"))
    with tempfile.TemporaryDirectory(prefix="evalharness-faults-") as folder, pool:
        limits = options.backend, options.victims, options.kinds, options.output / "problems", started + options.minutes * 60
        jobs = [
            pool.submit(campaign, Path(folder) / f"seed-{seed}", seed, number, *limits) for seed, number in enumerate(numbers, options.seed)
        ]
        tallies = [job.result() for job in jobs]
    strikes = [strike for tally in tallies for strike in tally.strikes]
    problems = [problem for tally in tallies for problem in tally.problems]
    options.output.mkdir(parents=True, exist_ok=True)
    facts = {"strikes": [asdict(strike) for strike in strikes], "problems": problems}
    (options.output / "faults.json").write_text(json.dumps(facts, indent=1))
    print(table(strikes))
    if untried := set(options.kinds) - {strike.fault for strike in strikes}:
        print(f"NOT tried, for want of rights or time: {', '.join(sorted(untried))}")
    print(
        f"{options.backend}, seeds {options.seed} to {options.seed + options.jobs - 1}: {len(strikes)} faults in "
        f"{sum(tally.num_runs for tally in tallies)} runs, {sum(tally.num_sessions for tally in tallies)} sessions, "
        f"{time.monotonic() - started:.0f} s: {f'{len(problems)} PROBLEMS' if problems else 'all rows equal, nothing left behind'}"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
