"""pytest tests/api/test_images.py"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st
from PIL import Image, ImageCms

from evalharness.api.errors import BackendError, ImageError
from evalharness.api.images import FORMATS, MAX_IMAGE_PIXELS, _late_png_exif, image_sha256, image_size, load_image

RED, BLUE, WHITE = (255, 0, 0), (0, 0, 255), (255, 255, 255)


def half_and_half(width: int = 40, height: int = 20) -> Image.Image:
    """A red image whose left half is blue, so that every turn of it can be told apart from the others by two pixels."""
    image = Image.new("RGB", (width, height), RED)
    image.paste(BLUE, (0, 0, width // 2, height))
    return image


def encoded(image: Image.Image, kind: str, **options: object) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def exif_of(orientation: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif


def near(pixel: object, wanted: tuple[int, int, int]) -> bool:
    assert isinstance(pixel, tuple)
    return all(abs(a - b) <= 8 for a, b in zip(pixel, wanted, strict=True))


@pytest.fixture(params=["path", "str", "bytes"])
def given_as(request: pytest.FixtureRequest, tmp_path: Path):
    def give(data: bytes) -> Path | str | bytes:
        path = tmp_path / "photo.jpg"
        path.write_bytes(data)
        ways: dict[str, Path | str | bytes] = {"path": path, "str": str(path), "bytes": data}
        return ways[request.param]

    return give


def test_a_jpeg_opens_as_rgb_of_its_size(given_as) -> None:
    source = given_as(encoded(half_and_half(), "JPEG"))
    image = load_image(source)
    assert (image.mode, image.size, image_size(source)) == ("RGB", (40, 20), (40, 20))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize(
    ("orientation", "size", "blue"),
    [
        (1, (40, 20), (2, 10)),
        (2, (40, 20), (37, 10)),
        (3, (40, 20), (37, 10)),
        (4, (40, 20), (2, 10)),
        (5, (20, 40), (10, 2)),
        (6, (20, 40), (10, 2)),
        (7, (20, 40), (10, 37)),
        (8, (20, 40), (10, 37)),
    ],
)
def test_an_exif_rotated_file_comes_out_upright(kind: str, orientation: int, size: tuple[int, int], blue: tuple[int, int]) -> None:
    data = encoded(half_and_half(), kind, exif=exif_of(orientation))
    image = load_image(data)
    assert image.size == size == image_size(data)
    assert near(image.getpixel(blue), BLUE)
    assert near(image.getpixel((size[0] - 1 - blue[0], size[1] - 1 - blue[1])), RED)


def test_a_turned_image_or_one_with_a_preview_is_upright_and_not_turned_again() -> None:
    image = load_image(encoded(half_and_half(), "JPEG", exif=exif_of(6)))
    assert 0x0112 not in image.getexif()
    assert image.info == {}
    data = encoded(half_and_half(), "MPO", save_all=True, append_images=[Image.new("RGB", (8, 8))])
    with Image.open(BytesIO(data)) as image:
        assert (image.format, getattr(image, "n_frames", 1)) == ("MPO", 2)
    assert load_image(data).size == (40, 20)


def png_with_late_exif(orientation: int) -> bytes:
    """Some tools write a PNG's EXIF chunk behind the pixels."""
    data = encoded(half_and_half(), "PNG")
    body = exif_of(orientation).tobytes().removeprefix(b"Exif\0\0")
    chunk = len(body).to_bytes(4, "big") + b"eXIf" + body + zlib.crc32(b"eXIf" + body).to_bytes(4, "big")
    end = data.rindex(b"IEND") - 4
    return data[:end] + chunk + data[end:]


def test_exif_behind_the_pixels_of_a_png_is_found_without_decoding_it() -> None:
    assert image_size(png_with_late_exif(6)) == (20, 40)
    assert load_image(png_with_late_exif(6)).size == (20, 40)
    data = encoded(half_and_half(400, 200), "PNG")
    assert image_size(data[: data.index(b"IDAT") + 8]) == (400, 200)


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_impossible_orientation_leaves_the_image_as_stored(orientation: int) -> None:
    assert load_image(encoded(half_and_half(), "JPEG", exif=exif_of(orientation))).size == (40, 20)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF data:UserWarning")
def test_a_damaged_exif_block_leaves_the_image_as_stored() -> None:
    exif = exif_of(6).tobytes()
    assert load_image(encoded(half_and_half(), "JPEG", exif=exif[:20])).size == (40, 20)


