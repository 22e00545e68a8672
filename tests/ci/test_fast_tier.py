"""`pytest tests --fast` leaves out what needs an engine, and nothing in it can import torch."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.fast_tier import LEFT_OUT
from tests.processes import python
from tests.pytest_plugin.project import environment

ROOT = Path(__file__).parents[2]
MARKERS = "".join(["[pytest]\nmarkers =\n", *(f"    {name}: x\n" for name in LEFT_OUT)])


def run_fast(folder: Path, *arguments: str, **modules: str) -> tuple[int, str]:
    """Run the fast tier on test modules and return pytest's exit code and its output."""
    for name, source in modules.items():
        (folder / f"{name}.py").write_text(f"import pytest, subprocess, sys\n{source}")
    (folder / "conftest.py").write_text((ROOT / "tests" / "conftest.py").read_text("utf-8"))
    (folder / "pytest.ini").write_text(MARKERS)
    return python("-m", "pytest", "-q", "--fast", "-p", "no:cacheprovider", *arguments, cwd=folder, env=environment(PYTHONPATH=str(ROOT)))


def test_marked_tests_and_modules_and_those_that_take_a_checkpoint_are_left_out(tmp_path: Path) -> None:
    marked = "".join(f"@pytest.mark.{name}\ndef test_{name}(): assert False\n\n" for name in LEFT_OUT)
    listed = "pytestmark = [\n    pytest.mark.usefixtures(),\n    pytest.mark.{},\n]\nraise ImportError\n"
    whole = {f"test_of_{name}": listed.format(name) for name in LEFT_OUT}
    one = "def test_a(): pass\n\ndef test_b(tiny_tokenizer): assert False\n\n"
    code, output = run_fast(tmp_path, test_one=one + marked, test_short="pytestmark = pytest.mark.engine\nraise ImportError\n", **whole)
    assert (code, "1 passed, 6 deselected" in output) == (0, True), output


IMPORTS = {
    "the test": ("def test_a(): import torch\n", "this test imports torch: mark it with pytest.mark.engine"),
    "code that hides it": ("def test_a():\n    try: import torchvision\n    except ImportError: pass\n", "this test imports torchvision"),
    "a skip": ("def test_a(): pytest.importorskip('transformers')\n", "this test imports transformers"),
    "a fixture": ("@pytest.fixture\ndef f(): import torch\n\ndef test_a(f): pass\n", "this test imports torch"),
    "the module": ("import torch\n\ndef test_a(): pass\n", "torch is not imported in the fast tier"),
    "a process": (
        "def test_a(): subprocess.run([sys.executable, '-c', 'import torch'], check=True)\n",
        "torch is not imported in the fast",
    ),
}


@pytest.fixture(scope="module")
def refused(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What pytest says of each module, all in one run."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")
    folder = tmp_path_factory.mktemp("refused")
    modules = {f"test_{place}": source for place, (source, _) in enumerate(IMPORTS.values())}
    code, output = run_fast(folder, "--continue-on-collection-errors", "--junitxml=all.xml", "-ojunit_logging=all", **modules)
    assert code == 1, output
    cases = {case.get("classname") or case.get("name"): case for case in ElementTree.parse(folder / "all.xml").iter("testcase")}
    return {name: " ".join(cases[module].itertext()) for name, module in zip(IMPORTS, modules, strict=True)}


@pytest.mark.parametrize(("name", "message"), [(name, message) for name, (_, message) in IMPORTS.items()], ids=IMPORTS)
def test_an_import_of_an_engine_fails(refused: dict[str, str], name: str, message: str) -> None:
    assert message in refused[name]
