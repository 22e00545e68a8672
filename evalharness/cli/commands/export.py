"""`evalharness export RUN`: a finished run's samples as a table, or its metrics for an experiment tracker."""

from __future__ import annotations

from pathlib import Path

import click

from evalharness.api.errors import DONE, ConfigError, RecordError
from evalharness.cli.framework import command, find_run

_TABLES = {"jsonl": "samples_flat.jsonl", "parquet": "samples.parquet"}
_TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlruns"}


@command(
    "export",
    examples=[
        "evalharness export reports/RUN_ID --format parquet",
        "evalharness export latest --format jsonl --out samples.jsonl",
        "evalharness export reports/RUN_ID --format tensorboard --out tb",
        "evalharness export reports/RUN_ID --format wandb --project sft-42",
        "evalharness export reports/RUN_ID --format mlflow --out http://localhost:5000",
    ],
    exit_codes={DONE: "the export was written"},
    takes_runs=True,
)
@click.argument("run", metavar="RUN")
@click.option(
    "--format",
    "kind",
    required=True,
    type=click.Choice([*_TABLES, *_TRACKERS]),
    help="jsonl, parquet: a flat table of the samples; tensorboard, wandb, mlflow: metrics by training step, with images",
)
@click.option("--out", metavar="PATH", help="File, folder, or, for mlflow, the address of a server (default: in the run directory)")
@click.option("--project", default="evalharness", metavar="NAME", help="W&B project or MLflow experiment (default: evalharness)")
@click.option("--online", is_flag=True, help="Let W&B upload the run now (default: write it for `wandb sync`)")
def export(run: str, kind: str, out: str | None, project: str, online: bool) -> int:
    """Write a run's samples as a table, or log its metrics to an experiment tracker.

    docs/command_line.md lists the columns and the names of metrics. All formats but jsonl need an extra of their name:
    pip install 'evalharness[parquet]', [tensorboard], [wandb] or [mlflow].
    """
    run_dir = find_run(run)
    if not (run_dir / "samples.jsonl").is_file():
        raise RecordError(f"{run_dir} has no samples.jsonl; evalharness report {run_dir} makes it from the journal")
    if online and kind != "wandb":
        raise ConfigError("--online is for --format wandb; leave it out")
    if kind in _TABLES:
        return _table(run_dir, kind, Path(out) if out is not None else run_dir / _TABLES[kind])
    from evalharness.cli.exports import log_to_mlflow, log_to_wandb, tracks_of, write_tensorboard

    target = out if out is not None else str(run_dir / _TRACKERS[kind])
    tracks = tracks_of(run_dir)
    if kind == "tensorboard":
        written: list[object] = [*write_tensorboard(tracks, Path(target))]
    elif kind == "wandb":
        written = [*log_to_wandb(tracks, Path(target), project=project, online=online)]
    else:
        uri = target if "://" in target else Path(target).absolute().as_uri()
        written = [f"{uri}: run {name}" for name in log_to_mlflow(tracks, run_dir, uri=uri, project=project)]
    print(*written, sep="\n")
    return DONE


def _table(run_dir: Path, kind: str, path: Path) -> int:
    from evalharness.cli.exports import write_jsonl, write_parquet

    if path.resolve() == (run_dir / "samples.jsonl").resolve():
        raise ConfigError(f"--out {path} would overwrite the run's own samples.jsonl; choose another name")
    try:
        count = write_parquet(run_dir, path) if kind == "parquet" else write_jsonl(run_dir, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}; give a file in a folder that exists") from error
    print(f"{path}: {count:,} samples, {path.stat().st_size:,} bytes")
    return DONE
