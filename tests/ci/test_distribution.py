"""How `make test` spreads tests over workers, on a small tree of the same shape."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distribution import VLLM, cost_class, unit_of
from tests.processes import python
from tests.pytest_plugin.project import environment

ROOT = Path(__file__).parents[2]
NOTE = """
import os, pathlib, pytest

@pytest.mark.parametrize("number", range(3))
def test_one(number):
    with open(pathlib.Path(__file__).parents[NUM_FOLDERS] / "order", "a") as order:
        order.write(f"{os.environ['PYTEST_XDIST_WORKER']} {pathlib.Path(__file__).name}\\n")
"""
FILES = {
    "contract/test_engines.py": NOTE.replace("NUM_FOLDERS", "1"),
    "pytest_plugin/test_runs.py": NOTE.replace("NUM_FOLDERS", "1"),
    "test_light.py": NOTE.replace("NUM_FOLDERS", "0"),
    "test_model.py": NOTE.replace("NUM_FOLDERS", "0") + "pytestmark = pytest.mark.vllm\n",
    "test_waits.py": NOTE.replace("NUM_FOLDERS", "0") + "pytestmark = pytest.mark.slow\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, source in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(source)
    (tmp_path / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text("utf-8"))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    vllm: x\n    slow: x\n")
    return tmp_path


def ran(tree: Path, *arguments: str) -> tuple[int, str]:
    return python("-m", "pytest", "-q", "-p", "xdist", *arguments, cwd=tree, env=environment(PYTHONPATH=str(ROOT)))


def test_files_that_start_vllm_are_one_unit_and_all_others_their_own(tree: Path) -> None:
    of_vllm = dict.fromkeys(("contract/test_engines.py", "test_model.py"), VLLM)
    assert {name: unit_of(tree, name) for name in FILES} == {name: name for name in FILES} | of_vllm


def test_what_takes_long_begins_first(tree: Path) -> None:
    units = [VLLM, "test_waits.py", "pytest_plugin/test_runs.py", "test_light.py"]
    assert [cost_class(tree, unit) for unit in units] == [0, 1, 2, 3]


@pytest.mark.slow
def test_one_worker_has_all_that_start_vllm_and_every_test_runs_once(tree: Path) -> None:
    code, output = ran(tree, "-n2", "--dist=loadfile")
    assert code == 0, output
    places = [line.split() for line in (tree / "order").read_text().splitlines()]
    assert sorted(name for _, name in places) == sorted(Path(name).name for name in FILES for _ in range(3))
    assert len({worker for worker, name in places if name in ("test_engines.py", "test_model.py")}) == 1
    assert len({tuple(place) for place in places}) == len(FILES), "a file stays whole"


@pytest.mark.slow
def test_a_file_that_hides_its_start_of_vllm_is_refused(tree: Path) -> None:
    (tree / "test_hidden.py").write_text("import pytest\npytestmark = [getattr(pytest.mark, 'vllm')]\n\ndef test_one(): pass\n")
    code, output = ran(tree, "-n2", "--dist=loadfile")
    assert (code, "test_hidden.py starts vLLM, and its source does not say so" in output) == (1, True)
