"""Fail unless a run is complete, and its backends answered alike: the same token ids for every case.

    python .ci/require_answers.py RUN_DIR BACKEND…

The report must be there, and on each backend every case be answered. Greedy decoding in float32 gives one answer,
whatever the backend; a difference is a fault of prompt, picture, stop or kernel, and may not land unseen.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

FILES = ("run.json", "samples.jsonl", "report.md", "report.csv", "samples.csv")
SHOWN = 5

Row: TypeAlias = "dict[str, Any]"


def main(run_dir: Path, backends: Sequence[str]) -> str | None:
    """Return what is wrong, None if nothing is."""
    missing = [name for name in FILES if not (run_dir / name).is_file()]
    if missing:
        return f"{run_dir} lacks {', '.join(missing)}"
    rows = [json.loads(line) for line in (run_dir / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    for backend in backends:
        problem = unanswered(rows, backend)
        if problem:
            return problem
    for other in backends[1:]:
        problem = unlike(rows, backends[0], other)
        if problem:
            return problem
    return None


def unanswered(rows: Sequence[Row], backend: str) -> str | None:
    """Return which cases of a backend have no answer, None if all have one."""
    outcomes = Counter(row["outcome"] for row in rows if row["backend"] == backend)
    if not outcomes or set(outcomes) - {"pass", "miss"}:
        problems = {row["problem"] for row in rows if row["backend"] == backend and row["outcome"] not in ("pass", "miss")}
        return f"on {backend} the cases ended as {dict(outcomes)}, not all in an answer: {sorted(map(str, problems))[:3]}"
    print(f"{backend}: {outcomes.total()} cases, all answered")
    return None


def unlike(rows: Sequence[Row], one: str, other: str) -> str | None:
    """Return which cases two backends answered with different token ids, None if none."""
    answers = {name: {key(row): token_ids(row) for row in rows if row["backend"] == name} for name in (one, other)}
    if answers[one].keys() != answers[other].keys():
        odd = sorted(answers[one].keys() ^ answers[other].keys())
        return f"{one} and {other} were not asked the same: {odd[:SHOWN]} of one only"
    if not all(ids for name in answers for ids in answers[name].values()):
        return f"{one} or {other} has answers without token ids: there is nothing to compare"
    different = [where for where in answers[one] if answers[one][where] != answers[other][where]]
    if different:
        shown = [f"  {'::'.join(where)}: {first_difference(answers[one][where], answers[other][where])}" for where in different[:SHOWN]]
        return "\n".join([f"{one} and {other} differ in {len(different)} of {len(answers[one])} cases:", *shown])
    print(f"{one} and {other}: {len(answers[one])} cases, the same tokens")
    return None


def key(row: Row) -> tuple[str, ...]:
    """Return what a row is about, whatever the backend."""
    return row["eval"], row["test"], row["checkpoint"], row["case_id"]


def token_ids(row: Row) -> list[list[int]]:
    """Return the token ids of all samples of a row; empty where any has none."""
    samples = row.get("generations") or [row["generation"]]
    found = [(sample or {}).get("token_ids") for sample in samples]
    return found if all(found) else []


def first_difference(one: list[list[int]], other: list[list[int]]) -> str:
    """Return where two answers part."""
    for number, (left, right) in enumerate(zip(one, other, strict=False)):
        for position in range(max(len(left), len(right))):
            if left[position : position + 1] != right[position : position + 1]:
                return f"sample {number}, token {position}: {left[position : position + 3]} or {right[position : position + 3]}"
    return f"{len(one)} or {len(other)} samples"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
