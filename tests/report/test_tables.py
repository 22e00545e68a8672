from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.statistics.intervals import wilson_interval
from evalharness.report.tables import RunTables, Summary, load_tables
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import generation, invalid, row, write_run

KEY = ("stage_a", "test_summary", "hf:tiny")


def tables_of(tmp_path: Path, samples: list[dict[str, Any]], **run: Any) -> RunTables:
    return load_tables(write_run(tmp_path, samples, **run))


def counts_of(tables: RunTables) -> dict[Any, int]:
    """Return the counts of the one line there is, zeros left out."""
    (counts,) = tables.counts.values()
    return {name: count for name, count in counts.items() if count}


def score_of(tables: RunTables, name: str) -> Summary:
    return tables.scores[(*KEY, name)]


def test_a_mean_is_over_the_rows_that_have_the_score(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, [row("a", scores={"f1": 1.0}), row("b", scores={"f1": 0.5}), row("c", scores={}), invalid("d")])
    found = score_of(tables, "f1")
    assert (found.mean, found.n, found.is_rate) == (0.75, 2, False)
    assert found.stderr == pytest.approx(0.25)


def test_scores_of_zeros_and_ones_are_rates_and_others_get_a_bootstrap(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, [row("a", scores={"exact": 1}), row("b", scores={"exact": False})])
    found = score_of(tables, "exact")
    assert (found.mean, found.stderr, found.n, found.is_rate, found.interval) == (0.5, 0.5, 2, True, "wilson")
    assert (found.low, found.high) == pytest.approx(wilson_interval(0.5, 2))
    found = score_of(tables_of(tmp_path, [row(f"c{number}", scores={"f1": number / 20}) for number in range(20)]), "f1")
    assert found.interval == "bootstrap"
    assert 0.3 < found.low < found.mean < found.high < 0.65
    samples = [row("a", scores={"f1": 0.0}), row("a", engine="hf:other", scores={"f1": 0.5})]
    assert not any(score.is_rate for score in tables_of(tmp_path, samples).scores.values())
    assert not score_of(tables_of(tmp_path, [row("a", scores={"num_objects": 0})]), "num_objects").is_rate
    assert math.isnan(score_of(tables_of(tmp_path, [row("a", scores={"f1": 0.3})]), "f1").stderr)


def test_cases_of_one_group_count_together(tmp_path: Path) -> None:
    scores = [{"valid": float(number < 30), "f1": number / 40} for number in range(40)]
    apart = tables_of(tmp_path, [row(f"c{number}", scores=own) for number, own in enumerate(scores)])
    together = tables_of(tmp_path, [row(f"c{number}", scores=own, group=f"g{number // 10}") for number, own in enumerate(scores)])
    for name in ("valid", "f1"):
        widths = [score_of(tables, name).high - score_of(tables, name).low for tables in (apart, together)]
        assert widths[1] > 1.5 * widths[0]
        assert score_of(together, name).stderr > 1.5 * score_of(apart, name).stderr


@pytest.mark.parametrize("outcome", ["error", "invalid", "skip", "novel"])
def test_what_failed_is_never_a_score(tmp_path: Path, outcome: str) -> None:
    tables = tables_of(tmp_path, [row("a", scores={"valid": 1.0}), row("b", outcome=outcome, scores={"valid": 0.0})])
    assert (score_of(tables, "valid").mean, score_of(tables, "valid").n) == (1.0, 1)
    assert counts_of(tables)["form_judged"] == 1
    assert any(
        note == f"a score of a case that ended as {outcome if outcome != 'novel' else 'other'}: left out of every mean (1 time)"
        for note in tables.notes
    )


@pytest.mark.parametrize(
    "score", [float("nan"), float("inf"), "0.5", None, [1], 10**400], ids=["nan", "inf", "text", "none", "list", "huge"]
)
def test_a_score_that_is_no_finite_number_is_left_out_and_noted(tmp_path: Path, score: object) -> None:
    tables = tables_of(tmp_path, [row("a", scores={"f1": score}), row("b", scores={"f1": 0.5})])
    assert (score_of(tables, "f1").mean, score_of(tables, "f1").n) == (0.5, 1)
    assert tables.notes == ["score 'f1' is not a finite number: left out of every mean (1 time)"]


