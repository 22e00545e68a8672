"""Which checkpoints stand on one line, and in which order."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.comparison.timeline import Track, read_tracks, run_folders
from evalharness.api.errors import ComparisonError
from tests.analysis.comparison.runs import cases, run_dir
from tests.report.runs import row


def engine(name: str, *, step: float | None = None, folder: str = "/train/sft-1", **more: Any) -> dict[str, Any]:
    """Return run.json's entry of an engine; `step` is what its trainer_state.json said."""
    training = None if step is None else {"step": step, "epoch": step / 100}
    return {
        "id": f"hf:{name}",
        "backend": "hf",
        "checkpoint": name,
        "checkpoint_path": f"{folder}/{name}",
        "fingerprint": name,
        "training": training,
        **more,
    }


def measured(folder: Path, scores: dict[str, list[float]], engines: list[dict[str, Any]] | None = None, **run: Any) -> Path:
    """Write a run with one engine per entry of `scores`: checkpoint → one score per case."""
    rows = [
        {**one, "engine": f"hf:{name}", "checkpoint": name} for name, values in scores.items() for one in cases(values, engine=f"hf:{name}")
    ]
    return run_dir(folder, rows, engines=engines or [engine(name) for name in scores], **run)


def tracks(*folders: Path) -> tuple[list[Track], list[str]]:
    notes: list[str] = []
    return read_tracks(folders, notes), notes


def test_steps_of_the_trainer_order_checkpoints_whatever_their_names_say(tmp_path: Path) -> None:
    run = measured(tmp_path / "a", {"late": [1.0], "soon": [0.0]}, [engine("late", step=500), engine("soon", step=20)])
    ((track,), notes) = tracks(run)
    assert [(point.name, point.step, point.epoch) for point in track.points] == [("soon", 20, 0.2), ("late", 500, 5.0)]
    assert (track.label, track.is_by_step, notes) == ("sft-1", True, [])


def test_a_name_tells_the_step_where_the_trainer_does_not(tmp_path: Path) -> None:
    ((track,), _) = tracks(measured(tmp_path / "a", {"checkpoint-1000": [1.0], "checkpoint-200": [1.0]}))
    assert [point.step for point in track.points] == [200, 1000]


def test_without_steps_checkpoints_stand_as_their_run_has_them(tmp_path: Path) -> None:
    ((track,), _) = tracks(measured(tmp_path / "a", {"early": [1.0], "best": [1.0]}))
    assert [point.name for point in track.points] == ["early", "best"]
    assert not track.is_by_step


def test_without_steps_checkpoints_of_several_runs_stand_by_time_and_then_by_the_numbers_in_their_names(tmp_path: Path) -> None:
    day = "2030-01-0{}T00:00:00+00:00"
    late = measured(tmp_path / "a", {"x": [1.0]}, started_at=day.format(2))
    soon = measured(tmp_path / "b", {"v10": [1.0], "v9": [1.0], "２": [1.0], "v²": [1.0], "v2²": [1.0]}, started_at=day.format(1))
    ((track,), _) = tracks(late, soon)
    assert [point.name for point in track.points] == ["v2²", "v9", "v10", "v²", "２", "x"]


def test_training_runs_and_backends_are_tracks_of_their_own_with_labels_that_differ(tmp_path: Path) -> None:
    engines = [engine("x"), engine("x", folder="/train/sft-2", id="vllm:x", backend="vllm")]
    rows = [*cases([1.0]), *cases([1.0])]
    named = [{**one, "engine": entry["id"]} for one, entry in zip(rows, engines, strict=True)]
    found, _ = tracks(run_dir(tmp_path / "a", named, engines=engines))
    assert [track.label for track in found] == ["sft-1 · hf", "sft-2 · vllm"]


def test_of_two_runs_of_a_checkpoint_the_later_one_counts_and_other_tests_are_kept(tmp_path: Path) -> None:
    first = measured(tmp_path / "b", {"x": [0.0]}, started_at="2030-01-01T00:00:00+00:00")
    extra = row("c000", eval="other", engine="hf:x", scores={"f1": 0.5})
    samples = first / "samples.jsonl"
    samples.write_text(samples.read_text("utf-8") + json.dumps(extra) + "\n", "utf-8")
    second = measured(tmp_path / "a", {"x": [1.0]}, started_at="2030-01-02T00:00:00+00:00")
    ((track,), _) = tracks(first, second)
    (point,) = track.points
    assert point.run_ids == ["b", "a"]
    assert {key[0]: sheet.cases["c000"].scores["f1"] for key, sheet in point.side.sheets.items()} == {"other": 0.5, "stage_a": 1.0}


def test_a_folder_that_holds_other_weights_now_is_not_mixed_with_what_it_held(tmp_path: Path) -> None:
    old = measured(tmp_path / "old", {"x": [0.0]}, [engine("x", fingerprint="1")], started_at="2030-01-01T00:00:00+00:00")
    new = measured(tmp_path / "new", {"x": [1.0]}, [engine("x", fingerprint="2")], started_at="2030-01-02T00:00:00+00:00")
    ((track,), notes) = tracks(old, new)
    assert track.points[0].run_ids == ["new"]
    assert notes == ["x had other weights in old: that run is left out for it"]


def test_what_was_asked_otherwise_is_named(tmp_path: Path) -> None:
    one = measured(tmp_path / "one", {"checkpoint-1": [1.0]})
    other = run_dir(
        tmp_path / "two",
        [{**line, "engine": "hf:checkpoint-2", "options": {"max_new_tokens": 32}} for line in cases([1.0])],
        engines=[engine("checkpoint-2")],
    )
    ((track,), _) = tracks(one, other)
    assert "option max_new_tokens differs" in track.points[0].asked_otherwise
    assert track.points[1].asked_otherwise == ""


def test_broken_foreign_and_running_folders_are_told_and_passed_over(tmp_path: Path) -> None:
    good = measured(tmp_path / "good", {"x": [1.0]})
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/run.json").write_text("{")
    (tmp_path / "running").mkdir()
    (tmp_path / "running/run.json").write_text("{}")
    (tmp_path / "foreign").mkdir()
    (tmp_path / "note.txt").write_text("")
    folders = run_folders([f"{tmp_path}/*"])
    assert [folder.name for folder in folders] == ["broken", "good", "running"]
    (found, notes) = tracks(*folders)
    assert [point.run_ids for point in found[0].points] == [[good.name]]
    assert [note.partition(" is left out")[0] for note in notes] == ["broken", "running"]


@pytest.mark.parametrize("pattern", ["*", "nothing-*", "absent"])
def test_nothing_to_read_is_refused(tmp_path: Path, pattern: str) -> None:
    (tmp_path / "foreign").mkdir()
    with pytest.raises(ComparisonError, match="run directory; give reports/RUN_ID"):
        run_folders([f"{tmp_path}/{pattern}"])


def test_runs_without_a_row_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ComparisonError, match="none of these runs has a row"):
        tracks(run_dir(tmp_path / "empty", []))
