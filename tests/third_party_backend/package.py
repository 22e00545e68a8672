"""Packages that register backends, as pip would install them, in a folder on `sys.path`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path

from evalharness import backends


def write_package(folder: Path, name: str = "acme-evals", entry_point: str = "acme = acme_backend:AcmeBackend") -> Path:
    """Write the metadata of an installed package into `folder`, beside the third party's module; return the folder."""
    metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[{backends.ENTRY_POINTS}]\n{entry_point}\n")
    source = Path(__file__).with_name("acme_backend.py")
    (folder / source.name).write_text(source.read_text("utf-8"), encoding="utf-8")
    return folder


@contextlib.contextmanager
def installed(folder: Path) -> Iterator[None]:
    """Have this process find the packages of a folder."""
    sys.path.insert(0, str(folder))
    backends._registered.cache_clear()
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        backends._registered.cache_clear()
        sys.modules.pop("acme_backend", None)
