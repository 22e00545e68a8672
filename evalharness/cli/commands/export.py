"""`evalharness export RUN`: a finished run's samples as a flat table or as other tools' files, or its metrics by training step.

Reads the run directory only, which holds no secrets (`api/redaction.py`). Optional libraries are imported when an export needs them.
Each track is one run of a tracker. TensorBoard needs no TensorFlow; W&B stays offline unless told otherwise.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import click

from evalharness.api.errors import BROKEN, DONE, ConfigError, MissingDependency, RecordError
from evalharness.api.images import image_size, why_unusable
from evalharness.api.installing import missing_package
from evalharness.api.wording import plural
from evalharness.cli.completion import RUN
from evalharness.cli.framework import command, find_run
from evalharness.report.flat_table import columns_of, flat_rows
from evalharness.report.text import printable, terminal_text
from evalharness.runs.run_file import read_run
from evalharness.runs.schema import RunFile, entries_of, mapping, text_of

_TABLES = {"jsonl": "samples_flat.jsonl", "parquet": "samples.parquet", "csv": "samples.csv"}
_TOOLS = {"lm-eval": "lm_eval", "inspect": "inspect"}
_TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlruns"}


@command(
    "export",
    examples=[
        "evalharness export reports/RUN_ID --format parquet",
        "evalharness export latest --format jsonl --out samples.jsonl",
        "evalharness export reports/RUN_ID --format inspect --out logs",
        "evalharness export reports/RUN_ID --format tensorboard --out tb",
        "evalharness export reports/RUN_ID --format wandb --project sft-42",
        "evalharness export reports/RUN_ID --format mlflow --out http://localhost:5000",
    ],
    exit_codes={DONE: "the export was written", BROKEN: "a tracker's library or server failed"},
    takes_runs=True,
)
@click.argument("run", metavar="RUN", type=RUN)
@click.option(
    "--format",
    "kind",
    required=True,
    type=click.Choice([*_TABLES, *_TOOLS, *_TRACKERS]),
    help="jsonl, parquet: a flat table of the samples; csv: samples.csv, which every run has; lm-eval, inspect: files as these write; "
    "tensorboard, wandb, mlflow: metrics by training step, with images",
)
@click.option("--out", metavar="PATH", help="File, folder, or, for mlflow, the address of a server (default: in the run directory)")
@click.option("--project", default="evalharness", metavar="NAME", help="W&B project or MLflow experiment (default: evalharness)")
@click.option("--online", is_flag=True, help="Let W&B upload the run now (default: write it for `wandb sync`)")
def export(run: str, kind: str, out: str | None, project: str, online: bool) -> int:
    """Write a run's samples as a table or as another tool's files, or log its metrics to an experiment tracker.

    docs/command_line.md lists the columns and the names of metrics. parquet and trackers need the extra of the same name;
    where it is missing, the error gives the command that installs it.
    """
    run_dir = find_run(run)
    if not (run_dir / "samples.jsonl").is_file():
        raise RecordError(f"{run_dir} has no samples.jsonl; its journal may hold the samples").helped_by(f"evalharness report {run_dir}")
    if online and kind != "wandb":
        raise ConfigError("--online is for --format wandb; leave it out")
    if kind in _TABLES:
        return _table(run_dir, kind, Path(out) if out is not None else run_dir / _TABLES[kind])
    if kind in _TOOLS:
        return _for_tool(run_dir, kind, Path(out) if out is not None else run_dir / _TOOLS[kind])
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
    if path.resolve() == (run_dir / "samples.jsonl").resolve():
        raise ConfigError(f"--out {path} would overwrite the run's own samples.jsonl; choose another name")
    try:
        if kind == "csv":
            return _copy_csv(run_dir / "samples.csv", path)
        count = write_parquet(run_dir, path) if kind == "parquet" else write_jsonl(run_dir, path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}; give a file in a folder that exists") from error
    print(f"{path}: {plural(count, 'sample')}, {path.stat().st_size:,} bytes")
    return DONE


def _for_tool(run_dir: Path, kind: str, folder: Path) -> int:
    from evalharness.interop.to_inspect import write_inspect
    from evalharness.interop.to_lm_eval import write_lm_eval

    try:
        written = write_inspect(run_dir, folder) if kind == "inspect" else write_lm_eval(run_dir, folder)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}; give another folder") from error
    if not written:
        raise RecordError(f"{run_dir} has no case with a verdict, so there is nothing to export")
    print(*written, sep="\n")
    return DONE


def _copy_csv(source: Path, path: Path) -> int:
    if not source.is_file():
        raise RecordError(f"{source} is missing").helped_by(f"evalharness report {source.parent}")
    if path.resolve() != source.resolve():
        shutil.copyfile(source, path)
    print(f"{path}: {path.stat().st_size:,} bytes")
    return DONE


_ARTIFACTS = ("report.md", "report.csv", "run.json")
_MAX_PARAM_CHARS = 500
NUM_PICTURES = 20
"""Images of spot checks that trackers get per engine, at most."""
_UNSAFE = re.compile(r"[^\w.\- ]+")


def load(module: str, extra: str) -> Any:
    """Return the imported module. Raises `MissingDependency` with the command that installs `extra`."""
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingDependency(missing_package("this export", error, extra)) from error


@dataclass
class Point:
    """One checkpoint: `metrics` by "eval/test/metric", `pictures` (files of the run) by "eval/name"; `step` is 0 if unknown."""

    engine: str
    checkpoint: str
    step: int
    metrics: dict[str, float] = field(default_factory=dict)
    pictures: dict[str, Path] = field(default_factory=dict)


@dataclass
class Track:
    """The checkpoints of one training run on one backend, by step: one line in a tracker. `config` is plain data."""

    name: str
    run_id: str
    points: list[Point]
    config: dict[str, Any]


def tracks_of(run_dir: Path) -> list[Track]:
    """Return the tracks of a run; each checkpoint without a step is a track of its own. Raises `RecordError` for an unreadable run."""
    run = read_run(run_dir)
    metrics = _metrics(run_dir)
    tracks: dict[str, Track] = {}
    for engine in entries_of(run.get("engines")):
        name = text_of(engine.get("id"))
        step = mapping(engine.get("training")).get("step")
        step = step if isinstance(step, int) and not isinstance(step, bool) else None
        path = text_of(engine.get("checkpoint_path"))
        title = f"{text_of(engine.get('backend'))}-{Path(path).parent.name}" if step is not None else name
        dtype = engine.get("dtype")
        title = safe_name(f"{title}-{dtype}" if step is not None and dtype else title)
        track = tracks.setdefault(title, Track(title, text_of(run.get("run_id")) or run_dir.name, [], _config(run)))
        pictures = dict(_pictures(run_dir, run, name))
        track.points.append(Point(name, text_of(engine.get("checkpoint")), step or 0, metrics.get(name, {}), pictures))
    for track in tracks.values():
        track.points.sort(key=lambda point: point.step)
    return list(tracks.values())


def safe_name(text: str) -> str:
    """Return a name that every tracker and file system accepts: letters of any script, digits, '_', '-', '.' and blanks."""
    return _UNSAFE.sub("_", terminal_text(printable(text), 100)).strip(" .") or "unnamed"


def _key(*parts: str | float | None) -> str:
    return "/".join(safe_name(text_of(part)) for part in parts)


def _in_letters(expression: str) -> str:
    """Return a gate's expression with letters for its signs, which names of metrics may not have."""
    letters = {">=": "ge", "<=": "le", ">": "gt", "<": "lt", "==": "eq"}
    return re.sub("[<>=]=|[<>]", lambda sign: letters[sign.group()], expression)


