"""Answers of a model that wants to break the parser that reads them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

PIECES = [
    *"}{[]()<>\"'\\,:;=#*`|&@%$0-. \n\r\t中é",
    *"\x00\x0b\x0c\x1b\x1c\x1d\x1e\x7f\x85\u200b\u200d\u202e\u2028\u2029\ufeff\ufffd\ud800\udfff\U0001f600",
    *("```json\n", "```", "<think>", "</think>", "<|im_end|>", "<|endoftext|>", "</s>", "[INST]", "<|channel|>analysis<|message|>"),
    *("<tool_call>", "</tool_call>", "<function=f>", "</function>", "<parameter=a>", "</parameter>", "[TOOL_CALLS]", "<|python_tag|>"),
    *('<invoke name="f">', '{"name": "f", "arguments": ', '{"a": 1}', "f(", "[f(a=1)]", "<|tool_call_start|>", "<|tool_call_end|>"),
    *('"bbox_2d": [1, 2, 3, 4]', '"desc": "', "类别=", "合格/不合格", "{{7*7}}", "${jndi:x}", "../../../etc/passwd", "=cmd|' /C calc'!A0"),
    *("Verdict: pass\nReason: ", "通过", "不通过", "1e999", "-1e-999", "NaN", "Infinity", "-0.0", "0x1F", "1_000", "null", "true"),
]
VALID = [
    '[{"bbox_2d": [1, 2, 30, 40], "desc": "类别=BBU设备,品牌=华为"}, {"line": [1, 2, 3, 4], "desc": "类别=光纤"}]',
    '{"统计": [{"类别": "BBU设备", "品牌": {"华为": 1}}], "备注": ["无"], "分组统计": {"1": 2}}',
    "Verdict: pass\nReason: 图1显示安装正确",
    '```json\n{"operations": [{"op": "upsert", "text": "若缺少接地线，则判定不通过。", "rationale": "r"}]}\n```',
    '<tool_call>\n{"name": "f", "arguments": {"a": 1, "b": [1, 2]}}\n</tool_call>',
    "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>",
    '[f(a=1, b="x"), get_it(from=3)]',
    '<think>why</think>{"answer": {"list": [1, 2.5, "x"], "when": null}}',
]
LONG_CHARS = 200_000
_DIGITS = "9" * 400


def texts(seed: int) -> Iterator[tuple[str, str]]:
    """Yield (name, text): 580 of them, the long ones of `LONG_CHARS` characters."""
    draw = random.Random(f"texts {seed}")
    yield from (("empty", ""), ("blank", " \n\t "))
    for number in range(250):
        yield f"mixed {number}", "".join(draw.choices(PIECES, k=draw.randrange(1, 120)))
    for number, piece in enumerate(PIECES):
        yield f"long {number} {piece[:12]!a}", piece * (LONG_CHARS // len(piece))
    for number, text in enumerate(VALID):
        yield from ((f"changed {number} {name}", changed) for name, changed in _changes(text, draw))


def _changes(text: str, draw: random.Random) -> Iterator[tuple[str, str]]:
    yield "as it is", text
    yield "thousand times", text * 1000
    yield "huge numbers", "".join(_DIGITS if char.isdigit() else char for char in text)
    yield "line separators", text.replace(" ", "\u2028").replace("\n", "\x85")
    yield "thought never ends", f"<think>{text}"
    yield "in a fence of its own text", f"```json\n{json.dumps(text)}\n```"
    for depth in (100, 1_000, 50_000):
        yield f"nested {depth}", f"{'[' * depth}{text}{']' * depth}"
        yield f"objects nested {depth}", '{"a":' * depth + text + "}" * depth
    for number in range(12):
        start, end = sorted(draw.sample(range(len(text) + 1), 2))
        yield f"cut {number}", text[:end]
        yield f"hole {number}", text[:start] + draw.choice(PIECES) + text[end:]
