"""A run for MLflow: one of its runs per training run, metrics by the step of each checkpoint, the run's tables as artifacts."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from evalharness.cli.libraries import load
from evalharness.cli.metrics import Track

__all__ = ["log_to_mlflow"]

_ARTIFACTS = ("report.md", "report.csv", "run.json")
_MAX_PARAM_CHARS = 500


def log_to_mlflow(tracks: Sequence[Track], run_dir: Path, *, uri: str, project: str) -> list[str]:
    """Log every track to the experiment `project` of the store at `uri` and return the ids of its runs."""
    if "://" not in uri or uri.startswith("file:"):
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow wants a database of new users; a folder is what was asked for
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
