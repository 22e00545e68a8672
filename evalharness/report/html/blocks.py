"""Data inside a page. Knows no run.

A JSON block is read where it is needed with `JSON.parse`; a packed block is base64 of zlib, opened by the browser's own
`DecompressionStream`: rows of samples.jsonl shrink to a tenth, and no text can end the element that holds them.
"""

from __future__ import annotations

import base64
import json
import re
import zlib
from typing import Any

__all__ = ["json_block", "packed_block", "text_block"]

_ID = re.compile(r"[a-z][a-z0-9-]*")
# Nothing of these may stand in a script element as it is: they could end it, or open a comment in it.
_UNSAFE = {ord("<"): "\\u003c", ord(">"): "\\u003e", ord("&"): "\\u0026"}
_LEVEL = 1
"""Of zlib: level 6 saves a fifth of the bytes for five times the seconds."""


def json_block(block_id: str, data: Any) -> str:
    """Return an inert script element that holds `data` as JSON; `ValueError` for NaN, `TypeError` for what is no JSON.

    ASCII only, so no surrogate, line separator or encoding can spoil it.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_UNSAFE)
    return _element(block_id, "application/json", text)


def packed_block(block_id: str, data: bytes) -> str:
    """Return an inert script element that holds `data` compressed; `openBlock` of base.js gives it back as text."""
    return _element(block_id, "application/octet-stream", base64.b64encode(zlib.compress(data, _LEVEL)).decode("ascii"))


def text_block(block_id: str, data: bytes) -> str:
    """Return an inert script element that holds `data` as base64, for what is compressed already, such as a JPEG."""
    return _element(block_id, "text/plain", base64.b64encode(data).decode("ascii"))


def _element(block_id: str, kind: str, content: str) -> str:
    if not _ID.fullmatch(block_id):
        raise ValueError(f"a block's id must look like rows-1, got {block_id!r}")
    return f'<script type="{kind}" id="{block_id}">{content}</script>\n'
