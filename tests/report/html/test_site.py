"""The links between the pages of a folder: there as soon as the neighbour is, whichever was written first."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from evalharness.cli import main
from evalharness.report.html.index_page import write_index
from evalharness.report.html.report_page import write_report_pages
from evalharness.report.html.site import page_links, renew_links
from evalharness.report.tables import load_tables
from tests.analysis.comparison.runs import cases, pair
from tests.report.hostile import HOSTILE_TEXTS
from tests.report.runs import row, write_run


def links_of(page: Path) -> list[tuple[str, str]]:
    """Return target and text of the links in the header's first part."""
    header = re.search(r"<!--links-->(.*?)<!--/links-->", page.read_text("utf-8"))
    assert header is not None
    return re.findall(r'<a href="([^"]+)"[^>]*>([^<]+)</a>', header[1])


def test_a_page_gets_its_links_when_a_neighbour_is_written_later(tmp_path: Path) -> None:
    run = write_run(tmp_path / "reports" / "a run", [row()])
    page = write_report_pages(load_tables(run))["report.html"]
    assert links_of(page) == [("report.html", "report")]
    before = page.stat().st_size
    write_index(tmp_path / "reports")
    (run / "compare.html").write_text("by somebody else", "utf-8")
    (run / "timeline.html").touch()
    renew_links(run)
    all_links = [("../index.html", "All runs"), ("report.html", "report"), ("timeline.html", "timeline"), ("compare.html", "compare")]
    assert links_of(page) == all_links
    assert page.stat().st_size == before
    assert (run / "compare.html").read_text("utf-8") == "by somebody else"
    (run / "timeline.html").unlink()
    os.mkfifo(run / "report-2.html")
    renew_links(run)
    assert ("timeline.html", "timeline") not in links_of(page)


def test_links_are_not_written_through_a_link_out_of_the_folder(tmp_path: Path) -> None:
    page = write_report_pages(load_tables(write_run(tmp_path / "mine", [row()])))["report.html"]
    before = page.read_bytes()
    stranger = write_run(tmp_path / "strangers", [row()])
    (stranger / "report.html").symlink_to(page)
    (stranger / "timeline.html").touch()
    renew_links(stranger)
    assert page.read_bytes() == before


def test_the_index_links_reports_that_were_there_before_it(tmp_path: Path) -> None:
    pages = [write_report_pages(load_tables(write_run(tmp_path / name, [row()])))["report.html"] for name in ("one", "two")]
    index = write_index(tmp_path)
    assert index is not None
    assert links_of(index) == [("index.html", "All runs")]
    assert [links_of(page)[0] for page in pages] == [("../index.html", "All runs")] * 2
    index.write_text("the index of something else")
    renew_links(tmp_path / "one")
    assert links_of(pages[0])[0] == ("report.html", "report")


def test_the_index_and_the_report_lead_to_what_commands_write_later(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    runs = pair(reports, cases([1.0] * 4), cases([0.0] * 4))
    for run in runs:
        write_report_pages(load_tables(run))
    write_index(reports)
    for command, page in (("compare", "cand/compare.html"), ("timeline", "timeline.html")):
        assert main([command, *map(str, runs)]) in (0, 1)
        assert f'href="{page}"' in (reports / "index.html").read_text("utf-8")
    assert ("compare.html", "compare") in links_of(runs[1] / "report.html")
    assert links_of(reports / "timeline.html")[0] == ("index.html", "All runs")


@pytest.mark.parametrize(
    "name", [*[text.replace("/", "-").replace("\0", "-")[:60] for text in HOSTILE_TEXTS.values()], "W" * 200], ids=ascii
)
def test_a_hostile_folder_name_stays_text_and_fits(tmp_path: Path, name: str) -> None:
    folder = tmp_path / (name.strip(". ") or "x")
    try:
        folder.mkdir()
    except (OSError, ValueError):
        pytest.skip("no such folder can be made here")
    (folder / "run.json").touch()
    (tmp_path / "index.html").write_text("Made by evalharness")
    links = page_links(folder / "report.html")
    assert len(links.encode()) == len(page_links(tmp_path / "x.html").encode())
    assert re.sub(r"</?(?:a|b|span)\b[^<>]*>|<!--/?links-->", "", links).count("<") == 0
    assert "script>" not in re.sub(r"<b>.*</b>", "", links)
