"""Imported samples that are cases of a run of ours: what proves it, and what comparing the two then says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.comparison.compare import compare
from evalharness.analysis.comparison.sides import read_side
from evalharness.analysis.drop_gates import judge_change
from evalharness.analysis.gate_grammar import parse_gate
from evalharness.api.errors import ComparisonError
from evalharness.cli import main
from evalharness.runs.run_file import read_run, read_samples
from tests.interop.samples import chosen, generated, write_lm_eval
from tests.report.runs import generation, row, write_run

OPTIONS = {"max_new_tokens": 256, "temperature": 0.0, "do_sample": None, "stop": {"stop": ["\n\n"], "stop_token_ids": []}}


def ours(number: int, **changes: Any) -> dict[str, Any]:
    """Return our row of what `generated(number, …)` asks."""
    made = generation(text="4", prompt_text=f"Q: {number} + 1?\nA:", prompt_sha256=f"{number:02}ab")
    facts = {"prompt_sha256": f"{number:02}ab", "reference": str(number + 1), "tags": {"set": "sums"}, "group": f"g{number % 2}"}
    scores = {"scores": {"exact": float(number % 2)}, "options": OPTIONS}
    return row(f"sum-{number}", **{"eval": "sums", "test": "test_sum", "generation": made, **facts, **scores, **changes})


def ours_chosen(letters: str = "abc") -> dict[str, Any]:
    """Return our row of what `chosen(0, …)` asks, of these choices."""
    asked = [generation(text=f" {letter}", prompt_text="Q", finish_reason="scored", logprobs=[-1.0]) for letter in letters]
    return row("choice", eval="choices", test="test_choice", generation=asked[0], steps=[asked], scores={"acc": 1.0}, reference=None)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def imported(tasks: dict[str, list[dict[str, Any]]], like: list[dict[str, Any]], *more: str, code: int = 0) -> dict[str, dict[str, Any]]:
    write_run(Path("reports/own"), like, run_id="own", engines=[{"id": "hf:tiny", "backend": "hf", "checkpoint": "tiny"}])
    folder = write_lm_eval(Path("-".join(tasks)), tasks)
    assert main(["import", "lm-eval", str(folder), "--run-id", "theirs", "--like", "own", *more]) == code
    return {row["case_id"]: dict(row) for row in read_samples(Path("reports/theirs"))} if code == 0 else {}


def test_a_run_of_lm_eval_is_compared_with_one_of_ours_case_by_case(project: Path) -> None:
    theirs = [generated(number, "none", 1.0) for number in range(4)]
    own = [ours(0), ours(1), ours(2), ours(3, outcome="miss")]  # of equal scores lm-eval's is a pass
    rows = imported({"gsm": theirs}, own, "--score", "exact_match=exact")
    assert [(row["eval"], row["test"], row["tags"], row["group"]) for row in rows.values()] == [
        ("sums", "test_sum", {"set": "sums"}, f"g{number % 2}") for number in range(4)
    ]
    comparison = compare(read_side("reports/own"), read_side("reports/theirs"))
    changes = {change.metric: change.change for change in comparison.metrics}
    assert (changes["exact"].num_up, changes["exact"].num_down) == (2, 0)
    assert "length_rate" not in changes  # lm-eval does not say how an answer ended
    assert "pass_rate" not in changes  # nor has it our test's rule
    assert [(case.case_id, case.direction, case.has_flipped) for case in comparison.cases] == [
        ("sum-0", "better", False),
        ("sum-2", "better", False),
    ]
    assert not [difference.field for difference in comparison.differences if difference.is_grave]
    gate = judge_change(parse_gate("drop(pass_rate) <= 1"), comparison.base, comparison.candidate, {}, anyway=False)
    assert gate["reason"].startswith("no case has 'pass_rate' on both sides")


def test_choices_are_the_same_only_with_the_same_responses(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = chosen(0, (-1.0, -2.0, -3.0), 0)
    assert list(imported({"arc": [line]}, [ours_chosen()])) == ["choice"]
    compare(read_side("reports/own"), read_side("reports/theirs"))
    imported({"arc2": [line]}, [ours_chosen("acb")], code=2)
    assert "the nearest case for 8 characters, and then 'b\\nQ\\n c' in place of 'c\\nQ\\n b'; ask the same" in capsys.readouterr().err
    assert main(["import", "lm-eval", "arc", "--run-id", "apart"]) == 0
    with pytest.raises(ComparisonError, match="no test in common.*import the other tool's samples with --like RUN"):
        compare(read_side("reports/own"), read_side("reports/apart"))


def test_what_several_ask_proves_nothing_and_other_samples_keep_a_name_of_their_own(project: Path) -> None:
    theirs = [generated(number, "none", 1.0) for number in (0, 1, 2, 3)]
    theirs[3]["arguments"] = theirs[2]["arguments"]
    same = {**ours(1), "case_id": "sum-1b"}
    assert list(imported({"gsm": theirs}, [ours(0), ours(1), same, ours(2)])) == ["sum-0", "gsm-1", "gsm-2", "gsm-3"]
    assert "1 of 4 samples of gsm are cases of sums::test_sum in own" in read_run(Path("reports/theirs"))["notices"][1]


def test_what_two_tasks_ask_proves_nothing_either(project: Path) -> None:
    tasks = {"gsm": [generated(number, "none", 1.0) for number in (0, 1)], "other": [generated(0, "none", 0.0)]}
    assert list(imported(tasks, [ours(0), ours(1)])) == ["gsm-0", "sum-1", "other-0"]


def test_tasks_that_are_one_eval_of_ours_become_one(project: Path) -> None:
    tasks = {f"mmlu_{number}": [generated(number, "none", 1.0)] for number in range(2)}
    rows = imported(tasks, [ours(number) for number in range(2)], "--gate", "exact_match >= 1")
    assert list(rows) == ["sum-0", "sum-1"]
    assert [(gate["eval"], gate["test"], gate["n"]) for gate in read_run(Path("reports/theirs"))["gates"]] == [("sums", "test_sum", 2)]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"reference": "7"}, "the references differ in sums::test_sum for 1 of 1 case"),
        ({"options": {**OPTIONS, "temperature": 0.7}}, "option temperature differs"),
        ({"options": {**OPTIONS, "stop": {"stop": [], "stop_token_ids": []}}}, "option stop differs"),
    ],
)
def test_equal_prompts_with_other_references_or_options_are_not_compared(project: Path, changes: dict[str, Any], problem: str) -> None:
    imported({"gsm": [generated(0, "none", 1.0)]}, [ours(0, **changes)])
    with pytest.raises(ComparisonError, match=problem):
        compare(read_side("reports/own"), read_side("reports/theirs"))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("exact_mach=exact", "no task has the score 'exact_mach'; did you mean 'exact_match'?"),
        ("exact_match=", "is not THEIRS=OURS"),
        ("exact_match=one exact_match=two", "no task has the score 'exact_match'; they have: one"),
    ],
)
def test_a_score_is_renamed_or_refused(project: Path, capsys: pytest.CaptureFixture[str], words: str, problem: str) -> None:
    imported({"gsm": [generated(0, "none", 1.0)]}, [ours(0)], *(f"--score={word}" for word in words.split()), code=2)
    assert problem in capsys.readouterr().err
