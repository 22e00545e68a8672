"""The command that installs an extra of this package, in the way that the package itself was installed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlsplit

__all__ = ["install_command", "missing_package"]

_NAME = "evalharness"


def missing_package(what: str, error: ImportError, extra: str) -> str:
    """Return the message about something that needs a package which cannot be imported: what, which package, and the way out."""
    is_missing = isinstance(error, ModuleNotFoundError) and error.name is not None
    problem = f"{error.name}, which is not installed" if is_missing else f"a package that cannot be imported ({error})"
    return f"{what} needs {problem}; {install_command(extra)}"


def install_command(extra: str) -> str:
    """Return the shell command that adds an extra to this installation: from its folder, repository or archive, else by name."""
    try:
        distribution = metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:  # a source tree on PYTHONPATH
        return f"{_installer('')} -e {shlex.quote(f'{Path(__file__).parents[1]}[{extra}]')}"
    installer = _installer(distribution.read_text("INSTALLER") or "")
    return f"{installer} {_requirement(json.loads(distribution.read_text('direct_url.json') or '{}'), extra)}"


def _requirement(origin: dict[str, object], extra: str) -> str:
    """Return what pip is told to install, from the `direct_url.json` (PEP 610) that it wrote; {} for a package from an index."""
    url, details, source = str(origin.get("url", "")), origin.get("dir_info"), origin.get("vcs_info")
    if isinstance(details, dict):
        folder = shlex.quote(f"{unquote(urlsplit(url).path)}[{extra}]")
        return f"-e {folder}" if details.get("editable") else folder
    if isinstance(source, dict):
        revision = source.get("requested_revision") or source.get("commit_id")
        url = f"{source.get('vcs')}+{url}" + (f"@{revision}" if revision else "")
    return shlex.quote(f"{_NAME}[{extra}]" + (f" @ {url}" if url else ""))


def _installer(name: str) -> str:
    """Return `pip install` of this environment: by its path where another `pip`, or none, comes first in PATH."""
    bin_dir = os.path.dirname(sys.executable)
    if name.strip() == "uv":
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    found = shutil.which("pip")
    is_ours = found is not None and os.path.dirname(os.path.abspath(found)) == bin_dir
    return "pip install" if is_ours else f"{shlex.quote(sys.executable)} -m pip install"
