"""Measures the time to read and score dense dumps, on one core.

    python -m benchmarks.dense_scoring [--outputs 10000] [--objects 20]

Draws answers with boxes, polygons and lines in the proportions of the site photos: most near a true object, some wrong or cut off.
Prints CPU seconds, all threads together, of reading, judging and reporting, for a tenth of the answers and for all.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from random import Random
from typing import Any

from evalharness.tasks.dense.metrics import judge_dump
from evalharness.tasks.dense.objects import DenseObject, GeometryType
from evalharness.tasks.dense.parse import parse_dump, render_dump
from evalharness.tasks.dense.tables import aggregate, tables
from evalharness.tasks.stage_a.schema import SCHEMA

KINDS: tuple[GeometryType, ...] = ("bbox_2d", "bbox_2d", "bbox_2d", "bbox_2d", "poly", "line")
CATEGORIES = tuple(SCHEMA["bbu"])


def draw_object(rng: Random) -> DenseObject:
    """Return one object somewhere on the grid."""
    kind = rng.choice(KINDS)
    x, y, width, height = rng.randint(0, 800), rng.randint(0, 800), rng.randint(20, 200), rng.randint(20, 200)
    corners: tuple[int, ...] = (x, y, x + width, y + height)
    if kind == "poly":
        corners = (x, y, x + width, y + 5, x + width, y + height, x + 5, y + height)
    elif kind == "line":
        corners = (x, y, x + width // 2, y + height, x + width, y)
    return DenseObject(kind, corners, f"类别={rng.choice(CATEGORIES)},可见性=完整,符合性=符合")


def moved(rng: Random, entry: DenseObject) -> DenseObject:
    """Return the object as a model might predict it: a little off, sometimes another object."""
    if rng.random() < 0.05:
        return draw_object(rng)
    desc = draw_object(rng).desc if rng.random() < 0.05 else entry.desc
    return DenseObject(entry.type, tuple(min(1000, max(0, value + rng.randint(-6, 6))) for value in entry.points), desc)


def draw_picture(rng: Random, num_objects: int) -> tuple[str, list[DenseObject]]:
    """Return an answer and the true objects."""
    truth = [draw_object(rng) for _ in range(num_objects)]
    text = render_dump([moved(rng, entry) for entry in truth], "bbu")
    return (text[: -rng.randint(1, 200)] if rng.random() < 0.03 else text), truth


def timed(step: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of a step and its result."""
    start = time.process_time()
    result = step()
    return time.process_time() - start, result


def measure(pictures: list[tuple[str, list[DenseObject]]]) -> dict[str, float]:
    """Return CPU seconds by step."""
    read_s, dumps = timed(lambda: [parse_dump(text, "bbu") for text, _ in pictures])
    judge_s, judged = timed(lambda: [judge_dump(dump, truth) for dump, (_, truth) in zip(dumps, pictures, strict=True)])
    rows = [{"case_id": str(place), "tags": {"mission": str(place % 6)}, **vars(scores)} for place, scores in enumerate(judged)]
    report_s, _ = timed(lambda: (aggregate(rows), tables(rows)))
    return {"read": read_s, "judge": judge_s, "aggregate and tables": report_s}


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description="Time of reading and scoring dense dumps, CPU seconds on one core")
    parser.add_argument("--outputs", type=int, default=10_000, help="Number of answers (default: 10000)")
    parser.add_argument("--objects", type=int, default=20, help="Objects of each (default: 20)")
    options = parser.parse_args()
    rng = Random(1)
    pictures = [draw_picture(rng, options.objects) for _ in range(options.outputs)]
    measure(pictures[:20])  # imports and caches
    for part in (pictures[: options.outputs // 10], pictures):
        seconds = measure(part)
        steps = ", ".join(f"{name} {value:.2f} s" for name, value in seconds.items())
        print(f"{len(part):,} answers of {options.objects} objects: {sum(seconds.values()):.2f} s ({steps})")


if __name__ == "__main__":
    main()
