"""Projects to run pytest on, in three modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytest_plugin.project import MODES, Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project."""
    return Project(tmp_path / "project")


@pytest.fixture(scope="session", params=MODES)
def mode(request: pytest.FixtureRequest) -> str:
    """Without xdist, with -n0, with two workers."""
    return request.param
