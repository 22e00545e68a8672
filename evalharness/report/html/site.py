"""The way from a page to its neighbours: "All runs / RUN / report timeline compare", in the header of every page of a folder.

Pages are written at different times: a comparison long after the report that it lies beside. So the links stand in a space of fixed size,
which is written anew in place (a page may be large) whenever a neighbour has come. Of a neighbour deleted since, a dead link remains.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from markupsafe import Markup

from evalharness.report.text import one_line

INDEX = "index.html"
_OURS = b"Made by evalharness"
_PAGES = {"report.html": "report", "timeline.html": "timeline", "compare.html": "compare"}
_LATER_PAGE = re.compile(r"report-[1-9]\d*\.html")
_START, _END = Markup("<!--links-->"), Markup("<!--/links-->")
_SPACE = 1024
"""Bytes between the two marks: the names of pages are ours, and a run's name is cut."""
_NAME_CHARS = 60
_HEAD = 1 << 18
"""The header, which comes after the page's style, begins within so many bytes."""


def page_links(page: Path) -> Markup:
    """Return the links of a page to the pages beside it and to the index of all runs; it need not be written yet."""
    links = Markup(' <span aria-hidden="true">/</span> ').join(_links(page.parent, page.name))
    return _START + links + " " * (_SPACE - len(links.encode())) + _END


def _links(folder: Path, page: str) -> Iterator[Markup]:
    is_run = (folder / "run.json").is_file()
    index = f"../{INDEX}" if is_run else INDEX
    if page == INDEX or is_index(folder / index):
        yield _link(index, "All runs", is_current=page == INDEX)
    if is_run:
        yield Markup("<b>{}</b>").format(one_line(folder.absolute().name, _NAME_CHARS))
    here = "report.html" if _LATER_PAGE.fullmatch(page) else page
    shown = {target: text for target, text in _PAGES.items() if target == here or (folder / target).is_file()}
    if shown:
        yield Markup(" ").join(_link(target, text, is_current=target == page) for target, text in shown.items())


def is_index(path: Path) -> bool:
    """Return whether a file is an index of runs that can be read, and not the page of something else."""
    try:
        return path.is_file() and _OURS in path.read_bytes()
    except OSError:
        return False


def _link(target: str, text: str, *, is_current: bool) -> Markup:
    return Markup('<a href="{}"{}>{}</a>').format(target, Markup(' aria-current="page"') if is_current else "", text)


def compare_side(run_dir: Path, engine: str = "") -> str:
    """Return how a run, or one of its engines, is named on a command line in the folder that holds the reports' folder."""
    folder = run_dir.absolute()
    return f"{folder.parent.name}/{folder.name}" + (f":{engine}" if engine else "")


def compare_command(base: str, candidate: str) -> str:
    """Return the command that compares two sides."""
    return shlex.join(["evalharness", "compare", base, candidate])


def renew_links(folder: Path) -> None:
    """Write the links of a folder's pages anew; a page that cannot be written, or is not ours, stays as it is."""
    for path in folder.glob("*.html"):
        if path.name in _PAGES or _LATER_PAGE.fullmatch(path.name):
            with suppress(OSError):
                if path.is_file() and not path.is_symlink():  # in a stranger's folder, a pipe would never end, and a link may lead anywhere
                    _renew(path)


def _renew(path: Path) -> None:
    links = page_links(path).encode()
    with path.open("r+b") as file:
        head = file.read(_HEAD)
        start = head.find(_START.encode())
        old = head[start : start + len(links)]
        if start >= 0 and old != links and old.endswith(_END.encode()):
            file.seek(start)
            file.write(links)
