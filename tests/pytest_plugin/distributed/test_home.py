"""What workers on other hosts write is written at home, and what they take over is given to them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import execnet
import pytest

from evalharness.api.errors import RecordError
from evalharness.pytest_plugin.distributed.home import FILES, Home, HomeFiles, recorded_files, takeover_files
from evalharness.pytest_plugin.execution.takeover import note_crash, take_in_flight, takeover_of
from evalharness.pytest_plugin.execution.units import UnitKey
from evalharness.runs.journal import Journal, journal_name, read_journal

UNIT = UnitKey("fake:echo", "test_a.py", 0)
OUTCOME: Any = {"engine": "fake:echo", "eval": "a", "case_id": "c0", "sample": 0, "failure": "error", "problem": "gone"}
NOTE: Any = {"worker": "gw0", "engine": "fake:echo", "path": "test_a.py", "shard": 0, "nodeids": ["x"], "isolation": None, "gave_up": False}


class Host:
    """A worker's way home, on one host: what it sends is taken at once."""

    def __init__(self, run_dir: Path, recorded: dict[str, bytes] | None = None) -> None:
        self.problems: list[str] = []
        self.files = HomeFiles(run_dir, self.problems.append)
        self.interactor = SimpleNamespace(torun=None, sendevent=self._take)
        plugins = SimpleNamespace(get_plugins=lambda: [self.interactor])
        config: Any = SimpleNamespace(pluginmanager=plugins, option=SimpleNamespace(basetemp=None))
        self.is_cut_off = False
        self.home = Home(config, run_dir, recorded or {})

    def _take(self, name: str, **values: Any) -> None:
        if self.is_cut_off:
            raise OSError("cannot send")
        if name == FILES:
            self.files.take(values)


def test_lines_of_a_journal_are_at_home_before_any_report_and_their_loss_is_an_error(tmp_path: Path) -> None:
    host = Host(tmp_path / "r")
    journal, at_home = host.home.journal("gw0"), tmp_path / "r" / "journal" / "gw0.jsonl"
    journal.write("failure", OUTCOME)
    host.interactor.sendevent("testreport", data={})
    (line,) = read_journal(at_home)
    assert line.values == {"kind": "failure", **OUTCOME}
    assert not journal.path.exists(), "none on its own host"
    journal.write("failure", OUTCOME)
    journal.write("worker_exit", {"problem": "the engine is gone"})
    assert [line.values["kind"] for line in read_journal(at_home)] == ["failure", "failure", "worker_exit"], "the process ends next"
    for _ in range(200):
        journal.write("failure", OUTCOME)
    assert len(list(read_journal(at_home))) > 150, "without any report, too"
    journal.close()
    host.is_cut_off = True
    with pytest.raises(RecordError, match=r"gw0\.jsonl cannot be sent to the controller: cannot send; what it has so far is kept"):
        journal.write("problem", {"problem": "x"})
    host.files.ended("gw0")


def test_cases_in_flight_are_known_at_home(tmp_path: Path) -> None:
    host = Host(tmp_path)
    (tmp_path / "journal").mkdir()
    path = host.home.journal("gw0").path.with_suffix(".1.asked")
    in_flight = host.home.in_flight(path, UNIT, ["a", "b"])
    in_flight.begin("a")
    in_flight.end("a")
    in_flight.begin("b")
    assert take_in_flight(tmp_path / "journal" / "gw0.jsonl") == {UNIT: ("b",)}
    in_flight.end("b")  # the file is gone: no matter of life and death
    in_flight.close()
    host.interactor.sendevent("logfinish")
    assert host.problems == []


def test_a_disk_at_home_that_is_full_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "journal").touch()  # no folder
    host = Host(tmp_path)
    for _ in range(2):
        host.home.journal("gw0").write("problem", {"problem": "x"})
    (problem,) = host.problems
    assert "gw0.jsonl cannot be opened" in problem


@pytest.mark.parametrize("session", [0, 1])
def test_a_unit_that_is_taken_over_comes_with_what_is_known_of_it(tmp_path: Path, session: int) -> None:
    home, name_of = tmp_path / "home", lambda worker: journal_name(worker, session)
    for worker, engine in (("gw0", "fake:echo"), ("gw0", "fake:other"), ("gw1", "fake:echo")):
        journal = Journal(home, name_of(worker))
        journal.write("failure", {**OUTCOME, "engine": engine})
        journal.write("problem", {"problem": "not of the unit"})
        journal.close()
    assert takeover_files(home, UNIT, session, name_of) == {}, "nobody has begun it"
    note_crash(home, NOTE, session)
    files = takeover_files(home, UNIT, session, name_of)
    assert [path for path in files if "gw" in path] == [f"journal/{name_of('gw0')}.jsonl"]
    assert files[f"journal/{name_of('gw0')}.jsonl"].count(b"\n") == 1
    host = Host(tmp_path / "elsewhere")
    host.home.put(files)
    takeover = takeover_of(host.home.copy, UNIT, "a", session)
    assert takeover is not None
    assert takeover.nodeids == frozenset({"x"})
    assert (takeover.recorded("c0") is not None) == (session == 0), "a resumed run generates failures again"


def test_a_resumed_run_is_sent_to_a_host_that_does_not_see_it(tmp_path: Path) -> None:
    for session in (0, 1):
        journal = Journal(tmp_path / "r", journal_name("gw0", session))
        journal.write("failure", OUTCOME)
        journal.close()
    (tmp_path / "r" / "run.json").write_text("{}")
    group = execnet.Group(execmodel="main_thread_only")
    try:
        assert recorded_files(tmp_path / "r", 1, group.makegateway("popen//execmodel=main_thread_only")) == {}
    finally:
        group.terminate(1)
    blind = SimpleNamespace(remote_exec=lambda source: SimpleNamespace(send=lambda paths: None, receive=lambda: [-1]))
    files = recorded_files(tmp_path / "r", 1, blind)
    assert sorted(files) == ["journal/gw0.jsonl", "run.json"], "of earlier sessions"
    host = Host(tmp_path / "r", files)
    assert host.home.recorded_in == host.home.copy != tmp_path / "r"
    assert (host.home.copy / "journal" / "gw0.jsonl").read_bytes() == (tmp_path / "r" / "journal" / "gw0.jsonl").read_bytes()
