"""Runs on a Ray cluster whose hosts are lost and replaced at random moments, each compared with an undisturbed run.

    python -m benchmarks.ray_losses [--runs 8] [--losses 2] [--seed 3]

Three hosts are processes of this machine with a worker each. Rows must be equal, and no answer lost or made twice.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.simulated.ray_hosts import RayHosts, ray_hosts
from tests.pytest_plugin.killing import CASES, CONFTEST, EVALS, num_lines
from tests.pytest_plugin.project import HEADER, Project, Run
from tests.pytest_plugin.test_random_kills import check

HOSTS = 3
SLOWER = CONFTEST.replace("0.01", "0.08")


def disturbed(project: Project, hosts: RayHosts, run_id: str, moments: Sequence[int], draw: random.Random) -> Run:
    """Return a run that lost a host, and got another, when its journals had so many lines."""
    run_dir = project.root / "reports" / run_id
    options = ("--executor", "ray", "--ray-address", hosts.address, "-n", str(HOSTS), "--max-worker-restart", "99", "--run-id", run_id)
    with project.start(*options, mode="xdist") as process:
        for moment in moments:
            while num_lines(run_dir) < moment and process.poll() is None:
                time.sleep(0.02)
            time.sleep(draw.uniform(0.0, 0.2))
            hosts.kill()
            hosts.add()
        return project.wait(process, run_id=run_id)


def main(argv: Sequence[str] | None = None) -> None:
    """Print a line for each run; end with 1 if the rows of any differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=8, help="Number of runs (default: 8)")
    parser.add_argument("--losses", type=int, default=2, help="Hosts lost in each run (default: 2)")
    parser.add_argument("--seed", type=int, default=3, help="Of the moments (default: 3)")
    arguments = parser.parse_args(argv)
    draw, num_bad = random.Random(arguments.seed), 0
    with tempfile.TemporaryDirectory() as folder, ray_hosts(HOSTS, num_cpus=1) as hosts:
        project = Project(Path(folder)).write(conftest=SLOWER, **{name: HEADER + CASES + text for name, text in EVALS.items()})
        calm = project.run("--run-id", "calm")
        for number in range(arguments.runs):
            moments = sorted(draw.randrange(num_lines(calm.run_dir)) for _ in range(arguments.losses))
            run = disturbed(project, hosts, f"r{number}", moments, draw)
            verdict = "all rows equal"
            try:
                check(run, calm)
            except AssertionError as error:
                num_bad, verdict = num_bad + 1, f"rows differ: {str(error)[:1000]}"
            num_lost = sum(" was lost with its host " in problem for problem in run.facts["problems"])
            print(f"run {number}: {num_lost} workers lost with their hosts: {verdict}", flush=True)
    raise SystemExit(bool(num_bad))


if __name__ == "__main__":
    main()
