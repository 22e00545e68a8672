"""Small copies of photos: upright, small enough, and only of files that are what the run recorded."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from evalharness.api.images import image_sha256
from evalharness.report.html.pictures import MAX_BYTES, PictureFile, picture_files, small_copies, small_copy


def _photo(path: Path, size: tuple[int, int] = (800, 600), **saved: object) -> PictureFile:
    noise = Image.effect_noise(size, 80).convert("RGB")
    noise.save(path, **saved)
    return PictureFile(str(path), image_sha256(path))


def _opened(copy: bytes) -> Image.Image:
    return Image.open(BytesIO(copy))


@pytest.mark.parametrize("name", ["a.jpg", "a.png", "a.webp", "a.bmp"])
def test_a_copy_is_a_jpeg_within_its_bounds(tmp_path, name):
    copy = small_copy(_photo(tmp_path / name), 320, 20_000)

    assert len(copy) <= 20_000
    assert _opened(copy).format == "JPEG"
    assert max(_opened(copy).size) <= 320


def test_a_small_photo_is_never_enlarged(tmp_path):
    assert _opened(small_copy(_photo(tmp_path / "a.png", (40, 30)), 320, 20_000)).size == (40, 30)


def test_a_copy_stands_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6

    assert _opened(small_copy(_photo(tmp_path / "a.jpg", (400, 200), exif=exif), 100, 20_000)).size == (50, 100)


def test_a_copy_carries_nothing_of_the_files_metadata(tmp_path):
    exif = Image.Exif()
    exif[0x010E] = "where I live"

    assert b"where I live" not in small_copy(_photo(tmp_path / "a.jpg", exif=exif), 100, 20_000)


@pytest.mark.parametrize("what", ["changed", "gone", "folder", "pipe", "no picture", "nul in its path", "too large"])
def test_a_file_that_is_not_what_was_recorded_is_not_shown(tmp_path, what, monkeypatch):
    path = tmp_path / "a.jpg"
    file = _photo(path)
    if what == "changed":
        _photo(path, (10, 10))
    elif what in ("gone", "folder", "pipe"):
        path.unlink()
        {"gone": lambda: None, "folder": path.mkdir, "pipe": lambda: os.mkfifo(path)}[what]()
    elif what == "no picture":
        path.write_text("no picture")
        file = PictureFile(str(path), image_sha256(path))
    elif what == "too large":
        monkeypatch.setattr("evalharness.report.html.pictures.MAX_FILE_BYTES", 100)
    else:
        file = PictureFile("a\0.jpg", file.sha256)

    assert small_copy(file, 320, 20_000) is None


def test_many_pictures_share_what_a_page_may_hold(tmp_path):
    file = _photo(tmp_path / "a.png", (300, 300))

    copies = list(small_copies([file] * 300))

    assert sum(map(len, copies)) <= MAX_BYTES


def test_of_a_made_picture_the_file_behind_it_is_shown():
    images = [{"path": "/a.jpg", "sha256": "of the copy", "file_sha256": "of the file"}, {"path": "/b.jpg", "sha256": "b"}]

    assert list(picture_files({"images": images})) == [PictureFile("/a.jpg", "of the file"), PictureFile("/b.jpg", "b")]


@pytest.mark.parametrize(
    "images", [None, "a", [None], [{"sha256": "a"}], [{"path": 1, "sha256": "a"}], [{"path": "a", "sha256": None}]], ids=repr
)
def test_what_was_not_recorded_as_a_path_is_no_picture(images):
    assert list(picture_files({"images": images})) == []
