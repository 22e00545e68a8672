"""Files that call themselves images."""

from __future__ import annotations

import io
import random
import struct
import zlib
from collections.abc import Iterator

_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO", "TGA")


def _made(name: str, size: tuple[int, int] = (40, 30)) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.effect_noise(size, 50).convert("RGB").save(file, name)
    return file.getvalue()


def _chunk(kind: bytes, content: bytes, length: int | None = None) -> bytes:
    return struct.pack(">I", len(content) if length is None else length) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def _png(width: int, height: int, *more: bytes, rows: int = 0) -> bytes:
    head = _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    data = zlib.compress(b"\0" * (rows * (1 + 3 * width)), 9)
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + _chunk(b"IDAT", data) + _chunk(b"IEND", b"")


def images(seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield (name, content): about 190 of them."""
    draw = random.Random(f"images {seed}")
    yield from _claims()
    for name in _FORMATS:
        content = _made(name)
        yield f"{name} as it is", content
        for number in range(9):
            yield f"{name} cut {number}", content[: draw.randrange(len(content))]
            changed = bytearray(content)
            for _ in range(draw.randrange(1, 20)):
                changed[draw.randrange(min(len(changed), 200 if number % 2 else len(changed)))] = draw.randrange(256)
            yield f"{name} changed {number}", bytes(changed)


def _claims() -> Iterator[tuple[str, bytes]]:
    yield "empty", b""
    yield "text", b"not an image at all"
    yield "html", b"<html><img src=x onerror=alert(1)></html>"
    yield "svg", b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><image href="file:///etc/passwd"/></svg>'
    yield "postscript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 50 50\n(owned) (w) file closefile\nshowpage\n%%EOF\n"
    yield "psd", b"8BPS\0\1" + b"\0" * 6 + struct.pack(">HIIHH", 3, 30000, 30000, 8, 3) + b"\0" * 200
    yield "fits", b"SIMPLE  =                    T" + b" " * 2850
    yield "pdf", b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\n%%EOF"
    yield "exif of 4 GB", _png(4, 4, _chunk(b"eXIf", b"MM\0*", 0xFFFFFFF0), rows=4)
    yield "text chunk of 2 GB", _png(4, 4, _chunk(b"iTXt", b"a\0\1\0\0\0x", 0x7FFFFFFF), rows=4)
    yield "compressed text bomb", _png(4, 4, _chunk(b"zTXt", b"a\0\0" + zlib.compress(b"a" * 200_000_000, 9)), rows=4)
    yield "profile bomb", _png(4, 4, _chunk(b"iCCP", b"a\0\0" + zlib.compress(b"\0" * 200_000_000, 9)), rows=4)
    yield "2^31 pixels wide", _png(2**31 - 1, 1)
    yield "2^31 pixels high", _png(1, 2**31 - 1)
    yield "no pixels", _png(0, 0)
    yield "a bomb of 900 million pixels", _png(30_000, 30_000, rows=3_000)
    yield "gif of 30000 frames", b"GIF89a\x01\0\x01\0\x80\0\0\0\0\0\xff\xff\xff" + b",\0\0\0\0\x01\0\x01\0\0\x02\x02D\x01\0" * 30_000 + b";"
    yield "tiff that points at itself", b"II*\0\x08\0\0\0\x01\0\0\x01\x04\0\x01\0\0\0\x08\0\0\0\x08\0\0\0"
    yield (
        "tiff of many strips",
        b"II*\0\x08\0\0\0\x02\0\0\x01\x04\0\x01\0\0\0\xff\xff\xff\x7f\x11\x01\x04\0\xff\xff\xff\x7f\x08\0\0\0\0\0\0\0",
    )
    yield "jpeg without end", b"\xff\xd8" + b"\xff\xe1\xff\xff" * 5_000
