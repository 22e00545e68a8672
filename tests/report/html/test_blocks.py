"""Data in a page cannot break out of its element, and comes back as it was."""

from __future__ import annotations

import base64
import json
import re
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalharness.report.html.page import json_block, packed_block, text_block

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


def test_a_packed_block_is_compressed_and_comes_back():
    data = b'{"text":"</script>"}\n' * 1000

    element = packed_block("rows-1", data)

    assert len(element) < 500
    assert zlib.decompress(base64.b64decode(_ELEMENT.fullmatch(element)[3])) == data


def test_a_text_block_comes_back():
    assert base64.b64decode(_ELEMENT.fullmatch(text_block("photo-1", b"\xff\xd8<>"))[3]) == b"\xff\xd8<>"


@pytest.mark.parametrize("block_id", ['a"b', "", "Ä", "1", "a b"])
def test_a_blocks_id_must_be_plain(block_id):
    with pytest.raises(ValueError, match="must look like"):
        json_block(block_id, 1)
