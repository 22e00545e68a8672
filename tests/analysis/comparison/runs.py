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
    return write_run(folder, samples, run_id=folder.name, engines=engines, **{"versions": {"evalharness": "1"}, **run})


def pair(tmp_path: Path, base: Sequence[Mapping[str, Any]], candidate: Sequence[Mapping[str, Any]], **run: Any) -> tuple[Path, Path]:
    """Write two runs, of checkpoints with other weights."""
    return run_dir(tmp_path / "base", base), run_dir(tmp_path / "cand", candidate, {"fingerprint": "f2"}, **run)


def engine(name: str, *, step: float | None = None, folder: str = "/train/sft-1", **more: Any) -> dict[str, Any]:
    """Return run.json's entry of an engine; `step` is what its trainer_state.json said."""
    training = None if step is None else {"step": step, "epoch": step / 100}
    names = {"id": f"hf:{name}", "checkpoint": name, "checkpoint_path": f"{folder}/{name}", "fingerprint": name}
    return {**names, "backend": "hf", "training": training, **more}


def measured(folder: Path, scores: dict[str, list[float]], engines: list[dict[str, Any]] | None = None, **run: Any) -> Path:
    """Write a run with one engine per entry of `scores`: checkpoint → one score per case."""
    rows = [case for name, values in scores.items() for case in cases(values, engine=f"hf:{name}", checkpoint=name)]
    return run_dir(folder, rows, engines=engines or [engine(name) for name in scores], **run)
