"""Measures what the harness adds to pytest, with the fake backend: time per case, collection, import, memory.

    python benchmarks/harness_overhead.py [--num-cases 10000] [--rounds 3]

A bare run (`@pytest.mark.parametrize` over as many numbers, this plugin switched off) and an eval run (generation,
scores, a gate, journal, samples, reports) alternate in fresh processes. Prints medians and ratios. CPU seconds are the
cost of the work, even on a busy machine; wall seconds are the wait of a user.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

_BARE = """
import pytest

@pytest.mark.parametrize("n", range({n}))
def test_bare(n):
    assert n >= 0
"""
_EVAL = """
import pytest
from evalharness import Case, TextGenerationRequest

def load(data_dir):
    return [Case(id=f"c{{i}}", reference=str(i)) for i in range({n})]

def request(case):
    return TextGenerationRequest([{{"role": "user", "content": case.reference}}])

pytestmark = pytest.mark.eval(cases=load, request=request)

@pytest.mark.gate("correct >= 0.5")
def test_echo(case, generation, score):
    score(correct=generation.text == case.reference)
    assert generation.text == case.reference
"""
_EMPTY = "import _pytest.config, xdist.plugin, json, sys, time; t = time.perf_counter(); "
_IMPORT = _EMPTY + "import evalharness.pytest_plugin; print(time.perf_counter() - t)"

Measured = tuple[float, float, float]


def _run(arguments: list[str], folder: Path) -> Measured:
    """Return wall seconds, CPU seconds and peak resident MiB of one pytest process."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    script = (
        "import json, resource, sys, pytest; code = pytest.main(sys.argv[1:]); u = resource.getrusage(resource.RUSAGE_SELF);"
        "print('MEASURED', json.dumps([int(code), u.ru_utime + u.ru_stime, u.ru_maxrss / 1024]))"
    )
    started = time.perf_counter()
    command = [sys.executable, "-c", script, "-q", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    wall_s = time.perf_counter() - started
    last = [line for line in done.stdout.splitlines() if line.startswith("MEASURED ")]
    if not last:
        raise SystemExit(f"the run broke:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    code, cpu_s, peak_mib = json.loads(last[0].removeprefix("MEASURED "))
    if code != 0:
        raise SystemExit(f"the run ended with exit code {code}:\n{done.stdout[-2000:]}")
    return wall_s, cpu_s, peak_mib


def _medians(runs: list[Measured]) -> Measured:
    wall, cpu, peak = (statistics.median(values) for values in zip(*runs, strict=True))
    return wall, cpu, peak


def _projects(root: Path, num_cases: int) -> tuple[Callable[[], Measured], Callable[[], Measured], Callable[[], Measured]]:
    """Return functions that run, in fresh processes: bare pytest, the eval, and the eval's collection alone."""
    bare, evals = root / f"bare{num_cases}", root / f"evals{num_cases}"
    for folder, name, text in ((bare, "test_bare.py", _BARE), (evals, "test_echo.py", _EVAL)):
        folder.mkdir()
        (folder / name).write_text(text.format(n=num_cases))
        (folder / "pytest.ini").write_text("[pytest]\n")
    return (
        lambda: _run(["-p", "no:evalharness.pytest_plugin", "test_bare.py"], bare),
        lambda: _run(["--backend", "fake", "test_echo.py"], evals),
        lambda: _run(["--backend", "fake", "--collect-only", "test_echo.py"], evals),
    )


def _import_s() -> float:
    done = subprocess.run([sys.executable, "-c", _IMPORT], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-cases", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        few = max(1, options.num_cases // 10)
        bare, evals, collect = _projects(Path(folder), options.num_cases)
        bare_few, evals_few, _ = _projects(Path(folder), few)
        results: dict[str, list[Measured]] = {}
        for run in (bare_few, evals_few):
            run()  # byte code is compiled and cached here
        for _ in range(options.rounds):
            for name, run in (("bare", bare), ("evals", evals), ("collect", collect), ("bare few", bare_few), ("evals few", evals_few)):
                results.setdefault(name, []).append(run())
        medians = {name: _medians(runs) for name, runs in results.items()}
        import_s = statistics.median(_import_s() for _ in range(5))
    n = options.num_cases
    print(f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, {n} cases, median of {options.rounds}")
    print(f"import of the plugin: {import_s * 1000:.0f} ms beside pytest's own imports")
    print(f"collect only: {medians['collect'][0]:.2f} s wall, {medians['collect'][1]:.2f} s CPU")
    for name, position, unit in (("wall", 0, "s"), ("CPU", 1, "s")):
        a, b = medians["bare"][position], medians["evals"][position]
        alone, harnessed = (f"{total:.2f} {unit} ({total / n * 1e3:.3f} ms a case)" for total in (a, b))
        print(f"{name}: bare {alone}, evals {harnessed}, ratio {b / a:.2f}")
    growth = {kind: (medians[kind][2] - medians[f"{kind} few"][2]) / (n - few) * 1024 for kind in ("bare", "evals")}
    print(
        f"peak memory: bare {medians['bare'][2]:.0f} MiB, evals {medians['evals'][2]:.0f} MiB; "
        f"growth from {few} to {n} cases: bare {growth['bare']:.1f} KiB a case, evals {growth['evals']:.1f} KiB a case"
    )


if __name__ == "__main__":
    main()
