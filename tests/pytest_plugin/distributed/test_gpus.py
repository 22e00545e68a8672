"""Real workers get GPUs of their own. The cards are those that a stand-in for nvidia-smi lists; workers tell their mask."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from xdist.plugin import pytest_xdist_auto_num_workers as xdist_count

from evalharness.api.errors import BROKEN
from evalharness.hardware.devices import num_cores
from evalharness.pytest_plugin.distributed.gpus import holds_evals
from tests.pytest_plugin.project import HEADER, Project, Run

pytestmark = pytest.mark.slow

CHECKPOINT = Path(__file__).parents[3] / "fixtures" / "checkpoints" / "final"
LISTING = "".join(f"GPU {number}: NVIDIA H100 (UUID: GPU-{number}{number}{number}{number}-0)\n" for number in range(4))

# `hf` without weights: what is under test is over before an engine would touch CUDA. The mask is that at the first import.
CONFTEST = """
import os
MASK_AT_IMPORT = os.environ.get("CUDA_VISIBLE_DEVICES")
import evalharness.engine.build
from evalharness.backends.fake import FakeBackend, read_script

class Stub(FakeBackend):
    name = "hf"
    def __init__(self, config, preprocess):
        self._start(read_script("echo"), None)

evalharness.engine.build.load_backend_class = lambda name: Stub
"""
EVAL = (
    HEADER
    + """
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=f"c{i:02}") for i in range(8)], request=ask)

def test_s(case, generation, details):
    import conftest
    details(mask=os.environ.get("CUDA_VISIBLE_DEVICES"), first=conftest.MASK_AT_IMPORT)
"""
)


@pytest.fixture
def gpus(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project on a machine with four cards."""
    folder = project.root / "bin"
    folder.mkdir()
    (folder / "nvidia-smi").write_text(f"#!/bin/sh\ncase $1 in -L) cat <<'END'\n{LISTING}END\n;; esac\n")
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return project.write(conftest=CONFTEST, test_a=EVAL)


def run(project: Project, *arguments: str, backend: str | None = "hf") -> Run:
    model = (f"--model={CHECKPOINT}",) if backend == "hf" else ()
    with project.start("-p", "xdist", *model, *arguments, backend=backend) as process:
        return project.wait(process)


def masks(ran: Run) -> dict[str, set[str | None]]:
    """Return what each worker saw, when its conftest was imported and in its tests."""
    found: dict[str, set[str | None]] = {}
    for row in ran.rows:
        found.setdefault(row["worker"], set()).update((row["details"]["mask"], row["details"]["first"]))
    return found


def test_each_worker_sees_one_card_from_its_first_import_on(gpus: Project) -> None:
    assert masks(run(gpus, "-n2")) == {"gw0": {"0"}, "gw1": {"1"}}