def _metrics(run_dir: Path) -> dict[str, dict[str, float]]:
    """Return {engine: {name: value}} of every number of the report."""
    from evalharness.report.tables import load_tables

    tables = load_tables(run_dir)
    metrics: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for (name, test, engine, metric), score in tables.scores.items():
        metrics[engine][_key(name, test, metric)] = score.mean
    for (name, test, engine), counts in tables.counts.items():
        for what in ("cases", "miss", "invalid", "error"):
            metrics[engine][_key(name, test, f"num_{what}")] = float(counts[what])
    for entry in entries_of(tables.run.get("aggregates")):
        if isinstance(entry.get("value"), (int, float)):
            names = [part for part in (entry.get("eval"), entry.get("test"), entry.get("metric")) if part]
            metrics[text_of(entry.get("engine"))][_key(*names)] = float(entry["value"])
    for gate in entries_of(tables.run.get("gates")):
        passed = gate.get("passed")
        if isinstance(passed, bool):
            key = _key(gate.get("eval"), gate.get("test"), "gates", _in_letters(text_of(gate.get("expression"))))
            metrics[text_of(gate.get("engine"))][key] = float(passed)
    for total in entries_of(tables.run.get("throughput")):
        for what, value in total.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                metrics[text_of(total.get("engine"))][_key("throughput", what)] = float(value)
    return metrics


