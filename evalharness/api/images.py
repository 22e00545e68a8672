"""Opens images: upright, RGB, one frame, of a size that a vision model accepts. Resizing is left to the checkpoint's processor.

A file is data from anyone: it is opened as one of `FORMATS`, never by whatever else Pillow knows (EPS would start Ghostscript).

A bad image raises `ImageError` with the file's name, the fault and the remedy; its request becomes `invalid` and the others go on.
A failing disk, network or system (EIO, ESTALE, EMFILE, EACCES…) says nothing about the image and raises `BackendError`.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias, TypeGuard, cast

from evalharness.api.errors import BackendError, ConfigError, ImageError

if TYPE_CHECKING:
    from PIL import Image

ImageSource: TypeAlias = "str | os.PathLike[str] | bytes | StoredBytes | Image.Image"

FORMATS = ("JPEG", "PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM")
"""The formats that are opened, by Pillow's names; a phone's MPO is a JPEG to it."""
MAX_IMAGE_PIXELS = 89_478_485
"""Larger images are refused before they are decoded; Pillow would warn from this size on."""
MAX_ASPECT_RATIO = 200
"""Long edge / short edge; the image processors of Qwen-VL refuse more."""
MIN_EDGE = 4
"""In pixels; an image with a shorter edge is a broken file or a tracking pixel."""

# Errors that are about the path or the content; Pillow's own have no number, and a damaged file's impossible offsets give EINVAL.
# Every other number is a failure of the machine.
ERRORS_OF_THE_FILE = frozenset({None, errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL})

ORIENTATION_TAG = 0x0112
PNG_SIGNATURE_BYTES = 8
MAX_EXIF_BYTES = 1 << 20
"""Of a PNG's eXIf chunk; a JPEG's has 64 KiB at most."""


class StoredBytes:
    """Bytes inside another file, such as an image in a row of a Parquet file: read anew each time they are used.

    `name` says in messages where they are; `path` is what the row calls them, "" where it gives no name. `address`, if not None, is plain
    JSON data by which a page finds the bytes again (`data.image_columns.recorded_image`).
    """

    def __init__(self, name: str, read: Callable[[], bytes], path: str = "") -> None:
        self.name, self._read, self.path = name, read, path
        self.address: Mapping[str, Any] | None = None

    def read(self) -> bytes:
        """Return the bytes; raises `ImageError` where there are none, `OSError` if the machine cannot read the file around them."""
        try:
            return self._read()
        except ConfigError as error:
            raise ImageError(str(error)) from error

    def __repr__(self) -> str:
        return f"<bytes of {self.name}>"


class MadeImage(bytes):
    """The content of an image file that was derived from the file `file`."""

    file: Path

    def __new__(cls, content: bytes, file: Path) -> MadeImage:
        """Return the content, derived from `file`."""
        made = super().__new__(cls, content)
        made.file = file
        return made


def image_file(source: ImageSource) -> dict[str, Any]:
    """Return {"path": absolute path} of an image's file, of a derived image also its `file_sha256`, {"stored": address} of stored bytes.

    {} for bytes and PIL images.

    Raises `ImageError` or `BackendError` if the file cannot be read.
    """
    if isinstance(source, MadeImage):
        return {"path": os.path.abspath(source.file), "file_sha256": image_sha256(source.file)}
    if isinstance(source, StoredBytes) and source.address is not None:
        return {"stored": dict(source.address)}
    return {"path": os.path.abspath(source)} if isinstance(source, (str, os.PathLike)) else {}


def load_image(source: ImageSource) -> Image.Image:
    """Return a new upright RGB image without metadata, transparency on white, 16 bits scaled to 8.

    Raises `ImageError`, or `BackendError` if the machine fails, as do the functions below.
    """
    with _opened(source) as (image, orientation):
        image.load()
        upright = _turned(_as_rgb(image, _name(source)), orientation)
        # Otherwise a later exif_transpose, such as that of transformers' load_image, would turn it again.
        upright.info = {}
        return upright


def image_size(source: ImageSource) -> tuple[int, int]:
    """Return (width, height) in pixels of the upright image, from the header alone."""
    with _opened(source) as (image, orientation):
        width, height = image.size
        return (height, width) if orientation >= 5 else (width, height)


def why_unusable(source: ImageSource) -> str | None:
    """Return why a case with this image cannot be run, None if it can; from the header alone."""
    try:
        image_size(source)
    except ImageError as error:
        return str(error)
    except BackendError:
        return None  # the machine's fault: the case runs, and becomes an `error` row if the image still cannot be read
    return None


def image_sha256(source: ImageSource) -> str:
    """Return the hex SHA-256 of the file's bytes; of a PIL image, that of mode, size and pixels."""
    digest = hashlib.sha256()
    if _is_pil(source):
        with _opened(source) as (image, _):
            digest.update(f"{image.mode} {image.size}\n".encode())
            digest.update(image.tobytes())
        return digest.hexdigest()
    name = _name(source)
    with _stream(source, name) as stream:
        try:
            while chunk := stream.read(1 << 20):
                digest.update(chunk)
        except OSError as error:
            raise _unreadable(name, error) from error
    return digest.hexdigest()


