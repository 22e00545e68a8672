"""Whether vLLM is installed for the tests that start it, and if not, why, as `make` recorded when it made the environment."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

from evalharness.api.installing import install_command

IS_INSTALLED = importlib.util.find_spec("vllm") is not None


def _why_not() -> str:
    told = [path.read_text("utf-8").strip() for path in sorted(Path(sys.prefix).glob(".installed-*"))]
    return next(filter(None, told), f"vLLM is not installed; {install_command('vllm')}")


WHY_NOT = "" if IS_INSTALLED else _why_not()
