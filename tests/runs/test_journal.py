from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import RecordError
from evalharness.api.requests import GenerationFailure
from evalharness.runs import journal as journal_room
from evalharness.runs.journal import MAX_DEPTH, Journal, journal_name, parse_nodeid, plain_node, read_lines, readable, session_of
from evalharness.runs.line_types import check_line
from evalharness.runs.recorded import outcome_of
from evalharness.runs.records import Recorded


def write(run_dir: Path, worker: str, *lines: tuple[str, dict[str, Any]]) -> None:
    journal = Journal(run_dir, worker)
    for kind, values in lines:
        journal.write(kind, values)
    journal.close()


def opened_when_free(run_dir: Path) -> Journal:
    """Return the journal of a run in a device that all test sessions of this machine share, and so its lock."""
    deadline = time.monotonic() + 300
    while True:
        try:
            return Journal(run_dir, "main")
        except RecordError as error:
            if "is being written by another process" not in str(error) or time.monotonic() > deadline:
                raise
        time.sleep(0.01)


class TestWriting:
    def test_a_line_is_on_disk_as_soon_as_it_was_written(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path, "main")
        journal.write("row", {"nodeid": "a"})
        assert json.loads((tmp_path / "journal" / "main.jsonl").read_bytes()) == {"kind": "row", "nodeid": "a"}

    def test_any_text_comes_back_as_it_was(self, tmp_path: Path) -> None:
        text = "".join(map(chr, range(0x300))) + "\udfff \ud800\u2028\u202e😀\n\r" + "x" * 1_000_000
        write(tmp_path, "main", ("generation", {"text": text}))
        assert [line.values["text"] for line in read_lines(tmp_path)] == [text]

    @pytest.mark.parametrize(
        "value", [float("nan"), float("inf"), -float("inf"), {1}, object, b"x", 1j, {"a": [Path()]}, {(1, 2): 3}], ids=repr
    )
    def test_what_is_no_json_is_refused_before_anything_is_written(self, tmp_path: Path, value: object) -> None:
        journal = Journal(tmp_path, "main")
        with pytest.raises(RecordError, match=r"a row line cannot be recorded: .*; options, tags and scores must be plain JSON data"):
            journal.write("row", {"x": value})
        assert journal.path.read_bytes() == b""

    def test_threads_do_not_mix_their_lines(self, tmp_path: Path) -> None:
        journal = Journal(tmp_path, "main")
        text = "x" * 50_000

        def work(name: int) -> None:
            for _ in range(20):
                journal.write("row", {"name": name, "text": text})

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(line.values["name"] for line in read_lines(tmp_path)) == sorted([0, 1, 2, 3] * 20)

    def test_an_opened_journal_goes_on_after_what_is_there_and_may_be_closed_twice(self, tmp_path: Path) -> None:
        assert list(read_lines(tmp_path)) == []
        for number in range(2):
            journal = Journal(tmp_path, "main")
            journal.write("row", {"number": number})
            journal.close()
            journal.close()
        assert [line.values["number"] for line in read_lines(tmp_path)] == [0, 1]

    def test_a_folder_that_cannot_be_made_is_said_with_what_to_do(self, tmp_path: Path) -> None:
        (tmp_path / "run").write_text("in the way")
        with pytest.raises(RecordError, match=r"main\.jsonl cannot be opened: Not a directory; choose another folder with --report-dir"):
            Journal(tmp_path / "run", "main")

    def test_a_full_disk_is_a_record_error(self, tmp_path: Path) -> None:
        (tmp_path / "journal").mkdir()
        (tmp_path / "journal" / "main.jsonl").symlink_to("/dev/full")
        journal = opened_when_free(tmp_path)
        with pytest.raises(RecordError, match=r"main\.jsonl cannot be written: No space left on device; what is in it so far is kept"):
            journal.write("row", {})
        journal.close()

    def test_half_a_line_on_a_full_disk_is_taken_back(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        journal = Journal(tmp_path, "main")
        journal.write("row", {"nodeid": "before"})
        real = os.write
        room = [10]

        def write_until_full(file: int, data: memoryview) -> int:
            if not room[0]:
                raise OSError(28, "No space left on device")
            num_written = real(file, data[: room[0]])
            room[0] -= num_written
            return num_written

        with monkeypatch.context() as patch:
            patch.setattr(os, "write", write_until_full)
            with pytest.raises(RecordError, match="No space left on device"):
                journal.write("row", {"nodeid": "does not fit"})
        journal.write("row", {"nodeid": "after"})
        assert [line.values["nodeid"] for line in read_lines(tmp_path)] == ["before", "after"]

    def test_what_was_written_survives_sigkill(self, tmp_path: Path) -> None:
        code = """
import os, signal, sys
from pathlib import Path
from evalharness.runs.journal import Journal
journal = Journal(Path(sys.argv[1]), "gw0")
for n in range(3):
    journal.write("row", {"n": n})
os.kill(os.getpid(), signal.SIGKILL)
"""
        assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == -9
        assert [line.values["n"] for line in read_lines(tmp_path)] == [0, 1, 2]


class TestReading:
    def test_workers_come_in_name_order_and_each_line_names_its_own(self, tmp_path: Path) -> None:
        for worker in ("gw1", "gw0"):
            write(tmp_path, worker, ("row", {"n": worker}))
        assert [(line.path.stem, line.values["n"]) for line in read_lines(tmp_path)] == [("gw0", "gw0"), ("gw1", "gw1")]

    @pytest.mark.parametrize("torn", ['{"kind":"row","nodeid":"b', '{"kind":"row"}', "\x00\x00\x00"])
    def test_a_torn_last_line_is_left_out(self, tmp_path: Path, torn: str) -> None:
        write(tmp_path, "main", ("row", {"nodeid": "a"}))
        with (tmp_path / "journal" / "main.jsonl").open("a") as file:
            file.write(torn)
        assert [line.values["nodeid"] for line in read_lines(tmp_path)] == ["a"]

    def test_a_broken_line_in_the_middle_is_named(self, tmp_path: Path) -> None:
        write(tmp_path, "main", ("row", {"nodeid": "a"}))
        with (tmp_path / "journal" / "main.jsonl").open("a") as file:
            file.write("nonsense\n")
        with pytest.raises(RecordError, match=r"main\.jsonl:2 is not JSON \(.*\); move the line away to read the rest"):
            list(read_lines(tmp_path))


class TestSessions:
    def test_what_resumed_a_run_is_read_after_what_it_resumed(self, tmp_path: Path) -> None:
        names = [journal_name(writer, session) for session in (11, 2, 1, 0) for writer in ("zz", "controller", "gw0")]
        for name in names:
            write(tmp_path, name, ("row", {"nodeid": name}))
        read = [line.values["nodeid"] for line in read_lines(tmp_path)]
        assert read[:3] == ["controller", "gw0", "zz"]
        assert [session_of(name) for name in read] == [0] * 3 + [1] * 3 + [2] * 3 + [11] * 3

    @pytest.mark.parametrize("name", ["main", "gw0", "resumed", "resumed-x-gw0", "resumed-1-gw0"])
    def test_other_names_are_of_the_first_session(self, name: str) -> None:
        assert session_of(name) == 0


def _generation(text: str) -> dict[str, Any]:
    return {"text": text, "raw_text": f"{text}<|im_end|>", "finish_reason": "stop", "prompt_text": "who?"}


def test_an_answer_is_recorded_as_it_is_whatever_the_environment_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"PASS_LABEL": "Verdict: pass", "EOS_TOKEN": "<|im_end|>", "A_KEY": "Reason", "AUTH_WORD": "passed-2024"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    text = f"Verdict: pass\nReason: all of {' '.join(values.values())}"
    journal = Journal(tmp_path, "main")
    journal.write("generation", {"engine": "e", "eval": "v", "case_id": "c", "sample": 0, "generation": _generation(text)})
    journal.close()
    [line] = read_lines(tmp_path)
    assert line.values["generation"] == _generation(text)


def test_an_answer_with_a_secret_says_so_and_is_not_judged_from_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ")
    journal = Journal(tmp_path, "main")
    case: dict[str, Any] = {"engine": "e", "eval": "v", "case_id": "c"}
    for sample, text in enumerate(["it is hf_aBcDeFgHiJkLmNoPqRsTuVwXyZ", "no secret"]):
        journal.write("generation", {**case, "sample": sample, "generation": _generation(text)})
    journal.close()
    altered, whole = (line.values["generation"] for line in read_lines(tmp_path))
    assert (altered["text"], altered["hidden"]) == ("it is [HF_TOKEN hidden]", ["HF_TOKEN"])
    assert "hidden" not in whole
    recorded = Recorded({**whole, **altered}, tmp_path, 0, 0)
    outcome = outcome_of(recorded)
    assert isinstance(outcome, GenerationFailure)
    assert (outcome.kind, "HF_TOKEN" in outcome.problem) == ("invalid", True)


@pytest.mark.parametrize("depth", [MAX_DEPTH - 1, MAX_DEPTH])
def test_what_would_not_be_read_again_is_not_written(tmp_path: Path, depth: int) -> None:
    deep: Any = 0
    for _ in range(depth):
        deep = [deep]
    journal = Journal(tmp_path, "main")
    with nullcontext() if depth < MAX_DEPTH else pytest.raises(RecordError, match=f"nested more than {MAX_DEPTH} deep"):
        journal.write("engine", {"id": "x", "settings": {}, "deep": deep})
    journal.close()
    assert [check_line(line) for line in read_lines(tmp_path)] == [None] * (depth < MAX_DEPTH)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("test_a[x]", "test_a[x]"),
        (r"test_a[\u7edf\u8ba1-b]", "test_a[统计-b]"),
        (r"test_a[\xe9\U0001f600]", "test_a[é😀]"),
        (r"test_a[\\u7edf]", r"test_a[\\u7edf]"),
        (r"test_a[\\\u7edf]", r"test_a[\\统]"),
        (r"test_a[\x1b\u202e\ud800\x41]", r"test_a[\x1b\u202e\ud800\x41]"),
        ("test_a[统]", "test_a[统]"),
    ],
)
def test_names_of_tests_have_their_letters_and_nothing_that_steers_a_terminal(name: str, shown: str) -> None:
    assert readable(name) == shown
    assert readable(shown) == shown


def test_parts_of_a_node_id_are_readable() -> None:
    nodeid = r"a.py::test_a[\u7edf-hf:x-c0]"
    node = parse_nodeid(nodeid, ["hf:x"])
    assert node is not None
    assert node.test == journal_room.test_name(nodeid, "a.py", "hf:x") == "test_a[统]"
    assert plain_node(r"a.py::test_a[\u7edf-hf:x]", "hf:x").case_id == "test_a[统]"
