"""Small copies of photos: upright, small enough, and only of files that are what the run recorded."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageFont

from evalharness.api.images import image_file, image_sha256
from evalharness.data import cases_from
from evalharness.report.html import pictures as overlays
from evalharness.report.html.pictures import MAX_BYTES, PictureFile, Shape, index_entry, overlay, picture_files, small_copies, small_copy


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


def test_a_copy_is_upright_never_enlarged_and_carries_no_metadata(tmp_path):
    assert _opened(small_copy(_photo(tmp_path / "a.png", (40, 30)), 320, 20_000)).size == (40, 30)
    exif = Image.Exif()
    exif[0x0112] = 6
    assert _opened(small_copy(_photo(tmp_path / "a.jpg", (400, 200), exif=exif), 100, 20_000)).size == (50, 100)
    exif = Image.Exif()
    exif[0x010E] = "where I live"
    assert b"where I live" not in small_copy(_photo(tmp_path / "a.jpg", exif=exif), 100, 20_000)


def test_a_file_of_a_format_that_is_not_opened_is_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pillow would start Ghostscript for EPS, whatever the file is called."""
    monkeypatch.setattr("subprocess.check_call", lambda *_: pytest.fail("a program was started"))
    Image.new("RGB", (40, 20), "red").save(tmp_path / "a.png", "EPS")
    assert small_copy(PictureFile(str(tmp_path / "a.png"), image_sha256(tmp_path / "a.png")), 320, 20_000) is None


def test_a_picture_inside_a_file_of_rows_is_shown(tmp_path: Path) -> None:
    _photo(tmp_path / "a.png")
    text = base64.b64encode((tmp_path / "a.png").read_bytes()).decode()
    (tmp_path / "rows.csv").write_text(f"n,picture\n1,\n2,{text}\n")
    (tmp_path / "rows.jsonl").write_text(json.dumps({"n": 1, "picture": [None, f"data:image/png;base64,{text}"]}))
    for name, at in (("rows.csv", 1), ("rows.jsonl", 0)):
        image = list(cases_from(name, image="picture")(tmp_path))[at].images[0]
        recorded: Any = {"images": [{"sha256": image_sha256(image), **image_file(image)}]}
        (file,) = picture_files(recorded)
        assert small_copy(file, 320, 20_000) is not None
        assert small_copy(file._replace(sha256="0" * 64), 320, 20_000) is None
        address = json.loads(file.stored)
        for wrong in ({"place": "-1"}, {"place": str(10**40)}, {"place": "x"}, {"column": "n"}, {"column": ["n"]}, {"file": "/dev/zero"}):
            assert small_copy(file._replace(stored=json.dumps({**address, **wrong})), 320, 20_000) is None


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


GREY = Image.new("RGB", (320, 240), (128, 128, 128))
LEFT = overlays.MARGIN + overlays.PANEL_EDGE  # where the prediction's panel begins
BOX = Shape("bbox_2d", (40, 60, 200, 180), "标签")
LINE = Shape("line", (20, 200, 300, 220), "wire")


def edge_colours(picture: Image.Image, left: int) -> list[tuple[int, ...]]:
    """Return the pixels along the lower edge of `BOX` in the panel that begins at `left`."""
    y = overlays.HEADING_HEIGHT + 180 * 2
    return [picture.getpixel((left + x, y)) for x in range(2 * 40 + 10, 2 * 200 - 10)]  # type: ignore[misc]


def test_shapes_are_drawn_on_the_enlarged_photo_beside_a_legend() -> None:
    picture = overlay(GREY, [BOX], [BOX])
    assert len(set(edge_colours(picture, 0))) == 1
    dashes = edge_colours(picture, LEFT)
    assert (128, 128, 128) in dashes
    assert overlays.COLOURS[0] in dashes
    picture = overlay(GREY, [], [])
    assert picture.width == 2 * overlays.PANEL_EDGE + overlays.LEGEND_WIDTH + 2 * overlays.MARGIN
    assert picture.height >= overlays.HEADING_HEIGHT + 480
    picture = overlay(GREY, [LINE], [])
    assert picture.getpixel((600, overlays.HEADING_HEIGHT + 440)) == overlays.COLOURS[0]
    shapes = [Shape("bbox_2d", (0, 0, 9, 9), f"kind {number}") for number in range(300)]
    assert overlay(GREY, shapes, []).height < 3000


