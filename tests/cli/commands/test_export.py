"""Exports of small runs, read back with the real libraries: pyarrow, TensorBoard, W&B offline, MLflow in a folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import evalharness
from evalharness.api.errors import MissingDependency
from evalharness.cli import main
from evalharness.cli.commands.export import load, safe_name, tracks_of
from evalharness.report.flat_table import COLUMNS, columns_of, flat_rows
from tests.cli.conftest import Command
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import generation, invalid, row, write_run

LATER = "hf:checkpoint-200"


def engine(name: str, step: int | None) -> dict[str, Any]:
    training = None if step is None else {"step": step, "epoch": step / 100}
    checkpoint = name.partition(":")[2]
    return {"id": name, "backend": "hf", "checkpoint": checkpoint, "checkpoint_path": f"/runs/sft-42/{checkpoint}", "training": training}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two checkpoints of one training run, the later first."""
    samples = [
        row("a", engine=LATER, scores={"f1": 1.0}, tags={"mission": "m"}, details={"x": [1]}, generation=generation(token_ids=[1, 2])),
        row("b", engine=LATER, scores={"f1": 0.5}, generations=[generation(text="one"), generation(text="two")]),
        row("a", engine="hf:checkpoint-100", scores={"f1": 0.0, "other": 1.0}, outcome="miss"),
        invalid("b", engine="hf:checkpoint-100"),
    ]
    folder = tmp_path / "run"
    pictures = folder / "outputs" / "later"
    pictures.mkdir(parents=True)
    Image.new("RGB", (8, 6)).save(pictures / "vis_00000.jpg")
    Image.new("RGB", (8, 6)).save(tmp_path / "outside.jpg")
    outputs = [{"eval": "stage_a", "engine": LATER, "path": path} for path in ("outputs/later/vis_00000.jpg", "../outside.jpg", "run.json")]
    gates = [{"eval": "stage_a", "test": "test_summary", "engine": LATER, "expression": "f1 >= 0.9", "passed": False}]
    config = {"model": {"value": ["x"], "origin": "command line"}, "seed": {"value": 0, "origin": "default"}}
    write_run(
        folder, samples, engines=[engine(LATER, 200), engine("hf:checkpoint-100", 100)], outputs=outputs, gates=gates, config=config,
        throughput=[{"engine": LATER, "tokens_per_s": 12.5}],
        aggregates=[
            {"eval": "stage_a", "test": "test_summary", "engine": LATER, "metric": "group_accuracy", "value": 0.25},
            {"eval": "stage_a", "test": None, "engine": LATER, "metric": "nothing_counted", "value": None}
        ]
    )  # fmt: skip
    (folder / "report.md").write_text("# report")
    return folder


def hostile_run(folder: Path) -> Path:
    samples = [
        row(text, text=text, problem=text, group=text, tags={text: text}, scores={text: 1.0}, details={text: text})
        for text in HOSTILE_TEXTS.values()
    ]
    wrong = row("wrong", scores={"f1": 10**400, "f2": "x"}, duration_s="long", generation=generation(seed=2**70, token_ids=["x"]))
    return write_run(folder, [*samples, wrong], engines=[{"id": "hf:\x1b[31m/../x\ud800", "backend": None, "training": {"step": True}}])


