from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalharness.analysis.comparison.compare import CHANGED, IMPROVED, NOT_ENOUGH, REGRESSED, SAME, Comparison, MetricChange, compare
from evalharness.analysis.comparison.sides import read_side
from evalharness.api.errors import ComparisonError
from tests.analysis.comparison.runs import ENGINE, cases, pair, run_dir
from tests.report.runs import gate, invalid, row

HALVES = [1.0, 0.0] * 30


def compared(tmp_path: Path, base: list[dict[str, Any]], candidate: list[dict[str, Any]], **options: Any) -> Comparison:
    return compare(*map(read_side, map(str, pair(tmp_path, base, candidate))), **options)


def metric(comparison: Comparison, name: str = "f1") -> MetricChange:
    (found,) = [change for change in comparison.metrics if change.metric == name]
    return found


class TestVerdicts:
    @pytest.mark.parametrize(
        ("base", "candidate", "verdict"),
        [
            ([1.0] * 60, [1.0] * 40 + [0.0] * 20, REGRESSED),
            ([0.0] * 60, [0.5] * 20 + [0.0] * 40, IMPROVED),
            ([1.0] * 200, [1.0] * 199 + [0.0], SAME),
            ([1.0] * 5, [0.0] * 5, NOT_ENOUGH),
            (HALVES, HALVES[::-1], NOT_ENOUGH),
        ],
        ids=["regressed", "improved", "same", "five cases", "noise"],
    )
    def test_a_metric_gets_its_verdict(self, tmp_path: Path, base: list[float], candidate: list[float], verdict: str) -> None:
        assert metric(compared(tmp_path, cases(base), cases(candidate))).verdict == verdict

    def test_a_score_that_is_better_when_lower_turns_round(self, tmp_path: Path) -> None:
        base, candidate = cases([0.0] * 60, metric="cer"), cases([1.0] * 20 + [0.0] * 40, metric="cer")
        assert metric(compared(tmp_path, base, candidate, lower_is_better=["cer"]), "cer").verdict == REGRESSED
        down = run_dir(tmp_path / "gated", candidate, {"fingerprint": "f3"}, gates=[gate(expression="cer <= 1", metric="cer")])
        assert metric(compare(read_side(str(tmp_path / "base")), read_side(str(down))), "cer").verdict == REGRESSED
        assert metric(compared(tmp_path, base, candidate), "cer").verdict == IMPROVED

    def test_a_score_that_is_neither_good_nor_bad_only_changes(self, tmp_path: Path) -> None:
        evals = [{"name": "stage_a", "directions": {"said": "none"}}]
        base = run_dir(tmp_path / "base", cases([1.0] * 60, metric="said"))
        candidate = run_dir(tmp_path / "cand", cases([0.0] * 60, metric="said"), {"fingerprint": "f2"}, evals=evals)
        found = compare(read_side(str(base)), read_side(str(candidate)))
        assert (metric(found, "said").verdict, found.verdict, found.has_regressed, found.cases) == (CHANGED, CHANGED, False, [])

    def test_answers_that_hit_the_cap_more_often_are_a_regression(self, tmp_path: Path) -> None:
        cut = [{**one, "generation": {**one["generation"], "finish_reason": "length"}} for one in cases([1.0] * 60)]
        assert metric(compared(tmp_path, cases([1.0] * 60), cut), "length_rate").verdict == REGRESSED

    def test_cases_of_a_group_count_as_one(self, tmp_path: Path) -> None:
        grouped = [{**one, "group": f"g{number // 20}"} for number, one in enumerate(cases([1.0] * 40 + [0.0] * 20))]
        found = metric(compared(tmp_path, cases([1.0] * 60), grouped))
        assert (found.verdict, found.change.num_groups) == (NOT_ENOUGH, 3)

    def test_many_metrics_are_corrected_for(self, tmp_path: Path) -> None:
        # 7 of 60 cases lost: p = 0.0156 alone, and not shown among ten that could each have been.
        one = compared(tmp_path, cases([1.0] * 60), cases([0.0] * 7 + [1.0] * 53))
        assert metric(one).verdict == REGRESSED
        base = [{**row, "scores": {f"m{number}": 1.0 for number in range(10)}} for row in cases([1.0] * 60)]
        falls = {f"m{number}": range(5 * number, 5 * number + 7) for number in range(10)}
        candidate = [
            {**one, "scores": {name: float(place not in lost) for name, lost in falls.items()}}
            for place, one in enumerate(cases([1.0] * 60))
        ]
        found = metric(compared(tmp_path, base, candidate), "m0")
        assert found.change.p == pytest.approx(2**-6)
        assert found.p_corrected > 0.05
        assert found.verdict != REGRESSED

    def test_counts_have_no_verdict(self, tmp_path: Path) -> None:
        found = compared(tmp_path, cases([1.0], metric="num_x"), cases([5.0], metric="num_x"))
        assert [change.metric for change in found.metrics] == ["pass_rate", "length_rate", "empty_rate"]
        assert found.cases == []

    def test_what_could_have_been_shown_shrinks_with_the_cases(self, tmp_path: Path) -> None:
        few, many = (metric(compared(tmp_path, cases(HALVES * n), cases(HALVES * n))).detectable for n in (1, 10))
        assert 0 < many < few / 5