def _is_pil(source: object) -> TypeGuard[Image.Image]:
    # By module name, so that a path never loads PIL.
    return any(base.__module__ == "PIL.Image" for base in type(source).__mro__)


def _name(source: object) -> str:
    if isinstance(source, (str, os.PathLike)):
        return str(source)
    if isinstance(source, bytes):
        return f"image of {len(source)} bytes"
    return source.name if isinstance(source, StoredBytes) else "PIL image"


@contextmanager
def _stream(source: ImageSource, name: str) -> Iterator[IO[bytes]]:
    """Open the source's bytes and close them again."""
    if isinstance(source, StoredBytes):
        try:
            source = source.read()
        except OSError as error:
            raise _unreadable(name, error) from error
    if isinstance(source, bytes):
        with BytesIO(source) as stream:
            yield stream
        return
    if not isinstance(source, (str, os.PathLike)):
        raise ImageError(f"an image must be a path, bytes or a PIL image, got {type(source).__name__}")
    try:
        if _may_never_end(source):
            raise ImageError(f"{name} is a pipe or device, not a file; give the path of one image file")
        opened = Path(source).open("rb")  # noqa: SIM115 -- closed by the `with` below
    except FileNotFoundError:
        raise ImageError(f"{name} does not exist; check the path (URLs are not fetched)") from None
    except IsADirectoryError:
        raise ImageError(f"{name} is a directory; give the path of one image file") from None
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from error
    with opened:
        yield opened


