"""Invented Stage-A texts that several test modules use."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

from evalharness.tasks.stage_a.schema import SCHEMA, Domain

BBU_HEADER = "<DOMAIN=BBU>, <TASK=SUMMARY>"
RRU_HEADER = "<DOMAIN=RRU>, <TASK=SUMMARY>"

WIRE: dict[str, Any] = {"类别": "电线", "捆扎": {"整齐": 2}}
FIBRE: dict[str, Any] = {"类别": "光纤", "弯曲半径": {"合格": 1}, "套管保护": {"有套管": 1}}
DISTANCE: dict[str, Any] = {"类别": "站点距离", "站点距离": {"7": 1}}
RADIO: dict[str, Any] = {"类别": "RRU设备"}
CLAMP: dict[str, Any] = {"类别": "紧固件", "安装状态": {"合格": 2}}

RRU_EXAMPLE = (
    '<DOMAIN=RRU>, <TASK=SUMMARY>\n{"统计": [{"类别": "站点距离", "站点距离": {"7": 1}}, {"类别": "紧固件", "安装状态": {"合格": 2}}, '
    '{"类别": "接地线", "标签": {"有标签": 1}, "组": {"1": 1}}, {"类别": "标签", "文本": {"DEMO-RRU1": 1}, "组": {"1": 1}}], '
    '"分组统计": {"1": 2}}'
)


def bbu(*items: Any, **more: Any) -> dict[str, Any]:
    return {"统计": list(items), **more}


def rru(*items: Any, **more: Any) -> dict[str, Any]:
    return {"统计": [DISTANCE, *items], **more}


def line(data: Any) -> str:
    return json.dumps(data, ensure_ascii=False)


@st.composite
def summaries(draw: st.DrawFn, domain: Domain) -> dict[str, Any]:
    """Valid summaries of a domain."""
    words = st.text(st.sampled_from("甲乙丙丁ABC123"), min_size=1, max_size=6)
    counts = st.integers(1, 9)
    categories = [name for name in SCHEMA[domain] if name != "站点距离"]
    items = []
    for name in draw(st.lists(st.sampled_from(categories), max_size=6)):
        item: dict[str, Any] = {"类别": name}
        for choice in SCHEMA[domain][name].required:
            key = draw(st.sampled_from(choice))
            values = st.just("不可读") if key == "可读性" else words
            item[key] = draw(st.dictionaries(values, counts, min_size=1, max_size=3))
        items.append(item)
    if domain == "rru":
        items.insert(0, {"类别": "站点距离", "站点距离": {str(draw(counts)): 1}})
    data: dict[str, Any] = {"统计": items}
    if draw(st.booleans()):
        own = {
            "bbu": ("备注", st.lists(words, unique=True, max_size=3)),
            "rru": ("分组统计", st.dictionaries(words, counts, min_size=1, max_size=3)),
        }
        data[own[domain][0]] = draw(own[domain][1])
    return data