def test_validity_is_counted_by_row_whatever_number_of_generations_it_has(tmp_path: Path) -> None:
    samples = [
        row("a"),
        row("b", scores={"valid": 0}, outcome="miss", problem="no JSON"),
        row("c", generation=generation(finish_reason="length")),
        row("d", text=" \n"),
        row("e", generation=generation(fallback="hf")),
        invalid("f"),
        invalid("g", outcome="error"),
        invalid("h", outcome="skip"),
        row("i", outcome="fail", scores={}),
    ]
    counts = {"cases": 9, "pass": 4, "miss": 1, "fail": 1, "invalid": 1, "error": 1, "skip": 1, "answered": 6}
    validity = {"form_judged": 5, "malformed": 1, "length_cap": 1, "empty": 1, "fallback": 1}
    assert counts_of(tables_of(tmp_path, samples)) == counts | validity
    several = [generation(), generation(finish_reason="length"), generation(finish_reason="length", text="")]
    tables = tables_of(tmp_path, [row("a", generation=several[0], generations=several)])
    assert counts_of(tables) == {"cases": 1, "pass": 1, "answered": 1, "form_judged": 1, "length_cap": 1, "empty": 1}


def test_unknown_outcomes_and_duplicates_are_counted(tmp_path: Path) -> None:
    tables = tables_of(tmp_path, [row("a", outcome="novel"), row("b", outcome=None), row("c")])
    assert counts_of(tables)["other"] == 2
    assert tables.unknown_outcomes == {"novel": 1, "": 1}
    assert tables_of(tmp_path, [row("a"), row("a"), row("a", engine="vllm:tiny")]).num_duplicates == 1


def test_lines_keep_the_order_of_first_use(tmp_path: Path) -> None:
    samples = [row("a", engine="vllm:z", eval="z"), row("a", engine="hf:a", eval="z"), row("a", engine="vllm:z", eval="a")]
    assert [(key[0], key[2]) for key in tables_of(tmp_path, samples).counts] == [("z", "vllm:z"), ("z", "hf:a"), ("a", "vllm:z")]


def test_tags_break_scores_and_counts_down(tmp_path: Path) -> None:
    samples = [
        row("a", tags={"domain": "RRU"}),
        row("b", tags={"domain": "BBU"}, scores={"valid": 0.0}),
        invalid("c", tags={"domain": "BBU"}),
    ]
    tables = tables_of(tmp_path, samples)
    assert {key: counts["cases"] for key, counts in tables.tag_counts.items()} == {(*KEY, "domain", "RRU"): 1, (*KEY, "domain", "BBU"): 2}
    assert {key[4:]: score.mean for key, score in tables.tag_scores.items()} == {("RRU", "valid"): 1.0, ("BBU", "valid"): 0.0}


def test_reasons_are_grouped_and_long_texts_are_not_kept(tmp_path: Path) -> None:
    samples = [invalid(f"case-{number}", f"photos/x{number}.jpg: 'a{number}' has {number} bytes") for number in range(5)]
    groups = list(tables_of(tmp_path, [*samples, invalid("z", "too long")]).problems.values())
    assert [(group.count, group.problem) for group in groups] == [(5, "photos/x0.jpg: 'a0' has 0 bytes"), (1, "too long")]
    assert groups[0].nodeids == [sample["nodeid"] for sample in samples[:3]]
    tables = tables_of(tmp_path, [row("a", text="x" * 1_000_000, outcome="miss", problem="y" * 1_000_000)])
    (group,) = tables.problems.values()
    assert len(group.excerpt) + len(group.problem) < 1000


@pytest.mark.parametrize(
    "samples",
    [[], [{}], [{"scores": 3, "tags": [], "generation": "x", "eval": 5, "problem": {}, "generations": 1}]],
    ids=["no row", "empty row", "ill-typed row"],
)
def test_empty_and_ill_typed_rows_give_tables(tmp_path: Path, samples: list[dict[str, Any]]) -> None:
    tables = tables_of(tmp_path, samples)
    assert tables.total("cases") == tables.num_rows == len(samples)
    assert not tables.scores
    assert not tables.tag_scores


def test_hostile_names_stay_apart(tmp_path: Path) -> None:
    texts = list(HOSTILE_TEXTS.values())
    samples = [row(text, eval=text, test=text, engine=text, tags={text: text}, scores={text: 0.5}) for text in texts]
    tables = tables_of(tmp_path, samples)
    assert len(tables.counts) == len(tables.scores) == len(tables.tag_scores) == len(texts)
