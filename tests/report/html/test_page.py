"""The frame of a page: whatever is put into it is text, and its policy fits its own bytes."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
import zlib
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from evalharness.report.html.page import json_block, packed_block, text_block, write_page


def _page(**context):
    file = io.StringIO()
    write_page(file, "base.html.j2", path=Path("page.html"), **{"title": "A run", **context})
    return file.getvalue()


def _sha256(text):
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_policy_allows_the_pages_own_style_and_script_and_nothing_from_elsewhere():
    page = _page()
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', page)[1]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    script = re.search(r"<script>(.*?)</script>", page, re.DOTALL)[1]
    assert f"style-src '{_sha256(style)}'" in policy
    assert f"script-src '{_sha256(script)}'" in policy
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
    page = _page()
    assert not re.search(r"""(?:src|href)\s*=\s*["'](?!#)|url\(|@import|\son\w+\s*=\s*["']|\sstyle\s*=""", page)


@pytest.mark.parametrize(
    "title",
    [
        "<script>alert(1)</script>",
        '"><img src=x onerror=alert(1)>',
        "\u202egnp.exe",
        "\ud83d",
        "a\x00b\x1b[31m",
        "</title><b>",
        "{{ 7 * 7 }}",
    ],
    ids=ascii,
)
def test_a_hostile_title_stays_text(title):
    page = _page(title=title)
    page.encode("utf-8")
    assert page.count("<script>") == 1
    assert "<img" not in page
    assert "<b>" not in page
    assert not re.search("[\x00\x1b\u202e]", page)


def test_blocks_come_after_the_content_and_before_the_script():
    page = _page(blocks=["[block one]", "[block two]"])
    assert page.index("</footer>") < page.index("[block one][block two]") < page.index("<script>")


_ELEMENT = re.compile(r'<script type="([a-z/-]+)" id="([a-z0-9-]+)">([^<>&]*)</script>\n')


@given(st.recursive(st.none() | st.integers() | st.text(st.characters(codec=None)), lambda inner: st.lists(inner)))
def test_a_json_block_holds_any_data_without_a_character_of_markup(data):
    element = json_block("rows", data)
    found = _ELEMENT.fullmatch(element)
    assert found
    assert element.isascii()
    assert json.loads(found[3]) == data


@pytest.mark.parametrize("text", ["</script><script>alert(1)</script>", "<!--<script>", "\u2028\u2029", "\ud800", "]]>", "\x00"], ids=ascii)
def test_no_text_ends_a_json_block(text):
    assert _ELEMENT.fullmatch(json_block("rows", {text: [text]}))


def test_nan_is_refused_in_a_json_block():
    with pytest.raises(ValueError, match="JSON compliant"):
        json_block("rows", float("nan"))


def test_packed_and_text_blocks_come_back():
    data = b'{"text":"</script>"}\n' * 1000
    element = packed_block("rows-1", data)
    assert len(element) < 500
    assert zlib.decompress(base64.b64decode(_ELEMENT.fullmatch(element)[3])) == data
    assert base64.b64decode(_ELEMENT.fullmatch(text_block("photo-1", b"\xff\xd8<>"))[3]) == b"\xff\xd8<>"


@pytest.mark.parametrize("block_id", ['a"b', "", "Ä", "1", "a b"])
def test_a_blocks_id_must_be_plain(block_id):
    with pytest.raises(ValueError, match="must look like"):
        json_block(block_id, 1)
