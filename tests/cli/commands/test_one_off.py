"""Files of questions asked by hand are read as the evals' files of prompts are."""

from __future__ import annotations

from pathlib import Path

import pytest

from evalharness.api.errors import ConfigError
from evalharness.cli.commands.generate import read_one_offs
from evalharness.tasks.prompt_rows import PromptCase, read_rows, request_of


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"^q\.jsonl:1 is not JSON"),
        ('{"id": "a", "prompt": NaN}', r"^q\.jsonl:1 is not JSON: NaN is not JSON$"),
        ("[1]", r"^q\.jsonl:1 must be a JSON object, got \[1\]$"),
        ('{"id": "a", "promt": "x"}', r"^q\.jsonl:1 has 'promt'; did you mean 'prompt'\? Known: id, prompt, messages"),
        ('{"id": "a"}', r"^q\.jsonl:1 needs either prompt or messages$"),
        ('{"id": "a", "prompt": "x", "images": "y.png"}', r"^q\.jsonl:1: images must be a list of paths, got 'y.png'$"),
        ('{"id": "a", "messages": [{"role": 3}]}', r"^q\.jsonl:1: "),
    ],
    ids=["torn", "nan", "list", "key", "no-question", "images", "messages"],
)
def test_both_readers_say_the_same_of_a_wrong_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "q.jsonl").write_text(line)
    with pytest.raises(ConfigError, match=message):
        read_one_offs(tmp_path / "q.jsonl")
    with pytest.raises(ConfigError, match=message):
        [row.case_fields() for row in read_rows(tmp_path, "q.jsonl", ())]


def test_both_readers_ask_the_same(tmp_path: Path) -> None:
    (tmp_path / "q.jsonl").write_text('{"id": "a", "prompt": "x"}\n\n{"id": "b", "messages": [{"role": "user", "content": "y"}]}\n')
    by_evals = [request_of(PromptCase(**row.case_fields())) for row in read_rows(tmp_path, "q.jsonl", ())]
    assert [question.request for question in read_one_offs(tmp_path / "q.jsonl")] == by_evals
