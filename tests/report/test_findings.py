from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.report.findings import MAX_FINDINGS, findings, verdict
from evalharness.report.tables import load_tables
from tests.report.runs import gate, generation, invalid, row, rows, write_run

WHERE = "stage_a::test_summary on hf:tiny"


def findings_of(tmp_path: Path, samples: list[dict[str, Any]], **run: Any) -> list[str]:
    return findings(load_tables(write_run(tmp_path, samples, **run)))


def verdict_of(tmp_path: Path, samples: list[dict[str, Any]], **run: Any) -> tuple[str, str]:
    return verdict(load_tables(write_run(tmp_path, samples, **run)))


def test_a_sound_run_needs_no_remark(tmp_path: Path) -> None:
    assert findings_of(tmp_path, rows(20)) == []


def test_scores_of_an_engine_whose_answers_are_all_malformed_may_say_little(tmp_path: Path) -> None:
    found = findings_of(tmp_path, [row(f"case-{number}", scores={"valid": 0.0}) for number in range(20)])
    assert found == [f"all 20 answers of {WHERE} are malformed (valid is 0): its other scores may say little"]


@pytest.mark.parametrize(
    ("failed", "sentence"),
    [
        (10, f"10 of 20 answers of {WHERE} are malformed (valid is 0): its scores may be mostly about form"),
        (1, f"1 of 20 answers of {WHERE} is malformed (valid is 0)"),
    ],
    ids=["half", "one"],
)
def test_malformed_answers_are_named(tmp_path: Path, failed: int, sentence: str) -> None:
    assert findings_of(tmp_path, [row(f"case-{number}", scores={"valid": float(number >= failed)}) for number in range(20)]) == [sentence]


def test_one_and_the_same_answer_to_all_cases_is_named(tmp_path: Path) -> None:
    assert findings_of(tmp_path, rows(12, text="same")) == ["hf:tiny gave one and the same answer to all 12 cases of stage_a"]


def test_several_tests_of_one_case_are_no_identical_answers(tmp_path: Path) -> None:
    found = findings_of(tmp_path, [row("only", test=name) for name in ("test_a", "test_b", "test_c")])
    assert found == ["stage_a has only 1 case: scores may differ by chance alone"]


def test_two_checkpoints_with_the_same_answers_are_suspect(tmp_path: Path) -> None:
    found = findings_of(tmp_path, [*rows(12), *rows(12, engine="hf:other")])
    assert found == ["hf:tiny and hf:other gave the same answer to every case of stage_a: are they the same weights?"]


def test_one_checkpoint_on_two_backends_may_agree(tmp_path: Path) -> None:
    assert findings_of(tmp_path, [*rows(12), *rows(12, engine="vllm:tiny")]) == []


def test_checkpoints_that_differ_in_one_answer_are_not_suspect(tmp_path: Path) -> None:
    assert findings_of(tmp_path, [*rows(12), *rows(11, engine="hf:other"), row("case-11", engine="hf:other", text="else")]) == []


def test_what_could_not_be_asked_or_broke_is_named(tmp_path: Path) -> None:
    samples = [*rows(17), invalid("a"), invalid("b", outcome="error"), invalid("c", "not run: Ctrl-C", outcome="skip")]
    assert findings_of(tmp_path, samples) == [
        f"1 of 20 cases of {WHERE} ended in an infrastructure error: not counted in any mean",
        f"1 of 20 cases of {WHERE} could not be run (invalid): not counted in any mean",
        "1 case of stage_a on hf:tiny skipped: not run: Ctrl-C",
    ]


@pytest.mark.parametrize(("capped", "named"), [(1, False), (5, True), (100, True)], ids=["rare", "notable", "all"])
def test_length_cap_hits_are_named_from_a_share_on(tmp_path: Path, capped: int, named: bool) -> None:
    cut = [row(f"case-{number}", generation=generation(text=str(number), finish_reason="length")) for number in range(capped)]
    found = findings_of(tmp_path, [*cut, *(row(f"more-{number}") for number in range(100 - capped))])
    assert bool(found) is named
    assert all("hit the length cap and may be cut off" in sentence for sentence in found)


