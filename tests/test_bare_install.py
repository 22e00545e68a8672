"""What an installation without extras can do, in processes that see only the packages which that installs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests import processes
from tests.backends.http_server import Asked, Reply, serving

pytestmark = pytest.mark.slow

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
FINAL = ROOT / "fixtures" / "checkpoints" / "final"
_HIDING = """
import importlib.machinery, sys
HIDDEN = frozenset({hidden!r})
class Installed(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in HIDDEN else super().find_spec(name, path, target)
sys.meta_path[sys.meta_path.index(importlib.machinery.PathFinder)] = Installed
"""


def bare_distributions() -> set[str]:
    """Return the distributions that the dependencies in pyproject.toml bring, without extras."""
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
    waiting = [(requirement, "") for requirement in map(Requirement, wanted)]
    known: set[tuple[str, str]] = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for asked in ("", *requirement.extras):
            if (name, asked) not in known:
                known.add((name, asked))
                waiting += [(Requirement(line), asked) for line in importlib.metadata.requires(name) or ()]
    return {name for name, _ in known}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment in which Python, in child processes too, cannot import what the bare install does not bring."""
    allowed = bare_distributions() | {"evalharness"}
    modules = importlib.metadata.packages_distributions()
    hidden = {name for name, owners in modules.items() if not allowed & set(map(canonicalize_name, owners))} - {"sitecustomize"}
    assert hidden & {"hypothesis", "mypy"}
    folder = tmp_path_factory.mktemp("site")
    (folder / "sitecustomize.py").write_text(_HIDING.format(hidden=sorted(hidden)))
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COVERAGE", "EVALHARNESS_"))},
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTEST_PLUGINS": "evalharness.pytest_plugin,xdist.plugin",
        "COLUMNS": "160",
    }


def python(environment: dict[str, str], folder: Path, *arguments: str, exit_code: int = 0) -> str:
    code, output = processes.python("-m", *arguments, cwd=folder, env=environment)
    assert code == exit_code, output
    return output


@pytest.fixture(scope="module")
def project(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new project with two runs, `first` of two workers and `second`."""
    folder = tmp_path_factory.mktemp("bare") / "demo"
    python(environment, folder.parent, "evalharness", "init", "demo")
    for run_id, workers in (("first", "-n2"), ("second", "-n0")):
        python(environment, folder, "pytest", "evals", "-q", workers, "--run-id", run_id)
    return folder


def test_no_engine_can_be_imported_here(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "check.py").write_text(
        "from importlib.util import find_spec\n"
        "names = ['torch', 'torchvision', 'transformers', 'accelerate', 'peft', 'vllm', 'xgrammar', 'gguf', 'pyarrow']\n"
        "assert [name for name in names if find_spec(name) is not None] == []\n"
    )
    python(environment, tmp_path, "check")


def test_a_new_project_runs_and_passes(project: Path) -> None:
    assert json.loads((project / "reports" / "first" / "run.json").read_text())["exit_code"] == 0


@pytest.mark.parametrize(
    ("command", "file"),
    [
        (("report", "reports/first"), "reports/first/report.html"),
        (("compare", "reports/first", "reports/second", "--out", "sheets"), "sheets/compare.html"),
        (("rescore", "reports/first", "--run-id", "again"), "reports/again/report.md"),
        (("timeline", "reports/first", "--out", "steps"), "steps/timeline.html"),
        (("export", "reports/first", "--format", "jsonl", "--out", "flat.jsonl"), "flat.jsonl"),
    ],
    ids=["report", "compare", "rescore", "timeline", "export"],
)
def test_a_run_is_reported_compared_and_rescored(environment: dict[str, str], project: Path, command: tuple[str, ...], file: str) -> None:
    python(environment, project, "evalharness", *command)
    assert (project / file).is_file()


def test_the_shipped_evals_are_collected(environment: dict[str, str]) -> None:
    printed = python(environment, ROOT, "pytest", "evals", "--collect-only", "-q", "-p", "no:cacheprovider", "--model", str(FINAL))
    assert "tests collected" in printed
    assert "test_stage_a.py::test_summary[hf:final-" in printed


@pytest.fixture
def server() -> Iterator[str]:
    """A server that says "ok" to every prompt, in ids of the shipped checkpoint."""

    def answer(asked: Asked) -> Reply:
        if asked.body is None:
            return Reply({"data": [{"id": "served", "max_model_len": 4096}]})
        said: dict[str, Any] = {"text": "ok", "message": {"content": "ok"}, "finish_reason": "stop", "token_ids": [75, 76, 1100]}
        return Reply({"choices": [said], "usage": {"completion_tokens": 3}})

    with serving(answer) as told:
        yield told.url


def test_a_server_is_asked_texts_and_photos(environment: dict[str, str], server: str, tmp_path: Path) -> None:
    options = ("--backend", "openai", "--base-url", server, "--limit", "2", "--report-dir", str(tmp_path), "--run-id", "asked")
    files = ("evals/test_stage_a.py", "evals/test_json_answers.py")
    python(environment, ROOT, "pytest", *files, "-q", "-p", "no:cacheprovider", "--model", str(FINAL), *options, exit_code=1)
    rows = [json.loads(line) for line in (tmp_path / "asked" / "samples.jsonl").read_text("utf-8").splitlines()]
    assert [(row["outcome"], row["generation"]["token_ids"]) for row in rows] == [("miss", [75, 76, 1100])] * 4


def test_a_missing_engine_is_named_with_the_command_that_installs_it(environment: dict[str, str], tmp_path: Path) -> None:
    for backend, package in (("hf", "torch"), ("vllm", "vllm")):
        options = ("--backend", backend, "--limit", "1", "--report-dir", str(tmp_path), "--run-id", backend)
        command = ("pytest", "evals/test_json_answers.py", "-q", "-p", "no:cacheprovider", *options, "--model", str(FINAL))
        printed = python(environment, ROOT, *command, exit_code=10)
        assert f"backend '{backend}' needs {package}, which is not installed; " in printed
        assert f"pip install -e '{ROOT}[{backend}]'" in printed