class TestSlices:
    def test_a_drop_that_the_average_hides_is_shown(self, tmp_path: Path) -> None:
        tags = [{"kind": "rare" if number < 12 else "common"} for number in range(400)]
        base = [{**one, "tags": own} for one, own in zip(cases([1.0] * 400), tags, strict=True)]
        fallen = [0.0] * 12 + [1.0] * 388
        before, after = [1.0] * 200 + [0.0] * 200, fallen[:200] + [1.0] * 12 + [0.0] * 188
        sides = [[{**one, "scores": {"f1": value}} for one, value in zip(base, values, strict=True)] for values in (before, after)]
        risen = compared(tmp_path, *sides)
        assert metric(risen).change.difference == 0
        assert metric(risen).verdict != REGRESSED
        (lost,) = [change for change in risen.slices if change.verdict == REGRESSED]
        assert (lost.slice_key, lost.slice_value, lost.metric, lost.change.num_pairs) == ("kind", "rare", "f1", 12)
        assert (risen.has_regressed, risen.verdict) == (True, REGRESSED)

    def test_a_category_that_is_lost_is_shown(self, tmp_path: Path) -> None:
        def rows(said: int) -> list[dict[str, Any]]:
            own = {"a": [1, 1, 1], "b": [said, said, 1]}
            marks = [own if number < 20 else {"a": [1, 1, 1]} for number in range(60)]
            return [{**one, "details": {"categories": mark}} for one, mark in zip(cases([1.0] * 60), marks, strict=True)]

        found = [change for change in compared(tmp_path, rows(1), rows(0)).slices if change.slice_key == "category"]
        assert [(change.slice_value, change.verdict) for change in found] == [("a", SAME), ("b", REGRESSED)]

    def test_a_category_that_only_one_side_said_was_wrong_there(self, tmp_path: Path) -> None:
        plain = [{**one, "details": {"categories": {"a": [1, 1, 1]}}} for one in cases([1.0] * 60)]
        invented = [{**one, "details": {"categories": {"a": [1, 1, 1], "b": [0, 1, 0]}}} for one in cases([1.0] * 60)]
        assert [change.verdict for change in compared(tmp_path, plain, invented).slices] == [SAME, REGRESSED]
        # A base without any marks says nothing about categories.
        assert compared(tmp_path / "unmarked", cases([1.0] * 60), invented).slices == []

    def test_one_name_in_two_domains_is_two_categories(self, tmp_path: Path) -> None:
        def rows(said: int) -> list[dict[str, Any]]:
            marks = {"bbu": {"label": [said, said, 1], "screw": [1, 1, 1]}, "rru": {"label": [1, 1, 1]}}
            found = []
            for number, one in enumerate(cases([1.0] * 60)):
                domain = "bbu" if number < 30 else "rru"
                found.append({**one, "tags": {"domain": domain}, "details": {"categories": marks[domain]}})
            return found

        found = compared(tmp_path, rows(1), rows(0))
        categories = [change for change in found.slices if change.slice_key == "category"]
        assert [(change.slice_value, change.verdict, change.change.num_pairs) for change in categories] == [
            ("label (bbu)", REGRESSED, 30),
            ("screw", SAME, 30),
            ("label (rru)", SAME, 30),
        ]

    def test_a_tag_with_one_value_or_a_value_per_case_makes_no_slices(self, tmp_path: Path) -> None:
        tagged = [{**one, "tags": {"same": "x", "name": one["case_id"]}} for one in cases([1.0] * 250)]
        assert compared(tmp_path, tagged, tagged).slices == []

    def test_only_the_metrics_asked_for_are_tested(self, tmp_path: Path) -> None:
        base = [{**one, "scores": {"f1": 1.0, "x": 1.0}, "tags": {"t": str(number % 2)}} for number, one in enumerate(cases([1.0] * 20))]
        found = compared(tmp_path, base, base, only=["x"])
        assert {change.metric for change in (*found.metrics, *found.slices)} == {"x"}


