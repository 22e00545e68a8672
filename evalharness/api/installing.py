"""Names the command that installs an extra of this package, in the way the package itself was installed."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
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
    """Return the shell command that adds an extra to this installation."""
    distribution = _distribution()
    return f"{_installer(distribution)} {_arguments(distribution, extra)}"


def install_arguments(extra: str) -> str:
    """Return what `pip install` takes for an extra, in any environment: where this installation came from, else the extra's packages."""
    return _arguments(_distribution(), extra)


def _distribution() -> metadata.Distribution | None:
    try:
        return metadata.distribution(_NAME)
    except metadata.PackageNotFoundError:
        return None


def _arguments(distribution: metadata.Distribution | None, extra: str) -> str:
    tree = Path(__file__).resolve().parents[2]
    if (tree / "pyproject.toml").is_file():  # a source tree, installed with -e or on PYTHONPATH
        return f"-e {shlex.quote(f'{tree}[{extra}]')}"
    source = _source(distribution, extra)
    # Never the bare name: on another index than the one it came from, that package may be anyone's.
    packages = [source] if source else list(_packages(distribution, extra))
    return " ".join(map(shlex.quote, packages)) or f"the packages that evalharness's pyproject.toml lists under {extra!r}"


def _source(distribution: metadata.Distribution | None, extra: str) -> str | None:
    """Return the requirement with the origin in `direct_url.json` (PEP 610); None for an index, or a folder or file that is gone."""
    origin = json.loads((distribution.read_text("direct_url.json") if distribution is not None else None) or "{}")
    url, repository = str(origin.get("url", "")), origin.get("vcs_info")
    path = unquote(urlsplit(url).path)
    if not url or (url.startswith("file:") and not os.path.exists(path)):
        return None
    if "dir_info" in origin:
        return f"{path}[{extra}]"
    if repository is not None:
        url = f"{repository['vcs']}+{url}@{repository.get('requested_revision') or repository['commit_id']}"
    folder = f"#subdirectory={origin['subdirectory']}" if "subdirectory" in origin else ""
    return f"{_NAME}[{extra}] @ {url}{folder}"


def _packages(distribution: metadata.Distribution | None, extra: str) -> Iterator[str]:
    """Yield the requirements of an extra, also of extras that it takes in."""
    asked = f'extra == "{extra}"'
    for line in (distribution.requires if distribution is not None else None) or ():
        package, _, condition = line.partition("; ")
        if asked not in condition:
            continue
        if package.startswith(f"{_NAME}["):
            for part in package[len(_NAME) + 1 : -1].split(","):
                yield from _packages(distribution, part)
        else:
            others = condition.removesuffix(asked).removesuffix(" and ")
            yield f"{package}; {others}" if others else package


def _installer(distribution: metadata.Distribution | None) -> str:
    """Return the `pip install` of this environment, by its path unless it is the first `pip` in PATH."""
    if distribution is not None and (distribution.read_text("INSTALLER") or "").strip() == "uv":
        return f"uv pip install --python {shlex.quote(sys.executable)}"
    pip = shutil.which("pip")
    is_ours = pip is not None and os.path.dirname(os.path.abspath(pip)) == os.path.dirname(sys.executable)
    return "pip install" if is_ours else f"{shlex.quote(sys.executable)} -m pip install"
