"""Words that Stage-B texts are searched for: third states, double negation, traditional characters. Pure functions on text."""

from __future__ import annotations

import re
import unicodedata

__all__ = ["THIRD_STATES", "has_double_negation", "has_verdict", "plain", "signature", "simplify", "third_states"]

# Traditional → simplified, for the vocabulary of rules, verdicts and summaries. A table of our own, so that an answer means
# the same on every machine: conversion must not depend on which packages are installed.
_TRADITIONAL = (
    "過过 無无 關关 圖图 證证 據据 斷断 確确 認认 復复 複复 覆复 總总 結结 規规 則则 應应 為为 爲为 當当 檢检 裝装 線线 纜缆 "
    "擋挡 風风 設设 備备 標标 籤签 簽签 絲丝 機机 櫃柜 纖纤 電电 緊紧 彎弯 徑径 護护 離离 統统 計计 類类 別别 見见 態态 狀状 "
    "組组 對对 錯错 誤误 齊齐 亂乱 註注 實实 時时 個个 張张 補补 項项 須须 員员 審审 單单 務务 數数 與与 這这 沒没 還还 並并 "
    "發发 現现 處处 際际 邊边 點点 間间 長长 開开 壓压 層层 號号 碼码 問问 題题 說说 記记 錄录 樣样 質质 難难 讓让 違违 損损 "
    "壞坏 鬆松 塊块 條条 側侧 後后 裡里 裏里 舊旧 種种 級级 遠远 連连 頭头 雙双 動动 產产 體体 內内 兩两 從从 僅仅 導导 屬属 "
    "緣缘 銹锈 鏽锈 鐵铁 鋼钢 銅铜 釘钉 釋释 鎖锁 夾夹 蓋盖 門门 樓楼 頂顶 牆墙 貼贴 寫写 讀读 視视 觀观 測测 驗验 試试 論论 "
    "請请 訊讯 詳详"
)
_SIMPLIFIED = str.maketrans({pair[0]: pair[1] for pair in _TRADITIONAL.split()})

THIRD_STATES = (
    "复核",
    "待定",
    "证据不足",
    "无法判断",
    "无法判定",
    "无法确认",
    "不确定",
    "待确认",
    "待核实",
    "待审",
    "存疑",
    "人工确认",
    "人工审核",
)
"""Ways to say neither 通过 nor 不通过; a verdict has two values."""

_DOUBLE_NEGATION = re.compile(
    r"(?:不(?:应该|应当|应|该|能|可以|可|得|宜|要|必|需|会|予)?|无需|不用)被?(?:判定|判断|认定|视|判)(?:为|成|作)"
    r"|(?:并非|不是|不能|不得|不会|未必|绝非)不"
)
_PUNCTUATION = re.compile(r"[\W_]+")


def simplify(text: str) -> str:
    """Return the text with the traditional characters of the task's vocabulary made simplified ones."""
    return text.translate(_SIMPLIFIED)


def plain(text: str) -> str:
    """Return the text as it is searched: simplified, half-width, without white space."""
    return "".join(simplify(unicodedata.normalize("NFKC", text)).split())


def third_states(text: str) -> list[str]:
    """Return the third states that a text names, in the order of `THIRD_STATES`."""
    searched = plain(text)
    return [phrase for phrase in THIRD_STATES if phrase in searched]


def has_double_negation(text: str) -> bool:
    """Return whether a rule says its verdict by denying another one (`不应判定为不通过`), which readers and models misread."""
    return _DOUBLE_NEGATION.search(plain(text)) is not None


def has_verdict(text: str) -> bool:
    """Return whether a rule names the verdict that it leads to: 通过 or 不通过."""
    return "通过" in plain(text)


def signature(text: str) -> str:
    """Return what makes two rules the same: simplified, lower case, 如果/当 as 若 and 就 as 则, no punctuation or space."""
    words = plain(text).lower().replace("如果", "若").replace("当", "若").replace("就", "则")
    return _PUNCTUATION.sub("", words)
