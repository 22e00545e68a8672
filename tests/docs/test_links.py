"""Every link in the documentation leads to a file that exists, and to a heading that it has."""

from __future__ import annotations

import posixpath
import re

import pytest

from tests.docs.pages import PAGES, ROOT, without_blocks

LINK = re.compile(r"\]\(([^)\s#]*)(?:#([^)\s]+))?\)")


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and our site make them."""
    titles = re.findall(r"^#+ (.+)$", without_blocks(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    broken = []
    for target, anchor in LINK.findall(re.sub(r"`[^`\n]*`", "", without_blocks(page))):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
        path = f"{path}/README.md" if (ROOT / path).is_dir() and f"{path}/README.md" in PAGES else path
        if ":" not in target and (not (ROOT / path).exists() or (anchor and anchor not in anchors(path))):
            broken.append((target, anchor))
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    listed = {target for target, _ in LINK.findall(PAGES["docs/README.md"])}
    assert [page for page in PAGES if page.startswith("docs/") and page[5:] not in {*listed, "README.md"}] == []


def test_every_page_is_in_the_sites_navigation() -> None:
    navigation = set((ROOT / "mkdocs.yml").read_text("utf-8").replace(":", " ").split())
    assert {page.name for page in ROOT.glob("docs/*.md")} - navigation == set()
