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


def valid(score: float, first: int, last: int) -> list[dict[str, Any]]:
    return [row(f"case-{number}", scores={"valid": score}) for number in range(first, last)]


THOUGHTS = [{"text": "a", "answer": "", "is_closed": closed, "num_tokens": 3} for closed in (False, True, False)]
FALLBACK = row("z", generation=generation(fallback="hf", ignored_options=["top_k"]), engine="vllm:tiny")
FEW = "scores may differ by chance alone"
MALFORMED = f"of 20 answers of {WHERE}"
ENGINES = [{"id": "hf:tiny", "options_not_taken": ["enforce_eager", "max_x"]}, {"id": "a", "options_not_taken": []}, {"id": "b"}]
FINDINGS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[str]]] = {
    "a sound run needs no remark": (rows(20), {}, []),
    "all malformed": (valid(0.0, 0, 20), {}, [f"all 20 answers of {WHERE} are malformed (valid is 0): its other scores may say little"]),
    "half malformed": (
        [*valid(0.0, 0, 10), *valid(1.0, 10, 20)], {}, [f"10 {MALFORMED} are malformed (valid is 0): its scores may be mostly about form"],
    ),
    "one malformed": ([*valid(0.0, 0, 1), *valid(1.0, 1, 20)], {}, [f"1 {MALFORMED} is malformed (valid is 0)"]),
    "one answer to all cases": (rows(12, text="same"), {}, ["hf:tiny gave one and the same answer to all 12 cases of stage_a"]),
    "several tests of one case are no identical answers": (
        [row("only", test=name) for name in ("test_a", "test_b", "test_c")], {}, [f"stage_a has only 1 case: {FEW}"],
    ),
    "two checkpoints with the same answers": (
        [*rows(12), *rows(12, engine="hf:other")], {},
        ["hf:tiny and hf:other gave the same answer to every case of stage_a: are they the same weights?"],
    ),
    "one checkpoint on two backends may agree": ([*rows(12), *rows(12, engine="vllm:tiny")], {}, []),
    "checkpoints that differ in one answer": (
        [*rows(12), *rows(11, engine="hf:other"), row("case-11", engine="hf:other", text="else")], {}, [],
    ),
    "invalid, error and skip": (
        [*rows(17), invalid("a"), invalid("b", outcome="error"), invalid("c", "not run: Ctrl-C", outcome="skip")], {},
        [
            f"1 of 20 cases of {WHERE} ended in an error: not counted in any mean",
            f"1 of 20 cases of {WHERE} could not be run (invalid): not counted in any mean",
            "not run: stage_a on hf:tiny (1): Ctrl-C",
        ],
    ),
    "an empty answer": ([*rows(19), row("z", text=" \n")], {}, [f"1 {MALFORMED} are empty"]),
    "options that an engine of a matrix does not take": (
        rows(20), {"engines": ENGINES}, ["hf:tiny was run without --enforce-eager, --max-x: its backend does not support it"],
    ),
    "fallback and ignored options": (
        [*rows(19, engine="vllm:tiny"), FALLBACK], {},
        [
            "1 answer of vllm:tiny came from the fallback backend hf, not from the one requested",
            "vllm:tiny ignored the option top_k in 1 answer",
        ],
    ),
    "few cases": (rows(2), {}, [f"stage_a has only 2 cases: {FEW}"]),
    "cases that are not in the run": (
        rows(12), {"evals": [{"name": "stage_a", "num_cases": 20}, {"name": "stage_b", "num_cases": 3}]},
        [
            "stage_a: 8 of 20 cases not in this run (deselected, or never collected)",
            "stage_b: 3 of 3 cases not in this run (deselected, or never collected)",
        ],
    ),
    "what a loader warned of": (
        rows(12), {"evals": [{"name": "stage_a", "notices": ["2 groups have no photos: g1, g2"]}, {"name": "other"}]},
        ["stage_a: 2 groups have no photos: g1, g2"],
    ),
    "problems of the run": (
        rows(12), {"problems": ["evals/test_a.py: aggregate failed\nfor hf:tiny"]}, ["evals/test_a.py: aggregate failed for hf:tiny"],
    ),
    "counts that differ from the rows": (
        rows(19), {"counts": {"pass": 20}}, ["run.json counts 20 rows, samples.jsonl holds 19: the two files do not match"],
    ),
    "repeated rows and unknown outcomes": (
        [*rows(12), row("case-0"), row("z", outcome="novel", scores={})], {},
        [
            "1 duplicate row of a case × test × engine that has one already: counted anyway",
            "1 row with the unknown outcome 'novel': counted as other, never scored",
        ],
    ),
    "thoughts without an end": (
        [row(f"case-{i}", generation=generation(text=str(i), thinking=each)) for i, each in enumerate([*THOUGHTS, *[None] * 17])], {},
        [f"2 {MALFORMED} never stop thinking and give no answer (--max-thinking-tokens limits that)"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("samples", "run", "sentences"), FINDINGS.values(), ids=FINDINGS)
def test_caveats_name_what_makes_numbers_untrustworthy(
    tmp_path: Path, samples: list[dict[str, Any]], run: dict[str, Any], sentences: list[str]
) -> None:
    assert findings_of(tmp_path, samples, **run) == sentences


@pytest.mark.parametrize(("capped", "named"), [(1, False), (5, True), (100, True)], ids=["rare", "notable", "all"])
def test_length_cap_hits_are_named_from_a_share_on(tmp_path: Path, capped: int, named: bool) -> None:
    cut = [row(f"case-{number}", generation=generation(text=str(number), finish_reason="length")) for number in range(capped)]
    found = findings_of(tmp_path, [*cut, *(row(f"more-{number}") for number in range(100 - capped))])
    assert bool(found) is named
    assert all("hit the length cap and may be cut off" in sentence for sentence in found)


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


def test_what_could_not_be_read_and_its_remedy_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, [])
    (tmp_path / "samples.jsonl").unlink()
    assert findings(load_tables(tmp_path)) == ["samples.jsonl is missing: no sample of this run can be shown"]
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
    assert found == ["a baseline was given, but no gate compares with it"][: int(is_idle)]


def test_the_list_of_remarks_is_bounded_and_says_so(tmp_path: Path) -> None:
    found = findings_of(tmp_path, [row("a", eval=f"eval-{number}") for number in range(40)])
    assert len(found) == MAX_FINDINGS + 1
    assert found[-1] == "10 more caveats are left out; report.csv has the counts of every line"


VERDICTS: dict[str, tuple[list[dict[str, Any]], dict[str, Any], tuple[str, str]]] = {
    "passed": (rows(2), {"gates": [gate(), gate()]}, ("PASSED", "both gates passed")),
    "no gates": (rows(2), {}, ("FINISHED", "no gates were set")),
    "gate failed": (rows(2), {"gates": [gate(), gate(False)], "exit_code": 1}, ("FAILED", "1 of 2 gates failed")),
    "test failed": ([row(outcome="fail")], {"exit_code": 1}, ("FAILED", "no gates were set; 1 sample failed")),
    "error": ([row(outcome="error")], {"gates": [gate()]}, ("FAILED", "the gate passed; 1 sample ended in an error")),
    "invalid": ([row(), invalid("b")], {"gates": [gate()]}, ("PASSED", "the gate passed; 1 sample could not be run")),
    "exit code": (rows(2), {"exit_code": 3}, ("FAILED", "no gates were set; pytest ended with exit code 3")),
    "broken": (
        rows(2), {"gates": [gate()], "exit_code": 10, "problems": ["worker gw1 died"]},
        ("BROKEN", "the gate passed; something other than a sample broke: 1 problem of the run"),
    ),
    "interrupted": (
        rows(2), {"interrupted": "Ctrl-C", "exit_code": 2}, ("INTERRUPTED", "Ctrl-C; no gates were set"),
    ),
    "empty": ([], {}, ("EMPTY", "no case was recorded; no gates were set")),
    "gate without a verdict": (rows(2), {"gates": [{"expression": "valid > 0"}]}, ("FAILED", "the gate failed")),
}  # fmt: skip


@pytest.mark.parametrize(("samples", "run", "expected"), VERDICTS.values(), ids=VERDICTS)
def test_the_verdict_is_one_word_and_its_reason(
    tmp_path: Path, samples: list[dict[str, Any]], run: dict[str, Any], expected: tuple[str, str]
) -> None:
    assert verdict(load_tables(write_run(tmp_path, samples, **run))) == expected


def test_what_a_template_leaves_out_is_one_finding_for_chats_of_all_lengths(tmp_path: Path) -> None:
    names = [[f"chat template: the tool turn ({place} of {count}) left out of the prompt" for place in (2, 3)] for count in range(3, 33)]
    samples = [row(f"case-{number}", generation=generation(text=str(number), ignored_options=each)) for number, each in enumerate(names)]
    assert findings_of(tmp_path, samples) == [
        "hf:tiny: chat template: the tool turn left out of the prompt in 30 answers (case-0, case-1, case-2, …)"
    ]


def test_special_tokens_that_a_chats_data_holds_are_named_with_their_cases(tmp_path: Path) -> None:
    read, kept = ([f"data: special token {token} {how}" for token in ("<s>", "<a>")] for how in ("read as a token", "kept as text"))
    each = [read, read[:1], *[kept] * 10]
    samples = [row(f"case-{place}", generation=generation(text=str(place), ignored_options=one)) for place, one in enumerate(each)]
    assert findings_of(tmp_path, samples) == [
        "hf:tiny read special tokens in the data of 2 answers (case-0, case-1), <s>, <a>; --special-tokens-as-text keeps them text"
    ]
