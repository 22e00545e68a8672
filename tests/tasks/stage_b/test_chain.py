"""Stage-B on the checkpoint's own summaries: what is asked, and whose mistake it was. Run: pytest tests/tasks/stage_b/test_chain.py"""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.cases import OutputTarget
from evalharness.api.errors import ConfigError
from evalharness.api.requests import GenerationResult, TextGenerationRequest, VlmGenerationRequest
from evalharness.tasks import stage_a, stage_b
from evalharness.tasks.stage_b import chain as stage_b_chain
from evalharness.tasks.stage_b.chain import ChainCase, JudgedChain
from tests.tasks.stage_a_examples import CLAMP, RADIO, RRU_HEADER, line, rru

ROOT = Path(__file__).parents[3] / "fixtures" / "site_photos"
RRU = "RRU安装检查"
PASSES, FAILS = (f"Verdict: {word}\nReason: Image1: 见RRU; 总结: 如上" for word in ("通过", "不通过"))
SEEN, UNSEEN = line(rru(RADIO, CLAMP)), line(rru(RADIO))


@pytest.fixture(scope="module")
def cases() -> list[ChainCase]:
    return stage_b_chain.load_cases(ROOT)


def said(text: str) -> GenerationResult:
    return GenerationResult(text, text, "stop")


def walk(case: ChainCase, answer: Callable[[Any], str]) -> tuple[list[list[GenerationResult]], TextGenerationRequest]:
    """Return the results of the request's steps and its question, all asked of `answer`."""
    asking = stage_b_chain.request(case)
    steps: list[list[GenerationResult]] = []
    step = next(asking)
    while True:
        steps.append([said(answer(request)) for request in step[0]])
        try:
            step = asking.send(steps[-1])
        except StopIteration as end:
            return steps, end.value


def one_photo(root: Path, label: str = "pass", reference: str | None = SEEN) -> ChainCase:
    """Return the case of a work order with one photo, its reference in a file beside it."""
    photo = root / RRU / {"pass": "审核通过", "fail": "审核不通过"}[label] / "g" / "1.png"
    photo.parent.mkdir(parents=True)
    shutil.copy(next(ROOT.rglob("*.png")), photo)
    shutil.copy(ROOT / "guidance.json", root)
    if reference is not None:
        row = {"group_id": "g", "mission": RRU, "label": label, "images": ["1.png"], "per_image": {"image_1": reference}}
        (root / f"{RRU}_stage_a.jsonl").write_text(json.dumps(row), "utf-8")
    (case,) = stage_b_chain.load_cases(root)
    return case


def test_the_shipped_work_orders_are_72_with_all_their_photos(cases: list[ChainCase]) -> None:
    assert len(cases) == 72
    assert sum(len(case.photos) for case in cases) == 182
    assert all(case.references is not None and case.invalid is None for case in cases)
    assert {case.id for case in cases} == {case.id for case in stage_b.load_cases(ROOT)}


def test_perfect_summaries_lead_to_the_trained_prompt(cases: list[ChainCase]) -> None:
    tickets = {case.id: case for case in stage_b.load_cases(ROOT)}
    for case in cases:
        texts = [f"<DOMAIN={photo.domain.upper()}>, <TASK=SUMMARY>\n{photo.reference.text}" for photo in case.photos if photo.reference]
        answers = iter([*texts, PASSES])
        steps, question = walk(case, functools.partial(lambda given, request: str(next(given)), answers))
        ticket = tickets[case.id]
        assert isinstance(ticket, stage_b.StageBCase)
        assert question == stage_b.request(ticket)
        assert [len(step) for step in steps] == [len(case.photos), 1]


def test_summaries_are_asked_as_in_stage_a_and_the_references_as_in_stage_b(cases: list[ChainCase]) -> None:
    asked: list[Any] = []
    case = cases[0]
    _, question = walk(case, lambda request: asked.append(request) or "无关图片")
    assert asked[:-1] == [stage_a.request(photo) for photo in case.photos]
    assert all(isinstance(request, VlmGenerationRequest) for request in asked[:-1])
    assert asked[-1].messages == stage_b.messages(case.mission, [ref.text for ref in case.references or ()], case.rules)
    assert "Image1: 无关图片" in question.messages[1]["content"]
    for request in (asked[-1], question):
        text = json.dumps(request.messages, ensure_ascii=False)
        assert not any(secret in text for secret in (case.group_id, "审核不通过", "审核通过", "fail", "pass"))


