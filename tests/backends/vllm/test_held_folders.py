"""Folders in shared memory that go with their process, or are removed after it. Run: pytest tests/backends/vllm/test_held_folders.py"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from evalharness.backends.vllm.weights import HeldFolder, remove_abandoned

PREFIX = "evalharness-test-"


def test_a_folder_goes_with_what_holds_it(tmp_path: Path) -> None:
    folder = HeldFolder(PREFIX, tmp_path)
    path = folder.path
    assert path.name.startswith(PREFIX)
    assert list(tmp_path.iterdir()) == [path]
    del folder
    assert not path.exists()


def test_what_a_killed_process_left_is_removed_and_what_lives_stays(tmp_path: Path) -> None:
    """One holder is killed, one has ended and left a child that reads, one is this process."""
    code = f"""
import os, signal, subprocess, sys, time
from pathlib import Path
from evalharness.backends.vllm.weights import HeldFolder
folder = HeldFolder({PREFIX!r}, Path({str(tmp_path)!r}))
(folder.path / "big").write_text("x")
print(folder.path, flush=True)
if sys.argv[1] == "forks" and os.fork() == 0:
    print("forked", flush=True)
    sys.stdin.read()
    os._exit(0)
if sys.argv[1] == "forks":
    sys.stdout.flush()
os.kill(os.getpid(), signal.SIGKILL)
"""
    command = [sys.executable, "-c", code]
    killed = subprocess.run([*command, "dies"], capture_output=True, text=True, check=False, timeout=300)
    with subprocess.Popen([*command, "forks"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        read = Path(process.stdout.readline().strip())
        assert process.stdout.readline() == "forked\n"
        process.wait(timeout=300)
        own = HeldFolder(PREFIX, tmp_path)
        abandoned = Path(killed.stdout.strip())
        assert abandoned.is_dir()
        remove_abandoned(PREFIX, tmp_path)
        assert [path.is_dir() for path in (abandoned, read, own.path)] == [False, True, True]
        process.stdin.close()
        process.stdout.read()  # ends with the child
    remove_abandoned(PREFIX, tmp_path)
    assert list(tmp_path.iterdir()) == [own.path]


def test_what_is_not_ours_is_left_alone(tmp_path: Path) -> None:
    elsewhere = HeldFolder("other-", tmp_path)
    (tmp_path / f"{PREFIX}without-lock").mkdir()
    (tmp_path / f"{PREFIX}file").touch()
    (tmp_path / f"{PREFIX}link").symlink_to(elsewhere.path, target_is_directory=True)
    before = sorted(tmp_path.iterdir())
    remove_abandoned(PREFIX, tmp_path)
    remove_abandoned(PREFIX, tmp_path / "absent")
    assert sorted(tmp_path.iterdir()) == before


def test_a_forked_process_that_ends_does_not_take_the_folder_along(tmp_path: Path) -> None:
    folder = HeldFolder(PREFIX, tmp_path)
    code = "import os, sys; from pathlib import Path; from evalharness.backends.vllm.weights import HeldFolder\n"
    code += f"folder = HeldFolder({PREFIX!r}, Path({str(tmp_path)!r}))\n"
    code += "child = os.fork()\nif child: os.waitpid(child, 0); print(folder.path.is_dir())\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout == "True\n"
    assert [path for path in tmp_path.iterdir() if path != folder.path] == []
    assert os.path.isdir(folder.path)
