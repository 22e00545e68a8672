"""Stage-B from files to numbers: cases, judged tickets, aggregates, tables, output files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.api.cases import OutputTarget
from evalharness.api.errors import ConfigError, PromptTooLong, RecordError
from evalharness.api.options import GenerationOptions
from evalharness.api.requests import GenerationFailure, TextGenerationRequest
from evalharness.backends.fake import FakeBackend
from evalharness.engine.engine import Engine
from evalharness.tasks import DataWarning, stage_b
from evalharness.tasks.stage_b.files import baseline_metrics, ticket_stats, wrong_cases
from fixtures.scenes.verdict import verdict_answer

ROOT = Path(__file__).parents[3] / "fixtures" / "site_photos"
RRU, BBU = "RRU安装检查", "BBU接地线检查"
ID = "QC-DEMO-20300101-0000001"
RULES = {"S1": "缺少关键证据则判定不通过", "G0": "每个站点需同时见到RRU与紧固件"}
PASSES, FAILS = (f"Verdict: {word}\nReason: Image1: 见RRU; 总结: 如上" for word in ("通过", "不通过"))


def ticket_row(label: str = "fail", group_id: str = ID, mission: str = RRU, **changes: Any) -> dict[str, Any]:
    return {"group_id": group_id, "mission": mission, "label": label, "images": ["1.jpg"], "per_image": {"image_1": "无关图片"}, **changes}


def folder(root: Path, *rows: dict[str, Any], missions: tuple[str, ...] = (RRU, BBU)) -> Path:
    """Return a folder with these tickets by mission and rules for `missions`."""
    for mission in {row["mission"] for row in rows}:
        lines = [json.dumps(row, ensure_ascii=False) for row in rows if row["mission"] == mission]
        (root / f"{mission}_stage_a.jsonl").write_text("\n".join(lines), "utf-8")
    entry = {"step": 0, "updated_at": "2030-01-01T00:00:00Z", "experiences": RULES, "metadata": {}}
    (root / "guidance.json").write_text(json.dumps(dict.fromkeys(missions, entry)), "utf-8")
    return root


def case(label: Any = "fail", num_images: int = 1, **changes: Any) -> stage_b.StageBCase:
    values: dict[str, Any] = {"mission": RRU, "domain": "rru", "group_id": ID, "summaries": ("无关图片",) * num_images, "rules": RULES}
    return stage_b.StageBCase(id="x", label=label, **{**values, **changes})


def judged_row(label: str, *texts: str, group_id: str = ID, mission: str = RRU, **changes: Any) -> dict[str, Any]:
    """Return a row as samples.jsonl holds it, judged as the eval does."""
    ticket = stage_b.judge(texts, case(label, group_id=group_id))
    domain = "rru" if mission == RRU else "bbu"
    return {
        "case_id": f"{label}/{group_id}",
        "outcome": "pass",
        "problem": None,
        "tags": {"mission": mission, "domain": domain, "label": label},
        "scores": ticket.scores,
        "details": json.loads(json.dumps(ticket.details)),
        "started_at": "2030-01-01T00:00:00+00:00",
        **changes,
    }


def test_the_shipped_tickets_are_72_of_six_missions() -> None:
    cases = stage_b.load_cases(ROOT)
    assert len(cases) == len({case.id for case in cases}) == 72
    assert all(isinstance(one, stage_b.StageBCase) and one.invalid is None for one in cases)
    assert len({one.tags["mission"] for one in cases}) == 6


def test_a_case_has_its_group_mission_and_label(tmp_path: Path) -> None:
    (one,) = stage_b.load_cases(folder(tmp_path, ticket_row()))
    assert isinstance(one, stage_b.StageBCase)
    assert (one.id, one.group, one.reference, one.ticket_key) == (f"rru-install/fail/{ID}", ID, "fail", f"{ID}::fail")
    assert one.tags == {"mission": RRU, "domain": "rru", "label": "fail"}
    assert (one.summaries, one.rules) == (("无关图片",), RULES)


def test_one_order_under_two_labels_is_two_cases_and_a_bad_row_an_invalid_one(tmp_path: Path) -> None:
    rows = ticket_row(), ticket_row("banana"), ticket_row("pass")
    with pytest.warns(DataWarning, match=f"{RRU}_stage_a.jsonl:2 is not a ticket: label must be one of pass, fail, got 'banana'"):
        cases = stage_b.load_cases(folder(tmp_path, *rows))
    assert [one.ticket_key for one in cases if isinstance(one, stage_b.StageBCase)] == [f"{ID}::fail", f"{ID}::pass"]
    assert [one.id for one in cases] == [f"rru-install/fail/{ID}", f"rru-install/pass/{ID}", "rru-install/line_2"]
    assert "label must be one of" in (cases[2].invalid or "")


def test_one_missions_folder_gives_its_tickets_alone_and_files_of_unknown_missions_are_a_warning(tmp_path: Path) -> None:
    (folder(tmp_path, ticket_row(), ticket_row(mission=BBU)) / RRU).mkdir()
    assert [one.tags["mission"] for one in stage_b.load_cases(tmp_path)] == [BBU, RRU]
    assert [one.tags["mission"] for one in stage_b.load_cases(tmp_path / RRU)] == [RRU]
    (tmp_path / "Other_stage_a.jsonl").write_text("")
    with pytest.warns(DataWarning, match="not missions, left out: Other"):
        assert len(stage_b.load_cases(tmp_path)) == 2


def test_missing_data_rules_or_tickets_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no data folder was given; give one with --data"):
        stage_b.load_cases(None)
    with pytest.raises(ConfigError, match="does not exist"):
        stage_b.load_cases(tmp_path / "absent")
    with pytest.raises(ConfigError, match="no Stage-A summaries in"):
        stage_b.load_cases(tmp_path)
    with pytest.raises(ConfigError, match=r"guidance .*guidance.json cannot be read"):
        (tmp_path / f"{RRU}_stage_a.jsonl").write_text(json.dumps(ticket_row()))
        stage_b.load_cases(tmp_path)
    with pytest.raises(ConfigError, match=f"has no rules for {RRU}; it has some for {BBU}"):
        stage_b.load_cases(folder(tmp_path, ticket_row(), missions=(BBU,)))
    with pytest.raises(RecordError, match="holds no ticket"):
        stage_b.load_cases(folder(tmp_path, ticket_row("?")))


@pytest.mark.parametrize("spare", [0, -1], ids=["exactly", "one-too-many"])
def test_a_prompt_of_the_budget_is_kept_and_one_token_more_is_dropped_and_listed(spare: int) -> None:
    assert isinstance(stage_b.request(case()), TextGenerationRequest)
    engine = Engine(FakeBackend.from_answers([PASSES]))
    (whole,) = engine.generate_text_batch([stage_b.request(case())], GenerationOptions())
    options = GenerationOptions(max_prompt_tokens=(whole.num_prompt_tokens or 0) + spare)
    ((_, outcome),) = engine.stream([stage_b.request(case())], options)
    if spare == 0:
        assert outcome == whole
        return
    assert isinstance(outcome, GenerationFailure)
    assert (outcome.kind, type(outcome.error)) == ("invalid", PromptTooLong)
    row = judged_row("fail", FAILS) | {"outcome": "invalid", "problem": outcome.problem, "cause": outcome.cause, "details": None}
    metrics = baseline_metrics(RRU, [judged_row("pass", PASSES), row])
    assert (metrics["n_total"], metrics["n_used"], metrics["n_dropped_overlength"], metrics["acc"]) == (2, 1, 1, 1.0)


def test_one_right_answer() -> None:
    ticket = stage_b.judge([FAILS], case("fail"))
    assert ticket.is_right
    assert ticket.scores == {
        "valid": 1, "strict": 1, "accuracy": 1, "agreement": 1, "difficulty": 0, "hard_wrong": 0, "thinking": 0, "third_state": 0
    }  # fmt: skip
    assert ticket.details == {
        "ticket_key": f"{ID}::fail",
        "num_images": 1,
        "prediction": "fail",
        "votes": {"pass": 0, "fail": 1, "invalid": 0},
        "verdicts": ["fail"],
        "reasons": ["Image1: 见RRU; 总结: 如上"],
        "problems": [],
    }


def test_votes_are_counted_and_invalid_answers_have_none() -> None:
    ticket = stage_b.judge([PASSES, FAILS, "…"], case("pass"))
    assert (ticket.ballot.prediction, ticket.scores["agreement"], ticket.details["votes"]["invalid"]) == ("fail", 0.5, 1)
    assert ticket.scores["valid"] == pytest.approx(2 / 3)
    assert ticket.problem.startswith("judged fail, should be pass (1 pass, 1 fail, 1 invalid): ")
    for label in ("pass", "fail"):
        ticket = stage_b.judge(["?", "!"], case(label))
        assert (ticket.is_right, ticket.ballot.prediction, ticket.scores["valid"], ticket.scores["hard_wrong"]) == (False, None, 0, 0)
    scores = stage_b.judge([f"<think>x</think>{PASSES}", f"{PASSES}待定"], case("pass", 1)).scores
    assert (scores["thinking"], scores["third_state"], scores["valid"], scores["strict"]) == (0.5, 0.5, 0.5, 0.0)


ANSWERS = st.lists(st.one_of(st.sampled_from([PASSES, FAILS, "…", f"<think>{PASSES}"]), st.text()), min_size=1, max_size=6)


@given(ANSWERS, st.sampled_from(["pass", "fail"]), st.randoms())
def test_the_order_of_answers_changes_no_number(texts: list[str], label: str, order: Any) -> None:
    shuffled = order.sample(texts, len(texts))
    assert stage_b.judge(shuffled, case(label)).scores == stage_b.judge(texts, case(label)).scores


def test_the_references_that_the_trainer_wrote_are_all_strict_and_right() -> None:
    for one in stage_b.load_cases(ROOT):
        assert isinstance(one, stage_b.StageBCase)
        summaries = [text if text == "无关图片" else json.loads(text) for text in one.summaries]
        ticket = stage_b.judge([verdict_answer(one.mission, summaries)], one)
        assert ticket.verdicts[0].strict, ticket.verdicts[0].problem
        assert ticket.is_right


ROWS = [
    judged_row("pass", PASSES, group_id="1"),
    judged_row("pass", PASSES, group_id="2"),
    judged_row("pass", FAILS, group_id="3"),
    judged_row("fail", PASSES, group_id="4"),
    judged_row("fail", FAILS, group_id="5", mission=BBU),
    judged_row("fail", FAILS, group_id="6", mission=BBU),
]


def test_rates_and_tables_of_rows() -> None:
    found = stage_b.aggregate(ROWS)
    assert (found["fp_rate"], found["false_release_rate"], found["false_block_rate"]) == pytest.approx((1 / 6, 1 / 3, 1 / 3))
    assert "accuracy" not in found  # a mean of the tickets' own
    tables = stage_b.tables(ROWS)
    assert [line["mission"] for line in tables["Verdicts by mission"]] == [RRU, BBU]
    line = tables["Verdicts by domain"][0]
    names = "domain, tickets, released rightly, blocked rightly, released wrongly, blocked wrongly, no verdict, accuracy"
    assert list(line) == [*names.split(", "), "false release rate", "false block rate"]
    assert list(line.values()) == ["rru", 4, 2, 0, 1, 1, 0, 0.5, 1 / 3, 1 / 3]
    rows = [judged_row("pass", f"{PASSES}待定"), judged_row("fail", "…"), judged_row("fail", f"{FAILS}复核")]
    wrong = stage_b.tables(rows)["What was wrong with answers"]
    assert wrong == [{"problem": "third_state", "tickets": 2}, {"problem": "lines", "tickets": 1}]
    assert set(stage_b.aggregate([]).values()) == {0.0}
    assert stage_b.tables([]) == {"Verdicts by mission": [], "Verdicts by domain": []}


def target(folder: Path) -> OutputTarget:
    return OutputTarget(folder, "hf:x")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").split("\n") if line]


def test_the_row_of_a_ticket_has_the_documented_keys() -> None:
    stats = ticket_stats(judged_row("fail", PASSES, PASSES, FAILS))
    documented = "ticket_key gt_label majority_pred agreement hard_wrong pass_count fail_count invalid_count total_samples n_images"
    assert list(stats) == documented.split()
    assert list(stats.values()) == [f"{ID}::fail", "fail", "pass", 0.6667, 0.6667, 2, 1, 0, 3, 1]


def test_the_metrics_of_a_mission_have_the_documented_keys_and_counts() -> None:
    metrics = baseline_metrics(RRU, [*ROWS[:4], judged_row("fail", "…", group_id="7"), judged_row("pass", "…", group_id="8")])
    documented = "timestamp mission mode n_total n_used n_dropped_overlength acc fn fp tp fn_rate fp_rate np ng"
    assert list(metrics) == [*documented.split(), "n_invalid"]
    assert (metrics["tp"], metrics["fn"], metrics["np"], metrics["fp"], metrics["ng"], metrics["n_invalid"]) == (2, 2, 2, 2, 2, 2)
    assert (metrics["acc"], metrics["fn_rate"], metrics["fp_rate"]) == pytest.approx((2 / 6, 2 / 6, 2 / 6))
    assert metrics["timestamp"] == "2030-01-01T00:00:00+00:00"


def test_wrong_tickets_come_most_confident_first_with_their_reasons() -> None:
    rows = [judged_row("fail", PASSES, FAILS, PASSES, group_id="b"), judged_row("fail", PASSES, group_id="c"), judged_row("pass", PASSES)]
    wrong = wrong_cases(rows)
    assert [(row["ticket_key"], row["rank"], row["hard_wrong"]) for row in wrong] == [("c::fail", 1, 1.0), ("b::fail", 2, 0.6667)]
    assert wrong[1]["verdict_samples"] == ["pass", "fail", "pass"]
    assert wrong[1]["reason_counts"] == [{"reason": "Image1: 见RRU; 总结: 如上", "count": 3}]


def test_files_are_written_by_mission(tmp_path: Path) -> None:
    problem = "the prompt has 9 tokens, max_prompt_tokens is 8; …"
    dropped = ROWS[0] | {"outcome": "invalid", "problem": problem, "cause": "PromptTooLong", "details": None, "scores": {}}
    stage_b.write_outputs([*ROWS, dropped], target(tmp_path))
    rru = tmp_path / "stage_b" / RRU
    tables = [f"baseline_{name}.jsonl" for name in ("metrics_steps", "ng_cases", "np_cases", "ticket_stats", "wrong_cases")]
    assert sorted(path.name for path in rru.iterdir()) == ["baseline_metrics.json", *tables, "dropped.jsonl"]
    metrics = json.loads((rru / "baseline_metrics.json").read_text("utf-8"))
    assert (metrics["n_total"], metrics["n_used"], metrics["n_dropped_overlength"]) == (5, 4, 1)
    assert lines(rru / "baseline_metrics_steps.jsonl") == [{"step": 0, **metrics}]
    assert len(lines(rru / "baseline_ticket_stats.jsonl")) == 4
    assert [row["ticket_key"] for row in lines(rru / "baseline_np_cases.jsonl")] == ["3::pass"]
    assert [row["ticket_key"] for row in lines(rru / "baseline_ng_cases.jsonl")] == ["4::fail"]
    assert [row["problem"] for row in lines(rru / "dropped.jsonl")] == [problem]
    assert lines(tmp_path / "stage_b" / BBU / "baseline_wrong_cases.jsonl") == []


def test_a_second_test_of_the_same_tickets_changes_no_file(tmp_path: Path) -> None:
    first = [row | {"test": "test_verdict"} for row in ROWS]
    second = [row | {"test": "test_form", "details": {"own": 1}} for row in ROWS]
    stage_b.write_outputs(first, target(tmp_path / "one"))
    stage_b.write_outputs([*second, *first], target(tmp_path / "two"))
    for path in (tmp_path / "one").rglob("*.json*"):
        assert (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes() == path.read_bytes()
    assert stage_b.aggregate(second) == stage_b.aggregate([])


def test_any_reason_can_be_written_and_a_bad_row_is_counted(tmp_path: Path) -> None:
    bad = {"case_id": "rru-install/line_2", "outcome": "invalid", "problem": "x", "tags": {"mission": RRU, "domain": "rru"}, "scores": {}}
    stage_b.write_outputs([judged_row("fail", "Verdict: 通过\nReason: 半\ud800\u2028个"), bad], target(tmp_path))
    (row,) = lines(tmp_path / "stage_b" / RRU / "baseline_wrong_cases.jsonl")
    assert row["reason_samples"] == ["半\ud800\u2028个"]
    assert json.loads((tmp_path / "stage_b" / RRU / "baseline_metrics.json").read_text("utf-8"))["n_total"] == 2