def judged(case: ChainCase, summary: str, own: str, by_reference: str) -> JudgedChain:
    text = summary if summary == "无关图片" else f"{RRU_HEADER}\n{summary}"
    return stage_b_chain.judge(case, [[said(text)], [said(by_reference)]], [own])


CAUSES = {
    "both right": (SEEN, PASSES, PASSES, "right"),
    "lost evidence": (UNSEEN, FAILS, PASSES, "could not see"),
    "dismissed photo": ("无关图片", FAILS, PASSES, "could not see"),
    "no verdict on lost evidence": (UNSEEN, "…", PASSES, "could not see"),
    "wrong both ways": (UNSEEN, FAILS, FAILS, "judged wrongly"),
    "wrong on all the evidence": (SEEN, FAILS, PASSES, "judged wrongly"),
    "no verdict both ways": (SEEN, "…", "…", "judged wrongly"),
    "right on wrong evidence": (UNSEEN, PASSES, FAILS, "right by luck"),
}


@pytest.mark.parametrize("summary, own, by_reference, cause", CAUSES.values(), ids=CAUSES.keys())
def test_the_cause_of_a_mistake_follows_from_both_verdicts(tmp_path: Path, summary: str, own: str, by_reference: str, cause: str) -> None:
    chain = judged(one_photo(tmp_path), summary, own, by_reference)
    assert chain.cause == chain.details["cause"] == cause
    assert chain.scores["could_not_see"] == (cause == "could not see")
    assert chain.scores["judged_wrongly"] == (cause == "judged wrongly")
    assert chain.problem.startswith((f"{cause}: judged ", f"{cause}: no verdict ("))


def test_scores_tell_both_accuracies_and_how_much_evidence_was_kept(tmp_path: Path) -> None:
    chain = judged(one_photo(tmp_path), UNSEEN, FAILS, PASSES)
    assert repr(chain) == "JudgedChain('could not see', JudgedTicket('g::pass', Ballot(num_pass=0, num_fail=1, num_invalid=0)))"
    assert (chain.scores["accuracy"], chain.scores["reference_accuracy"]) == (0.0, 1.0)
    assert chain.scores["evidence_recall"] == 0.5  # distance and radio of distance, radio and two clamps


def test_without_references_only_the_chain_is_judged(tmp_path: Path) -> None:
    case = one_photo(tmp_path, reference=None)
    steps, question = walk(case, lambda request: SEEN)
    assert [len(step) for step in steps] == [1]
    assert isinstance(question, TextGenerationRequest)
    wrong, right = (stage_b_chain.judge(case, steps, [text]) for text in (FAILS, PASSES))
    assert (wrong.cause, right.cause) == ("unknown", "right")
    assert "could_not_see" not in wrong.scores


def test_a_broken_photo_makes_an_order_invalid_and_without_rules_nothing_is_asked(tmp_path: Path) -> None:
    one_photo(tmp_path)
    (tmp_path / RRU / "审核通过" / "g" / "2.jpg").write_bytes(b"no photo")
    with pytest.warns(UserWarning, match="no reference summary for 1 photo"):
        (case,) = stage_b_chain.load_cases(tmp_path)
    assert "2.jpg" in (case.invalid or "")
    (tmp_path / "guidance.json").unlink()
    with pytest.warns(UserWarning, match="no reference summary"), pytest.raises(ConfigError, match=r"guidance .* cannot be read"):
        stage_b_chain.load_cases(tmp_path)


def test_table_and_files_separate_lost_evidence_from_wrong_judgement(tmp_path: Path) -> None:
    case = one_photo(tmp_path / "data")
    rows = []
    for summary, own, by_reference, _ in CAUSES.values():
        chain = judged(case, summary, own, by_reference)
        values = {"scores": chain.scores, "details": chain.details, "tags": dict(case.tags), "case_id": case.id, "outcome": "pass"}
        rows.append({**values, "started_at": None})
    mission, total = stage_b_chain.tables(rows)["Where verdicts go wrong"]
    assert (mission["mission"], total["mission"]) == (RRU, "all")
    wanted = {"right": 1, "right by luck": 1, "could not see": 3, "judged wrongly": 3, "unknown": 0}
    assert {name: total[name] for name in ("tickets", *stage_b_chain.CAUSES)} == {"tickets": 8, **wanted}
    assert 0 < total["evidence recall"] < 1
    stage_b_chain.write_outputs(rows, OutputTarget(tmp_path / "out", "hf:x"))
    metrics = json.loads((tmp_path / "out" / "stage_b_chain" / RRU / "baseline_metrics.json").read_text("utf-8"))
    assert (metrics["n_used"], metrics["tp"]) == (8, 2)
