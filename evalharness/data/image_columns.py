"""Images in columns of rows: bytes, paths, base64; and the way back to one from what a run recorded of it."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from evalharness.api.checks import excerpt, shown
from evalharness.api.errors import ConfigError, ImageError
from evalharness.api.images import StoredBytes
from evalharness.data.finding import open_file
from evalharness.data.stored import RowFile

_BASE64 = re.compile(r"(?:data:image/[^,]{1,40};base64,|(?=/9j/|iVBORw0KGgo|UklGR|R0lGOD|Qk0).{256})", re.DOTALL)
"""How images in base64 begin: a data URL, or an image's first bytes in a text that is longer than any path."""


def image_source(value: Any, where: str, folder: Path) -> StoredBytes | Path:
    """Return the bytes or the path that a value stands for; `ImageError` for a URL or anything else. `where` names it in messages."""
    if isinstance(value, StoredBytes):
        return value
    if isinstance(value, bytes):
        return StoredBytes(where, lambda: value)
    if isinstance(value, Path):
        return folder / value
    if isinstance(value, dict) and (isinstance(value.get("bytes"), (bytes, StoredBytes)) or isinstance(value.get("path"), str)):
        return image_source(value.get("bytes") or value["path"], where, folder)
    if not isinstance(value, str):
        raise ImageError(f"{where} must be an image's bytes or path, got {shown(value)}")
    if found := _BASE64.match(value):
        return StoredBytes(where, lambda: _decoded(value[found.end() if value.startswith("data:") else 0 :], where))
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]{1,20}:", value):
        raise ImageError(f"{where} is {excerpt(value, 80)}: URLs are not fetched; save the images and give their paths")
    return folder / value


def _decoded(text: str, where: str) -> bytes:
    try:
        return base64.b64decode(text)
    except ValueError as error:
        raise ImageError(f"{where} is not base64: {error}") from error


def recorded_image(address: Mapping[str, Any]) -> bytes:
    """Return the bytes that have this `StoredBytes.address`, which may come from anyone.

    `ImageError`, `ConfigError` or `OSError` where there are none.
    """
    path, column = Path(str(address.get("file"))), address.get("column")
    index: Any = address.get("index")
    about = path.stat()
    file = _opened(path, about.st_size, about.st_mtime_ns)
    try:
        value: Any = file.row(int(str(address.get("place"))))
        for name in str(column).split(".") if column not in value else [column]:
            value = value[name]
        value = value[index] if isinstance(value, (list, tuple)) else value
    except (LookupError, ArithmeticError, TypeError, ValueError, StopIteration) as error:
        raise ConfigError(f"{path} has no such image any more: {error}") from error
    image = image_source(value, file.name, path.parent)
    if not isinstance(image, StoredBytes):
        raise ImageError(f"{file.name} holds a path there")
    return image.read()


@lru_cache(maxsize=4)
def _opened(path: Path, size: int, changed: int) -> RowFile:
    return open_file(path, path.name)
