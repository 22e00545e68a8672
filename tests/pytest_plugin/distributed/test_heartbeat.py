"""Workers that hang are noticed and killed, those that are only slow are not."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from evalharness.api.errors import BROKEN
from evalharness.pytest_plugin.distributed.heartbeat import BUSY_FACTOR, Heartbeat, Watch, WatchedWorker
from tests.pytest_plugin.execution.test_takeover import NUM_CASES, TESTS, run_with
from tests.pytest_plugin.project import TIMEOUT_S, Project, wait_until


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Watched:
    """A watch with a timeout of 10 s on one sleeping process, in made-up time."""

    def __init__(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        self.clock, self.killed = Clock(), dict[str, str]()
        self.busy = self.ready = True
        self.watch = Watch(10.0, self.killed.__setitem__, self.clock)
        self.watch.add("gw0", WatchedWorker(self.process.kill, lambda: self.busy, lambda: self.ready))

    def tell(self, results: int, busy: int) -> None:
        self.watch.note("gw0", results, busy)

    def pass_time(self, seconds: float, *, step_s: float = 1.0) -> None:
        for _ in range(round(seconds / step_s)):
            self.clock.now += step_s
            self.watch.look()


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.process.kill()
    made.process.wait()


class TestWatch:
    def test_a_worker_without_signs_is_killed_and_it_is_said_why(self, watched: Watched) -> None:
        watched.pass_time(10)
        assert watched.killed == {}
        watched.pass_time(2)
        assert watched.killed == {"gw0": "hung (no sign of life for 10 s) and was killed"}
        assert watched.process.wait(timeout=TIMEOUT_S) == -9

    def test_results_keep_it_alive_and_once_it_has_ended_it_is_let_go(self, watched: Watched) -> None:
        for results in range(1, 30):
            watched.tell(results, 0)
            watched.pass_time(9)
        watched.watch.remove("gw0")
        watched.pass_time(100)
        assert watched.killed == {}

    def test_computing_keeps_it_alive_but_not_for_ever(self, watched: Watched) -> None:
        watched.tell(5, 0)
        watched.pass_time(1)
        for busy in range(1, 10 * BUSY_FACTOR):
            watched.tell(5, busy)
            watched.pass_time(1)
        assert watched.killed == {}
        watched.tell(5, 1000)
        watched.pass_time(3)
        assert watched.killed == {"gw0": "hung (busy, but no result for 60 s) and was killed"}

    def test_a_worker_without_work_may_be_still(self, watched: Watched) -> None:
        watched.busy = False
        watched.pass_time(1000)
        assert watched.killed == {}
        watched.busy = True
        watched.pass_time(9)
        assert watched.killed == {}, "its time begins with its work"

    def test_a_worker_that_still_collects_has_more_time(self, watched: Watched) -> None:
        watched.ready = False
        watched.pass_time(59)
        assert watched.killed == {}
        watched.pass_time(3)
        assert "no sign of life for 60 s" in watched.killed["gw0"]

    def test_a_machine_that_was_suspended_kills_nobody(self, watched: Watched) -> None:
        watched.pass_time(5)
        watched.pass_time(3600, step_s=3600)
        assert watched.killed == {}
        watched.pass_time(1)
        assert watched.killed == {}


class TestHeartbeat:
    def test_results_are_counted_and_stillness_is_not(self) -> None:
        # A process of its own: threads and children of this one may have something to do.
        code = """
