from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, ClassVar

import pytest

from evalharness.api.errors import RecordError
from evalharness.runs.records import read_records
from evalharness.runs.samples import merge_rows, missing_row, note_crashes, write_samples
from tests.runs.test_atomic import disk_is_full
from tests.runs.test_journal import write


def row(nodeid: str, case_id: str = "c", **more: Any) -> dict[str, Any]:
    return {
        "nodeid": nodeid,
        "engine": "fake:x",
        "eval": "a",
        "case_id": case_id,
        "num_samples": 1,
        "worker": "gw0",
        "outcome": "pass",
        **more,
    }


def generation(text: str, case_id: str = "c", sample: int = 0, **more: Any) -> dict[str, Any]:
    made = {"text": text, "prompt_sha256": f"sha of {text}"}
    return {"engine": "fake:x", "eval": "a", "case_id": case_id, "sample": sample, "generation": made, **more}


def absent(nodeid: str) -> dict[str, Any]:
    return {"nodeid": nodeid, "missing": True, "generation": None}


def merged(run_dir: Path, *nodeids: str) -> list[dict[str, Any]]:
    """Return the rows as samples.jsonl has them."""
    records = read_records(run_dir)
    write_samples(run_dir, merge_rows(records, nodeids, absent))
    return [json.loads(line) for line in (run_dir / "samples.jsonl").read_bytes().splitlines()]


class TestMerging:
    def test_rows_come_in_the_order_of_collection_with_their_generations(self, tmp_path: Path) -> None:
        write(tmp_path, "gw0", ("generation", generation("t", "c1")), ("row", row("n1", "c1")))
        write(tmp_path, "gw1", ("generation", generation("u", "c0")), ("row", row("n0", "c0", worker="gw1")))
        rows = merged(tmp_path, "n0", "n1")
        assert [(r["nodeid"], r["generation"]["text"], r["prompt_sha256"]) for r in rows] == [
            ("n0", "u", "sha of u"),
            ("n1", "t", "sha of t"),
        ]
        assert not {"kind", "num_samples"} & set(rows[0])

    def test_what_is_not_in_memory_is_read_from_the_journal(self, tmp_path: Path) -> None:
        made = {"text": "t", "raw_text": "t<end>", "token_ids": [1, 2], "prompt_text": "p" * 1000}
        write(tmp_path, "gw0", ("generation", generation("t", generation=made)), ("row", row("n0", scores={"x": 1.0})))
        (found,) = merge_rows(read_records(tmp_path), ["n0"], absent)
        kept = found["generation"]
        assert (dict(kept)["text"], found["scores"]) == ("t", {"x": 1.0})
        assert not {"raw_text", "token_ids", "prompt_text"} & set(dict(kept))
        assert (kept["raw_text"], kept.get("token_ids"), kept.get("logprobs", 3)) == ("t<end>", [1, 2], 3)
        with pytest.raises(KeyError, match="logprobs"):
            kept["logprobs"]
        assert (kept["fallback"], kept["cached"], kept["thinking"]) == (None, False, None)

    def test_a_row_of_an_uncollected_test_is_kept_last_and_one_that_is_not_there_is_a_missing_row(self, tmp_path: Path) -> None:
        write(tmp_path, "gw0", ("invention", {"x": 1}), ("row", row("surprise")), ("row", row("n0", future=5)))
        before, found, surprise = merged(tmp_path, "before", "n0")
        assert (before, surprise["nodeid"]) == (absent("before"), "surprise")
        assert (found["generation"], found["prompt_sha256"]) == (None, None)
        assert found["future"] == 5, "unknown kinds and keys are ignored"

    def test_a_row_keeps_what_its_own_worker_had_when_it_judged(self, tmp_path: Path) -> None:
        judged, later = (("generation", generation(text)) for text in ("judged", "later"))
        write(tmp_path, "gw0", judged, ("row", row("n0")), later, ("row", row("n1")))
        write(tmp_path, "gw1", ("generation", generation("elsewhere")), ("row", row("n2", worker="gw1")))
        assert [r["generation"]["text"] for r in merged(tmp_path, "n0", "n1", "n2")] == ["judged", "later", "elsewhere"]

    def test_several_samples_stand_in_order_with_none_for_those_that_failed(self, tmp_path: Path) -> None:
        lines = [("generation", generation(text, sample=sample)) for sample, text in ((2, "two"), (0, "zero"))]
        write(tmp_path, "gw0", *lines, ("row", row("n0", num_samples=3)))
        (found,) = merged(tmp_path, "n0")
        assert [g and g["text"] for g in found["generations"]] == ["zero", None, "two"]
        assert found["generation"]["text"] == "zero"


