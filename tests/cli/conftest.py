"""Runs commands of evalharness in this process, on what they print."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from evalharness.api.errors import REFUSED
from evalharness.cli import main

Command = Callable[..., str]


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command that ends with 0, or `code`, and returns what it printed."""

    def run(*arguments: object, code: int = 0) -> str:
        capsys.readouterr()
        assert main(list(map(str, arguments))) == code
        return capsys.readouterr().out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command that is refused, and returns its message; nothing else may be printed."""

    def run(*arguments: object) -> str:
        capsys.readouterr()
        assert main(list(map(str, arguments))) == REFUSED
        printed = capsys.readouterr()
        assert printed.out == ""
        return printed.err

    return run
