"""Training runs are made of hand-written checkpoints; what is still being written is what has just been changed."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import CheckpointError
from evalharness.checkpoints.discovery import RECENT_S, find_models, training_facts, why_unfinished
from tests.adapters import lora, write_adapter
from tests.checkpoints.test_info import CONFIG, GOOD, SHARDED, safetensors, write

HALF = GOOD["model.safetensors"][:-4]
STATE = {"global_step": 200, "epoch": 0.5, "max_steps": 1000, "log_history": []}


def make_old(folder: Path) -> None:
    """Let a folder look as if nobody had touched it for a while."""
    for path in (*folder.iterdir(), folder):
        os.utime(path, (time.time() - RECENT_S - 60,) * 2)


def found(tmp_path: Path, *patterns: str, wait_s: float = 0) -> tuple[list[str], list[str]]:
    notices: list[str] = []
    return [path.name for path in find_models(patterns, tmp_path, wait_s=wait_s, on_notice=notices.append)], notices


@pytest.mark.parametrize("pattern", ["run/checkpoint-*", "run", "ru?"], ids=["glob", "training-run", "glob-of-runs"])
def test_checkpoints_of_a_run_come_by_their_steps(tmp_path: Path, pattern: str) -> None:
    for step in (1000, 200, 30):
        write(tmp_path / f"run/checkpoint-{step}", {**GOOD, "trainer_state.json": STATE})
    write(tmp_path / "run/logs", {"events": "x"})
    assert found(tmp_path, pattern) == (["checkpoint-30", "checkpoint-200", "checkpoint-1000"], [])


def test_names_sort_by_numbers_and_a_run_with_a_model_of_its_own_is_that_model(tmp_path: Path) -> None:
    for name in ("final", "２", "v10", "v9"):
        write(tmp_path / name, GOOD)
    assert found(tmp_path, "*") == (["final", "v9", "v10", "２"], [])
    write(tmp_path / "run", GOOD)
    write(tmp_path / "run/checkpoint-10", GOOD)
    assert [path.name for path in find_models(["run"], tmp_path, wait_s=0, on_notice=print)] == ["run"]


def test_training_facts_are_those_of_the_trainer(tmp_path: Path) -> None:
    write(tmp_path, {"trainer_state.json": STATE})
    os.utime(tmp_path / "trainer_state.json", (0, 86400))
    assert training_facts(tmp_path) == {"step": 200, "epoch": 0.5, "max_steps": 1000, "saved_at": "1970-01-02T00:00:00+00:00"}


@pytest.mark.parametrize("content", [None, "{", "[]"], ids=["none", "torn", "no-object"])
def test_without_a_readable_state_there_are_no_training_facts(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        write(tmp_path, {"trainer_state.json": content})
    assert training_facts(tmp_path) is None


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param({"model.safetensors": HALF}, "copied or written only in part", id="growing"),
        pytest.param({"model.safetensors": b""}, "is empty", id="empty"),
        pytest.param({"model.safetensors": None}, "has no weights", id="no-weights"),
        pytest.param({**SHARDED, "model.safetensors": None, "model-00002-of-00002.safetensors": None}, "are missing", id="shard-missing"),
        pytest.param({"config.json": None}, "no config.json yet", id="no-config"),
        pytest.param({"tokenizer.json": None}, "no tokenizer files yet", id="no-tokenizer"),
        pytest.param({"model.safetensors": None, "pytorch_model.bin": b"x"}, "pytorch_model.bin has just been changed", id="pickle"),
    ],
)
def test_what_has_just_been_changed_and_lacks_something_is_being_written(
    tmp_path: Path, files: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalharness.checkpoints.discovery._PICKLE_RECENT_S", RECENT_S)
    content = {name: value for name, value in {**GOOD, **files}.items() if value is not None}
    folder = write(tmp_path / "c", content)
    assert message in (why_unfinished(folder) or "")
    make_old(folder)
    assert why_unfinished(folder) is None


@pytest.mark.parametrize("files", [GOOD, {**{k: v for k, v in GOOD.items() if k != "model.safetensors"}, **SHARDED}], ids=["one", "shards"])
def test_a_complete_checkpoint_is_finished_at_once(tmp_path: Path, files: dict[str, Any]) -> None:
    assert why_unfinished(write(tmp_path / "c", files)) is None


def test_a_checkpoint_without_the_state_that_others_have_is_being_written(tmp_path: Path) -> None:
    write(tmp_path / "checkpoint-1", GOOD)
    assert why_unfinished(write(tmp_path / "checkpoint-2", GOOD)) is None
    write(tmp_path / "checkpoint-1", {**GOOD, "trainer_state.json": STATE})
    assert "no trainer_state.json yet" in (why_unfinished(write(tmp_path / "checkpoint-2", GOOD)) or "")


def test_an_adapter_is_finished_once_its_weights_are_whole(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "lora", lora("q_proj", 6, 4))
    assert why_unfinished(folder) is None
    weights = folder / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    assert "only in part" in (why_unfinished(folder) or "")
    weights.unlink()
    assert "has no adapter_model.safetensors yet" in (why_unfinished(folder) or "")


@pytest.mark.parametrize("name", ["tmp-checkpoint-7", "checkpoint-7.tmp", "checkpoint-7_incomplete", ".checkpoint-7"])
def test_a_temporary_name_is_never_taken_by_a_pattern(tmp_path: Path, name: str) -> None:
    write(tmp_path / "checkpoint-6", GOOD)
    make_old(write(tmp_path / name, GOOD))
    names, notices = found(tmp_path, "*", ".check*") if name.startswith(".") else found(tmp_path, "*")
    assert names == ["checkpoint-6"]
    assert [f"{name} is still being written (its name is a temporary one) and is skipped" in notice for notice in notices] == [True]


def test_what_a_pattern_brings_is_skipped_while_it_is_written_and_what_was_named_is_not(tmp_path: Path) -> None:
    write(tmp_path / "run/checkpoint-1", GOOD)
    write(tmp_path / "run/checkpoint-2", {**GOOD, "model.safetensors": HALF})
    names, (notice,) = found(tmp_path, "run")
    assert names == ["checkpoint-1"]
    assert notice.endswith("and is skipped; wait for it with --wait SECONDS")
    write(tmp_path / "c", {**GOOD, "model.safetensors": HALF})
    assert found(tmp_path, "c") == (["c"], [])


def test_nothing_left_is_an_error_and_one_that_vanishes_no_crash(tmp_path: Path) -> None:
    write(tmp_path / "run/checkpoint-2", {**GOOD, "model.safetensors": HALF})
    with pytest.raises(CheckpointError, match="all checkpoints found are still being written, such as .*checkpoint-2; wait"):
        found(tmp_path, "run/*")
    folder = write(tmp_path / "checkpoint-1", {"config.json": json.dumps(CONFIG)})
    (folder / "config.json").unlink()
    folder.rmdir()
    assert "has just gone" in (why_unfinished(folder) or "")


def test_what_is_not_there_or_not_whole_yet_is_waited_for(tmp_path: Path) -> None:
    write(tmp_path / "run/checkpoint-1", GOOD)
    folder = write(tmp_path / "run/checkpoint-2", {**GOOD, "model.safetensors": HALF})
    timer = threading.Timer(0.3, lambda: (folder / "model.safetensors").write_bytes(GOOD["model.safetensors"]))
    timer.start()
    assert found(tmp_path, "run", wait_s=120) == (["checkpoint-1", "checkpoint-2"], [])
    timer.join()
    timer = threading.Timer(0.3, lambda: write(tmp_path / "late", GOOD))
    timer.start()
    assert found(tmp_path, "late", wait_s=120) == (["late"], [])
    timer.join()


def test_waiting_ends(tmp_path: Path) -> None:
    write(tmp_path / "run/checkpoint-1", GOOD)
    write(tmp_path / "run/checkpoint-2", {"config.json": CONFIG, "model.safetensors": safetensors("a")})
    started = time.monotonic()
    names, notices = found(tmp_path, "run", wait_s=0.2)
    assert (names, len(notices)) == (["checkpoint-1"], 1)
    assert time.monotonic() - started >= 0.2
    with pytest.raises(CheckpointError, match="does not exist"):
        found(tmp_path, "nowhere", wait_s=0.1)


def test_one_folder_by_two_names_counts_once_and_is_said(tmp_path: Path) -> None:
    folder = write(tmp_path / "run/checkpoint-1", GOOD)
    (tmp_path / "latest").symlink_to(folder)
    notices: list[str] = []
    found = find_models([str(tmp_path / "latest"), str(tmp_path / "run/*")], tmp_path, wait_s=0, on_notice=notices.append)
    assert [path.name for path in found] == ["latest"]
    (notice,) = notices
    assert notice.endswith(
        "is the same folder as " + str(tmp_path / "latest") + ", by a link or another spelling; it is evaluated once, as latest"
    )
