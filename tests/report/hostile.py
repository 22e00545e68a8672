"""Texts that have broken reports, and strategies that make more of them."""

from __future__ import annotations

from hypothesis import strategies as st

HOSTILE_TEXTS = {
    "pipes": "a | b || c \\| d \\\\| e",
    "newlines": "first\nsecond\r\nthird\rfourth\u2028fifth\x85sixth",
    "ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x9b2J",
    "controls": "nul\x00 bell\x07 backspace\x08\x08 delete\x7f",
    "bidi": "user\u202egnp.exe\u202c \u2066isolated\u2069 \u200f",
    "surrogates": "half \ud83d and \udc80 pair",
    "formula": "=cmd|' /C calc'!A0",
    "plus formula": "+1+cmd",
    "hidden formula": " \u200b\ufeff\t=1+1",
    "full-width formula": "＝1+1",
    "at formula": "@SUM(A1)",
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)> &lt; <!-- ",
    "markdown": "# *bold* __bold__ ~~gone~~ `code` ```fence``` $x$ [a](b) ![i](x.png)",
    "links": "<http://evil> https://evil/?a=1 www.evil.com [a]: http://evil",
    "table": "|---|---|\n| x | y |",
    "list": "- item",
    "numbered list": "1. item",
    "quotation": "> quoted",
    "rule": "---",
    "quotes": '"quoted", \'single\', """',
    "empty": "",
    "spaces": "   ",
    "chinese": "未见紧固件; 站点7: 不通过",
    "combining": "e\u0301\u0301\u0301 👩‍👩‍👧",
}

any_text = st.text(st.characters(exclude_categories=()), max_size=80)
"""Any code points, lone surrogates among them."""

hostile_text = st.one_of(
    any_text,
    st.sampled_from(sorted(HOSTILE_TEXTS.values())),
    st.text(st.sampled_from("|\\`*_[]()<>&!#~$=+-@\t\r\n\x00\x1b\u202e\ud800 '\",;:/.wx7"), max_size=60),
)
