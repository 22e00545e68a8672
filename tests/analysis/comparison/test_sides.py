from __future__ import annotations

from pathlib import Path

import pytest

from evalharness.analysis.comparison.sides import read_side
from evalharness.api.errors import ComparisonError, RecordError
from tests.analysis.comparison.runs import cases, run_dir
from tests.report.runs import gate, invalid, row, write_run


def test_a_run_with_one_engine_needs_no_engine(tmp_path: Path) -> None:
    side = read_side(str(run_dir(tmp_path / "a", cases([1.0]))))
    assert (side.label, side.checkpoint, side.fingerprint) == ("a (hf:tiny)", "tiny", "f1")
    assert list(side.sheets) == [("stage_a", "test_summary")]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    samples = [*cases([1.0]), *cases([0.5], engine="hf:other")]
    return run_dir(tmp_path / "two:runs", samples, engines=[{"id": "hf:tiny"}, {"id": "hf:other"}])


@pytest.mark.parametrize(("asked", "engine"), [("hf:other", "hf:other"), ("other", "hf:other"), ("tiny", "hf:tiny")])
def test_an_engine_is_chosen_by_its_id_or_its_checkpoint(two: Path, asked: str, engine: str) -> None:
    assert read_side(f"{two}:{asked}").engine == engine


def test_of_several_engines_one_must_be_named_unless_one_is_preferred(two: Path) -> None:
    with pytest.raises(ComparisonError, match=r"has several engines; write .*two:runs:ENGINE with one of: hf:tiny, hf:other"):
        read_side(str(two))
    assert read_side(str(two), prefer="hf:other").engine == "hf:other"


def test_an_engine_that_is_not_there_is_refused(two: Path) -> None:
    with pytest.raises(ComparisonError, match="has no engine 'hf:third'"):
        read_side(f"{two}:hf:third")


def test_without_run_json_the_engines_are_those_of_the_rows(two: Path) -> None:
    (two / "run.json").unlink()
    side = read_side(f"{two}:other")
    assert side.engine == "hf:other"
    assert side.notes == ("run.json is missing: gates, settings and throughput of this run are unknown",)


def test_what_is_neither_run_nor_baseline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ComparisonError, match="is neither a run directory nor a baseline; give reports/RUN_ID"):
        read_side(str(tmp_path / "nowhere"))
    with pytest.raises(RecordError, match="is not a run directory"):
        read_side(str(tmp_path))


def test_a_run_without_rows_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ComparisonError, match="has no rows"):
        read_side(str(run_dir(tmp_path / "a", [])))


@pytest.mark.parametrize(
    ("run", "note"),
    [
        ({"interrupted": "Ctrl-C"}, "the run was interrupted (Ctrl-C)"),
        ({"finished_at": None}, "the run did not finish"),
        ({"rebuilt": True}, "the run did not finish"),
    ],
)
def test_a_run_that_did_not_end_says_so(tmp_path: Path, run: dict[str, object], note: str) -> None:
    assert read_side(str(run_dir(tmp_path / "a", cases([1.0]), **run))).notes == (note,)


def test_failures_of_machine_or_question_have_no_scores(tmp_path: Path) -> None:
    samples = [row("a"), invalid("b"), row("c", outcome="error", scores={"valid": 0.0}), row("d", outcome="miss", scores={"valid": 0.0})]
    (sheet,) = read_side(str(run_dir(tmp_path / "a", samples))).sheets.values()
    assert {name: line.scores.get("pass_rate") for name, line in sheet.cases.items()} == {"a": 1.0, "b": None, "c": None, "d": 0.0}


def test_a_score_that_is_no_finite_number_is_left_out(tmp_path: Path) -> None:
    samples = [row("a", scores={"x": float("nan"), "y": "1", "z": 10**400, "ok": 1})]
    (sheet,) = read_side(str(run_dir(tmp_path / "a", samples))).sheets.values()
    assert set(sheet.cases["a"].scores) == {"ok", "pass_rate", "length_rate", "empty_rate"}


def test_marks_by_category_are_numbers_or_counts(tmp_path: Path) -> None:
    categories = {"f1": [1, 1, 2], "absent": [0, 0, 0], "number": 0.5, "text": "x", "short": [1, 2], "odd": [1, "2", 3]}
    samples = [row("a", details={"categories": categories})]
    (sheet,) = read_side(str(run_dir(tmp_path / "a", samples))).sheets.values()
    assert sheet.cases["a"].marks == {"f1": pytest.approx(2 / 3, abs=1e-6), "number": 0.5}


def test_metrics_that_a_gate_holds_down_are_better_when_lower(tmp_path: Path) -> None:
    gates = [gate(expression="cer <= 0.1", metric="cer"), gate(expression="f1 >= 0.5", metric="f1"), gate(expression="x<1", metric="x")]
    side = read_side(str(run_dir(tmp_path / "a", cases([1.0]), gates=gates)))
    assert {name: way for (*_, name), way in side.directions.items()} == {"cer": "lower", "x": "lower"}


def test_the_eval_says_which_way_its_scores_are_better(tmp_path: Path) -> None:
    evals = [{"name": "stage_a", "directions": {"said": "none", "cer": "higher", "odd": "sideways"}}, {"name": "other", "directions": 5}]
    gates = [gate(expression="cer <= 0.1", metric="cer")]
    side = read_side(str(run_dir(tmp_path / "a", cases([1.0]), gates=gates, evals=evals)))
    assert side.directions == {("stage_a", "test_summary", "said"): "none", ("stage_a", "test_summary", "cer"): "higher"}


@pytest.mark.parametrize("wrong", [{"engines": 3, "gates": "x", "aggregates": [1], "config": [], "git": 5, "versions": None}, {}])
def test_a_run_json_of_wrong_types_is_read_as_far_as_it_goes(tmp_path: Path, wrong: dict[str, object]) -> None:
    assert read_side(str(write_run(tmp_path, cases([1.0]), **wrong))).engine == "hf:tiny"
