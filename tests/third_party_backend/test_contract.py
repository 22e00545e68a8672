"""A third party's backend, found by its entry point, passes the contract and runs evals. Run: pytest tests/third_party_backend"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from evalharness import ModelLoadConfig
from evalharness.api.errors import ConfigError, MissingDependency
from evalharness.backends import known_backends, load_backend_class
from evalharness.engine.backend_contract import BackendContract
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine
from tests.pytest_plugin.project import MARK, Project
from tests.third_party_backend.package import installed, write_package

REMEDY = "; reinstall that package and what it imports$"
CHECKPOINT = Path(__file__).parents[2] / "fixtures" / "checkpoints" / "final"


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The third party's engine."""
    with installed(write_package(tmp_path_factory.mktemp("site"))), build_engine("acme", ModelLoadConfig("any")) as engine:
        yield engine


class TestAcme(BackendContract):
    """The contract, as its docstring tells third parties to test it."""


def test_the_documentation_shows_this_backend() -> None:
    tests = Path(__file__)
    code = tests.with_name("acme_backend.py").read_text("utf-8").partition("\n\n")[2]
    assert code in (tests.parents[2] / "docs" / "backends.md").read_text("utf-8")


def test_its_constructor_gets_the_options_that_it_names(tmp_path: Path) -> None:
    from evalharness import VllmEngineOptions

    with installed(write_package(tmp_path)):
        engine = build_engine("acme", ModelLoadConfig("any"), vllm_options=VllmEngineOptions(max_model_len=77))
        assert engine.backend.max_model_len == 77


@pytest.mark.slow
def test_evals_run_on_it_by_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = write_package(tmp_path / "site")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *sys.path]))
    project = Project(tmp_path / "project").write(test_a=MARK + "def test_t(generation):\n    assert generation.text is not None\n")
    run = project.run(f"--model={CHECKPOINT}", backend="acme", apart=True)
    assert run.exit_code == 0, run.output
    assert run.counts == {"pass": 4}
    assert run.facts["engines"][0]["settings"]["acme"] == "1.0"


def test_a_name_that_two_packages_register_is_refused_with_both(tmp_path: Path) -> None:
    with installed(write_package(tmp_path, "other-evals", "fake = acme_backend:AcmeBackend")):
        assert known_backends().count("fake") == 1
        with pytest.raises(ConfigError, match=r"^backend 'fake' is registered by .*uninstall one of them") as caught:
            load_backend_class("fake")
    assert "other-evals 1.0 (acme_backend:AcmeBackend)" in str(caught.value)
    assert "evalharness 0.1.0 (evalharness.backends.fake:FakeBackend)" in str(caught.value)


@pytest.mark.parametrize(
    ("target", "kind", "problem"),
    [
        ("acme_absent:Backend", MissingDependency, r"No module named 'acme_absent'\); install what it needs"),
        ("acme_backend:Absent", ConfigError, rf"AttributeError: .*{REMEDY}"),
        ("acme_raises:Backend", ConfigError, rf"OSError: libcudart\.so\.12: cannot open shared object file\){REMEDY}"),
        ("acme_old:Backend", ConfigError, rf"ImportError: cannot import name 'absent' from 'json' .*{REMEDY}"),
    ],
    ids=["missing module", "missing class", "broken library", "library of another version"],
)
def test_a_backend_that_cannot_be_imported_is_named_with_its_package(
    tmp_path: Path, target: str, kind: type[Exception], problem: str
) -> None:
    write_package(tmp_path, "bad-evals", f"bad = {target}")
    (tmp_path / "acme_raises.py").write_text('raise OSError("libcudart.so.12: cannot open shared object file")')
    (tmp_path / "acme_old.py").write_text("from json import absent")
    with installed(tmp_path):
        with pytest.raises(kind, match=rf"^backend 'bad' of bad-evals 1\.0 \({target}\) cannot be imported \(.*{problem}"):
            load_backend_class("bad")
        load_backend_class("fake")


def test_an_unknown_name_is_answered_with_the_close_and_all_known_ones(tmp_path: Path) -> None:
    with (
        installed(write_package(tmp_path)),
        pytest.raises(ConfigError, match=r"^backend 'acne' is unknown; did you mean 'acme'\? Known: acme, "),
    ):
        load_backend_class("acne")