import time
from evalharness.pytest_plugin.distributed.heartbeat import Heartbeat
told = []
heartbeat = Heartbeat(lambda *signs: told.append(signs), 1.0, lambda: 7, lambda: None)
time.sleep(2.5)
while not told: time.sleep(0.1)
heartbeat.stop()
print(told[-1])
"""
        done = subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S, capture_output=True, text=True)
        assert done.stdout == "(7, 0)\n"

    @pytest.mark.parametrize(("known", "expected"), [(None, True), (False, False)], ids=["on-a-cpu", "while-a-device-works"])
    def test_computing_in_a_child_process_counts_where_it_may(self, known: bool | None, expected: bool) -> None:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
            computed = psutil.Process(child.pid).cpu_times
            told: list[tuple[int, int]] = []
            heartbeat = Heartbeat(lambda *signs: told.append(signs), 0.3, lambda: 0, lambda: known)
            wait_until(lambda: computed().user > 0.5 and bool(told))
            if expected:
                wait_until(lambda: told[-1][1] > 0)
            heartbeat.stop()
            child.kill()
        assert (told[-1][1] > 0) == expected

    def test_a_process_that_ends_as_it_is_looked_at_ends_no_signs_and_one_known_to_be_at_work_shows_them(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def half(self: psutil.Process) -> None:
            raise RuntimeError("/proc/7/io file was empty")

        monkeypatch.setattr(psutil.Process, "io_counters", half, raising=False)
        told: list[tuple[int, int]] = []
        heartbeat = Heartbeat(lambda *signs: told.append(signs), 0.05, lambda: 7, lambda: True)
        wait_until(lambda: told[-1:] >= [(7, 2)])
        heartbeat.stop()


# A worker on a machine that is cold or busy takes many of such short timeouts to start…
PATIENT = """
from evalharness.pytest_plugin.distributed import heartbeat
heartbeat.BUSY_FACTOR = 60
"""
# …and gets less of a core than what else tells computing from waiting.
LITTLE = "heartbeat._MIN_CPU_SHARE = 0.005\n"
LESS_SO = (
    LITTLE
    + """
import pytest

num_started = 0

@pytest.hookimpl(optionalhook=True)
def pytest_xdist_node_collection_finished():
    global num_started
    num_started += 1
    heartbeat.BUSY_FACTOR = 3 if num_started >= 2 else 60

@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(error):
    if error:  # there will be a replacement
        heartbeat.BUSY_FACTOR = 60

"""
)


@pytest.mark.slow
class TestRealWorkers:
    # Timeouts of seconds, though slow: a machine that is busy with other things may starve a process for half a second.
    HUNG = "hung (no sign of life for 5 s) and was killed"

    @pytest.mark.parametrize(
        "how", ["time.sleep(600)", "os.kill(os.getpid(), signal.SIGSTOP)"], ids=["an-engine-that-waits-for-ever", "a-stopped-process"]
    )
    def test_one_that_hangs_is_killed_and_its_unit_goes_on_elsewhere(self, project: Project, how: str) -> None:
        run = run_with(project, f"{PATIENT}def deadly(case):\n    if case == 'c04' and once('hung'): {how}", "--hang-timeout", "5")
        assert run.counts == {"pass": NUM_CASES}
        (problem,) = run.facts["problems"]
        assert f" {self.HUNG} while " in problem
        assert run.exit_code == BROKEN

    def test_a_test_that_always_hangs_is_an_error(self, project: Project) -> None:
        run = run_with(project, PATIENT, "--hang-timeout", "4", tests=hanging_test("time.sleep(600)"))
        assert {row["case_id"]: row["outcome"] for row in run.rows if row["outcome"] != "pass"} == {"c07": "error"}
        assert "hung (no sign of life for 4 s) and was killed while" in run.row("c07")["problem"]

    def test_one_that_loops_for_ever_is_killed_too(self, project: Project) -> None:
        run = run_with(project, PATIENT + LESS_SO, "--hang-timeout", "4", tests=hanging_test("loop_once()"))
        assert run.counts == {"pass": NUM_CASES}
        assert "hung (busy, but no result for 12 s) and was killed while" in run.facts["problems"][0]

    @pytest.mark.parametrize(
        ("conftest", "timeout_s"),
        [
            (
                PATIENT
                + LITTLE
                + "def deadly(case):\n    until = time.monotonic() + 9\n    while case == 'c04' and time.monotonic() < until: pass",
                "4",
            ),
            (PATIENT + "def opening(): time.sleep(9)", "4"),
            ("def deadly(case):\n    if case == 'c04': time.sleep(3)", "0"),
        ],
        ids=["computes", "opens an engine", "no timeout"],
    )
    def test_one_that_takes_longer_but_does_not_hang_is_left_alone(self, project: Project, conftest: str, timeout_s: str) -> None:
        run = run_with(project, conftest, "--hang-timeout", timeout_s)
        assert run.counts == {"pass": NUM_CASES}
        assert run.facts["problems"] == []


HANGING = """
import time

def loop_once():
    if not os.path.exists("looped"):
        open("looped", "w").close()
        while True: pass

@pytest.fixture(autouse=True)
def hangs(case):
    yield
    if case.id == "c07":
        HOW
"""


def hanging_test(how: str) -> str:
    """Return an eval whose test of c07 hangs as it ends."""
    return TESTS + HANGING.replace("HOW", how)