class TestCases:
    def test_changed_cases_are_listed_worst_first_with_both_texts(self, tmp_path: Path) -> None:
        base = [row("kept"), row("lost", text="good"), row("lower"), row("won", outcome="miss", scores={"valid": 0.0})]
        candidate = [
            row("kept"),
            row("lost", text="bad", outcome="miss", scores={"valid": 0.0}),
            row("lower", scores={"valid": 0.5}),
            row("won"),
        ]
        found = compared(tmp_path, base, candidate).cases
        assert [(change.case_id, change.direction, change.has_flipped) for change in found] == [
            ("lost", "worse", True),
            ("won", "better", True),
            ("lower", "worse", False),
        ]
        assert (found[0].base.text, found[0].candidate.text) == ("good", "bad")
        assert ("valid", 1.0, 0.0) in found[0].scores

    def test_scores_that_go_both_ways_are_mixed(self, tmp_path: Path) -> None:
        (found,) = compared(tmp_path, [row("a", scores={"x": 0, "y": 1})], [row("a", scores={"x": 1, "y": 0})]).cases
        assert found.direction == "mixed"


class TestCoverage:
    def test_what_cannot_be_paired_is_counted_by_reason(self, tmp_path: Path) -> None:
        base = [row("a"), row("b"), invalid("c"), invalid("d", outcome="error"), row("e")]
        candidate = [row("a"), invalid("b", outcome="skip"), row("c"), invalid("d"), row("f")]
        (part,) = compared(tmp_path, base, candidate).coverage
        assert (part.num_paired, part.num_cases) == (1, 6)
        assert part.reasons == {
            "skip in the candidate": 1, "invalid in the base": 1, "error in the base and invalid in the candidate": 1,
            "only in the candidate": 1, "only in the base": 1,
        }  # fmt: skip

    def test_scores_of_broken_cases_count_for_nothing(self, tmp_path: Path) -> None:
        candidate = [*cases([1.0] * 40), *(row(f"c{number:03}", outcome="error", scores={"f1": 0.0}) for number in range(40, 60))]
        found = metric(compared(tmp_path, cases([1.0] * 60), candidate))
        assert (found.change.num_pairs, found.change.difference) == (40, 0)

    def test_what_cannot_be_paired_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ComparisonError, match="no case was judged on both sides"):
            compared(tmp_path, [row("a")], [invalid("a")])
        names = "no test in common: the base has stage_a::test_summary, the candidate dense::test_summary"
        with pytest.raises(ComparisonError, match=names):
            compared(tmp_path / "other", [row("a")], [row("a", eval="dense")])
        side = read_side(str(tmp_path / "base"))
        with pytest.raises(ComparisonError, match="base and candidate are the same"):
            compare(side, side)