def test_empty_answers_are_named(tmp_path: Path) -> None:
    assert findings_of(tmp_path, [*rows(19), row("z", text=" \n")]) == [f"1 of 20 answers of {WHERE} are empty"]


def test_options_that_an_engine_of_a_matrix_does_not_take_are_named(tmp_path: Path) -> None:
    engines = [{"id": "hf:tiny", "options_not_taken": ["enforce_eager", "max_x"]}, {"id": "a", "options_not_taken": []}, {"id": "b"}]
    assert findings_of(tmp_path, rows(20), engines=engines) == [
        "hf:tiny was run without --enforce-eager, --max-x: its backend does not support it"
    ]


def test_fallback_and_ignored_options_are_named(tmp_path: Path) -> None:
    changed = row("z", generation=generation(fallback="hf", ignored_options=["top_k"]), engine="vllm:tiny")
    assert findings_of(tmp_path, [*rows(19, engine="vllm:tiny"), changed]) == [
        "1 answer of vllm:tiny came from the fallback backend hf, not from the one requested",
        "vllm:tiny ignored the option top_k in 1 answer",
    ]


def test_few_cases_are_named(tmp_path: Path) -> None:
    assert findings_of(tmp_path, rows(2)) == ["stage_a has only 2 cases: scores may differ by chance alone"]


def test_cases_that_are_not_in_the_run_are_named(tmp_path: Path) -> None:
    evals = [{"name": "stage_a", "num_cases": 20}, {"name": "stage_b", "num_cases": 3}]
    assert findings_of(tmp_path, rows(12), evals=evals) == [
        "stage_a: 8 of 20 cases are not in this run (deselected, or never collected)",
        "stage_b: 3 of 3 cases are not in this run (deselected, or never collected)",
    ]


def test_problems_of_the_run_are_repeated(tmp_path: Path) -> None:
    assert findings_of(tmp_path, rows(12), problems=["evals/test_a.py: aggregate failed\nfor hf:tiny"]) == [
        "evals/test_a.py: aggregate failed for hf:tiny"
    ]


def test_what_rows_say_is_worked_out_once_and_new_problems_are_shown_all_the_same(tmp_path: Path) -> None:
    tables = load_tables(write_run(tmp_path, rows(2)))
    few = "stage_a has only 2 cases: scores may differ by chance alone"
    assert findings(tables) == [few]
    tables.run["problems"] = ["report.html could not be made"]
    object.__setattr__(tables, "rows", None)  # whoever read the rows again would break
    assert findings(tables) == ["report.html could not be made", few]


def test_a_run_that_did_not_finish_is_named(tmp_path: Path) -> None:
    tables = load_tables(write_run(tmp_path, rows(12), finished_at=None))
    assert findings(tables) == ["the run did not finish: gates, counts and everything else that run.json gets at the end are missing"]
    assert verdict(tables)[0] == "INTERRUPTED"


def test_counts_that_differ_from_the_rows_are_named(tmp_path: Path) -> None:
    found = findings_of(tmp_path, rows(19), counts={"pass": 20})
    assert found == ["run.json counts 20 rows, samples.jsonl holds 19: the two files do not match"]


def test_repeated_rows_and_unknown_outcomes_are_named(tmp_path: Path) -> None:
    assert findings_of(tmp_path, [*rows(12), row("case-0"), row("z", outcome="novel", scores={})]) == [
        "1 duplicate row of a case × test × engine that has one already: counted all the same",
        "1 row with the unknown outcome 'novel': counted as other, never scored",
    ]


def test_what_could_not_be_read_is_named(tmp_path: Path) -> None:
    write_run(tmp_path, [])
    (tmp_path / "samples.jsonl").unlink()
    assert findings(load_tables(tmp_path)) == ["samples.jsonl is missing: no sample of this run can be shown"]


def test_the_remedy_for_missing_rows_of_a_killed_run_is_named(tmp_path: Path) -> None:
    run_dir = write_run(tmp_path, [], finished_at=None)
    (tmp_path / "samples.jsonl").unlink()
    (tmp_path / "journal").mkdir()
    tables = load_tables(run_dir)
    assert f"evalharness report {tmp_path} makes it from the journal" in findings(tables)[0]
    assert verdict(tables) == ("INTERRUPTED", "the run did not finish; gates were not judged")


