"""Small copies of the photos that a run asked about, for its pages.

**Which files are read.** Only those that the run itself recorded, and of these only a regular file whose SHA-256 is the
recorded one: a photo that has changed since is not shown as what the model saw, and a run directory from somebody else can
make a page show nothing that its writer did not have already. Nothing is looked up relative to the run directory.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import os
import shutil
import stat
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from evalharness.api.errors import BackendError, EvalHarnessError, ImageError
from evalharness.api.images import FORMATS, load_image
from evalharness.data.image_columns import recorded_image
from evalharness.report.text import markdown_cell, one_line
from evalharness.runs.schema import Generation, entries_of, text_of

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont, ImageFont as BitmapFont

MAX_FILE_BYTES = 64_000_000
MAX_BYTES = 14_000_000
"""Of all copies on one page together; base64 makes a third more of them."""
_SIZES = ((250, 512, 40_000), (1_000, 352, 14_000), (2_000, 256, 7_000), (4_000, 192, 3_500), (10**9, 144, 1_800))
"""Up to so many pictures: their longer edge in pixels, and the most bytes of one."""
_QUALITIES = (76, 55, 35)


class PictureFile(NamedTuple):
    """Where a picture lies, and what its content must hash to; `stored`: its address inside a file of rows, as JSON."""

    path: str
    sha256: str
    stored: str = ""


def picture_files(generation: Generation) -> Iterator[PictureFile]:
    """Yield the files of a generation's pictures, in the order in which it was shown them; unknown ones are left out."""
    for image in entries_of(generation.get("images")):
        path, stored, sha256 = image.get("path"), image.get("stored"), image.get("file_sha256") or image.get("sha256")
        if isinstance(sha256, str) and isinstance(stored, Mapping):
            yield PictureFile(text_of(stored.get("file")), sha256, json.dumps(stored))
        elif isinstance(path, str) and isinstance(sha256, str):
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
        if not stat.S_ISREG(about.st_mode) or (about.st_size > MAX_FILE_BYTES and not file.stored):
            return None
        content = recorded_image(json.loads(file.stored)) if file.stored else Path(file.path).read_bytes()
    except (OSError, ValueError, EvalHarnessError):
        return None
    return content if hashlib.sha256(content).hexdigest() == file.sha256 else None


def _opened(content: bytes, edge: int) -> Image.Image:
    """Return the upright picture; a large JPEG decoded at a fraction of its size, which takes a fraction of the time."""
    try:
        with Image.open(BytesIO(content), formats=FORMATS) as picture:
            if picture.format == "JPEG":
                picture.draft("RGB", (edge, edge))
                picture.load()
                return load_image(picture)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise ImageError(f"the picture cannot be read: {error}") from error
    return load_image(content)


PANEL_EDGE = 640
"""Pixels of the longer edge of each panel; small images are enlarged, so that thin lines stay distinct."""
LEGEND_WIDTH = 420
HEADING_HEIGHT, MARGIN, ROW_HEIGHT, FONT_SIZE = 34, 10, 24, 16
LINE_WIDTH, HALO_WIDTH, MARK_RADIUS = 3, 7, 4
DASH, GAP = 12, 8
MAX_NAME_CHARS, MAX_NOTE_CHARS, MAX_ROWS = 18, 60, 60

# Okabe and Ito's colours, distinct for every kind of colour vision; without black, and yellow last.
COLOURS = ((0, 114, 178), (230, 159, 0), (0, 158, 115), (213, 94, 0), (86, 180, 233), (204, 121, 167), (240, 228, 66))
FONT_FOLDERS = (
    "/usr/share/fonts", "/usr/local/share/fonts", "~/.fonts", "~/.local/share/fonts", "/System/Library/Fonts", "/Library/Fonts",
    "C:/Windows/Fonts",
)  # fmt: skip
FONT_SUFFIXES = (".ttf", ".ttc", ".otf")
FONTCONFIG_TIMEOUT_S = 10
# The beginnings of file names of fonts with Chinese characters, in the order in which they are taken.
FONT_NAMES = (
    "notosanscjk", "notosanssc", "sourcehansans", "wqy-", "pingfang", "msyh", "simhei", "stheiti", "hiragino sans gb", "droidsansfallback",
    "notoserifcjk", "sourcehanserif", "simsun", "uming", "ukai", "arialuni", "arial unicode", "unifont",
)  # fmt: skip


@dataclass(frozen=True)
class Shape:
    """One object: `kind` bbox_2d, poly or line, flat `points` in pixels of the photo, its category, and a short remark."""

    kind: str
    points: tuple[int, ...]
    label: str
    remark: str = ""


