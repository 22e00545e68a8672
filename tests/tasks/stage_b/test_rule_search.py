"""The search for rules, run on the engine with answers whose gains are known. Run: pytest tests/tasks/stage_b/test_rule_search.py"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import BackendError, ConfigError, ContractValueError, RecordError
from evalharness.api.options import ModelLoadConfig
from evalharness.backends.fake import FakeAnswer, FakeBackend
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine
from evalharness.tasks import stage_b
from evalharness.tasks.stage_b.files import Guidance, Ticket, read_guidance
from evalharness.tasks.stage_b.rule_folder import SearchFolder
from evalharness.tasks.stage_b.rule_gate import GateLimits
from evalharness.tasks.stage_b.rule_proposals import Candidate
from evalharness.tasks.stage_b.rule_report import summary, tables
from evalharness.tasks.stage_b.rule_search import (
    BENCHMARKS,
    CANDIDATES,
    DROPPED,
    FAILURES,
    HARD_CASES,
    LOGS,
    REFUSED,
    REGRESSIONS,
    RuleSearch,
    SearchSettings,
    changed_rules,
    split,
)

RRU = "RRU安装检查"
RULES = {"G0": "需同时见到RRU设备与紧固件", "S1": "缺少关键证据则判定不通过", "G1": "若紧固件不合格，则判定不通过"}
GUIDANCE = Guidance(0, "2030-01-01T00:00:00+00:00", RULES)
# Eight good orders, and eight bad ones that are only blocked once a rule speaks of loose clamps.
TICKETS = [
    Ticket(f"QC-{number}", RRU, label, (text,)) for label, text in (("pass", "紧固件齐全"), ("fail", "紧固件松动")) for number in range(8)
]
LOOSE = "若任一紧固件松动，则判定不通过"
BLOCKS_ALL = "若未见无关图片，则判定不通过"
LIMITS = GateLimits(max_changed_fraction=0.5)
SETTINGS = SearchSettings(limits=LIMITS)

DECISION = {"no_evidence_group_ids": [], "decision_analysis": "都可判"}
REFLECTION = {
    "has_evidence": True,
    "evidence_analysis": "未考虑松动",
    "operations": [{"op": "add", "text": BLOCKS_ALL, "rationale": "从严", "evidence": ["QC-1::fail"]}, {"op": "none"}],
    "hypotheses": [],
}
PROPOSAL = {
    "operations": [
        {"op": "upsert", "text": "若紧固件松动，则待定"},
        {"op": "upsert", "text": "若BBU品牌为中兴，则判定通过"},
        {"op": "upsert", "text": LOOSE, "rationale": "松动未拦截"},
        {"op": "remove", "target_signature": RULES["S1"]},
    ]
}


class Model:
    """Judges by the rules in the prompt, and answers the questions about its mistakes with given objects or texts."""

    def __init__(self, *, decision: Any = DECISION, reflection: Any = REFLECTION, proposal: Any = PROPOSAL) -> None:
        self._answers = {"no_evidence_group_ids": decision, '"has_evidence"': reflection, '"op": "upsert"': proposal}
        self.asked: list[str] = []
        self.fails_at: int | None = None

    def __call__(self, prompt: Any) -> FakeAnswer:
        self.asked.append(prompt.text)
        if len(self.asked) == self.fails_at:
            return FakeAnswer(error="the card is gone")
        for mark, answer in self._answers.items():
            if mark in prompt.text:
                return FakeAnswer(answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))
        blocked = BLOCKS_ALL in prompt.text or (LOOSE in prompt.text and "Image1: 紧固件松动" in prompt.text)
        return FakeAnswer(f"Verdict: {'不通过' if blocked else '通过'}\nReason: Image1: 见紧固件; 总结: 如上")

    def engine(self) -> Engine:
        return Engine(FakeBackend.from_answers(self))


def search_of(settings: SearchSettings = SETTINGS, **options: Any) -> RuleSearch:
    return RuleSearch(RRU, TICKETS, GUIDANCE, dict.fromkeys((ticket.key for ticket in TICKETS), stage_b.ONE_VOTE), settings, **options)


def run(root: Path, model: Model, settings: SearchSettings = SETTINGS, started_from: Mapping[str, Any] | None = None) -> RuleSearch:
    folder = SearchFolder(root, started_from or {"rules": RULES})
    search = search_of(settings, stamp=folder.stamp)
    folder.run(search, model.engine)
    return search


def rows(root: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (root / name).read_text("utf-8").splitlines()] if (root / name).exists() else []


def test_a_good_rule_is_promoted_and_a_bad_one_rejected_with_the_rates_before_and_after(tmp_path: Path) -> None:
    search = run(tmp_path, Model())
    bad, good = rows(tmp_path, CANDIDATES)
    # 12 train tickets, 6 of them bad orders that were released; 4 held-out ones, 2 of them such.
    assert {name: bad[name] for name in ("source", "text", "decision", "base_acc", "cand_acc", "rer", "changed_fraction", "n")} == {
        "source": "reflection", "text": BLOCKS_ALL, "decision": "rejected", "base_acc": 0.5, "cand_acc": 0.5, "rer": 0.0,
        "changed_fraction": 1.0, "n": 12,
    }  # fmt: skip
    assert (bad["base_false_release"], bad["cand_false_release"], bad["base_false_block"], bad["cand_false_block"]) == (0.5, 0, 0, 1)
    assert bad["failed"] == ["rer", "changed_fraction", "probability"]
    assert (good["source"], good["text"], good["decision"], good["rer"], good["changed_fraction"]) == (
        "proposal", LOOSE, "promoted", 1.0, 0.5,
    )  # fmt: skip
    assert (good["base_acc"], good["cand_acc"], good["base_false_release"], good["cand_false_release"]) == (0.5, 1.0, 0.5, 0.0)
    assert (good["eval_n"], good["eval_base_acc"], good["eval_acc"], good["eval_base_false_release"], good["eval_false_release"]) == (
        4, 0.5, 1.0, 0.5, 0.0,
    )  # fmt: skip
    assert search.ended == "no train ticket is judged wrongly"
    assert [(row["round"], row["step"], row["acc"], row["eval_acc"], row["promoted"]) for row in rows(tmp_path, BENCHMARKS)] == [
        (0, 0, 0.5, 0.5, 0), (1, 1, 1.0, 1.0, 1),
    ]  # fmt: skip


def test_the_files_are_those_of_the_original(tmp_path: Path) -> None:
    run(tmp_path, Model())
    hard = rows(tmp_path, HARD_CASES)
    assert [row["rank"] for row in hard] == [1, 2, 3, 4, 5, 6]
    assert {(row["gt_label"], row["majority_pred"], row["hard_wrong"], row["agreement"]) for row in hard} == {("fail", "pass", 1.0, 1.0)}
    refused = rows(tmp_path, REFUSED)
    assert [(row["source"], row["place"], row["guard"]) for row in refused] == [
        ("proposal", 0, "third state"), ("proposal", 1, "brand"), ("proposal", 3, "protected rule"),
    ]  # fmt: skip
    lost = rows(tmp_path, REGRESSIONS)
    assert len(lost) == 8, "the bad rule blocks every good order"
    assert sorted(row["pool"] for row in lost) == ["eval"] * 2 + ["train"] * 6
    assert {(row["decision"], row["gt_label"], row["base_pred"], row["cand_pred"]) for row in lost} == {
        ("rejected", "pass", "pass", "fail")
    }
    guidance = read_guidance(tmp_path / "guidance.json")[RRU]
    assert (guidance.step, guidance.experiences) == (1, {**RULES, "G2": LOOSE})
    (promoted,) = [row for row in rows(tmp_path, CANDIDATES) if row["decision"] == "promoted"]
    assert guidance.updated_at == promoted["timestamp"]
    about = guidance.metadata["G2"]
    assert (about["hit_count"], about["miss_count"], about["rationale"]) == (6, 0, "松动未拦截")
    assert (about["sources"], about["confidence"]) == ([row["ticket_key"] for row in hard], promoted["probability"])
    assert read_guidance(tmp_path / "snapshots" / "guidance-000001.json")[RRU].experiences == RULES
    assert json.loads((tmp_path / "search.json").read_text())["ended"] == "no train ticket is judged wrongly"


def test_the_summary_names_guards_conditions_and_promoted_rules(tmp_path: Path) -> None:
    one = summary(RRU, run(tmp_path, Model()).logs)
    assert (one["proposed"], one["usable"], one["hard_cases"], one["train"], one["held_out"]) == (5, 0.4, 6, 12, 4)
    assert one["refused"] == {"third state": 1, "brand": 1, "protected rule": 1}
    assert one["rejected"] == {"rer": 1, "changed_fraction": 1, "probability": 1}
    assert (one["before"]["acc"], one["after"]["acc"], one["before"]["eval_acc"], one["after"]["eval_acc"]) == (0.5, 1.0, 0.5, 1.0)
    made = tables([one, one])
    assert list(made) == [
        "Search for rules", "Which guard refused proposed changes", "Which condition rejected candidates", "Promoted rules",
    ]  # fmt: skip
    assert {"guard": "brand", "changes": 2} in made["Which guard refused proposed changes"]
    assert made["Promoted rules"][0]["rule"] == LOOSE


UNREADABLE = {
    "no JSON": "我认为应当从严",
    "cut off": '{"operations": [{"op": "upsert", "text": "若',
    "both forms": '{"operations": [], "rules": []}',
    "empty": "",
}


@pytest.mark.parametrize("text", UNREADABLE.values(), ids=UNREADABLE.keys())
def test_an_unreadable_answer_proposes_nothing_and_is_kept_as_a_failure(tmp_path: Path, text: str) -> None:
    search = run(tmp_path, Model(decision=text, reflection=text, proposal=text))
    failures = rows(tmp_path, FAILURES)
    assert [(row["round"], row["question"]) for row in failures] == [
        (number, question) for number in (1, 2) for question in ("decision", "reflection", "proposal")
    ]
    assert {row["response"] for row in failures} == {text}
    assert (rows(tmp_path, CANDIDATES), search.ended) == ([], "2 rounds in a row promoted nothing")
    assert summary(RRU, search.logs)["refused"] == {"unreadable answer": 4}


def test_tickets_without_evidence_are_left_out_of_reflection_and_proposal(tmp_path: Path) -> None:
    keys = [ticket.key for ticket in TICKETS if ticket.label == "fail"]
    model = Model(decision=f'{{"no_evidence_group_ids": ["{min(set(keys) - split(TICKETS, 0.25, 0))}"], "decision_analysis": ""}}')
    run(tmp_path, model)
    shown = [text.count("正确结论 不通过") for text in model.asked if "错判工单" in text]
    assert shown == [6, 5, 5]


def test_what_was_rejected_is_named_to_the_proposer_and_not_tried_again(tmp_path: Path) -> None:
    model = Model(proposal={"operations": [{"op": "upsert", "text": BLOCKS_ALL}]})
    run(tmp_path, model)
    (candidate,) = rows(tmp_path, CANDIDATES)
    assert candidate["decision"] == "rejected"
    guards = [(row["round"], row["source"], row["guard"]) for row in rows(tmp_path, REFUSED)]
    assert guards == [(1, "proposal", "duplicate"), (2, "proposal", "rejected before"), (2, "reflection", "rejected before")]
    assert [f"已被否决: {BLOCKS_ALL}" in text for text in model.asked if '"op": "upsert"' in text] == [False, True]


def test_a_search_that_broke_off_goes_on_and_comes_to_the_same(tmp_path: Path) -> None:
    whole, broken = Model(), Model()
    run(tmp_path / "whole", whole)
    broken.fails_at = len(whole.asked) - 10
    with pytest.raises(BackendError, match="1 of 16 requests failed: the card is gone; run the same command again"):
        run(tmp_path / "broken", broken)
    begun = {name: rows(tmp_path / "broken", name) for name in LOGS}
    assert begun[CANDIDATES], "the first candidate was decided"
    with (tmp_path / "broken" / "reflection_cache" / "answers.jsonl").open("ab") as file:
        file.write(b'{"key": "cut o')  # the process was killed while it wrote
    again = Model()
    run(tmp_path / "broken", again)
    assert len(again.asked) == 1, "only the answer that was missing"
    for name in LOGS:
        ended, expected = rows(tmp_path / "broken", name), rows(tmp_path / "whole", name)
        assert ended[: len(begun[name])] == begun[name], "times of rows stay, too"
        assert [{**row, "timestamp": ""} for row in ended] == [{**row, "timestamp": ""} for row in expected]
    run(tmp_path / "broken", broken := Model())
    assert broken.asked == []


def test_a_folder_that_cannot_be_written_or_is_in_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RecordError, match="cannot be written: .*; choose another folder with --out"):
        run(tmp_path / "file" / "x", Model())

    class Second(Model):
        def __call__(self, prompt: Any) -> FakeAnswer:
            with pytest.raises(RecordError, match="another process searches in"):
                run(tmp_path / "shared", Model())
            return super().__call__(prompt)

    run(tmp_path / "shared", Second(), replace(SETTINGS, rounds=1))


def test_more_rounds_go_on_and_fewer_are_refused_and_take_nothing_away(tmp_path: Path) -> None:
    nothing = {"operations": []}
    one_round, patient = replace(SETTINGS, rounds=1), replace(SETTINGS, rounds=3, patience=3)
    assert run(tmp_path, Model(proposal=nothing), one_round).ended == "1 round was asked for"
    run(tmp_path, Model(proposal=nothing), patient)
    assert [row["round"] for row in rows(tmp_path, BENCHMARKS)] == [0, 1, 2, 3]
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json*")}
    with pytest.raises(ConfigError, match="holds a search that went on for longer; raise --rounds or --patience, or choose another"):
        run(tmp_path, Model(proposal=nothing), one_round)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.json*")} == before


ANSWERS = "reflection_cache/answers.jsonl"


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _link(path: Path) -> None:
    elsewhere = path.parents[1] / "elsewhere"
    elsewhere.write_text("a line that has no end")
    path.unlink()
    path.symlink_to(elsewhere)


DAMAGED: dict[str, tuple[str, str | Callable[[Path], None], str]] = {
    "pipe of answers": (ANSWERS, _pipe, "answers.jsonl cannot be written: it is not a regular file; choose another folder"),
    "pipe of rules": ("guidance.json", _pipe, "guidance.json cannot be written: .* not a regular file"),
    "link": (ANSWERS, _link, "answers.jsonl cannot be written: it is a link; choose another folder"),
    "no answer": (ANSWERS, "[]\n", "answers.jsonl:1 is not an answer"),
    "null": (CANDIDATES, "null\n", f"{CANDIDATES}:1 is not a row of a search"),
    "no time": (BENCHMARKS, "{}\n", f"{BENCHMARKS}:1 is not a row of a search"),
    "another time": (CANDIDATES, '{"timestamp": "<script>"}\n', f"{CANDIDATES}:1 is not a row of a search"),
}


@pytest.mark.parametrize("name, content, message", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_named_and_none_elsewhere_is_touched(
    tmp_path: Path, name: str, content: str | Callable[[Path], None], message: str
) -> None:
    run(tmp_path, Model())
    if isinstance(content, str):
        (tmp_path / name).write_text(content)
    else:
        content(tmp_path / name)
    with pytest.raises(RecordError, match=message):
        run(tmp_path, Model())
    if (tmp_path / "elsewhere").exists():
        assert (tmp_path / "elsewhere").read_text() == "a line that has no end"


def _other_start(root: Path) -> None:
    run(root, Model(), started_from={"rules": {**RULES, "G1": "x"}})


def _other_rows(root: Path) -> None:
    (root / REFUSED).write_text('{"guard": "brand"}\n')
    run(root, Model())


def _other_guidance(root: Path) -> None:
    path = root / "guidance.json"
    path.write_text(path.read_text("utf-8").replace(LOOSE, "若接地线松动，则判定不通过"), "utf-8")
    run(root, Model())


FOREIGN: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "start": (_other_start, ConfigError, "started from other rules; choose another folder with --out"),
    "rows": (_other_rows, RecordError, f"{REFUSED}:1 is not what this search comes to"),
    "guidance": (_other_guidance, RecordError, "guidance.json was changed by someone else at step 1"),
}


@pytest.mark.parametrize("change, error, message", FOREIGN.values(), ids=FOREIGN.keys())
def test_the_folder_of_another_search_is_refused_and_left_as_it_is(
    tmp_path: Path, change: Callable[[Path], None], error: type[Exception], message: str
) -> None:
    run(tmp_path, Model())
    with pytest.raises(error, match=message):
        change(tmp_path)
    assert len(rows(tmp_path, CANDIDATES)) == 2


def test_a_ticket_over_budget_is_dropped_and_a_question_over_budget_is_a_failure(tmp_path: Path) -> None:
    model = Model()
    longest = max(len(text) for text in _prompts(Model(), tmp_path / "a") if "错判工单" not in text)
    long = Ticket("QC-long", RRU, "fail", ("紧固件松动" * 400,))
    folder = SearchFolder(tmp_path / "b", {})
    options = replace(stage_b.ONE_VOTE[0], max_prompt_tokens=longest + 500)
    search = RuleSearch(
        RRU, [*TICKETS, long], GUIDANCE, {ticket.key: [options] for ticket in [*TICKETS, long]}, SETTINGS, stamp=folder.stamp
    )
    folder.run(search, model.engine)
    assert {row["ticket_key"] for row in rows(tmp_path / "b", DROPPED)} == {"QC-long::fail"}
    assert rows(tmp_path / "b", BENCHMARKS)[-1]["acc"] == 1.0
    engine = Engine(FakeBackend.from_answers(Model(), max_model_len=longest + 400))
    folder = SearchFolder(tmp_path / "c", {})
    search = search_of(stamp=folder.stamp)
    folder.run(search, lambda: engine)
    assert {row["question"] for row in rows(tmp_path / "c", FAILURES)} == {"decision", "reflection", "proposal"}


def test_a_rule_with_which_a_ticket_cannot_be_asked_is_rejected(tmp_path: Path) -> None:
    class Short(Model):
        def __call__(self, prompt: Any) -> FakeAnswer:
            is_full = LOOSE in prompt.text and "Image1: 很长" in prompt.text
            return FakeAnswer(invalid="too long") if is_full else super().__call__(prompt)

    tickets = [*TICKETS, Ticket("QC-long", RRU, "pass", ("很长",))]
    folder = SearchFolder(tmp_path, {})
    decode = dict.fromkeys((ticket.key for ticket in tickets), stage_b.ONE_VOTE)
    folder.run(RuleSearch(RRU, tickets, GUIDANCE, decode, SETTINGS, stamp=folder.stamp), Short().engine)
    (row,) = (row for row in rows(tmp_path, CANDIDATES) if row["text"] == LOOSE)
    assert (row["decision"], row["failed"]) == ("rejected", ["dropped"])
    assert row["reasons"] == ["with it 1 ticket cannot be asked, such as QC-long::pass"]
    assert rows(tmp_path, BENCHMARKS)[-1]["acc"] == rows(tmp_path, BENCHMARKS)[0]["acc"]


def _prompts(model: Model, root: Path) -> list[str]:
    run(root, model)
    return model.asked


@pytest.mark.engine
@pytest.mark.slow
def test_a_checkpoint_that_has_not_learned_to_reflect_gets_failures_and_no_rules(tmp_path: Path) -> None:
    root = Path(__file__).parents[3] / "fixtures"
    cases = [case for case in stage_b.load_cases(root / "site_photos" / RRU) if isinstance(case, stage_b.StageBCase)]
    tickets = [Ticket(case.group_id, RRU, case.label, case.summaries) for case in (*cases[:1], *cases[-3:])]
    decode = dict.fromkeys((ticket.key for ticket in tickets), stage_b.ONE_VOTE)
    settings = SearchSettings(rounds=1, num_hard_cases=1, max_answer_tokens=24, held_out=0)
    search = RuleSearch(RRU, tickets, replace(GUIDANCE, experiences=cases[0].rules), decode, settings)
    with build_engine("hf", ModelLoadConfig(str(root / "checkpoints" / "middle"), torch_dtype="float32", device="cpu")) as engine:
        SearchFolder(tmp_path, {}).run(search, lambda: engine)
    assert rows(tmp_path, HARD_CASES), "the checkpoint judges one of these wrongly"
    assert summary(RRU, search.logs)["refused"] == {"unreadable answer": 2}
    assert {row["problem"] for row in rows(tmp_path, FAILURES)} == {"the answer holds no JSON object"}
    assert read_guidance(tmp_path / "guidance.json")[RRU] == search.guidance == replace(GUIDANCE, experiences=cases[0].rules)


CHANGES = {
    "new": ("upsert", "x", (), {**RULES, "G2": "x"}),
    "reworded": ("update", "x", ("G1",), {**RULES, "G1": "x"}),
    "removed": ("remove", "", ("G1",), {"G0": RULES["G0"], "S1": RULES["S1"]}),
}


@pytest.mark.parametrize("op, text, targets, expected", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_gives_the_rules_after_it(op: Any, text: str, targets: tuple[str, ...], expected: dict[str, str]) -> None:
    assert changed_rules(RULES, Candidate(op, text, "", targets, "id")) == expected


def test_a_merged_rule_takes_the_first_number_and_a_new_one_the_next_after_the_last() -> None:
    rules = {**RULES, "G2": "b", "G10": "c"}
    assert changed_rules(rules, Candidate("merge", "x", "", ("G10", "G2"), "id")) == {**RULES, "G2": "x"}
    assert list(changed_rules(rules, Candidate("upsert", "x", "", (), "id"))) == ["G0", "S1", "G1", "G2", "G10", "G11"]


def test_the_split_takes_a_share_of_each_label_and_depends_on_nothing_but_keys_and_seed() -> None:
    drawn = split(TICKETS, 0.25, 0)
    assert sorted(key.partition("::")[2] for key in drawn) == ["fail", "fail", "pass", "pass"]
    assert split(reversed(TICKETS), 0.25, 0) == drawn != split(TICKETS, 0.25, 1)
    assert split(TICKETS[:1], 0.9, 0) == frozenset(), "a single ticket trains"


def test_as_many_hard_cases_are_shown_as_fit_and_one_at_least(tmp_path: Path) -> None:
    for limits, number in (({"num_hard_cases": 2}, 2), ({"max_evidence_chars": 1}, 1)):
        model = Model()
        run(tmp_path / str(number), model, replace(SETTINGS, rounds=1, **limits))
        assert {text.count("正确结论 不通过") for text in model.asked if "错判工单" in text} == {number}


def test_after_a_round_in_vain_the_next_mistakes_are_shown(tmp_path: Path) -> None:
    run(tmp_path, Model(proposal=""), replace(SETTINGS, num_hard_cases=4))
    assert [row["rank"] for row in rows(tmp_path, HARD_CASES)] == [1, 2, 3, 4, 5, 6, 1, 2]


@pytest.mark.parametrize("field, value", [("rounds", 0), ("patience", 0), ("num_hard_cases", 0), ("held_out", 1.0), ("held_out", -0.1)])
def test_settings_out_of_range_are_refused(field: str, value: Any) -> None:
    with pytest.raises(ContractValueError, match=f"{field} must be .*, got {value}"):
        SearchSettings(**{field: value})