def palette() -> Image.Image:
    image = Image.new("P", (8, 8), 3)
    image.putpalette([0, 0, 0] * 3 + [200, 0, 0])
    return image


@pytest.mark.parametrize(
    ("image", "options"),
    [
        pytest.param(Image.new("RGBA", (8, 8), (10, 20, 30, 0)), {}, id="RGBA"),
        pytest.param(Image.new("LA", (8, 8), (0, 0)), {}, id="LA"),
        pytest.param(Image.new("RGBA", (8, 8), (10, 20, 30, 0)).quantize(), {}, id="palette"),
        pytest.param(palette(), {"transparency": 3}, id="colour-of-palette"),
        pytest.param(Image.new("RGB", (8, 8), RED), {"transparency": RED}, id="colour-of-RGB"),
    ],
)
def test_full_transparency_becomes_white(image: Image.Image, options: dict[str, object]) -> None:
    opened = load_image(encoded(image, "PNG", **options))
    assert (opened.mode, opened.getpixel((3, 3))) == ("RGB", WHITE)


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "YCbCr", "RGB"])
def test_every_common_mode_becomes_rgb(mode: str) -> None:
    kind = "JPEG" if mode in ("CMYK", "YCbCr") else "PNG"
    image = load_image(encoded(Image.new("RGB", (16, 16), WHITE).convert(mode), kind))
    assert image.mode == "RGB"
    assert near(image.getpixel((5, 5)), WHITE)


def test_a_cmyk_jpeg_and_a_colour_profile_keep_colours() -> None:
    assert near(load_image(encoded(half_and_half().convert("CMYK"), "JPEG", quality=95)).getpixel((2, 10)), BLUE)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    assert near(load_image(encoded(half_and_half(), "JPEG", icc_profile=profile)).getpixel((2, 10)), BLUE)
    assert near(load_image(encoded(Image.new("RGBA", (8, 8), (0, 0, 0, 128)), "PNG")).getpixel((3, 3)), (127, 127, 127))


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
@pytest.mark.parametrize(("value", "wanted"), [(0, 0), (255, 0), (256, 1), (32768, 128), (65535, 255)])
def test_sixteen_bit_grey_is_scaled_and_not_clipped(kind: str, value: int, wanted: int) -> None:
    image = Image.new("I;16", (8, 8), value)
    assert load_image(encoded(image, kind)).getpixel((3, 3)) == (wanted,) * 3


def test_a_missing_file_is_named_and_a_failing_disk_is_the_machines_fault(tmp_path: Path, failing_open: Callable[..., None]) -> None:
    for function in (load_image, image_size, image_sha256):
        with pytest.raises(ImageError, match=r"gone\.jpg does not exist; check the path"):
            function(tmp_path / "gone.jpg")
    failing_open(OSError(errno.EIO, "gone"), len(encoded(half_and_half(400, 200), "JPEG")) - 20)
    with pytest.raises(BackendError, match="gone"):
        load_image("photo.jpg")


OF_THE_MACHINE = [errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ETIMEDOUT, errno.ENOMEM, errno.ENOTCONN]
OF_THE_PATH = [errno.ENOENT, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP]


class FailingFile(BytesIO):
    """A file that can be read up to byte `end`; then comes `error`."""

    end: int
    error: OSError

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0 or self.tell() + size > self.end:
            raise self.error
        return super().read(size)


@pytest.fixture
def failing_open(monkeypatch: pytest.MonkeyPatch) -> Callable[[OSError, int | None], None]:
    """Lets every open file fail with an error: when it is opened, or behind so many bytes of a JPEG."""

    def fail(error: OSError, end: int | None) -> None:
        def opened(path: Path, mode: str) -> BytesIO:
            if end is None:
                raise error
            file = FailingFile(encoded(half_and_half(400, 200), "JPEG"))
            file.end, file.error = end, error
            return file

        monkeypatch.setattr(Path, "open", opened)

    return fail


@pytest.mark.parametrize("function", [load_image, image_size, image_sha256])
@pytest.mark.parametrize("end", [None, 0, 16], ids=["opened", "first read", "later read"])
@pytest.mark.parametrize("number", OF_THE_MACHINE, ids=errno.errorcode.__getitem__)
def test_a_failure_of_the_machine_is_never_the_images_fault(
    failing_open: Callable[..., None], function: Callable[[str], object], end: int | None, number: int
) -> None:
    failing_open(OSError(number, os.strerror(number)), end)
    with pytest.raises(BackendError, match=rf"photo\.jpg could not be read: .*{os.strerror(number)}"):
        function("photo.jpg")


