"""compare.md, compare.csv, compare_cases.csv and the lines on a terminal; the page has a file of its own."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markdown_it import MarkdownIt
from rich.cells import cell_len

from evalharness.analysis.comparison.compare import Comparison, compare
from evalharness.analysis.comparison.sides import read_side
from evalharness.report.compare.files import CASE_COLUMNS, COLUMNS, write_compare_cases_csv, write_compare_csv, write_comparison
from evalharness.report.compare.text import (
    changed_gates,
    changed_scores,
    comparison_lines,
    comparison_markdown,
    conclusion,
    differing_texts,
    gate_summary,
    numbers_of,
    signed,
)
from tests.analysis.comparison.runs import ENGINE, cases, pair, run_dir
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import gate, invalid, row


def compared(tmp_path: Path, base: list[dict[str, Any]], candidate: list[dict[str, Any]], **options: Any) -> Comparison:
    return compare(*map(read_side, map(str, pair(tmp_path, base, candidate))), **options)


@pytest.fixture
def fallen(tmp_path: Path) -> Comparison:
    """60 cases in two kinds, of which the first 20 lost their score and one its verdict."""
    tagged = [{**one, "tags": {"kind": "first" if number < 20 else "rest"}} for number, one in enumerate(cases([1.0] * 60))]
    now = [{**one, "scores": {"f1": 0.0}} if number < 20 else one for number, one in enumerate(tagged)]
    now[3] = {**now[3], "outcome": "miss", "problem": "no JSON", "generation": {**now[3]["generation"], "text": "gone"}}
    now[59] = invalid("c059")
    return compared(tmp_path, tagged, now)


@pytest.fixture
def hostile(tmp_path: Path) -> Comparison:
    """Everything that can be named is named by hostile texts."""
    base, candidate = [], []
    for text in HOSTILE_TEXTS.values():
        for number in range(12):
            one = row(f"{text}{number}", scores={text: 1.0}, tags={text: text, "kind": text}, text=text, nodeid=text, group=text or None)
            base.append(one)
            scores = {text: 0.0} if number else {text: 1.0}
            candidate.append({**one, "scores": scores, "outcome": "miss", "problem": text, "details": {"categories": {text: 0}}})
    found = compared(tmp_path, [{**one, "details": {"categories": {"a": 1}}} for one in base], candidate)
    before, after = (
        tuple(gate(passed, eval=text, test=text, expression=text, metric=text) for text in HOSTILE_TEXTS.values())
        for passed in (True, False)
    )
    return replace(found, base=replace(found.base, gates=before), candidate=replace(found.candidate, gates=after))


@pytest.fixture
def aggregated(tmp_path: Path) -> Comparison:
    """One case, and an aggregate that falls; the candidate has another one that the base has not."""

    def run(**values: float) -> dict[str, Any]:
        place = {"eval": "stage_a", "test": "test_summary", "engine": "hf:tiny"}
        return {"aggregates": [{**place, "metric": metric, "value": value} for metric, value in values.items()]}

    base = run_dir(tmp_path / "one", cases([1.0]), **run(micro=0.5))
    candidate = run_dir(tmp_path / "two", cases([1.0]), {**ENGINE, "fingerprint": "f2"}, **run(micro=0.25, new=0.75))
    return compare(read_side(str(base)), read_side(str(candidate)))


def markdown(comparison: Comparison) -> str:
    return "".join(comparison_markdown([comparison]))


class TestWording:
    def test_the_conclusion_names_what_fell_and_where(self, fallen: Comparison, tmp_path: Path) -> None:
        assert conclusion(fallen).startswith("REGRESSED: 1 metric (f1 1.000 → 0.661), 1 slice (kind first); no")
        assert conclusion(compared(tmp_path, cases([1.0] * 5), cases([1.0] * 5))) == "not enough data in 4 metrics"
        assert conclusion(compared(tmp_path, cases([1.0] * 99), cases([1.0] * 99))) == "no difference shown in 4 metrics"

    def test_of_several_evals_it_names_the_one(self, tmp_path: Path) -> None:
        ones = list(enumerate(cases([1.0] * 60)))
        base = [one | {"eval": name, "tags": {"kind": str(n % 2)}} for name in ("stage_a", "dense") for n, one in ones]
        now = [one | {"scores": {"f1": float(one["tags"]["kind"] == "0")}} if one["eval"] == "dense" else one for one in base]
        found = compared(tmp_path, base, now)
        start = "REGRESSED: 1 metric (f1 of dense 1.000 → 0.500), 1 slice (kind 1 of dense); "
        assert conclusion(found).startswith(start)
        lines = list(comparison_lines([found], 140))
        assert sum(line.startswith("detectable: the smallest difference") for line in lines) == 1
        assert not any(line.startswith("detectable:") for line in comparison_lines([found], 60))

    @pytest.mark.parametrize(
        ("value", "text"), [(0.5, "+0.500"), (-0.5, "-0.500"), (0.0, "0.000"), (float("nan"), "-"), (1e-7, "+1e-07")], ids=str
    )
    def test_a_difference_has_its_sign(self, value: float, text: str) -> None:
        assert signed(value) == text

    def test_changed_scores_and_texts_are_short(self, tmp_path: Path) -> None:
        names = [*(f"m{number}" for number in range(8)), "num_x"]
        base, candidate = ([row("a", scores=dict.fromkeys(names, value), outcome=word)] for value, word in ((1, "pass"), (0, "miss")))
        (change,) = compared(tmp_path, base, candidate).cases
        shown = changed_scores(change)
        assert shown.startswith("pass → miss, m0 1.000 → 0.000, ")
        assert shown.endswith(", 2 more")
        assert "num_x" not in shown
        same = "x" * 500
        (change,) = compared(tmp_path, [row("a", text=same + "1")], [row("a", text=same + "2", scores={"valid": 0.0})]).cases
        assert differing_texts(change, 100) == (f"…{'x' * 30}1", f"…{'x' * 30}2")
        assert differing_texts(change, 1000) == (same + "1", same + "2")

    def test_no_interval_is_a_dash_and_small_p_values_are_bounded(self, tmp_path: Path) -> None:
        change = compared(tmp_path, cases([5.0], metric="x"), cases([5.0], metric="x")).metrics[-1]
        assert numbers_of(change)["interval"] == "-"
        shown = [numbers_of(replace(change, p_corrected=p))["p"] for p in (0.0, 0.0004, 0.04, 1.0)]
        assert shown == ["<0.001", "<0.001", "0.040", "1.000"]

    def test_gates_that_fail_on_one_side_only_are_named(self, fallen: Comparison) -> None:
        of_slices = {"expression": "f1[site=*] >= 0.9", "metric": "f1"}
        always = gate(False, expression="valid >= 1")
        base = replace(fallen.base, gates=(gate(value=1.0, **of_slices), always))
        lost = [{"value": "b", "measured": 0.5, "n": 9}, {"value": "", "measured": 0.6, "n": 9}]
        candidate = replace(fallen.candidate, gates=(gate(False, value=0.5, failed_slices=lost, **of_slices), always))
        found = replace(fallen, base=base, candidate=candidate)
        assert changed_gates(found) == [("newly failing", "f1[site=*] >= 0.9: 1.000 → 0.500 (b and 1 more) (stage_a::test_summary)")]
        assert gate_summary(found) == "base: 1 of 2 gates failed; candidate: both gates failed"
        assert "gate newly failing: f1[site=*] >= 0.9: 1.000 → 0.500" in "\n".join(comparison_lines([found], 140))
        assert "newly failing: f1\\[site=\\*\\] >= 0.9: 1.000 → 0.500" in markdown(found)
        assert gate_summary(fallen) == ""


class TestTerminal:
    def test_it_shows_the_table_the_slice_the_cases_and_the_verdict(self, fallen: Comparison) -> None:
        shown = "\n".join(comparison_lines([fallen], 140))
        assert "stage_a::test_summary: 59 of 60 cases paired; not paired: 1 invalid in the candidate" in shown
        assert "f1           REGRESSED" in shown
        assert "REGRESSED kind first: f1 1.000 → 0.000 (n=20)" in shown
        assert "20 cases changed: 20 worse (1 newly failing, 0 newly passing)" in shown
        assert "candidate  gone" in shown
        assert shown.splitlines()[-1].startswith("REGRESSED: 1 metric (f1 1.000 → 0.661), 1 slice")

    @pytest.mark.parametrize("columns", [1, 60, 80, 120, 300])
    def test_no_line_is_wider_than_the_terminal_and_the_verdict_is_never_cut(self, fallen: Comparison, columns: int) -> None:
        lines = list(comparison_lines([fallen], columns))
        assert max(map(cell_len, lines)) <= max(columns, 40)
        assert any("REGRESSED" in line for line in lines if line.startswith("f1 "))

    def test_hostile_texts_cannot_steer_it(self, hostile: Comparison) -> None:
        for line in comparison_lines([hostile], 120):
            assert not re.search(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]", line)
            assert cell_len(line) <= 120


class TestMarkdown:
    def test_it_holds_table_slices_and_cases(self, fallen: Comparison) -> None:
        shown = markdown(fallen)
        assert shown.startswith("# Comparison\n\n## cand (hf:tiny) against base (hf:tiny)\n\n**REGRESSED: 1 metric (f1 ")
        html = MarkdownIt("commonmark").enable("table").render(shown)
        assert html.count("<table>") == 3
        assert "<strong>REGRESSED</strong>" in html

    def test_aggregates_and_a_coverage_of_less_than_half_are_shown(self, tmp_path: Path, aggregated: Comparison) -> None:
        candidate = [*cases([1.0] * 4), *(invalid(f"c{number:03}") for number in range(4, 10))]
        shown = markdown(compared(tmp_path, cases([1.0] * 10), candidate))
        assert "- fewer than half of the cases of stage_a::test_summary could be paired" in shown
        shown = markdown(aggregated)
        assert "they are not means of cases. The difference has an interval" in shown
        assert "micro" in shown
        assert "-0.250" in shown

    def test_hostile_texts_stay_text(self, hostile: Comparison) -> None:
        html = MarkdownIt("commonmark", {"html": True}).enable("table").render(markdown(hostile))
        for tag in ("<script", "<img", "<a ", "<code", "<del"):
            assert tag not in html


class TestCsv:
    def lines(self, write: Any, comparison: Comparison) -> list[dict[str, str]]:
        file = io.StringIO()
        write([comparison], file)
        file.seek(0)
        return list(csv.DictReader(file))

    def test_every_number_is_there_once(self, fallen: Comparison) -> None:
        lines = self.lines(write_compare_csv, fallen)
        assert list(lines[0]) == COLUMNS
        assert len([line for line in lines if line["kind"] == "metric"]) == len(fallen.metrics)
        assert len([line for line in lines if line["kind"] == "slice"]) == len(fallen.slices)
        (unpaired,) = [line for line in lines if line["kind"] == "unpaired"]
        assert (unpaired["metric"], unpaired["n"]) == ("invalid in the candidate", "1")
        (f1,) = [line for line in lines if line["kind"] == "metric" and line["metric"] == "f1"]
        assert (f1["verdict"], f1["num_down"]) == ("regressed", "20")
        assert float(f1["difference"]) == pytest.approx(-20 / 59)

    def test_aggregates_have_lines_of_their_own(self, aggregated: Comparison) -> None:
        found = [line for line in self.lines(write_compare_csv, aggregated) if line["kind"] == "aggregate"]
        numbers = [(line["metric"], line["verdict"], line["base_value"], line["candidate_value"], line["difference"]) for line in found]
        assert numbers == [("micro", "", "0.5", "0.25", "-0.25"), ("new", "", "", "0.75", "")]
        assert {line["low"] + line["direction"] + line["num_down"] for line in found} == {""}

    def test_every_changed_case_has_a_line_with_both_texts(self, fallen: Comparison) -> None:
        lines = self.lines(write_compare_cases_csv, fallen)
        assert list(lines[0]) == CASE_COLUMNS
        assert len(lines) == 20
        first = lines[0]
        assert (first["case_id"], first["base_outcome"], first["candidate_outcome"]) == ("c003", "pass", "miss")
        assert (first["base_text"], first["candidate_text"], first["candidate_problem"]) == ('{"case": "c003"}', "gone", "no JSON")

    def test_no_cell_is_a_formula_or_holds_a_control_character(self, hostile: Comparison) -> None:
        for write in (write_compare_csv, write_compare_cases_csv):
            for line in self.lines(write, hostile):
                for cell in line.values():
                    numeric = cell.replace(".", "").replace("-", "").replace("e", "").isdigit()
                    assert numeric or not cell.lstrip(" \u200b\ufeff").startswith(("=", "+", "-", "@", "＝"))
                    assert not any(ord(char) < 32 and char not in "\n\t" for char in cell)


def test_several_comparisons_share_the_files_and_give_the_same_bytes(tmp_path: Path, fallen: Comparison) -> None:
    paths = write_comparison([fallen, fallen], tmp_path / "out")
    assert [path.name for path in paths] == ["compare.html", "compare.md", "compare.csv", "compare_cases.csv"]
    shown = paths[1].read_text("utf-8")
    assert shown.startswith("# 2 comparisons\n\n| candidate")
    assert shown.count("### Changed cases") == 2
    first = [path.read_bytes() for path in write_comparison([fallen], tmp_path / "a")]
    assert first == [path.read_bytes() for path in write_comparison([fallen], tmp_path / "b")]
