"""The command that a missing engine's error names: the one that fits how this package was installed."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api import installing
from evalharness.api.errors import MissingDependency
from evalharness.api.installing import install_arguments, install_command, missing_package
from evalharness.backends import load_backend_class

ROOT = Path(installing.__file__).parents[2]


REQUIRES = [
    "pytest>=9",
    'torch>=2.8; extra == "hf"',
    'evalharness[hf]; extra == "vllm"',
    'vllm<0.34,>=0.26; python_version >= "3.11" and extra == "vllm"',
    'evalharness[vllm,more]; extra == "all"',
    'more; extra == "more"',
]


def installed(
    monkeypatch: pytest.MonkeyPatch,
    origin: Mapping[str, Any] | None,
    *,
    installer: str = "pip\n",
    requires: Sequence[str] | None = REQUIRES,
) -> None:
    """Act as if the package lay in site-packages, put there from `origin`; None: from an index."""
    files = {"direct_url.json": None if origin is None else json.dumps(origin), "INSTALLER": installer}
    monkeypatch.setattr(installing, "__file__", "/nowhere/site-packages/evalharness/api/installing.py")
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=files.get, requires=requires))
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    monkeypatch.setattr(shutil, "which", lambda name: "/venv/bin/pip")


def repository(**facts: str) -> dict[str, Any]:
    return {"url": "https://x.org/e.git", "vcs_info": {"vcs": "git", "commit_id": "abc", **facts}}


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        pytest.param(repository(requested_revision="v1"), "pip install 'evalharness[hf] @ git+https://x.org/e.git@v1'", id="repository"),
        pytest.param(repository(), "pip install 'evalharness[hf] @ git+https://x.org/e.git@abc'", id="commit"),
        pytest.param(
            {**repository(), "subdirectory": "py"},
            "pip install 'evalharness[hf] @ git+https://x.org/e.git@abc#subdirectory=py'",
            id="subdirectory",
        ),
        pytest.param(
            {"url": "https://x.org/e.whl", "archive_info": {}}, "pip install 'evalharness[hf] @ https://x.org/e.whl'", id="archive"
        ),
    ],
)
def test_an_extra_comes_from_where_the_package_came(monkeypatch: pytest.MonkeyPatch, origin: Mapping[str, Any], command: str) -> None:
    installed(monkeypatch, origin)
    assert install_command("hf") == command


def test_an_extra_comes_from_the_folder_or_the_wheel_while_it_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, wheel = tmp_path / "my code", tmp_path / "evalharness-1-py3-none-any.whl"
    folder.mkdir()
    wheel.touch()
    places = [
        ({"url": folder.as_uri(), "dir_info": {}}, f"pip install '{folder}[hf]'"),
        ({"url": wheel.as_uri(), "archive_info": {}}, f"pip install 'evalharness[hf] @ {wheel.as_uri()}'"),
    ]
    for origin, command in places:
        installed(monkeypatch, origin)
        assert install_command("hf") == command
    folder.rmdir()
    wheel.unlink()
    for origin, _ in places:
        installed(monkeypatch, origin)
        assert install_command("hf") == "pip install 'torch>=2.8'"


@pytest.mark.parametrize(
    ("extra", "packages"),
    [
        ("hf", "'torch>=2.8'"),
        ("vllm", "'torch>=2.8' 'vllm<0.34,>=0.26; python_version >= \"3.11\"'"),
        ("all", "'torch>=2.8' 'vllm<0.34,>=0.26; python_version >= \"3.11\"' more"),
    ],
)
def test_without_an_origin_the_packages_are_named_and_never_the_name_that_may_be_anyones(
    monkeypatch: pytest.MonkeyPatch, extra: str, packages: str
) -> None:
    installed(monkeypatch, None)
    assert install_command(extra) == f"pip install {packages}"
    installed(monkeypatch, None, requires=None)
    assert install_command(extra) == f"pip install the packages that evalharness's pyproject.toml lists under '{extra}'"


@pytest.mark.parametrize(
    "extra", [name for name in metadata.distribution("evalharness").metadata.get_all("Provides-Extra") if name != "test"]
)
def test_the_extras_of_this_package_have_packages(monkeypatch: pytest.MonkeyPatch, extra: str) -> None:
    requires = metadata.distribution("evalharness").requires
    installed(monkeypatch, None, requires=requires)
    assert "evalharness" not in install_arguments(extra)


def test_a_source_tree_is_installed_from_its_folder_and_a_broken_package_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_command("vllm").endswith(f" install -e '{ROOT}[vllm]'")
    installed(monkeypatch, None)
    message = missing_package("backend 'hf'", ImportError("libx.so: no such file"), "hf")
    assert message == "backend 'hf' needs a package that cannot be imported (libx.so: no such file); pip install 'torch>=2.8'"


def test_the_command_names_the_installer_of_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    for path in ("/usr/bin/pip", None):
        monkeypatch.setattr(shutil, "which", lambda name, path=path: path)
        assert install_command("hf") == "/venv/bin/python -m pip install 'torch>=2.8'"
    installed(monkeypatch, None, installer="uv")
    assert install_command("hf") == "uv pip install --python /venv/bin/python 'torch>=2.8'"


BARE_NAME = re.compile(r"pip install ['\"]?evalharness\b")


def test_no_text_of_the_package_or_its_documents_installs_the_bare_name() -> None:
    files = [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("evalharness/**/*.py"), *ROOT.glob("evalharness/**/*.md.in")]
    assert len(files) > 100
    assert [str(path) for path in files if BARE_NAME.search(path.read_text("utf-8"))] == []


def test_a_backend_without_its_engine_says_what_is_missing_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: EntryPoint) -> None:
        raise ModuleNotFoundError("No module named 'no_such_engine'", name="no_such_engine")

    monkeypatch.setattr(EntryPoint, "load", load)
    with pytest.raises(MissingDependency) as caught:
        load_backend_class("hf")
    assert str(caught.value) == f"backend 'hf' needs no_such_engine, which is not installed; {install_command('hf')}"
