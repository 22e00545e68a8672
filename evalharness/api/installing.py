"""Names the command that installs an extra of this package, in the way the package itself was installed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

_NAME = "evalharness"


def missing_package(what: str, error: ImportError, extra: str) -> str:
    """Return the message that `what` needs a package that cannot be imported, with the command that installs it."""
    is_missing = isinstance(error, ModuleNotFoundError) and error.name is not None
    problem = f"{error.name}, which is not installed" if is_missing else f"a package that cannot be imported ({error})"
    return f"{what} needs {problem}; {install_command(extra)}"


def install_command(extra: str) -> str:
    """Return the shell command that adds an extra to this installation, from its folder, repository or archive, or by name."""
    tree = Path(__file__).resolve().parents[2]
    try:
        distribution: metadata.Distribution | None = metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:
        distribution = None
    installer = _installer(distribution)
    if (tree / "pyproject.toml").is_file():  # a source tree, installed with -e or on PYTHONPATH
        return f"{installer} -e {shlex.quote(f'{tree}[{extra}]')}"
    origin = distribution.read_text("direct_url.json") if distribution is not None else None
    return f"{installer} {_requirement(json.loads(origin or '{}'), extra)}"


def _requirement(origin: dict[str, object], extra: str) -> str:
    """Return pip's argument, from the `direct_url.json` (PEP 610) that it wrote; {} stands for a package from an index."""
    url, source = str(origin.get("url", "")), origin.get("vcs_info")
    if "dir_info" in origin:
        return shlex.quote(f"{unquote(urlsplit(url).path)}[{extra}]")
    if isinstance(source, dict):
        revision = source.get("requested_revision") or source.get("commit_id")
        url = f"{source.get('vcs')}+{url}" + (f"@{revision}" if revision else "")
    return shlex.quote(f"{_NAME}[{extra}]" + (f" @ {url}" if url else ""))


def _installer(distribution: metadata.Distribution | None) -> str:
    """Return the `pip install` of this environment, by its path unless it is the first `pip` in PATH."""
    if distribution is not None and (distribution.read_text("INSTALLER") or "").strip() == "uv":
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    pip = shutil.which("pip")
    is_ours = pip is not None and os.path.dirname(os.path.abspath(pip)) == os.path.dirname(sys.executable)
    return "pip install" if is_ours else f"{shlex.quote(sys.executable)} -m pip install"