@pytest.mark.parametrize(
    "shape",
    [
        Shape("bbox_2d", (200, 180, 40, 60), "a"),
        Shape("bbox_2d", (5, 5, 5, 5), "a"),
        Shape("poly", (0, 0, 320, 0, 320, 240), "a"),
        Shape("line", (7, 7, 7, 7), "a"),
        Shape("bbox_2d", (-50, -50, 900, 900), "a"),
        Shape("bbox_2d", (0, 0, 9, 9), ""),
        Shape("bbox_2d", (0, 0, 9, 9), "\ud800\x1b[31m" * 30, "wrong"),
    ],
    ids=["inverted", "point", "polygon", "one place", "outside", "no name", "hostile name"],
)
def test_any_shape_can_be_drawn(shape: Shape) -> None:
    assert overlay(GREY, [shape], [shape], notes=["a\nb", "字" * 200]).size[0] > 0


@pytest.mark.parametrize("size", [(4, 800), (800, 4), (1, 1)], ids=str)
def test_any_photo_can_be_shown(size: tuple[int, int]) -> None:
    assert overlay(Image.new("L", size), [BOX], []).mode == "RGB"


def test_without_a_chinese_font_the_legend_says_so_and_gives_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlays, "find_font", lambda: None)
    lines = [text for _, text in overlays._legend({"标签": 1, "wire": 2}, [BOX, LINE], [BOX], ["parse failed"], named=False)]
    assert lines == [
        "1 (1/1)",
        "2 wire (1/0)",
        "no font with Chinese characters is installed",
        "(such as fonts-noto-cjk); names are in index.md",
        "parse failed",
    ]
    assert overlay(GREY, [BOX], []).width


@pytest.fixture
def no_fonts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give a machine on which no font is found: its folder of fonts; programs are looked for in `bin` below it."""
    monkeypatch.setattr(overlays, "FONT_FOLDERS", (str(tmp_path / "fonts"),))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    for name in ("fonts", "bin"):
        (tmp_path / name).mkdir()
    overlays.find_font.cache_clear()
    yield tmp_path
    overlays.find_font.cache_clear()


def a_font() -> bytes:
    font = ImageFont.load_default(16)
    assert isinstance(font, ImageFont.FreeTypeFont)
    return font.font_bytes


def test_a_font_is_found_by_its_name_regular_first_else_by_fontconfig(no_fonts: Path) -> None:
    assert overlays.find_font() is None
    overlays.find_font.cache_clear()
    font, program = no_fonts / "elsewhere" / "house.otf", no_fonts / "bin" / "fc-list"
    font.parent.mkdir()
    font.write_bytes(a_font())
    program.write_text(f"#!/bin/sh\nprintf '/gone.ttf\\n{font}\\n/bitmap.pcf.gz\\n'\n")
    program.chmod(0o755)
    assert overlays.find_font() == str(font)
    overlays.find_font.cache_clear()
    folder = no_fonts / "fonts" / "deep"
    folder.mkdir()
    for name in ("NotoSansCJK-Bold.ttc", "NotoSansCJK-Regular.ttc", "wqy-zenhei.ttc", "DejaVuSans.ttf", "NotoSansCJK.txt"):
        (folder / name).write_bytes(a_font())
    (folder / "NotoSansCJK-DemiLight.ttc").write_bytes(b"no font")
    assert overlays.find_font() == str(folder / "NotoSansCJK-Regular.ttc")


def test_a_found_font_writes_the_names(monkeypatch: pytest.MonkeyPatch) -> None:
    # Pillow's own font stands for one with Chinese characters: what counts is that names are drawn with it.
    monkeypatch.setattr(overlays, "find_font", lambda: "font.ttc")
    font = ImageFont.load_default(16)
    monkeypatch.setattr(ImageFont, "truetype", lambda path, size: font)
    assert [text for _, text in overlays._legend({"标签": 1}, [BOX], [], [], named=True)] == ["1 标签 (1/0)"]
    assert overlay(GREY, [BOX], [BOX]).width


def test_the_index_shows_hostile_names_as_text() -> None:
    entry = index_entry("vis_00000.jpg", "a|b", [Shape("line", (0, 0, 1, 1), "x|<b>")], [], ["`note`"])
    assert "| 1 | x\\|&lt;b> | 1 | 0 |" in entry
    assert "a\\|b" in entry