@lru_cache(maxsize=1)
def find_font() -> str | None:
    """Return the path of an installed font with Chinese characters, None if there is none that can be opened.

    Fonts known by name come first, wherever the system keeps its fonts, of each the regular weight; then any that fontconfig
    says has the characters.
    """
    return next((path for path in (*_known_fonts(), *_listed_fonts()) if _opens(path)), None)


def _known_fonts() -> list[str]:
    fonts: list[tuple[int, bool, str]] = []
    for folder in FONT_FOLDERS:
        for parent, _, names in os.walk(Path(folder).expanduser()):
            for name in names:
                rank = next((place for place, known in enumerate(FONT_NAMES) if name.lower().startswith(known)), None)
                if rank is not None and name.lower().endswith(FONT_SUFFIXES):
                    fonts.append((rank, "regular" not in name.lower(), os.path.join(parent, name)))
    return [path for _, _, path in sorted(fonts)]


def _listed_fonts() -> list[str]:
    program = shutil.which("fc-list")
    if program is None:
        return []
    try:
        done = subprocess.run(
            [program, ":lang=zh-cn", "--format=%{file}\n"], capture_output=True, text=True, timeout=FONTCONFIG_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return []
    return sorted(path for path in done.stdout.split("\n") if path.lower().endswith(FONT_SUFFIXES))


def _opens(path: str) -> bool:
    try:
        ImageFont.truetype(path, FONT_SIZE)
    except OSError:
        return False
    return True


def _numbers(truth: Sequence[Shape], predictions: Sequence[Shape]) -> dict[str, int]:
    """Return the number of each category in this picture, from 1."""
    return {label: number for number, label in enumerate(sorted({shape.label for shape in (*truth, *predictions)}), start=1)}


def overlay(picture: Image.Image, truth: Sequence[Shape] | None, predictions: Sequence[Shape], notes: Sequence[str] = ()) -> Image.Image:
    """Return one picture: truth (where it is known), prediction and legend side by side. `notes` stand below the legend."""
    scale = PANEL_EDGE / max(picture.size)
    panel = picture.convert("RGB").resize((max(1, round(picture.width * scale)), max(1, round(picture.height * scale))))
    numbers = _numbers(truth or (), predictions)
    font_path = find_font()
    font = ImageFont.truetype(font_path, FONT_SIZE) if font_path else ImageFont.load_default(FONT_SIZE)
    headings = (("reference (solid)", truth, False), ("prediction (dashed)", predictions, True))
    panels = [(heading, shapes, dashed) for heading, shapes, dashed in headings if shapes is not None]
    rows = list(_legend(numbers, truth, predictions, notes, named=font_path is not None))
    height = HEADING_HEIGHT + max(panel.height, len(rows) * ROW_HEIGHT + MARGIN)
    canvas = Image.new("RGB", (len(panels) * (panel.width + MARGIN) + LEGEND_WIDTH, height), (255, 255, 255))
    pen = ImageDraw.Draw(canvas)
    for place, (heading, shapes, dashed) in enumerate(panels):
        left = place * (panel.width + MARGIN)
        pen.text((left + 4, 8), f"{heading}: {len(shapes)}", fill=(0, 0, 0), font=font)
        drawn = panel.copy()
        _draw_shapes(drawn, shapes, numbers, scale, dashed, font)
        canvas.paste(drawn, (left, HEADING_HEIGHT))
    left = len(panels) * (panel.width + MARGIN)
    pen.text((left, 8), "category (predicted)" if truth is None else "category (reference/predicted)", fill=(0, 0, 0), font=font)
    for place, (number, text) in enumerate(rows):
        top = HEADING_HEIGHT + place * ROW_HEIGHT
        if number:
            pen.rectangle((left, top + 4, left + 14, top + 18), fill=_colour(number), outline=(0, 0, 0))
        pen.text((left + 22, top), text, fill=(0, 0, 0), font=font)
    return canvas


def _colour(number: int) -> tuple[int, int, int]:
    return COLOURS[(number - 1) % len(COLOURS)]


def _legend(
    numbers: Mapping[str, int], truth: Sequence[Shape] | None, predictions: Sequence[Shape], notes: Sequence[str], named: bool
) -> Iterator[tuple[int, str]]:
    """Yield category number (0: none) and text of each line."""
    true, predicted = Counter(shape.label for shape in truth or ()), Counter(shape.label for shape in predictions)
    for label, number in list(numbers.items())[:MAX_ROWS]:
        name = f" {one_line(label, MAX_NAME_CHARS) or '(none)'}" if named or label.isascii() else ""
        yield number, f"{number}{name} ({predicted[label]})" if truth is None else f"{number}{name} ({true[label]}/{predicted[label]})"
    if len(numbers) > MAX_ROWS:
        yield 0, f"and {len(numbers) - MAX_ROWS} more"
    if not named and not all(map(str.isascii, numbers)):
        yield 0, "no font with Chinese characters is installed"
        yield 0, "(such as fonts-noto-cjk); names are in index.md"
    if not numbers:
        yield 0, "no objects"
    for note in notes:
        text = one_line(note, MAX_NOTE_CHARS)
        yield 0, text if named else text.encode("ascii", "replace").decode()


def _draw_shapes(
    panel: Image.Image, shapes: Sequence[Shape], numbers: Mapping[str, int], scale: float, dashed: bool, font: FreeTypeFont | BitmapFont
) -> None:
    pen = ImageDraw.Draw(panel)
    for shape in shapes:
        points = [(shape.points[i] * scale, shape.points[i + 1] * scale) for i in range(0, len(shape.points), 2)]
        corners = _outline(shape.kind, points)
        colour = _colour(numbers[shape.label])
        # White below, so that a colour is seen on any photo.
        for width, ink in ((HALO_WIDTH, (255, 255, 255)), (LINE_WIDTH, colour)):
            for start, end in _strokes(corners, dashed):
                pen.line((start, end), fill=ink, width=width)
        if shape.kind == "line":
            for x, y in points:
                pen.ellipse((x - MARK_RADIUS, y - MARK_RADIUS, x + MARK_RADIUS, y + MARK_RADIUS), fill=colour, outline=(255, 255, 255))
    for shape in shapes:  # above all outlines
        _draw_tag(pen, panel, shape, numbers[shape.label], scale, font)


def _draw_tag(
    pen: ImageDraw.ImageDraw, panel: Image.Image, shape: Shape, number: int, scale: float, font: FreeTypeFont | BitmapFont
) -> None:
    text = f"{number} {shape.remark}".strip()
    width = pen.textlength(text, font=font)
    x = min(max(shape.points[0] * scale, 0), max(0, panel.width - width - 6))
    y = min(max(shape.points[1] * scale - ROW_HEIGHT, 0), panel.height - ROW_HEIGHT)
    pen.rectangle((x, y, x + width + 6, y + ROW_HEIGHT - 2), fill=(255, 255, 255), outline=_colour(number))
    pen.text((x + 3, y + 1), text, fill=(0, 0, 0), font=font)


Point = tuple[float, float]


def _outline(kind: str, points: list[Point]) -> list[Point]:
    if kind == "bbox_2d":
        (left, top), (right, bottom) = points
        points = [(left, top), (right, top), (right, bottom), (left, bottom)]
    return points if kind == "line" else [*points, points[0]]


def _strokes(corners: Sequence[Point], dashed: bool) -> Iterator[tuple[Point, Point]]:
    """Yield the pieces of an outline: whole edges, or dashes that run on round the corners."""
    done = 0.0
    for start, end in itertools.pairwise(corners):
        length = math.dist(start, end)
        if not dashed or not length:
            yield start, end
            continue
        position = -(done % (DASH + GAP))
        while position < length:
            first, last = max(position, 0.0), min(position + DASH, length)
            if last > first:
                yield _between(start, end, first / length), _between(start, end, last / length)
            position += DASH + GAP
        done += length


def _between(start: Point, end: Point, share: float) -> Point:
    return start[0] + (end[0] - start[0]) * share, start[1] + (end[1] - start[1]) * share


def index_entry(name: str, case_id: str, truth: Sequence[Shape], predictions: Sequence[Shape], notes: Sequence[str]) -> str:
    """Return the Markdown of one picture: its case, its categories by number with their counts, its notes."""
    true, predicted = Counter(shape.label for shape in truth), Counter(shape.label for shape in predictions)
    lines = [f"## {name}", "", f"{markdown_cell(case_id)}", ""]
    numbers = _numbers(truth, predictions)
    if numbers:
        lines += ["| no. | category | reference | predicted |", "|---|---|---|---|"]
        lines += [
            f"| {number} | {markdown_cell(label) or '(none)'} | {true[label]} | {predicted[label]} |" for label, number in numbers.items()
        ]
    else:
        lines.append("No objects, neither in the reference nor predicted.")
    lines += ["", *(f"- {markdown_cell(note)}" for note in notes), ""]
    return "\n".join(lines)
