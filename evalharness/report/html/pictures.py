"""Small copies of the photos that a run asked about, for its pages.

**Which files are read.** Only those that the run itself recorded, and of these only a regular file whose SHA-256 is the
recorded one: a photo that has changed since is not shown as what the model saw, and a run directory from somebody else can
make a page show nothing that its writer did not have already. Nothing is looked up relative to the run directory.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from evalharness.api.errors import BackendError, ImageError
from evalharness.api.images import load_image

__all__ = ["PictureFile", "picture_files", "small_copies", "small_copy"]

MAX_FILE_BYTES = 64_000_000
MAX_BYTES = 14_000_000
"""Of all copies on one page together; base64 makes a third more of them."""
_SIZES = ((250, 512, 40_000), (1_000, 352, 14_000), (2_000, 256, 7_000), (4_000, 192, 3_500), (10**9, 144, 1_800))
"""Up to so many pictures: their longer edge in pixels, and the most bytes of one."""
_QUALITIES = (76, 55, 35)


class PictureFile(NamedTuple):
    """Where a picture lies, and what its content must hash to."""

    path: str
    sha256: str


def picture_files(generation: Mapping[str, Any]) -> Iterator[PictureFile]:
    """Yield the files of a generation's pictures, in the order in which it was shown them; unknown ones are left out."""
    images = generation.get("images")
    for image in images if isinstance(images, list) else ():
        if isinstance(image, Mapping):
            path, sha256 = image.get("path"), image.get("file_sha256") or image.get("sha256")
            if isinstance(path, str) and isinstance(sha256, str):
                yield PictureFile(path, sha256)


def small_copies(files: Iterable[PictureFile], num_on_page: int | None = None) -> Iterator[bytes | None]:
    """Yield the small copy of each file in order, None where it cannot be shown; smaller ones the more share a page."""
    wanted = list(files)
    count = len(wanted) if num_on_page is None else num_on_page
    edge, most = next((edge, most) for up_to, edge, most in _SIZES if count <= up_to)
    most = min(most, MAX_BYTES // max(count, 1))
    # Pillow and hashlib let other threads run while they work.
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:
        yield from pool.map(lambda file: small_copy(file, edge, most), wanted)


def small_copy(file: PictureFile, edge: int, most: int) -> bytes | None:
    """Return a JPEG of at most `most` bytes whose longer edge is at most `edge` pixels, upright.

    None where the file is gone, has changed, or cannot be shown.
    """
    content = _content(file)
    if content is None:
        return None
    try:
        picture = _opened(content, edge)
    except (ImageError, BackendError):
        return None
    picture.thumbnail((edge, edge), Image.Resampling.BILINEAR, reducing_gap=2.0)
    for attempt in range(4):
        for quality in _QUALITIES:
            with BytesIO() as made:
                picture.save(made, "JPEG", quality=quality)
                if made.tell() <= most:
                    return made.getvalue()
        picture.thumbnail((edge // 2 ** (attempt + 1),) * 2)
    return None


def _content(file: PictureFile) -> bytes | None:
    try:
        about = Path(file.path).stat()
        if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_FILE_BYTES:
            return None
        content = Path(file.path).read_bytes()
    except (OSError, ValueError):
        return None
    return content if hashlib.sha256(content).hexdigest() == file.sha256 else None


def _opened(content: bytes, edge: int) -> Image.Image:
    """Return the upright picture; a large JPEG decoded at a fraction of its size, which takes a fraction of the time."""
    try:
        with Image.open(BytesIO(content)) as picture:
            if picture.format == "JPEG":
                picture.draft("RGB", (edge, edge))
                picture.load()
                return load_image(picture)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"the picture cannot be read: {error}") from error
    return load_image(content)