def _may_never_end(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is that of a pipe, a socket or a device; opening it says everything else."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _unreadable(name: str, error: Exception) -> ImageError | BackendError:
    """Return the error to raise for an error of opening or reading: the image's fault or the machine's."""
    if _is_of_machine(error):
        return BackendError(f"{name} could not be read: {error}; this says nothing about the image; try again once the cause is gone")
    return ImageError(f"{name} cannot be read: {error}")


def _is_of_machine(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno not in ERRORS_OF_THE_FILE


@contextmanager
def _opened(source: ImageSource) -> Iterator[tuple[Image.Image, int]]:
    """Yield an image, not decoded yet, and its EXIF orientation 1–8.

    Inside the block, Pillow's errors become `ImageError`, and those of the machine `BackendError`.
    """
    name = _name(source)
    try:
        if _is_pil(source):
            _check(source, name)
            yield source, _orientation(source, None)
            return
        with _stream(source, name) as stream, _identified(stream, name) as image:
            _check(image, name)
            yield image, _orientation(image, stream)
    except (ImageError, BackendError, MemoryError):
        raise
    except Exception as error:  # a damaged file raises OSError, SyntaxError, struct.error, zlib.error… by format
        if _is_of_machine(error):
            raise _unreadable(name, error) from error
        raise ImageError(f"{name} is damaged or truncated: {error}; copy it again or leave it out") from error


def _identified(stream: IO[bytes], name: str) -> Image.Image:
    from PIL import Image, UnidentifiedImageError

    if not stream.read(1):
        raise ImageError(f"{name} is empty (0 bytes); copy it again or leave it out")
    stream.seek(0)
    try:
        return Image.open(stream, formats=FORMATS)
    except UnidentifiedImageError:
        raise ImageError(
            f"{name} is not an image, or has a format that is not opened ({', '.join(FORMATS)} are); use JPEG or PNG"
        ) from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise ImageError(f"{name} is too large to open safely, at most {MAX_IMAGE_PIXELS} pixels are taken: {error}") from error


def _check(image: Image.Image, name: str) -> None:
    width, height = image.size
    if width * height > MAX_IMAGE_PIXELS:
        raise ImageError(f"{name} has {width} × {height} pixels, at most {MAX_IMAGE_PIXELS} are taken; make it smaller")
    if max(width, height) > MAX_ASPECT_RATIO * min(width, height):
        raise ImageError(
            f"{name} is {width} × {height} pixels: a vision model takes an aspect ratio of at most {MAX_ASPECT_RATIO}:1; crop or pad it"
        )
    if min(width, height) < MIN_EDGE:
        raise ImageError(f"{name} is {width} × {height} pixels, too small: each edge needs at least {MIN_EDGE}; leave it out")
    # Many phones write MPO, a JPEG with a preview or depth map after it; its first frame is the photo. Counting frames takes a time
    # that grows with their square in TIFF.
    if getattr(image, "is_animated", False) and image.format != "MPO":
        raise ImageError(f"{name} has several frames (animated or several pages); extract one of them")


def _orientation(image: Image.Image, stream: IO[bytes] | None) -> int:
    """Return the EXIF orientation 1–8 still to be undone; 1 (as stored) if there is none or it cannot be read."""
    from PIL import Image

    if image.format == "TIFF":  # Pillow turns these itself, sizes included
        return 1
    if image.format == "PNG" and stream is not None and "exif" not in image.info:
        late = _late_png_exif(stream)
        if late:
            image.info["exif"] = late
    try:
        # PngImageFile.getexif would decode the whole image.
        orientation: object = Image.Image.getexif(image).get(ORIENTATION_TAG, 1)
    except Exception:  # a damaged EXIF block raises anything; the image itself is fine
        return 1
    return orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1


def _late_png_exif(stream: IO[bytes]) -> bytes:
    """Return the data of a PNG's eXIf chunk, b"" if there is none; the stream keeps its position."""
    position = stream.tell()
    try:
        stream.seek(PNG_SIGNATURE_BYTES)
        while len(header := stream.read(8)) == 8:
            length, kind = struct.unpack(">I4s", header)
            if kind == b"eXIf":
                return b"Exif\0\0" + stream.read(length) if length <= MAX_EXIF_BYTES else b""  # a chunk may claim 4 GB
            stream.seek(length + 4, os.SEEK_CUR)  # data and checksum
        return b""
    finally:
        stream.seek(position)


def _as_rgb(image: Image.Image, name: str) -> Image.Image:
    from PIL import Image

    if image.mode in ("I", "I;16", "I;16L", "I;16B", "I;16N"):
        return _from_16_bit(image, name).convert("RGB")
    if image.mode in ("F", "LAB"):
        raise ImageError(f"{name} has pixels of mode {image.mode}, whose range is unknown; save it as RGB with 8 bits per channel")
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        white = Image.new("RGBA", coloured.size, "white")
        return Image.alpha_composite(white, coloured).convert("RGB")
    return image.convert("RGB")


def _from_16_bit(image: Image.Image, name: str) -> Image.Image:
    """Return the 8-bit image; Pillow's own conversion clips at 255, which makes a 16-bit image almost white."""
    wide = image.convert("I")
    low, high = cast("tuple[int, int]", wide.getextrema())
    if low < 0 or high > 65535:
        raise ImageError(f"{name} has pixels from {low} to {high}, more than 16 bits; save it with 8 or 16 bits per channel")
    return wide.point(lambda value: value * (1 / 256)).convert("L")


def _turned(image: Image.Image, orientation: int) -> Image.Image:
    from PIL.Image import Transpose

    names = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_270", "TRANSVERSE", "ROTATE_90")
    return image if orientation == 1 else image.transpose(Transpose[names[orientation - 2]])
