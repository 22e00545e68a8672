"""A run for Weights & Biases: one of its runs per training run, logged by the step of each checkpoint, offline unless told otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evalharness.cli.libraries import load
from evalharness.cli.metrics import Track

__all__ = ["log_to_wandb"]


def log_to_wandb(tracks: Sequence[Track], folder: Path, *, project: str, online: bool) -> list[Path]:
    """Log every track and return the folders of its runs; those of offline runs are what `wandb sync` takes."""
    wandb = load("wandb", "wandb")
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    settings = wandb.Settings(console="off", silent=True, disable_git=True, disable_code=True, x_disable_meta=True, x_disable_stats=True)
    for track in tracks:
        run = wandb.init(
            project=project,
            name=f"{track.run_id}-{track.name}",
            group=track.name,
            config=track.config,
            dir=str(folder),
            mode="online" if online else "offline",
            settings=settings,
        )
        for point in track.points:
            pictures = {name: wandb.Image(str(path)) for name, path in point.pictures.items()}
            run.log({**point.metrics, **pictures}, step=point.step)
        paths.append(Path(run.dir).parent)
        run.finish()
    wandb.teardown()  # ends the process that writes: only then all is on disk
    return paths
