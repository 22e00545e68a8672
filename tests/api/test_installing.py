"""The command that a missing engine's error names: the one that fits how this package was installed."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from importlib import metadata
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api import installing
from evalharness.api.errors import MissingDependency
from evalharness.api.installing import install_command, missing_package
from evalharness.backends import load_backend_class

ROOT = Path(installing.__file__).parents[2]


def installed(monkeypatch: pytest.MonkeyPatch, origin: Mapping[str, Any] | None, *, installer: str = "pip\n") -> None:
    """Act as if the package lay in site-packages, put there from `origin`; None: from an index."""
    files = {"direct_url.json": None if origin is None else json.dumps(origin), "INSTALLER": installer}
    monkeypatch.setattr(installing, "__file__", "/nowhere/site-packages/evalharness/api/installing.py")
    monkeypatch.setattr(metadata, "distribution", lambda name: SimpleNamespace(read_text=files.get))
    monkeypatch.setattr(sys, "executable", "/venv/bin/python")
    monkeypatch.setattr(shutil, "which", lambda name: "/venv/bin/pip")


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        (None, "pip install 'evalharness[hf]'"),
        ({"url": "file:///home/me/my%20code", "dir_info": {}}, "pip install '/home/me/my code[hf]'"),
        (
            {"url": "https://x.org/e.git", "vcs_info": {"vcs": "git", "commit_id": "abc", "requested_revision": "v1"}},
            "pip install 'evalharness[hf] @ git+https://x.org/e.git@v1'",
        ),
        (
            {"url": "https://x.org/e.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'evalharness[hf] @ git+https://x.org/e.git@abc'",
        ),
        ({"url": "https://x.org/e.whl", "archive_info": {}}, "pip install 'evalharness[hf] @ https://x.org/e.whl'"),
    ],
    ids=["index", "folder", "repository", "commit", "archive"],
)
def test_an_extra_comes_from_where_the_package_came(
    monkeypatch: pytest.MonkeyPatch, origin: Mapping[str, Any] | None, command: str
) -> None:
    installed(monkeypatch, origin)
    assert install_command("hf") == command


def test_a_source_tree_is_installed_from_its_folder_and_a_broken_package_not_called_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert install_command("vllm").endswith(f" install -e '{ROOT}[vllm]'")
    installed(monkeypatch, None)
    message = missing_package("backend 'hf'", ImportError("libx.so: no such file"), "hf")
    assert message == "backend 'hf' needs a package that cannot be imported (libx.so: no such file); pip install 'evalharness[hf]'"


def test_the_command_names_the_installer_of_this_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    installed(monkeypatch, None)
    for path in ("/usr/bin/pip", None):
        monkeypatch.setattr(shutil, "which", lambda name, path=path: path)
        assert install_command("hf") == "/venv/bin/python -m pip install 'evalharness[hf]'"
    installed(monkeypatch, None, installer="uv")
    assert install_command("hf") == "uv pip install --python /venv/bin/python 'evalharness[hf]'"


def test_a_backend_without_its_engine_says_what_is_missing_and_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: EntryPoint) -> None:
        raise ModuleNotFoundError("No module named 'no_such_engine'", name="no_such_engine")

    monkeypatch.setattr(EntryPoint, "load", load)
    with pytest.raises(MissingDependency) as caught:
        load_backend_class("hf")
    assert str(caught.value) == f"backend 'hf' needs no_such_engine, which is not installed; {install_command('hf')}"
