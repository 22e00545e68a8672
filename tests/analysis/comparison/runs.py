"""Pairs of run directories to compare: cases with scores that fall, rise or stay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.report.runs import row, write_run

ENGINE = {"id": "hf:tiny", "backend": "hf", "checkpoint": "tiny", "fingerprint": "f1", "template_sha256": "t1"}


def cases(scores: Sequence[float], *, metric: str = "f1", **changes: Any) -> list[dict[str, Any]]:
    """Return one row per score."""
    return [row(f"c{number:03}", scores={metric: value}, **changes) for number, value in enumerate(scores)]


def run_dir(folder: Path, samples: Sequence[Mapping[str, Any]], engine: Mapping[str, Any] | None = None, **run: Any) -> Path:
    """Write a run of one engine into `folder`, named by it."""
    engines = run.pop("engines", [{**ENGINE, **(engine or {})}])
    return write_run(folder, samples, run_id=folder.name, engines=engines, versions={"evalharness": "1"}, **run)


def pair(tmp_path: Path, base: Sequence[Mapping[str, Any]], candidate: Sequence[Mapping[str, Any]], **run: Any) -> tuple[Path, Path]:
    """Write two runs, of checkpoints with other weights."""
    return run_dir(tmp_path / "base", base), run_dir(tmp_path / "cand", candidate, {"fingerprint": "f2"}, **run)
