"""Answers to questions asked by hand, on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console

from evalharness.report.console import print_fields, print_heading, print_text
from evalharness.report.wording import plural

__all__ = ["print_answer"]


def print_answer(console: Console, row: Mapping[str, Any]) -> None:
    """Print one answer (a row of `generate --json`): its text, its raw text and ids, how it ended and how long it took."""
    print_heading(console, f"{row['id']} on {row['engine']}" + (f", sample {row['sample']}" if row["num_samples"] > 1 else ""))
    generation = row["generation"]
    if generation is None:
        print_fields(console, {row["outcome"]: row["problem"]})
        return
    print_text(console, "text", generation["text"], ["bold"])
    print_text(console, "raw text", generation["raw_text"])
    finish = generation["finish_reason"]
    if generation["stop_reason"] is not None:
        finish = f"{finish} ({generation['stop_reason']})"
    num_prompt, num_generated = (generation[f"num_{part}_tokens"] or 0 for part in ("prompt", "completion"))
    print_fields(
        console,
        {
            "finish": finish,
            "tokens": f"{plural(num_prompt, 'prompt token')}, {plural(num_generated, 'generated token')}",
            "time": f"{row['timing']['finished_after_s']:.2f} s after the first request, model loaded in {row['timing']['load_s']:.2f} s",
            "seed": generation["seed"],
            "fallback": generation["fallback"],
            "ignored": ", ".join(generation["ignored_options"]) or None,
            "ids": " ".join(map(str, generation["token_ids"])),
            "overlay": row.get("overlay"),
        },
    )
