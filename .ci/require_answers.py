"""Fail unless a run is complete: its report is there, and on each backend every case was answered.

python .ci/require_answers.py RUN_DIR BACKEND…
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path


def main(run_dir: Path, backends: list[str]) -> str | None:
    """Return what is wrong, None if nothing is."""
    missing = [name for name in ("run.json", "samples.jsonl", "report.md", "report.csv", "samples.csv") if not (run_dir / name).is_file()]
    if missing:
        return f"{run_dir} lacks {', '.join(missing)}"
    rows = [json.loads(line) for line in (run_dir / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    for backend in backends:
        outcomes = Counter(row["outcome"] for row in rows if row["backend"] == backend)
        if not outcomes or set(outcomes) - {"pass", "miss"}:
            problems = {row["problem"] for row in rows if row["backend"] == backend and row["outcome"] not in ("pass", "miss")}
            return f"on {backend} the cases ended as {dict(outcomes)}, not all in an answer: {sorted(map(str, problems))[:3]}"
        print(f"{backend}: {outcomes.total()} cases, all answered")
    return None


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