class TestWhatIsKept:
    LONG: ClassVar[dict[str, Any]] = {"token_ids": list(range(500)), "logprobs": [-0.5] * 500, "images": [{"grid": [1]}]}

    @pytest.mark.parametrize(
        "text",
        [',"generation":{', '"}\n', "\\", '\\"', ',"generation":', "\ud800\x00\u2028", "x" * 1_000_000],
        ids=["key", "end", "backslash", "quote", "colon", "odd", "long"],
    )
    def test_samples_have_each_generation_as_the_journal_has_it(self, tmp_path: Path, text: str) -> None:
        made = {"text": text, "raw_text": text, "generation": {"generation": text}, **self.LONG}
        line = {"engine": text, "eval": text, "case_id": text, "sample": 0, "generation": made}
        write(tmp_path, "gw0", ("generation", line), ("row", {**row("n0", text), "engine": text, "eval": text, "problem": text}))
        (found,) = merged(tmp_path, "n0")
        assert found["generation"] == made
        assert (found["problem"], found["case_id"]) == (text, text)

    def test_a_generation_that_is_not_the_last_key_is_refused(self, tmp_path: Path) -> None:
        write(tmp_path, "gw0", ("generation", {**generation("t"), "later": 1}))
        with pytest.raises(RecordError, match=r"gw0\.jsonl has a generation that is not its line's last key"):
            read_records(tmp_path)

    @pytest.mark.parametrize("reason", ["stop", "length", None])
    @pytest.mark.parametrize("version", ["0", "7", None])
    def test_parts_that_most_generations_share_are_read_as_they_were_written(
        self, tmp_path: Path, reason: str | None, version: str | None
    ) -> None:
        made = {"text": "t", "finish_reason": reason, "weight_version": version}
        bare = {"text": "t"}
        write(
            tmp_path, "gw0", *(("generation", {**generation("t", case_id), "generation": g}) for case_id, g in (("a", made), ("b", bare)))
        )
        kept = [case.generation(0) or {} for cases in read_records(tmp_path).cases.values() for case in cases.values()]
        assert [(each["finish_reason"], each["weight_version"]) for each in kept] == [(reason, version), (None, None)]

    def test_scores_keep_their_values_and_types_whatever_other_rows_say(self, tmp_path: Path) -> None:
        scores = [{"x": 1.0}, {"x": 1}, {"x": True}, {"x": 0.5}, {"x": 1.0}, {"x": 0.0, "y": 1.0}, {}]
        write(tmp_path, "gw0", *(("row", row(f"n{number}", scores=of_row)) for number, of_row in enumerate(scores)))
        assert [repr(kept["scores"]) for kept in read_records(tmp_path).rows.values()] == [repr(of_row) for of_row in scores]

    @pytest.mark.parametrize("sample", [-1, 10**9])
    def test_a_sample_that_no_case_has_is_refused(self, tmp_path: Path, sample: int) -> None:
        write(tmp_path, "gw0", ("generation", generation("t", sample=sample)))
        with pytest.raises(RecordError, match=r"gw0.jsonl:1 is a generation line with a wrong 'sample'"):
            read_records(tmp_path)

    @pytest.mark.slow
    def test_memory_does_not_grow_with_what_is_not_kept(self, tmp_path: Path) -> None:
        import tracemalloc

        def peak(run_dir: Path, long: dict[str, Any]) -> int:
            lines: list[tuple[str, dict[str, Any]]] = []
            for number in range(300):
                one = generation("t", f"c{number}")
                lines.append(("generation", {**one, "generation": {**one["generation"], **long}}))
                lines.append(("row", row(f"n{number}", f"c{number}", worker="main")))
            write(run_dir, "main", *lines)
            tracemalloc.start()
            rows = merge_rows(read_records(run_dir), [], absent)
            write_samples(run_dir, rows)
            found = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert len(rows) == 300
            return found

        much = {"prompt_text": "p" * 20_000, "token_ids": [7] * 5_000}
        # The smaller of two: Python's table of interned texts may grow meanwhile, by megabytes at once.
        short, long = (min(peak(tmp_path / f"{len(more)}-{n}", more) for n in range(2)) for more in ({}, much))
        assert long < short + 1_000_000  # all of it would be 6 MB of text alone


class TestMissingRows:
    ENGINES: ClassVar[dict[str, dict[str, str]]] = {"fake:x": {"checkpoint": "x", "backend": "fake"}}

    def test_a_case_with_an_escaped_id_keeps_its_group_and_tags(self) -> None:
        evals = {"test_a.py": {"cases": {"é": {"group": "g", "tags": {"t": "1"}}}}}
        found = missing_row(self.ENGINES, evals, "r", "stopped")("test_a.py::test_b[fake:x-\\xe9]")
        assert (found["case_id"], found["group"], found["tags"], found["eval"], found["test"]) == ("é", "g", {"t": "1"}, "a", "test_b")
        assert (found["outcome"], found["problem"], found["run_id"]) == ("skip", "not run: stopped", "r")

    def test_the_id_of_no_eval_is_said(self) -> None:
        with pytest.raises(RecordError, match=r"test_a\.py::test_b was collected .* names none of the engines fake:x"):
            missing_row(self.ENGINES, {}, "r", "stopped")("test_a.py::test_b")


def test_a_crashed_test_is_an_error_with_what_was_generated_for_it(tmp_path: Path) -> None:
    write(tmp_path, "gw0", ("generation", generation("made", "c")))
    records = read_records(tmp_path)
    missing = missing_row({"fake:x": {"checkpoint": "x", "backend": "fake"}}, {}, "r", "stopped")
    rows = merge_rows(records, ["test_a.py::test_b[fake:x-c]"], missing)
    note_crashes(records, rows, {rows[0]["nodeid"]: "worker crashed"})
    write_samples(tmp_path, rows)
    (found,) = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_bytes().splitlines()]
    assert (found["outcome"], found["problem"], found["generation"]["text"]) == ("error", "worker crashed", "made")


def test_samples_that_cannot_be_written_are_said_and_leave_no_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "gw0", ("generation", generation("t")), ("row", row("n0")))
    monkeypatch.setattr(os, "replace", disk_is_full)
    records = read_records(tmp_path)
    num_open = len(os.listdir("/proc/self/fd"))
    with pytest.raises(RecordError, match=r"samples\.jsonl cannot be written: No space left on device; the journal beside it keeps"):
        write_samples(tmp_path, merge_rows(records, [], absent))
    assert len(os.listdir("/proc/self/fd")) == num_open
