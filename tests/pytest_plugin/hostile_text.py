"""Generated texts that hurt whoever prints, parses or carries them."""

from __future__ import annotations

TEXTS = {
    "pipes": "a | b || c |\n|---|",
    "newlines": "\r\nfirst\nsecond\r\n\n\u2028third\x0bfourth\x0c",
    "ansi": "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J \x9b1m",
    "control": "\x00\x01\x02\x08\x7f\x85\x9f end",
    "surrogates": "\ud800 lone \udfff pair \udc80",
    "formula": "=cmd|' /C calc'!A0",
    "html": "<script>alert(1)</script><img src=x onerror=alert(1)>&amp;]]>",
    "markdown": "# head\n```\n* [x](javascript:alert(1)) `code`",
    "bidi": "\u202eevil\u202c \u2066x\u2069",
    "braces": "{0} {x} %s %(x)s ${HOME} \\n \\ud800",
    "xml": '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY e "x">]>&e;',
    "long": "L" * 200_000,
    "empty": "",
    "blank": "   \n\t ",
}
