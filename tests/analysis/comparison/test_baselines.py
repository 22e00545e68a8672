from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evalharness.analysis.comparison.compare import compare
from evalharness.analysis.comparison.sheets import was_judged
from evalharness.analysis.comparison.sides import baseline_json, read_baseline, read_side, side_of_rows, write_baseline
from evalharness.api.errors import BaselineError
from tests.analysis.comparison.runs import ENGINE, cases, pair, run_dir
from tests.report.hostile import HOSTILE_TEXTS, any_text
from tests.report.runs import gate, invalid, row


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


def test_texts_and_paths_are_not_kept(tmp_path: Path) -> None:
    engine = {**ENGINE, "checkpoint_path": "/home/somebody/secret-place"}
    secrets = {"config": {"model": {"value": ["/home/somebody/secret-place"]}}, "command": ["pytest", "--token", "hf_secret"]}
    side = read_side(str(run_dir(tmp_path / "run", [row("a", text="generated words")], engines=[engine], **secrets)))
    written = baseline_json(side)
    assert "secret" not in written
    assert "generated words" not in written
    assert str(tmp_path) not in written


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


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(any_text, st.tuples(st.floats(-5, 5), st.sampled_from(["pass", "miss", "error"])), min_size=1, max_size=80))
def test_any_ids_and_scores_survive(tmp_path: Path, values: dict[str, tuple[float, str]]) -> None:
    rows = [row(case_id, scores={"x": value}, outcome=outcome) for case_id, (value, outcome) in values.items()]
    side = side_of_rows({}, "hf:tiny", rows)
    write_baseline(side, tmp_path / "kept.json")
    ((again,), (sheet,)) = read_baseline(tmp_path / "kept.json").sheets.values(), side.sheets.values()
    assert {case_id: line.scores for case_id, line in again.cases.items()} == {
        case_id: line.scores for case_id, line in sheet.cases.items()
    }
    assert [line.outcome for line in again.cases.values() if was_judged(line)] == [
        line.outcome for line in sheet.cases.values() if was_judged(line)
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


def test_what_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    side = read_side(str(run_dir(tmp_path / "run", cases([1.0]))))
    with pytest.raises(BaselineError, match="cannot be written: .*; choose another folder with --to"):
        write_baseline(side, tmp_path / "file" / "kept.json")
