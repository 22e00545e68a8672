"""Recorded answers as drafts: found by their case, read from the journal, and never in the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalharness.runs.drafts import RecordedAnswers, ids_of


def line(engine: str, case: str, ids: list[int], kind: str = "generation", **place: Any) -> str:
    place = place or {"sample": 0}
    values = {
        "kind": kind,
        "engine": engine,
        "eval": "e",
        "case_id": case,
        **place,
        "generation": {"text": ',"generation":', "token_ids": ids},
    }
    return json.dumps(values, separators=(",", ":")) + "\n"


ROW = '{"kind":"row","case_id":"one"}\n'


def run_of(tmp_path: Path, **journals: str) -> Path:
    (tmp_path / "journal").mkdir()
    for name, content in journals.items():
        (tmp_path / "journal" / f"{name}.jsonl").write_text(content)
    return tmp_path


def test_an_answer_is_found_by_case_sample_step_and_engine(tmp_path: Path) -> None:
    run = run_of(
        tmp_path,
        gw0=line("vllm:a", "one", [1]) + line("vllm:a", "one", [2], sample=1) + line("vllm:b", "one", [3]) + ROW,
        gw1=line("vllm:b", 'q",generation"', [4]) + line("vllm:b", "steps", [5, 6], "step", step=1, request=2),
    )
    answers = RecordedAnswers(run)
    assert len(answers) == 5
    assert answers.find("vllm:a", "e", "one", (0,)) == [1]
    assert answers.find("vllm:a", "e", "one", (1,)) == [2]
    assert answers.find("vllm:new", "e", "one", (0,)) == [3]  # the last engine's
    assert answers.find("vllm:new", "e", "one", (1,)) == [2]
    assert answers.find("hf:x", "e", 'q",generation"', (0,)) == [4]
    assert answers.find("hf:x", "e", "steps", (1, 2)) == [5, 6]
    assert answers.find("hf:x", "e", "steps", (2, 1)) == answers.find("hf:x", "other", "one", (0,)) == []


def test_of_answers_made_again_the_last_counts(tmp_path: Path) -> None:
    run = run_of(tmp_path, main=line("a", "one", [1]) + line("a", "one", [2]), **{"resumed-001-main": line("a", "one", [3])})
    assert RecordedAnswers(run).find("a", "e", "one", (0,)) == [3]


@pytest.mark.parametrize(
    "damage",
    ["", '{"kind":"generation","engine":1}\n', '{"kind":"generation",\n', "\x00\xff\n", f'{{"kind":"generation","a":{"[" * 200_000}\n'],
    ids=["none", "types", "torn", "noise", "deep"],
)
def test_damaged_lines_are_no_drafts(tmp_path: Path, damage: str) -> None:
    run = run_of(tmp_path, main=damage + line("a", "one", [1]) + '{"kind":"generation","engine":"a","eval":"e"')
    assert RecordedAnswers(run).find("a", "e", "one", (0,)) == [1]


def test_a_journal_that_is_gone_meanwhile_gives_none(tmp_path: Path) -> None:
    run = run_of(tmp_path, main=line("a", "one", [1]))
    answers = RecordedAnswers(run)
    (run / "journal" / "main.jsonl").unlink()
    assert answers.find("a", "e", "one", (0,)) == []
    assert RecordedAnswers(run).find("a", "e", "one", (0,)) == []


@pytest.mark.parametrize(
    ("made", "ids"),
    [
        ({"token_ids": [1, 2], "stop_reason": 9, "finish_reason": "stop"}, [1, 2, 9]),
        ({"token_ids": [1, 9], "stop_reason": 9}, [1, 9]),
        ({"token_ids": [1], "stop_reason": "string"}, [1]),
        ({"token_ids": [1], "finish_reason": "scored"}, []),
        ({"token_ids": [1, -1]}, []),
        ({"token_ids": [1, 2**40]}, []),
        ({"token_ids": ["1"]}, []),
        ({"token_ids": None}, []),
        ({}, []),
    ],
    ids=["end", "end-is-there", "string", "scored", "negative", "large", "text", "null", "absent"],
)
def test_ids_of_a_generation(made: dict[str, Any], ids: list[int]) -> None:
    assert ids_of(made) == ids


@pytest.mark.parametrize("made", ["[1]", '"text"', "1", "null"])
def test_what_is_no_generation_is_no_draft(tmp_path: Path, made: str) -> None:
    run = run_of(tmp_path, main=line("a", "one", [1]).replace('{"text"', f'{made},"x":{{"text"'))
    assert RecordedAnswers(run).find("a", "e", "one", (0,)) == []
