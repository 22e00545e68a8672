"""Logs the tracks of a run to MLflow, TensorBoard and Weights & Biases: metrics and images by the step of each checkpoint.

Each track is one run of the tracker. TensorBoard needs no TensorFlow; W&B stays offline unless told otherwise.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from evalharness.cli.exports import Track, load

__all__ = ["log_to_mlflow", "log_to_wandb", "write_tensorboard"]

_ARTIFACTS = ("report.md", "report.csv", "run.json")
_MAX_PARAM_CHARS = 500


def log_to_mlflow(tracks: Sequence[Track], run_dir: Path, *, uri: str, project: str) -> list[str]:
    """Log every track, with the run's tables as artifacts, to the experiment `project` at `uri`; return the ids of MLflow's runs."""
    if "://" not in uri or uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow refuses a plain folder without this
    client = load("mlflow", "mlflow").MlflowClient(tracking_uri=uri)
    entities = load("mlflow.entities", "mlflow")
    experiment = client.get_experiment_by_name(project)
    experiment_id = client.create_experiment(project) if experiment is None else experiment.experiment_id
    ids, now_ms = [], int(time.time() * 1000)
    for track in tracks:
        run_id = client.create_run(experiment_id, run_name=f"{track.run_id}-{track.name}").info.run_id
        for name, value in track.config.items():
            client.log_param(run_id, name, str(value)[:_MAX_PARAM_CHARS])
        for point in track.points:
            metrics = [entities.Metric(name, value, now_ms, point.step) for name, value in point.metrics.items()]
            for start in range(0, len(metrics), 1000):
                client.log_batch(run_id, metrics=metrics[start : start + 1000])
            for name, path in point.pictures.items():
                client.log_artifact(run_id, str(path), f"step-{point.step}/{Path(name).parent}")
        for artifact in _ARTIFACTS:
            if (run_dir / artifact).is_file():
                client.log_artifact(run_id, str(run_dir / artifact))
        client.set_terminated(run_id)
        ids.append(run_id)
    return ids


def write_tensorboard(tracks: Sequence[Track], folder: Path) -> list[Path]:
    """Write scalars and images below `folder`, one folder per track, which later runs of the track share; return these folders."""
    writers = load("tensorboard.summary.writer.event_file_writer", "tensorboard")
    events, summaries = (
        load("tensorboard.compat.proto.event_pb2", "tensorboard"),
        load("tensorboard.compat.proto.summary_pb2", "tensorboard"),
    )
    from PIL import Image

    paths = []
    for track in tracks:
        path = folder / track.name
        writer = writers.EventFileWriter(str(path), filename_suffix=f".{track.run_id}")
        for point in track.points:
            values = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in point.metrics.items()]
            for name, picture in point.pictures.items():
                with Image.open(picture) as opened:
                    width, height = opened.size
                image = summaries.Summary.Image(width=width, height=height, colorspace=3, encoded_image_string=picture.read_bytes())
                values.append(summaries.Summary.Value(tag=name, image=image))
            writer.add_event(events.Event(step=point.step, wall_time=time.time(), summary=summaries.Summary(value=values)))
        writer.close()
        paths.append(path)
    return paths


def log_to_wandb(tracks: Sequence[Track], folder: Path, *, project: str, online: bool) -> list[Path]:
    """Log every track and return the folders of W&B's runs, which `wandb sync` uploads where they are offline."""
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
    wandb.teardown()  # ends the writing process; only then everything is on disk
    return paths
