"""Projects to run commands in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytest_plugin.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """An empty project."""
    return Project(tmp_path / "project")