def test_the_same_runs_give_the_same_comparison(tmp_path: Path) -> None:
    base, candidate = cases([number / 60 for number in range(60)]), cases([number / 70 for number in range(60)])
    assert compared(tmp_path, base, candidate).metrics == compared(tmp_path, base, candidate).metrics
    assert compared(tmp_path, base, candidate, seed=1).seed == 1


BASE = cases([1.0] * 5)


def compared_options(base: Path, candidate: Path, **options: Any) -> Comparison:
    return compare(read_side(str(base)), read_side(str(candidate)), **options)


def settings(**pixels: Any) -> dict[str, Any]:
    return {"settings": {"pixel_budget": pixels, "dtype": "float32"}}


OTHER_PROMPT = [*cases([1.0] * 4), row("c004", scores={"f1": 1.0}, prompt_sha256="cd34")]
OTHER_OPTION = cases([1.0] * 5, options={"max_new_tokens": 32})
WHERE = "in stage_a::test_summary"
GRAVE: dict[str, tuple[list[dict[str, Any]], dict[str, Any], str]] = {
    "prompts": (OTHER_PROMPT, {}, f"the prompts differ {WHERE} for 1 of 5 cases (text or image), first for c004"),
    "option": (OTHER_OPTION, {}, f"option max_new_tokens differs {WHERE}: 16 in the base, 32 in the candidate"),
    "pixels": (BASE, settings(max_pixels=100), "max_pixels differs: 900 in the base, 100 in the candidate"),
}


def in_steps(first: str, question: str) -> list[dict[str, Any]]:
    """Five cases whose question is made of the answers to a first step."""
    steps = [[{"text": "seen", "prompt_sha256": first}, {"text": "seen", "prompt_sha256": "aa11"}], [{"prompt_sha256": question}]]
    return cases([1.0] * 5, steps=steps, prompt_sha256=question)


def test_a_question_made_of_other_answers_is_the_same_question(tmp_path: Path) -> None:
    base = run_dir(tmp_path / "base", in_steps("ab12", "cd34"))
    alike = compared_options(base, run_dir(tmp_path / "cand", in_steps("ab12", "ef56"), {**ENGINE, "fingerprint": "f2"}))
    assert "prompts" not in {difference.field for difference in alike.differences}
    with pytest.raises(ComparisonError, match=f"the prompts differ {WHERE} for 5 of 5 cases"):
        compared_options(base, run_dir(tmp_path / "other", in_steps("ab13", "cd34"), {**ENGINE, "fingerprint": "f2"}))


@pytest.mark.parametrize("name", GRAVE)
def test_what_was_not_asked_alike_is_refused_by_its_field(tmp_path: Path, name: str) -> None:
    samples, engine, text = GRAVE[name]
    base = run_dir(tmp_path / "base", BASE, {**ENGINE, **settings(max_pixels=900)} if name == "pixels" else ENGINE)
    candidate = run_dir(tmp_path / "cand", samples, {**engine, "fingerprint": "f2"})
    with pytest.raises(ComparisonError, match="base and candidate were not asked the same: ") as refused:
        compared_options(base, candidate)
    assert text in str(refused.value)
    assert text in [difference.text for difference in compared_options(base, candidate, anyway=True).differences]


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ({"backend": "vllm"}, "backend differs: hf in the base, vllm in the candidate"),
        (settings(max_pixels=9), "max_pixels differs: none in the base, 9 in the candidate; the checkpoint's own was not recorded for one"),
        ({"template_sha256": "t2"}, "chat template differs: t1 in the base, t2 in the candidate"),
        ({"fingerprint": "f1", "checkpoint": "copy"}, "tiny and copy are the same weights (equal fingerprints)"),
    ],
    ids=["backend", "pixels", "template", "weights"],
)
def test_circumstances_are_a_warning(tmp_path: Path, engine: dict[str, Any], text: str) -> None:
    base, candidate = run_dir(tmp_path / "base", BASE), run_dir(tmp_path / "cand", BASE, {"fingerprint": "f2", **engine})
    assert text in [difference.text for difference in compared_options(base, candidate).differences]


