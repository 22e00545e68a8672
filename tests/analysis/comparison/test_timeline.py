"""Tracks of checkpoints, their curves, the best checkpoint and flips."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evalharness.analysis.comparison.timeline import TOKENS, Curve, Timeline, Track, read_tracks, run_folders, timeline_of
from evalharness.analysis.statistics.intervals import mean_intervals
from evalharness.api.errors import ComparisonError
from tests.analysis.comparison.runs import cases, engine, measured, run_dir
from tests.report.runs import row


def timeline(*folders: Path) -> Timeline:
    return timeline_of(read_tracks(folders, [])[0])


def curve(found: Timeline, metric: str = "f1", value: str = "") -> Curve:
    (one,) = [one for one in found.curves if (one.metric, one.slice_value) == (metric, value)]
    return one


def at_points(folder: Path, **rows: list[dict[str, Any]]) -> Timeline:
    """Return the timeline of checkpoint-1, checkpoint-2, … with these rows, by `p1`, `p2`, …"""
    lines = [{**line, "engine": f"hf:checkpoint-{point[1:]}"} for point, own in rows.items() for line in own]
    return timeline(run_dir(folder, lines, engines=[engine(f"checkpoint-{point[1:]}") for point in rows]))


def test_a_curve_has_each_checkpoints_mean_with_the_interval_of_its_report(tmp_path: Path) -> None:
    scores = {"checkpoint-1": [0.0, 1.0, 0.0, 1.0], "checkpoint-2": [1.0, 1.0, 1.0, 0.0]}
    found = curve(timeline(measured(tmp_path / "run", scores)))
    assert [(value.mean, value.n, value.interval) for value in found.values] == [(0.5, 4, "wilson"), (0.75, 4, "wilson")]
    (expected,) = mean_intervals(np.array([[0.0], [1.0], [0.0], [1.0]]), is_rate=[True], is_bounded=[True])
    assert (found.values[0].low, found.values[0].high) == (expected.low, expected.high)


def test_the_best_checkpoint_is_the_earliest_of_equals_and_knows_which_cannot_be_told_apart(tmp_path: Path) -> None:
    scores = {"checkpoint-1": [0.0] * 20, "checkpoint-2": [1.0] * 20, "checkpoint-3": [1.0] * 19 + [0.0]}
    found = curve(timeline(measured(tmp_path / "run", scores))).best
    assert found is not None
    assert (found.point, found.alike, found.num_compared) == (1, (2,), 2)
    found = curve(timeline(measured(tmp_path / "equal", {f"checkpoint-{n}": [1.0] * 30 for n in (1, 2, 3)}))).best
    assert found is not None
    assert (found.point, found.alike) == (0, (1, 2))
    assert curve(timeline(measured(tmp_path / "one", {"checkpoint-1": [1.0]}))).best is None


def test_cases_of_a_group_do_not_tell_apart_what_independent_cases_would(tmp_path: Path) -> None:
    def run(name: str, group: str | None) -> Timeline:
        points = {f"p{n + 1}": [row(f"c{case}", group=group, scores={"f1": float(n)}) for case in range(20)] for n in range(2)}
        return at_points(tmp_path / name, **points)

    alone, together = (curve(run(name, group)).best for name, group in (("alone", None), ("together", "one")))
    assert alone is not None
    assert together is not None
    assert (alone.alike, together.alike) == ((), (0,))


def test_lower_is_better_where_the_eval_says_so_and_no_way_has_no_best(tmp_path: Path) -> None:
    ways = {"evals": [{"name": "stage_a", "directions": {"f1": "lower", "valid": "none"}}]}
    rows = [
        row(f"c{n}", engine=f"hf:{point}", scores={"f1": value, "valid": value})
        for point, value in (("checkpoint-1", 0.0), ("checkpoint-2", 1.0))
        for n in range(20)
    ]
    found = timeline(run_dir(tmp_path / "run", rows, engines=[engine("checkpoint-1"), engine("checkpoint-2")], **ways))
    best = curve(found).best
    assert best is not None
    assert best.point == 0
    assert curve(found, "valid").best is None
    assert curve(found, TOKENS).best is None


def test_categories_and_tags_have_curves_of_their_own(tmp_path: Path) -> None:
    def said(marks: list[int]) -> list[dict[str, Any]]:
        return [row(f"c{n}", tags={"site": "ab"[n % 2]}, scores={"f1": 1.0}, details={"categories": {"bolt": marks}}) for n in range(4)]

    found = at_points(tmp_path / "run", p1=said([1, 1, 1]), p2=said([0, 0, 1]))
    assert [value.mean for value in curve(found, "f1 of category", "bolt").values] == [1.0, 0.0]
    assert {one.slice_value for one in found.curves if one.slice_key == "site"} == {"a", "b"}


def test_one_name_in_two_domains_has_two_curves(tmp_path: Path) -> None:
    def said(marks: list[int], *domains: str) -> list[dict[str, Any]]:
        about = {"scores": {"f1": 1.0}, "details": {"categories": {"label": marks}}}
        return [row(f"c{n}", tags={"domain": domain}, **about) for n, domain in enumerate(domains)]

    found = at_points(tmp_path / "run", p1=said([1, 1, 1], "bbu", "bbu", "rru", "rru"), p2=said([0, 0, 1], "bbu", "bbu"))
    assert [value.mean for value in curve(found, "f1 of category", "label (bbu)").values] == [1.0, 0.0]
    assert [value.mean for value in curve(found, "f1 of category", "label (rru)").values] == [1.0]


def test_flips_say_between_which_checkpoints_a_case_changed(tmp_path: Path) -> None:
    scores = {"checkpoint-1": [0.0, 1.0], "checkpoint-2": [1.0, 1.0], "checkpoint-3": [1.0, 0.5]}
    found = timeline(measured(tmp_path / "run", scores)).flips["stage_a", "test_summary"]
    assert [(flip.case_id, flip.metric, flip.before, flip.after, flip.was, flip.now) for flip in found] == [
        ("c000", "f1", 0, 1, 0.0, 1.0),
        ("c001", "f1", 1, 2, 1.0, 0.5),
    ]


def test_invalid_and_broken_cases_are_in_no_mean_and_flip_nothing(tmp_path: Path) -> None:
    right, broken = row("a", scores={"f1": 1.0}), row("a", scores={"f1": 0.0}, outcome="error")
    found = at_points(tmp_path / "run", p1=[right], p2=[broken], p3=[right])
    assert [value.place for value in curve(found).values] == [0, 2]
    assert found.flips["stage_a", "test_summary"] == ()


def test_what_was_asked_otherwise_has_values_but_is_never_best(tmp_path: Path) -> None:
    other, half = row("a", scores={"f1": 1.0}, prompt_sha256="other1234"), row("a", scores={"f1": 0.5})
    found = at_points(tmp_path / "run", p1=[other], p2=[half], p3=[half])
    best = curve(found).best
    assert len(curve(found).values) == 3
    assert best is not None
    assert best.point == 1
    assert found.flips["stage_a", "test_summary"] == ()


@pytest.mark.slow
def test_equal_checkpoints_are_told_apart_about_as_rarely_as_the_level_says(tmp_path: Path) -> None:
    # Three checkpoints with the same chance at every case. At 5 %, more than 11 % of 150 timelines would name a clear
    # difference with a chance of 0.2 %; picking the best first takes some of that.
    generator = np.random.default_rng(3)
    alarms = 0
    for number in range(150):
        chances = generator.random(30)
        scores = {f"checkpoint-{n}": [float(one) for one in generator.random(30) < chances] for n in (1, 2, 3)}
        best = curve(timeline(measured(tmp_path / str(number), scores))).best
        assert best is not None
        alarms += len(best.alike) < 2
    assert alarms / 150 <= 0.11


def tracks(*folders: Path) -> tuple[list[Track], list[str]]:
    notes: list[str] = []
    return read_tracks(folders, notes), notes


def test_steps_of_the_trainer_order_checkpoints_whatever_their_names_say(tmp_path: Path) -> None:
    run = measured(tmp_path / "a", {"late": [1.0], "soon": [0.0]}, [engine("late", step=500), engine("soon", step=20)])
    ((track,), notes) = tracks(run)
    assert [(point.name, point.step, point.epoch) for point in track.points] == [("soon", 20, 0.2), ("late", 500, 5.0)]
    assert (track.label, track.is_by_step, notes) == ("sft-1", True, [])


def test_a_name_tells_the_step_where_the_trainer_does_not_and_else_the_run_the_order(tmp_path: Path) -> None:
    ((track,), _) = tracks(measured(tmp_path / "a", {"checkpoint-1000": [1.0], "checkpoint-200": [1.0]}))
    assert [point.step for point in track.points] == [200, 1000]
    ((track,), _) = tracks(measured(tmp_path / "b", {"early": [1.0], "best": [1.0]}))
    assert ([point.name for point in track.points], track.is_by_step) == (["early", "best"], False)


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


def test_a_later_partial_run_of_a_checkpoint_replaces_no_whole_one(tmp_path: Path) -> None:
    part = [{"eval": "stage_a", "what": "cases", "num": 1, "of": 2}]
    whole = measured(tmp_path / "b", {"x": [0.0, 0.0]}, started_at="2030-01-01T00:00:00+00:00")
    again = measured(tmp_path / "a", {"x": [1.0]}, started_at="2030-01-02T00:00:00+00:00", partial=part)
    ((track,), notes) = tracks(whole, again)
    (sheet,) = track.points[0].side.sheets.values()
    assert len(sheet.cases) == 2
    assert "a: the run holds only part of an eval: 1 of 2 cases of stage_a" in notes


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
    with pytest.raises(ComparisonError, match="no run is left to draw: empty is left out"):
        tracks(run_dir(tmp_path / "empty", []))