def test_cards_are_within_the_users_mask_and_choice(gpus: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,GPU-2222,1")
    assert masks(run(gpus, "-n2", "--devices", "gpu:1,gpu:0")) == {"gw0": {"GPU-2222"}, "gw1": {"3"}}


def test_auto_starts_a_worker_per_card(gpus: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,1")
    ran = run(gpus, "-n", "auto")
    assert ran.facts["num_workers"] == 3
    seen = {"gw0": {"2"}, "gw1": {"3"}, "gw2": {"1"}}
    assert all(seen[worker] == mask for worker, mask in masks(ran).items())


def test_auto_in_a_resumed_run_goes_by_what_the_run_was_asked(gpus: Project) -> None:
    assert run(gpus, "-n", "auto", "--devices", "gpu:0,gpu:2", "--run-id", "r").facts["num_workers"] == 2
    resumed = run(gpus, "-n", "auto", "--resume", "r", f"--model={CHECKPOINT}", backend=None)
    assert resumed.exit_code == 0, resumed.output
    assert resumed.facts["resumptions"][0]["num_workers"] == 2


def test_auto_on_a_cpu_is_one_worker_where_there_are_few_cores(gpus: Project) -> None:
    assert run(gpus, "-n", "auto", "--devices", "cpu").facts["num_workers"] == max(1, num_cores() // 8)


def test_a_replacement_takes_over_the_dead_workers_card(gpus: Project) -> None:
    dying = (
        EVAL
        + """    import time
    if case.id == "c04":  # else this worker would take the other's unit before the replacement is there
        deadline = time.monotonic() + 300
        while not os.path.exists("again") and time.monotonic() < deadline:
            time.sleep(0.05)
    if case.id == "c00":
        open("again" if os.path.exists("died") else "died", "w").close()
        if not os.path.exists("again"):
            os._exit(1)
"""
    )
    ran = run(gpus.write(test_a=dying), "-n2", "--devices", "gpu:2,gpu:3")
    assert ran.counts == {"pass": 8}
    cards, seen = {"gw0": {"2"}, "gw1": {"3"}}, masks(ran)
    (survivor,) = cards.keys() & seen.keys()  # which of the two has the deadly case is chance
    (dead,) = cards.keys() - {survivor}
    assert seen == {survivor: cards[survivor], "gw2": cards[dead]}


def test_without_workers_a_choice_holds_for_the_one_process(gpus: Project) -> None:
    (mask,) = masks(run(gpus, "--devices", "gpu:2")).values()
    assert "2" in mask


def test_a_worker_whose_specification_says_what_it_sees_keeps_that(gpus: Project) -> None:
    own = ("--tx", "popen//env:CUDA_VISIBLE_DEVICES=3", "--tx", "popen", "--dist", "load")
    assert masks(run(gpus, *own)) == {"gw0": {"3"}, "gw1": {"1"}}


def test_the_cpu_is_a_choice_too(gpus: Project) -> None:
    assert masks(run(gpus, "-n2", "--devices", "cpu")) == {"gw0": {""}, "gw1": {""}}


def test_too_many_workers_are_refused_before_anything_runs_unless_they_may_share(gpus: Project) -> None:
    refused = run(gpus, "-n2", "--devices", "gpu:3")
    assert refused.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: 2 workers need 2 GPUs, but 1 (3) may be used; give -n 1 or -n auto, or let workers share GPUs" in refused.output
    assert refused.opened_no_run
    assert masks(run(gpus, "-n2", "--devices", "gpu:3", "--share-devices")) == {"gw0": {"3"}, "gw1": {"3"}}


@pytest.mark.parametrize("arguments", [("-n2",), ("--devices", "gpu:0")], ids=["with-workers", "in-one-process"])
def test_a_conftest_that_started_cuda_is_refused(gpus: Project, arguments: tuple[str, ...]) -> None:
    started = "import sys, types\nsys.modules['torch'] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))\n"
    refused = run(gpus.write(conftest=started + CONFTEST), *arguments)
    assert refused.exit_code == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: CUDA was initialised before GPUs could be given out, by a conftest.py or plugin that ran CUDA code" in refused.output


def test_a_test_module_that_starts_cuda_is_an_error_of_its_engines(gpus: Project) -> None:
    started = "import sys, types\nsys.modules['torch'] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))\n"
    ran = run(gpus.write(test_a=EVAL.replace("import os, pytest", started + "import os, pytest")), "-n2")
    assert ran.counts == {"error": 8}
    assert "CUDA was initialised in process gw" in ran.rows[0]["problem"]
    assert ran.exit_code == BROKEN


def test_a_module_that_changes_the_mask_is_an_error_of_its_engines(gpus: Project) -> None:
    changed = EVAL.replace("import os, pytest", "import os, pytest\nos.environ['CUDA_VISIBLE_DEVICES'] = '0'")
    ran = run(gpus.write(test_a=changed), "-n2", "--devices", "gpu:2,gpu:3")
    assert ran.counts == {"error": 8}
    assert "CUDA_VISIBLE_DEVICES was changed to '0' in process gw" in ran.rows[0]["problem"]


def test_evals_that_nobody_foresaw_are_refused_on_several_cards(gpus: Project) -> None:
    gpus.write(helper_mark=EVAL.split("def test_s")[0], test_a="from helper_mark import pytestmark\ndef test_s(case, generation): pass\n")
    (gpus.root / "evalharness.toml").write_text(f'backend = "hf"\nmodel = "{CHECKPOINT}"\n')
    refused = run(gpus, "-n2", backend=None)
    assert refused.exit_code != 0
    assert "say which to use: --devices gpu:0,gpu:1,gpu:2,gpu:3" in refused.output


def test_other_peoples_tests_see_every_card_and_keep_xdists_count(gpus: Project) -> None:
    count = xdist_count(config=SimpleNamespace(option=SimpleNamespace(numprocesses="auto")))
    plain = "def test_p(): open('seen.json', 'w').write(json.dumps([os.environ.get(name) for name in NAMES]))\n"
    gpus.write(test_plain="import os, json\nNAMES = 'CUDA_VISIBLE_DEVICES', 'PYTEST_XDIST_WORKER_COUNT'\n" + plain)
    assert run(gpus, "-n", "auto", "test_plain.py", backend=None).exit_code == 0
    assert json.loads((gpus.root / "seen.json").read_text()) == [None, str(count)]


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import pytest\npytestmark = pytest.mark.eval(cases=f)\n", True),
        ("import pytest\npytestmark = [pytest.mark.slow, pytest.mark.eval(cases=f)]\n", True),
        ("import pytest\n@pytest.mark.eval(cases=f)\ndef test_a(): pass\n", True),
        ("from pytest import mark\npytestmark = pytest.mark.eval\n", True),
        ("TEXT = 'pytestmark = pytest.mark.eval(cases=f)'\n", False),
        ("import pytest\ndef test_a():\n    pytest.mark.eval(cases=f)\n", False),
        ("pytestmark = pytest.mark.eval(\n", False),
        ("", False),
    ],
    ids=["module", "list", "decorator", "bare", "in-a-text", "in-a-function", "no-python", "empty"],
)
def test_a_module_with_evals_is_known_without_importing_it(tmp_path: Path, code: str, expected: bool) -> None:
    (tmp_path / "test_a.py").write_text(code)
    assert holds_evals(tmp_path / "test_a.py") == expected