@pytest.mark.parametrize(("temperature", "shown"), [(0.0, []), (0.5, ["seed differs: 0 in the base, 1 in the candidate"])])
def test_a_seed_matters_where_something_was_drawn(tmp_path: Path, temperature: float, shown: list[str]) -> None:
    sides = []
    for seed in (0, 1):
        samples = cases([1.0] * 5, options={"temperature": temperature, "seed": seed})
        sides.append(run_dir(tmp_path / f"s{seed}", samples, config={"seed": {"value": seed}}))
    assert [difference.text for difference in compared_options(*sides).differences] == shown


VERSIONS = {"versions": {"evalharness": "2"}}
WARNED: dict[str, tuple[list[dict[str, Any]], dict[str, Any], list[str]]] = {
    "harness version": (BASE, VERSIONS, ["harness version differs: 1 in the base, 2 in the candidate"]),
    "new option": (cases([1.0] * 5, options={"max_new_tokens": 16, "new": None}), {}, []),
    "other cases": (
        [*cases([1.0] * 3), row("more", scores={"f1": 1.0})],
        {},
        [f"the cases differ {WHERE}: 3 in both, 2 only in the base, 1 only in the candidate"],
    ),
    "another test": ([*BASE, row("a", test="test_more")], {}, ["stage_a::test_more is only in cand (hf:tiny)"]),
}


@pytest.mark.parametrize(("samples", "run", "texts"), WARNED.values(), ids=WARNED)
def test_other_circumstances_are_told(tmp_path: Path, samples: list[dict[str, Any]], run: dict[str, Any], texts: list[str]) -> None:
    base, candidate = run_dir(tmp_path / "base", BASE), run_dir(tmp_path / "cand", samples, **run)
    assert [difference.text for difference in compared_options(base, candidate).differences] == texts


def test_no_common_case_is_refused_even_anyway(tmp_path: Path) -> None:
    base, candidate = pair(tmp_path, [row("a")], [row("b")])
    with pytest.raises(ComparisonError, match="base and candidate share no case"):
        compared_options(base, candidate)
    with pytest.raises(ComparisonError, match="no case was judged on both sides"):
        compared_options(base, candidate, anyway=True)


ANSWERED = "gave the same answers to all 5 cases of stage_a::test_summary: are they the same weights?"


@pytest.mark.parametrize(
    ("base", "candidate", "found"),
    [
        (
            {"checkpoint_path": "/t/sft-1/tiny", "fingerprint": "f1"},
            {"checkpoint_path": "/t/sft-2/tiny", "fingerprint": "f2"},
            [f"sft-1/tiny and sft-2/tiny {ANSWERED}"],
        ),
        (
            {"checkpoint_path": "/t/sft-1/tiny", "fingerprint": "f1"},
            {"checkpoint_path": "/t/sft-2/tiny", "fingerprint": "f1"},
            ["sft-1/tiny and sft-2/tiny are the same weights (equal fingerprints)", f"sft-1/tiny and sft-2/tiny {ANSWERED}"],
        ),
        (
            {"checkpoint_path": "/a/x/tiny", "fingerprint": None},
            {"checkpoint_path": "/b/x/tiny", "fingerprint": None},
            [f"a/x/tiny and b/x/tiny {ANSWERED}"],
        ),
        ({"checkpoint_path": "/t/tiny"}, {"checkpoint_path": "/t/tiny", "fingerprint": "f2"}, [f"tiny (f1) and tiny (f2) {ANSWERED}"]),
        ({"checkpoint_path": "/t/tiny"}, {"checkpoint_path": "/t/tiny"}, []),
        ({}, {}, []),
    ],
    ids=["other folder", "a copy", "no fingerprints", "trained on in place", "one checkpoint", "nothing known"],
)
def test_checkpoints_are_told_apart_by_path_and_weights_not_by_name(
    tmp_path: Path, base: dict[str, Any], candidate: dict[str, Any], found: list[str]
) -> None:
    sides = run_dir(tmp_path / "base", BASE, base), run_dir(tmp_path / "cand", BASE, candidate)
    assert [difference.text for difference in compared_options(*sides).differences] == found