@pytest.mark.parametrize("function", [load_image, image_size, image_sha256])
@pytest.mark.parametrize("number", OF_THE_PATH, ids=errno.errorcode.__getitem__)
def test_a_path_that_leads_nowhere_is_the_images_fault(
    failing_open: Callable[..., None], function: Callable[[str], object], number: int
) -> None:
    failing_open(OSError(number, os.strerror(number)), None)
    with pytest.raises(ImageError, match=r"photo\.jpg"):
        function("photo.jpg")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        pytest.param(Path(__file__).parent, "is a directory", id="directory"),
        pytest.param("a\0b.jpg", "cannot be read", id="null-character"),
        pytest.param(3, "a path, bytes or a PIL image, got int", id="type"),
        pytest.param(Image.new("L", (3, 9)), "is 3 × 9 pixels, too small", id="tiny"),
        pytest.param(Image.new("I", (8, 8), 70000), "pixels from 70000 to 70000, more than 16 bits", id="32-bit"),
        pytest.param(Image.new("F", (8, 8), 0.5), "pixels of mode F", id="float"),
    ],
)
def test_an_unusable_source_is_refused(source: Any, message: str) -> None:
    with pytest.raises(ImageError, match=message):
        load_image(source)


@pytest.mark.parametrize("kind", ["EPS", "ICO", "TGA", "JPEG2000", "PCX", "SGI", "PDF"])
def test_only_listed_formats_are_opened_whatever_the_file_is_called(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would start Ghostscript for EPS, and has decoders of forty formats that nobody attacks but strangers."""
    monkeypatch.setattr("subprocess.check_call", lambda *_: pytest.fail("a program was started"))
    (tmp_path / "a.png").write_bytes(encoded(half_and_half(), kind))
    for function in (load_image, image_size):
        with pytest.raises(ImageError, match=r"a\.png is not an image, or has a format that is not opened \(JPEG, PNG"):
            function(tmp_path / "a.png")


@pytest.mark.parametrize("kind", FORMATS)
def test_every_listed_format_is_opened(kind: str) -> None:
    assert load_image(encoded(half_and_half(), kind)).size == image_size(encoded(half_and_half(), kind)) == (40, 20)


@pytest.mark.parametrize("claimed", [2**32 - 1, 2**31, 3 << 20])
def test_a_chunk_that_claims_gigabytes_takes_no_memory(claimed: int, tmp_path: Path) -> None:
    data = encoded(half_and_half(), "PNG")
    end = data.index(b"IEND") - 4
    (tmp_path / "a.png").write_bytes(data[:end] + claimed.to_bytes(4, "big") + b"eXIf" + data[end:])
    read: list[int] = []
    with (tmp_path / "a.png").open("rb") as file:
        file_read = file.read
        stream = SimpleNamespace(tell=file.tell, seek=file.seek, read=lambda size: read.append(size) or file_read(min(size, 1 << 20)))
        assert _late_png_exif(stream) == b""  # type: ignore[arg-type]
    assert max(read) < 2 << 20
    assert image_size(tmp_path / "a.png") == (40, 20)


@pytest.mark.parametrize("function", [load_image, image_size, image_sha256])
def test_a_pipe_or_device_is_refused_without_a_wait(tmp_path: Path, function: Callable[[Path], object]) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    for path in (tmp_path / "pipe.png", Path("/dev/zero")):
        with pytest.raises(ImageError, match="is a pipe or device"):
            function(path)


def test_pages_are_not_counted_as_that_takes_the_square_of_their_number() -> None:
    pages = 4000
    data, size = bytearray(b"II*\0\x08\0\0\0"), 2 + 12 * 9 + 4
    for page in range(1, pages + 1):
        tags = [(256, 3, 8), (257, 3, 8), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, 8), (277, 3, 1), (278, 3, 8), (279, 4, 64)]
        data += struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", tag, kind, 1, value) for tag, kind, value in tags)
        data += struct.pack("<I", 8 + page * size if page < pages else 0)
    sought: list[int] = []
    with pytest.MonkeyPatch.context() as patch, pytest.raises(ImageError, match="has several frames"):
        patch.setattr("PIL.TiffImagePlugin.TiffImageFile.seek", lambda self, frame: sought.append(frame))
        image_size(bytes(data))
    assert sought == []


def test_zero_bytes_and_text_are_no_image(given_as) -> None:
    with pytest.raises(ImageError, match=r"is empty \(0 bytes\)"):
        load_image(given_as(b""))
    with pytest.raises(ImageError, match="is not an image, or has a format"):
        image_size(given_as(b"<html>404</html>"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP"])
def test_a_truncated_file_is_refused(kind: str, given_as) -> None:
    noise = Image.frombytes("RGB", (64, 64), random.Random(0).randbytes(64 * 64 * 3))
    data = encoded(noise, kind)
    with pytest.raises(ImageError, match=r"damaged or truncated|not an image"):
        load_image(given_as(data[: len(data) // 2]))


@pytest.mark.parametrize("size", [(1, 20000), (20000, 1), (4, 804)], ids=str)
def test_an_extreme_shape_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ImageError, match="at most 200:1"):
        image_size(encoded(Image.new("L", size), "PNG"))
    assert image_size(encoded(Image.new("L", (800, 4)), "PNG")) == (800, 4)


def bomb(width: int, height: int) -> bytes:
    """A PNG header that promises width × height pixels, 1 bit each, and holds none of them."""
    data = encoded(Image.new("1", (8, 8)), "PNG")
    header = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + data[24:29]
    return data[:12] + header + zlib.crc32(header).to_bytes(4, "big") + data[33:]


@pytest.mark.parametrize("edge", [9_460, 12_000, 50_000, 1_000_000])
def test_a_decompression_bomb_is_refused_without_decoding(edge: int) -> None:
    limit = Image.MAX_IMAGE_PIXELS
    with pytest.raises(ImageError, match=str(MAX_IMAGE_PIXELS)):
        load_image(bomb(edge, edge))
    assert limit == Image.MAX_IMAGE_PIXELS


def test_a_bomb_is_refused_even_where_pillow_was_told_not_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(ImageError, match="50000 × 50000 pixels, at most"):
        load_image(bomb(50_000, 50_000))


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF"])
def test_an_animated_image_is_refused(kind: str) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, BLUE)]
    data = encoded(frames[0], kind, save_all=True, append_images=frames[1:])
    for function in (load_image, image_size):
        with pytest.raises(ImageError, match="has several frames"):
            function(data)


def test_a_pil_image_is_turned_copied_and_left_as_it_was() -> None:
    image = Image.new("RGBA", (8, 12), (0, 0, 0, 0))
    opened = load_image(image)
    assert (opened.mode, opened.getpixel((1, 1)), image.mode) == ("RGB", WHITE, "RGBA")
    plain = half_and_half()
    load_image(plain).paste(WHITE, (0, 0, 40, 20))
    assert plain.getpixel((2, 10)) == BLUE
    with Image.open(BytesIO(encoded(half_and_half(), "JPEG", exif=exif_of(6)))) as image:
        assert image_size(image) == (20, 40)
        assert load_image(image).size == (20, 40)


def test_the_hash_of_a_file_is_its_bytes_and_that_of_a_pil_image_its_size_mode_and_pixels(given_as) -> None:
    data = encoded(half_and_half(), "JPEG")
    assert image_sha256(given_as(data)) == hashlib.sha256(data).hexdigest()
    images = [Image.new("L", (8, 4)), Image.new("L", (4, 8)), Image.new("P", (8, 4)), Image.new("L", (8, 4), 1)]
    assert len({image_sha256(image) for image in images}) == 4
    assert image_sha256(images[0]) == image_sha256(Image.new("L", (8, 4)))


FILES = {
    "jpeg": encoded(half_and_half(), "JPEG", exif=exif_of(6)),
    "png": png_with_late_exif(6),
    "webp": encoded(half_and_half(), "WEBP"),
    "gif": encoded(half_and_half(), "GIF"),
    "tiff": encoded(half_and_half(), "TIFF", exif=exif_of(6)),
    "bmp": encoded(half_and_half(), "BMP"),
}


@pytest.mark.parametrize("kind", FILES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_a_damaged_file_opens_or_is_an_image_error(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    damaged = bytearray(FILES[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    damaged = damaged[: data.draw(st.integers(0, len(damaged)))]
    try:
        size = image_size(bytes(damaged))
        assert load_image(bytes(damaged)).size == size
    except ImageError:
        pass
    (tmp_path / "damaged").write_bytes(damaged)  # a file answers impossible offsets with other errors than bytes do
    with contextlib.suppress(ImageError):
        load_image(tmp_path / "damaged")


def test_importing_the_module_does_not_import_pillow() -> None:
    code = "import sys, evalharness.api.images; sys.exit('PIL' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=300).returncode == 0
