"""Runs a program with `sampler/sitecustomize.py` in all its processes, and adds up what they did in a stretch of time."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

EVERY_S = 0.05
_SAMPLER = Path(__file__).parent / "sampler"


def sampled_environment(folder: Path) -> dict[str, str]:
    """Return an environment in which programs write samples into this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [str(_SAMPLER), *filter(None, (os.environ.get("PYTHONPATH", ""), str(Path(__file__).parents[1])))]
    return {**os.environ, "EVALHARNESS_SAMPLES": str(folder), "PYTHONPATH": os.pathsep.join(paths)}


@dataclass
class Process:
    """What one process did: (time, label by thread)."""

    command: str
    samples: list[tuple[float, dict[str, str]]] = field(default_factory=list)


def read_samples(folder: Path) -> list[Process]:
    """Return the processes that wrote into this folder, in the order of their first samples."""
    processes = []
    for path in folder.glob("*.jsonl"):
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
        process = Process(next((line["command"] for line in lines if "command" in line), "?"))
        process.samples = [(line["t"], line["at"]) for line in lines if "t" in line]
        if process.samples:
            processes.append(process)
    return sorted(processes, key=lambda process: process.samples[0][0])


def seconds_at(process: Process, begin: float, end: float) -> dict[str, float]:
    """Return the seconds that each thread was seen at each place between two times; the next sample ends a sample."""
    seconds: dict[str, float] = defaultdict(float)
    for (at, places), (following, _) in zip(process.samples, [*process.samples[1:], (process.samples[-1][0] + EVERY_S, {})], strict=True):
        if begin <= at < end:
            for thread, place in places.items():
                seconds[f"{thread}: {place}"] += min(following, end) - at
    return seconds


def top(processes: list[Process], begin: float, end: float, most: int) -> Iterator[str]:
    """Yield lines: by process, where the most seconds were spent between two times."""
    for process in processes:
        seconds = sorted(seconds_at(process, begin, end).items(), key=lambda item: -item[1])
        busiest = [f"    {taken:6.1f}  {place}" for place, taken in seconds[:most] if taken >= 0.5]
        if busiest:
            yield f"  {process.command[-90:]}"
            yield from busiest
