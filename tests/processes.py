"""Runs Python in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

TIMEOUT_S = 300


def python(*arguments: object, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run Python with these arguments to its end; returns its exit code, and what it printed followed by its errors."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, encoding="utf-8", timeout=TIMEOUT_S, check=False)
    return done.returncode, done.stdout + done.stderr