class TestTable:
    def test_columns_are_flat_and_typed(self, run: Path) -> None:
        assert columns_of(run) == {**COLUMNS, "score.f1": "float", "score.other": "float", "tag.mission": "text"}
        first, second, third, fourth = flat_rows(run)
        assert (first["step"], first["epoch"], first["token_ids"], first["details"]) == (200, 2.0, [1, 2], '{"x": [1]}')
        assert (second["num_generations"], [one["text"] for one in json.loads(second["generations"])]) == (2, ["one", "two"])
        assert (third["score.other"], third.get("tag.mission")) == (1.0, None)
        assert (fourth["outcome"], fourth["text"], fourth["num_generations"]) == ("invalid", None, 0)

    @pytest.mark.parametrize("engines", [5, "x", [5], [{"id": ["x"]}]], ids=str)
    def test_engines_that_are_none_give_no_step(self, tmp_path: Path, engines: Any) -> None:
        write_run(tmp_path, [row("a", engine=LATER)], engines=engines)
        [only] = flat_rows(tmp_path)
        assert only.get("step") is None

    def test_jsonl_has_every_column_in_every_line(self, run: Path, printed: Command) -> None:
        path = run / "samples_flat.jsonl"
        assert printed("export", run, "--format", "jsonl") == f"{path}: 4 samples, {path.stat().st_size:,} bytes\n"
        lines = [json.loads(line) for line in path.read_text("ascii").splitlines()]
        assert {tuple(line) for line in lines} == {tuple(columns_of(run))}

    @pytest.mark.parametrize("rows_per_group", [1000, 2, 3])
    def test_parquet_reads_back_what_was_written(
        self, run: Path, tmp_path: Path, rows_per_group: int, monkeypatch: pytest.MonkeyPatch, printed: Command
    ) -> None:
        parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
        monkeypatch.setattr("evalharness.cli.commands.export._ROWS_PER_GROUP", rows_per_group)
        assert ": 4 samples, " in printed("export", run, "--format", "parquet", "--out", tmp_path / "x.parquet")
        table = parquet.read_table(tmp_path / "x.parquet")
        assert {name: str(table.schema.field(name).type) for name in ("text", "step", "score.f1", "token_ids")} == {
            "text": "string", "step": "int64", "score.f1": "double", "token_ids": "list<element: int64>"
        }  # fmt: skip
        columns = list(columns_of(run))
        assert table.to_pylist() == [{name: one.get(name) for name in columns} for one in flat_rows(run)]

    @pytest.mark.parametrize("kind", ["jsonl", "parquet"])
    def test_hostile_texts_survive(self, tmp_path: Path, kind: str) -> None:
        folder = hostile_run(tmp_path / "run")
        assert main(["export", str(folder), "--format", kind, "--out", str(tmp_path / "x")]) == 0
        if kind == "jsonl":
            rows = [json.loads(line) for line in (tmp_path / "x").read_text("ascii").splitlines()]
        else:
            rows = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed").read_table(tmp_path / "x").to_pylist()
        assert len(rows) == len(HOSTILE_TEXTS) + 1
        for one, text in zip(rows, HOSTILE_TEXTS.values(), strict=False):
            assert one["text"] == text.replace("\ud83d", "\\ud83d").replace("\udc80", "\\udc80")
        assert (rows[-1]["score.f1"], rows[-1]["score.f2"], rows[-1]["duration_s"], rows[-1]["seed"], rows[-1]["token_ids"]) == (None,) * 5

    def test_a_frame_has_the_same_lines_and_types(self, run: Path) -> None:
        frame = evalharness.samples_frame(run)
        assert frame.astype(object).where(frame.notna(), None).to_dict("records") == [
            {name: row.get(name) for name in columns_of(run)} for row in flat_rows(run)
        ]
        assert frame.groupby("engine")["score.f1"].mean().to_dict() == {LATER: 0.75, "hf:checkpoint-100": 0.0}
        types = [str(frame[name].dtype) for name in ("case_id", "step", "score.other", "token_ids")]
        assert types == ["string", "Int64", "Float64", "object"]


class TestTracks:
    def test_checkpoints_of_one_training_run_are_one_track_by_step(self, run: Path) -> None:
        [track] = tracks_of(run)
        assert (track.name, [point.step for point in track.points]) == ("hf-sft-42", [100, 200])
        later = track.points[1]
        assert later.metrics["stage_a/test_summary/f1"] == 0.75
        assert later.metrics["stage_a/test_summary/num_cases"] == 2
        assert later.metrics["stage_a/test_summary/gates/f1 ge 0.9"] == 0
        assert later.metrics["throughput/tokens_per_s"] == 12.5
        assert later.metrics["stage_a/test_summary/group_accuracy"] == 0.25
        assert not any("nothing_counted" in name for name in later.metrics)
        assert list(later.pictures) == ["stage_a/vis_00000"]  # those within the run
        assert track.config == {"run_id": "first", "git_commit": None, "model": ["x"]}

    @pytest.mark.parametrize("text", [*HOSTILE_TEXTS.values(), "../..", "/etc/passwd", ".", "a/b"])
    def test_names_lead_nowhere(self, text: str) -> None:
        name = safe_name(text)
        assert name
        assert not {"/", "\\", ":", "\x1b"} & set(name)
        assert name not in (".", "..")


