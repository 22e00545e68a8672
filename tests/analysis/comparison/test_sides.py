from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from evalharness.analysis.comparison.compare import compare
from evalharness.analysis.comparison.sides import baseline_json, read_baseline, read_side, side_of_rows, write_baseline
from evalharness.api.errors import BaselineError, ComparisonError, RecordError
from tests.analysis.comparison.runs import ENGINE, cases, pair, run_dir
from tests.report.hostile import HOSTILE_TEXTS, any_text
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


def test_scores_and_marks_are_finite_numbers_of_judged_cases(tmp_path: Path) -> None:
    categories = {"f1": [1, 1, 2], "absent": [0, 0, 0], "number": 0.5, "text": "x", "short": [1, 2], "odd": [1, "2", 3]}
    samples = [
        row("a", scores={"x": float("nan"), "y": "1", "z": 10**400, "ok": 1}, details={"categories": categories}),
        invalid("b"),
        row("c", outcome="error", scores={"valid": 0.0}),
        row("d", outcome="miss", scores={"valid": 0.0}),
    ]
    (sheet,) = read_side(str(run_dir(tmp_path / "a", samples))).sheets.values()
    assert {name: line.scores.get("pass_rate") for name, line in sheet.cases.items()} == {"a": 1.0, "b": None, "c": None, "d": 0.0}
    assert set(sheet.cases["a"].scores) == {"ok", "pass_rate", "length_rate", "empty_rate"}
    assert sheet.cases["a"].marks == {"f1": pytest.approx(2 / 3, abs=1e-6), "number": 0.5}


def test_scores_of_ours_are_better_as_their_names_say_unless_the_eval_says_otherwise(tmp_path: Path) -> None:
    samples = [row("a", scores={"not_found_strict": 0, "brier_score": 0.5, "confidence": 0, "exact_strict": 1, "not_founded": 1})]
    aggregates = [{"eval": "stage_a", "test": "test_summary", "engine": ENGINE, "metric": "perplexity", "value": 3.0}]
    evals = [{"name": "stage_a", "directions": {"brier_score": "higher"}}]
    side = read_side(str(run_dir(tmp_path / "a", samples, aggregates=aggregates, evals=evals)))
    ways = {name: way for (*_, name), way in side.directions.items()}
    assert ways == {"not_found_strict": "lower", "brier_score": "higher", "perplexity": "lower"}


def test_the_eval_says_which_way_its_scores_are_better_and_else_a_gate_that_holds_them_down(tmp_path: Path) -> None:
    gates = [gate(expression="cer <= 0.1", metric="cer"), gate(expression="f1 >= 0.5", metric="f1"), gate(expression="x<1", metric="x")]
    side = read_side(str(run_dir(tmp_path / "a", cases([1.0]), gates=gates)))
    assert {name: way for (*_, name), way in side.directions.items()} == {"cer": "lower", "x": "lower"}
    evals = [{"name": "stage_a", "directions": {"said": "none", "cer": "higher", "odd": "sideways"}}, {"name": "other", "directions": 5}]
    side = read_side(str(run_dir(tmp_path / "b", cases([1.0]), gates=gates[:1], evals=evals)))
    assert side.directions == {("stage_a", "test_summary", "said"): "none", ("stage_a", "test_summary", "cer"): "higher"}


@pytest.mark.parametrize("wrong", [{"engines": 3, "gates": "x", "aggregates": [1], "config": [], "git": 5, "versions": None}, {}])
def test_a_run_json_of_wrong_types_is_read_as_far_as_it_goes(tmp_path: Path, wrong: dict[str, object]) -> None:
    assert read_side(str(write_run(tmp_path, cases([1.0]), **wrong))).engine == "hf:tiny"


def kept(tmp_path: Path, samples: list[dict[str, Any]], **run: Any) -> tuple[Any, Any]:
    """Return a run's side, and the same after it was a file."""
    side = read_side(str(run_dir(tmp_path / "run", samples, **run)))
    write_baseline(side, tmp_path / "kept.json")
    return side, read_baseline(tmp_path / "kept.json")


def test_a_baseline_keeps_what_a_comparison_needs(tmp_path: Path) -> None:
    samples = [
        row("a", scores={"f1": 1 / 3, "valid": 1}, details={"categories": {"x": [1, 1, 1]}}),
        row("b", scores={"f1": 0.25}, outcome="miss"),
        invalid("c"),
    ]
    side, again = kept(tmp_path, samples, gates=[gate(expression="cer <= 1", metric="cer")])
    for name in ("run_id", "engine", "checkpoint", "fingerprint", "asked", "circumstances", "directions"):
        assert getattr(again, name) == getattr(side, name)
    (sheet,), (sheet_again,) = side.sheets.values(), again.sheets.values()
    assert sheet_again.options == sheet.options
    for case_id, line in sheet.cases.items():
        other = sheet_again.cases[case_id]
        assert (other.outcome, other.scores, other.marks, other.prompt, other.answer) == (
            line.outcome, line.scores, line.marks, line.prompt, line.answer,
        )  # fmt: skip


