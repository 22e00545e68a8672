"""The file that says which cases were asked when a worker died."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evalharness.api.errors import RecordError
from evalharness.pytest_plugin.execution.takeover import InFlight, in_flight_path, take_in_flight
from evalharness.pytest_plugin.execution.units import UnitKey
from tests.pytest_plugin.project import PLAIN, Project

HOSTILE = ["a", "b\n\x00", "ü\ud800", '"]', ""]
UNIT = UnitKey("fake:echo", "test_[a].py", 2)


def test_each_unit_that_is_not_through_has_its_own(tmp_path: Path) -> None:
    first, second, third = (UnitKey("fake:echo", f"test_{name}.py", 0) for name in "abc")
    for number, (worker, unit) in enumerate([("gw1", first), ("gw1", second), ("gw10", third), ("resumed-001-gw1", third)]):
        InFlight(in_flight_path(tmp_path / f"{worker}.jsonl", number), unit, ["x", "y"]).begin("xy"[number % 2])
    assert take_in_flight(tmp_path / "gw1.jsonl") == {first: ("x",), second: ("y",)}
    assert take_in_flight(tmp_path / "gw1.jsonl") == {}
    assert len(list(tmp_path.iterdir())) == 2, "others are left alone"


def test_a_unit_that_ended_leaves_no_file_and_one_without_a_path_writes_none(tmp_path: Path) -> None:
    for cases in (InFlight(tmp_path / "gw0.1.asked", UNIT, ["a"]), InFlight(None, UNIT, ["a"])):
        cases.begin("a")
        cases.close()
        cases.close()
        cases.end("a")  # a thread that is told to stop may come later
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(RecordError, match=r"gone/gw0\.1\.asked cannot be written: No such file or directory"):
        InFlight(tmp_path / "gone" / "gw0.1.asked", UNIT, ["a"])


def test_what_is_in_flight_survives_sigkill_until_the_last_of_its_requests_has_ended(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from evalharness.pytest_plugin.execution.takeover import InFlight\n"
        "from evalharness.pytest_plugin.execution.units import UnitKey\n"
        f"cases = InFlight(Path('gw0.1.asked'), UnitKey('fake:echo', 'test_[a].py', 2), {HOSTILE!r})\n"
        f"for case_id in [*{HOSTILE!r}, 'a']: cases.begin(case_id)\n"
        f"for case_id in {HOSTILE[:2]!r}: cases.end(case_id)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=False, timeout=300, env={**os.environ})
    assert done.returncode == -signal.SIGKILL
    assert take_in_flight(tmp_path / "gw0.jsonl") == {UNIT: ("a", *HOSTILE[2:])}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [None, b"", b'["a"', b"no json\n\x01"], ids=["none", "empty", "torn", "no-json"])
def test_a_file_that_is_not_whole_names_nobody(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "gw0.1.asked").write_bytes(content)
    assert take_in_flight(tmp_path / "gw0.jsonl") == {}


def test_the_end_of_a_run_removes_what_killed_workers_of_earlier_sessions_left(project: Project) -> None:
    left = "def pytest_runtest_teardown(): open('reports/r/journal/resumed-001-gw1.2.asked', 'w').write('[')\n"
    run = project.write(test_a=PLAIN, conftest=left).run_inline("--run-id", "r")
    assert run.exit_code == 0
    assert [path.name for path in (run.run_dir / "journal").iterdir() if path.suffix == ".asked"] == []