def _pictures(run_dir: Path, run: RunFile, engine: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of an engine's images of spot checks; paths that lead out of the run directory are left out."""
    root, count = run_dir.resolve(), 0
    for entry in entries_of(run.get("outputs")):
        path = (root / text_of(entry.get("path"))).resolve()
        is_picture = path.suffix.lower() in (".png", ".jpg", ".jpeg")
        is_own = text_of(entry.get("engine")) == engine and is_picture and path.is_relative_to(root) and count < NUM_PICTURES
        if is_own and why_unusable(path) is None:
            count += 1
            yield _key(entry.get("eval"), path.stem), path


def _config(run: RunFile) -> dict[str, Any]:
    """Return the options that someone set, with the run's id and commit."""
    settings = {name: mapping(setting) for name, setting in mapping(run.get("config")).items()}
    options = {name: setting.get("value") for name, setting in settings.items() if setting.get("origin") != "default"}
    return {"run_id": text_of(run.get("run_id")), "git_commit": mapping(run.get("git")).get("commit"), **options}


_ROWS_PER_GROUP = 1000


def write_jsonl(run_dir: Path, path: Path) -> int:
    """Write the table as ASCII JSON, one object per line with every column, and return the number of lines."""
    columns = columns_of(run_dir)
    count = 0
    with path.open("w", encoding="ascii", newline="\n") as file:
        for row in flat_rows(run_dir):
            file.write(json.dumps({name: row.get(name) for name in columns}, allow_nan=False) + "\n")
            count += 1
    return count


def write_parquet(run_dir: Path, path: Path) -> int:
    """Write the table as Parquet and return the number of lines. Raises `MissingDependency` without pyarrow."""
    pyarrow, parquet = load("pyarrow", "parquet"), load("pyarrow.parquet", "parquet")
    types = {"text": pyarrow.string(), "int": pyarrow.int64(), "float": pyarrow.float64(), "ints": pyarrow.list_(pyarrow.int64())}
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns_of(run_dir).items()])
    rows, count = flat_rows(run_dir), 0
    with parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while group := list(islice(rows, _ROWS_PER_GROUP)):
            writer.write_table(pyarrow.Table.from_pylist(group, schema=schema))
            count += len(group)
    return count


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
    events = load("tensorboard.compat.proto.event_pb2", "tensorboard")
    summaries = load("tensorboard.compat.proto.summary_pb2", "tensorboard")
    paths = []
    for track in tracks:
        path = folder / track.name
        writer = writers.EventFileWriter(str(path), filename_suffix=f".{track.run_id}")
        for point in track.points:
            values = [summaries.Summary.Value(tag=name, simple_value=value) for name, value in point.metrics.items()]
            for name, picture in point.pictures.items():
                width, height = image_size(picture)
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