@pytest.mark.parametrize(
    ("baseline", "gates", "is_idle"),
    [
        ({"asked": "nightly", "path": "b.json", "problem": None}, ["valid >= 0.9"], True),
        ({"asked": "gone", "path": None, "problem": "is not there"}, [], True),
        ({"asked": "nightly", "path": "b.json", "problem": None}, ["no_regression(valid)"], False),
        (None, ["valid >= 0.9"], False),
    ],
    ids=["other gates", "no gates", "asked", "no baseline"],
)
def test_a_baseline_that_no_gate_asks_for_is_named(tmp_path: Path, baseline: Any, gates: list[str], is_idle: bool) -> None:
    evals = [{"name": "stage_a", "num_cases": 20, "tests": {"test_summary": gates}}]
    found = findings_of(tmp_path, rows(20), baseline=baseline, evals=evals)
    assert found == ["a baseline was given, but no test has the gate no_regression: nothing was compared with it"][: int(is_idle)]


def test_the_list_of_remarks_is_bounded_and_says_so(tmp_path: Path) -> None:
    found = findings_of(tmp_path, [row("a", eval=f"eval-{number}") for number in range(40)])
    assert len(found) == MAX_FINDINGS + 1
    assert found[-1] == "10 more caveats are left out; report.csv has the counts of every line"


@pytest.mark.parametrize(
    ("samples", "run", "expected"),
    [
        (rows(2), {"gates": [gate(), gate()]}, ("PASSED", "all 2 gates passed")),
        (rows(2), {}, ("FINISHED", "no gates were set")),
        (rows(2), {"gates": [gate(), gate(False)], "exit_code": 1}, ("FAILED", "1 of 2 gates failed")),
        ([row(outcome="fail")], {"exit_code": 1}, ("FAILED", "no gates were set; 1 sample failed")),
        ([row(outcome="error")], {"gates": [gate()]}, ("FAILED", "the gate passed; 1 sample ended in an error")),
        ([row(), invalid("b")], {"gates": [gate()]}, ("PASSED", "the gate passed; 1 sample could not be run")),
        (rows(2), {"exit_code": 3}, ("FAILED", "no gates were set; pytest ended with exit code 3")),
        (
            rows(2),
            {"gates": [gate()], "exit_code": 10, "problems": ["worker gw1 died"]},
            ("BROKEN", "the gate passed; something other than a sample broke: 1 problem of the run"),
        ),
        (rows(2), {"interrupted": "Ctrl-C", "exit_code": 2}, ("INTERRUPTED", "Ctrl-C; no gates were set; pytest ended with exit code 2")),
        ([], {}, ("EMPTY", "no case was recorded; no gates were set")),
        (rows(2), {"gates": [{"expression": "valid > 0"}]}, ("FAILED", "the gate failed")),
    ],
    ids=[
        "passed",
        "no gates",
        "gate failed",
        "test failed",
        "error",
        "invalid",
        "exit code",
        "broken",
        "interrupted",
        "empty",
        "gate without a verdict",
    ],
)
def test_the_verdict_is_one_word_and_its_reason(
    tmp_path: Path, samples: list[dict[str, Any]], run: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert verdict_of(tmp_path, samples, **run) == expected


def test_what_a_loader_warned_of_is_a_remark(tmp_path: Path) -> None:
    evals = [{"name": "stage_a", "notices": ["2 groups have no photos: g1, g2"]}, {"name": "other"}]
    assert "stage_a: 2 groups have no photos: g1, g2" in findings(load_tables(write_run(tmp_path, rows(2), evals=evals)))


def test_thoughts_without_an_end_are_named(tmp_path: Path) -> None:
    thoughts = [{"text": "a", "answer": "", "is_closed": closed, "num_tokens": 3} for closed in (False, True, False)]
    samples = [
        row(f"case-{i}", generation=generation(text=str(i), thinking=thinking)) for i, thinking in enumerate([*thoughts, *[None] * 17])
    ]
    assert findings_of(tmp_path, samples) == [
        f"2 of 20 answers of {WHERE} never stop thinking and give no answer (--max-thinking-tokens limits that)"
    ]
