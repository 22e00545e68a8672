from __future__ import annotations

import os
from pathlib import Path

import pytest

from evalharness.api.checks import excerpt, first_names, open_regular, short_hash
from evalharness.api.errors import CheckpointError, EvalHarnessError, RecordError
from evalharness.checkpoints.weights import read_json
from evalharness.tasks.shared import read_lines
from evalharness.tasks.stage_b.files import read_guidance, read_tickets


def test_texts_and_names_beyond_the_length_are_cut_and_marked():
    assert excerpt("abcde", 5) == "abcde"
    assert excerpt("abcdef", 5) == "abcde…"
    assert excerpt("a" * 3005, 5, count_rest=True) == "aaaaa… (3,000 more characters)"
    assert excerpt("abcde", 5, count_rest=True) == "abcde"
    assert first_names(["a", "b"], 2) == "a, b"
    assert first_names(("a", "b", "c"), 2) == "a, b, …"
    assert short_hash("0123456789abcdef" * 4) == "0123456789ab"
    assert short_hash("0123456789abcdef" * 3) == "0123456789abcdef" * 3


def test_a_device_is_not_even_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "open", lambda *_: pytest.fail("opening a tape or a watchdog does something already"))
    with pytest.raises(OSError, match="a folder, device or pipe is not a regular file"):
        open_regular("/dev/zero")


@pytest.mark.parametrize("kind", ["folder", "pipe", "device"])
def test_what_may_never_end_is_not_read(tmp_path: Path, kind: str) -> None:
    """Each reader of a stranger's folder refuses it in its own words, and at once."""
    for name, read, error in (
        ("config.json", lambda path: read_json(path), CheckpointError),
        ("x_stage_b.jsonl", lambda path: read_tickets(path, "m"), EvalHarnessError),
        ("guidance.json", lambda path: read_guidance(path), EvalHarnessError),
        ("rows.jsonl", lambda path: list(read_lines(path)), RecordError),
    ):
        path = tmp_path / name
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to("/dev/zero")
        with pytest.raises(error, match=f"{name} .*not a regular file"):
            read(path)