FIRST = "'b' in the base, 'dog' in the candidate"


def judged(*references: Any, code: dict[str, str] | None = None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    samples = [{**line, "reference": reference} for line, reference in zip(BASE, references, strict=True)]
    return samples, {} if code is None else {"evals": [{"name": "stage_a", "code": {"test_summary": code}}]}


@pytest.mark.parametrize(
    ("now", "text"),
    [
        (judged("cat", "dog", "dog", "d", "e"), f"the references differ {WHERE} for 2 of 5 cases, first for c001: {FIRST}"),
        (judged(*"abcde", code={"a.py::f": "1", "a.py::g": "2"}), f"the eval's code differs {WHERE}: a.py::f"),
    ],
    ids=["references", "code"],
)  # fmt: skip
def test_what_was_not_judged_alike_is_refused(tmp_path: Path, now: tuple[Any, Any], text: str) -> None:
    then = judged("cat", *"bcde", code={"a.py::f": "0", "a.py::g": "2"})
    base, candidate = (run_dir(tmp_path / name, samples, **run) for name, (samples, run) in (("base", then), ("cand", now)))
    with pytest.raises(ComparisonError, match="base and candidate were not judged the same: ") as refused:
        compared_options(base, candidate)
    assert text in str(refused.value)
    assert text in [difference.text for difference in compared_options(base, candidate, anyway=True).differences]


def test_a_side_that_does_not_say_what_it_was_judged_against_is_noted(tmp_path: Path) -> None:
    samples, run = judged(*"abcde", code={"a.py::f": "0"})
    base, candidate = run_dir(tmp_path / "base", BASE), run_dir(tmp_path / "cand", samples, **run)
    assert [difference.text for difference in compared_options(base, candidate).differences] == [
        f"the base does not say what it was judged against {WHERE}: references or code may have been others"
    ]


def test_the_same_texts_of_two_checkpoints_are_a_warning(tmp_path: Path) -> None:
    other = run_dir(tmp_path / "other", BASE, {"fingerprint": "f2", "checkpoint": "other"})
    found = [difference.text for difference in compared_options(run_dir(tmp_path / "base", BASE), other).differences]
    assert found == ["tiny and other gave the same answers to all 5 cases of stage_a::test_summary: are they the same weights?"]
    changed = [*cases([1.0] * 4), row("c004", scores={"f1": 1.0}, text="other")]
    other = run_dir(tmp_path / "unlike", changed, {"fingerprint": "f2", "checkpoint": "other"})
    assert compared_options(tmp_path / "base", other).differences == []


def test_two_engines_of_one_run_can_be_compared(tmp_path: Path) -> None:
    samples = [*BASE, *cases([0.5] * 5, engine="hf:other")]
    run = run_dir(tmp_path / "both", samples, engines=[ENGINE, {**ENGINE, "id": "hf:other", "checkpoint": "other", "fingerprint": "f2"}])
    comparison = compare(read_side(f"{run}:tiny"), read_side(f"{run}:other"))
    assert [change.change.difference for change in comparison.metrics if change.metric == "f1"] == [-0.5]
