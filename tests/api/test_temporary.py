"""Temporary folders: they go with their process, and if that was killed, with the next one's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evalharness.api.temporary import OwnFolder


def test_a_folder_goes_with_its_block_and_with_its_object(tmp_path: Path) -> None:
    with OwnFolder("a", tmp_path) as folder:
        (folder / "file").write_text("x")
        assert folder.name.startswith("evalharness-a-")
    held = OwnFolder("b", tmp_path)
    held.remove()
    held.remove()
    forgotten = OwnFolder("c", tmp_path)
    del forgotten
    assert not list(tmp_path.iterdir())


def test_descriptors_do_not_stay_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    for _ in range(20):
        OwnFolder("a", tmp_path).remove()
    assert not before or len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP], ids=lambda number: number.name)
def test_what_a_killed_process_left_is_removed_by_the_next_and_nothing_else_is(tmp_path: Path, number: signal.Signals) -> None:
    source = (
        f"from evalharness.api.temporary import OwnFolder\nown = OwnFolder('left', {str(tmp_path)!r})\nprint('made', flush=True)\ninput()"
    )
    with subprocess.Popen([sys.executable, "-c", source], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "made\n"
        for name in ("evalharness-reports", "others"):
            (tmp_path / name).mkdir()
        (tmp_path / "evalharness-link").symlink_to(tmp_path / "others", target_is_directory=True)
        with OwnFolder("mine", tmp_path):
            assert len(list(tmp_path.glob("evalharness-left-*"))) == 1, "it is in use"
        process.send_signal(number)
        process.wait()
    left = OwnFolder("mine", tmp_path)
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {left.path.name, "evalharness-reports", "evalharness-link", "others"}
    left.remove()