def test_a_comparison_with_it_is_that_with_its_run(tmp_path: Path) -> None:
    scores = [number / 7 % 1 for number in range(60)]
    base, candidate = pair(tmp_path, cases(scores), cases([0.9 * value for value in scores]))
    write_baseline(read_side(str(base)), tmp_path / "kept.json")
    from_run, from_file = (compare(read_side(str(path)), read_side(str(candidate))) for path in (base, tmp_path / "kept.json"))
    assert from_file.metrics == from_run.metrics
    assert from_file.verdict == "regressed"


def test_a_link_to_one_elsewhere_is_followed_but_in_no_circle(tmp_path: Path) -> None:
    """Data version control keeps files elsewhere; a shared baseline may be a link, too."""
    path = tmp_path / "store" / "ab12"
    kept(tmp_path, [row("a")])
    path.parent.mkdir()
    (tmp_path / "kept.json").rename(path)
    link = tmp_path / "baselines" / "base.json"
    link.parent.mkdir()
    link.symlink_to(path)
    assert read_baseline(link).sheets == read_baseline(path).sheets
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(BaselineError, match=r"base.json "):
        read_baseline(link)


def test_texts_and_paths_are_not_kept(tmp_path: Path) -> None:
    engine = {**ENGINE, "checkpoint_path": "/home/somebody/secret-place"}
    secrets = {"config": {"model": {"value": ["/home/somebody/secret-place"]}}, "command": ["pytest", "--token", "hf_secret"]}
    side = read_side(str(run_dir(tmp_path / "run", [row("a", text="generated words")], engines=[engine], **secrets)))
    written = baseline_json(side)
    assert "secret" not in written
    assert "generated words" not in written
    assert str(tmp_path) not in written
    (tmp_path / "file").write_text("")
    with pytest.raises(BaselineError, match="cannot be written: .*; choose another folder with --to"):
        write_baseline(side, tmp_path / "file" / "kept.json")


def test_ten_thousand_cases_take_about_a_megabyte(tmp_path: Path) -> None:
    names = [f"m{number}" for number in range(20)]
    rows = (
        row(
            f"bbu-install/fail/QC-BBUINSTALL-20300101-{number:07}/image_1",
            scores={name: (number * (place + 3)) % 11 / 10 for place, name in enumerate(names)},
        )
        for number in range(10_000)
    )
    assert len(baseline_json(side_of_rows({}, "hf:tiny", rows))) < 1_200_000


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(any_text, st.tuples(st.floats(-5, 5), st.sampled_from(["pass", "miss", "error"])), min_size=1, max_size=80))
def test_any_ids_and_scores_survive(tmp_path: Path, values: dict[str, tuple[float, str]]) -> None:
    rows = [row(case_id, scores={"x": value}, outcome=outcome) for case_id, (value, outcome) in values.items()]
    side = side_of_rows({}, "hf:tiny", rows)
    write_baseline(side, tmp_path / "kept.json")
    ((again,), (sheet,)) = read_baseline(tmp_path / "kept.json").sheets.values(), side.sheets.values()
    assert {case_id: line.scores for case_id, line in again.cases.items()} == {
        case_id: line.scores for case_id, line in sheet.cases.items()
    }
    assert [line.outcome for line in again.cases.values() if line.was_judged] == [
        line.outcome for line in sheet.cases.values() if line.was_judged
    ]


def test_hostile_names_survive_as_ascii(tmp_path: Path) -> None:
    samples = [row(text, scores={text or "x": 0.5}) for text in HOSTILE_TEXTS.values()]
    side, again = kept(tmp_path, samples)
    assert (tmp_path / "kept.json").read_bytes().isascii()
    assert list(next(iter(again.sheets.values())).cases) == list(next(iter(side.sheets.values())).cases)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory; create one with: evalharness bless RUN_DIR NAME"),
        ("{", "is not JSON"),
        ("[]", "is not a baseline"),
        ('{"format": "other"}', "is not a baseline"),
        ('{"format": "evalharness baseline", "version": 99}', "has version 99; this evalharness reads 1"),
        ('{"format": "evalharness baseline", "version": 1}', "is damaged"),
    ],
    ids=["absent", "torn", "list", "other", "newer", "empty"],
)
def test_what_is_no_baseline_is_refused(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "kept.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(BaselineError, match=message):
        read_baseline(path)


@pytest.mark.parametrize("damage", ["shorter", "symbol", "type", "missing"])
def test_a_damaged_column_is_refused(tmp_path: Path, damage: str) -> None:
    kept(tmp_path, cases([1.0, 0.0, 1.0]))
    values = json.loads((tmp_path / "kept.json").read_bytes())
    column = values["tests"][0]["columns"]["scores.f1"]
    column["at"] = {"shorter": "0", "symbol": "0~0", "type": 5, "missing": "0"}[damage]
    if damage == "missing":
        del values["tests"][0]["columns"]["outcome"]
    (tmp_path / "kept.json").write_text(json.dumps(values))
    with pytest.raises(BaselineError, match="is damaged"):
        read_baseline(tmp_path / "kept.json")