class TestTrackers:
    def test_tensorboard_shows_scalars_and_pictures_by_step(self, run: Path, tmp_path: Path, printed: Command) -> None:
        pytest.importorskip("tensorboard", reason="tensorboard is not installed")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        out = printed("export", run, "--format", "tensorboard", "--out", tmp_path / "tb")
        assert out == f"{tmp_path / 'tb' / 'hf-sft-42'}\n"
        events = EventAccumulator(str(tmp_path / "tb" / "hf-sft-42")).Reload()
        assert [(event.step, event.value) for event in events.Scalars("stage_a/test_summary/f1")] == [(100, 0.0), (200, 0.75)]
        [image] = events.Images("stage_a/vis_00000")
        assert (image.step, image.width, image.height) == (200, 8, 6)

    def test_tensorboard_takes_hostile_names(self, tmp_path: Path) -> None:
        pytest.importorskip("tensorboard", reason="tensorboard is not installed")
        assert main(["export", str(hostile_run(tmp_path / "run")), "--format", "tensorboard", "--out", str(tmp_path / "tb")]) == 0
        assert {path.name for path in tmp_path.iterdir()} == {"run", "tb"}

    def test_mlflow_has_metrics_by_step_parameters_and_reports(self, run: Path, tmp_path: Path) -> None:
        mlflow = pytest.importorskip("mlflow", reason="mlflow is not installed: pip install -e '.[mlflow]'")
        assert main(["export", str(run), "--format", "mlflow", "--out", str(tmp_path / "ml"), "--project", "p"]) == 0
        client = mlflow.MlflowClient(tracking_uri=(tmp_path / "ml").as_uri())
        [found] = client.search_runs([client.get_experiment_by_name("p").experiment_id])
        history = client.get_metric_history(found.info.run_id, "stage_a/test_summary/f1")
        assert [(metric.step, metric.value) for metric in history] == [(100, 0.0), (200, 0.75)]
        assert (found.info.run_name, found.data.params["model"], found.info.status) == ("first-hf-sft-42", "['x']", "FINISHED")
        assert {"report.md", "run.json", "step-200"} <= {entry.path for entry in client.list_artifacts(found.info.run_id)}

    def test_wandb_keeps_an_offline_run(self, run: Path, tmp_path: Path, printed: Command, monkeypatch: pytest.MonkeyPatch) -> None:
        pytest.importorskip("wandb", reason="wandb is not installed: pip install -e '.[wandb]'")
        for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
            monkeypatch.setenv(name, str(tmp_path / "home"))
        folder = Path(printed("export", run, "--format", "wandb", "--out", tmp_path / "wb", "--project", "p").strip())
        assert folder.is_relative_to(tmp_path / "wb")
        [record] = folder.glob("*.wandb")
        content = record.read_bytes()
        assert b"stage_a/test_summary/f1" in content
        assert b"first-hf-sft-42" in content
        assert [path.suffix for path in folder.rglob("vis_00000*")] == [".jpg"]


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            pytest.param(["--format", "parket"], "'parket' is not one of", id="format"),
            pytest.param([], "Missing option '--format'", id="no-format"),
            pytest.param(["--format", "jsonl", "--online"], "--online is for --format wandb", id="online"),
            pytest.param(["--format", "jsonl", "--out", "no/x.jsonl"], "cannot be written", id="no-folder"),
            pytest.param(["--format", "jsonl", "--out", "run/samples.jsonl"], "would overwrite the run's own samples.jsonl", id="own"),
        ],
    )
    def test_a_wrong_export_says_what_is_right(
        self, run: Path, arguments: list[str], message: str, refused: Command, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(run.parent)
        assert message in refused("export", "run", *arguments)

    def test_a_library_that_is_missing_is_named_with_its_extra(self) -> None:
        with pytest.raises(MissingDependency, match=r"needs no_such_library, which is not installed; .*\[parquet\]"):
            load("no_such_library", "parquet")
