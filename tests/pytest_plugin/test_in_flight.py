"""The file that says which cases were asked when a worker died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evalharness.errors import RecordError
from evalharness.pytest_plugin.in_flight import InFlight, take_in_flight

HOSTILE = ["a", "b\n\x00", "ü\ud800", '"]', ""]


def test_a_case_is_asked_until_the_last_of_its_requests_has_ended(tmp_path: Path) -> None:
    path = tmp_path / "gw0.asked"
    cases = InFlight(path, HOSTILE)
    for case_id in HOSTILE:
        cases.begin(case_id)
    cases.begin("a")
    for case_id in HOSTILE[:2]:
        cases.end(case_id)
    assert take_in_flight(path) == ("a", *HOSTILE[2:])
    assert not path.exists()


def test_a_unit_that_ended_leaves_no_file(tmp_path: Path) -> None:
    cases = InFlight(tmp_path / "gw0.asked", ["a"])
    cases.begin("a")
    cases.close()
    cases.close()
    cases.end("a")  # a thread that is told to stop may come later
    assert list(tmp_path.iterdir()) == []


def test_what_was_asked_survives_sigkill(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from evalharness.pytest_plugin.in_flight import InFlight\n"
        "cases = InFlight(Path('gw0.asked'), ['a', 'b']); cases.begin('b'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, timeout=60, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    assert take_in_flight(tmp_path / "gw0.asked") == ("b",)


@pytest.mark.parametrize("content", [None, b"", b'["a"', b"no json\n\x01"], ids=["none", "empty", "torn", "no-json"])
def test_a_file_that_is_not_whole_names_nobody(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "gw0.asked").write_bytes(content)
    assert take_in_flight(tmp_path / "gw0.asked") == ()


def test_a_folder_that_is_gone_is_an_error_of_the_record(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="gone/gw0.asked cannot be written: No such file or directory"):
        InFlight(tmp_path / "gone" / "gw0.asked", ["a"])


def test_without_a_path_nothing_is_kept() -> None:
    cases = InFlight(None, ["a"])
    cases.begin("a")
    cases.close()
