"""The prompt for one ticket: task, focus, invariants, rules, counts, distances, numbered summaries; and word searches in rules.

The prompt never holds the label. The shipped checkpoints were trained on these very characters; a test compares hashes.
"""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from evalharness.answers.json_text import tokens
from evalharness.api.errors import ConfigError
from evalharness.tasks.stage_a.parse import IRRELEVANT, parse_summary
from evalharness.tasks.stage_a.schema import CATEGORY_KEY, DISTANCE, MISSIONS, READABLE_KEY, STATS_KEY, TEXT_KEY, Domain, items_of
from evalharness.tasks.stage_b.files import FOCUS, in_order

_SYSTEM = "你是{domain}工单审核助手。各规则须同时满足，缺少证据即不通过。只输出两行：Verdict: 通过或不通过；Reason: 一行理由。"
# One key and its value, where no whole object could be taken out: {"7": 1}, "7", 7 or bare words up to the next mark.
_PAIR = re.compile(
    rf"""["'“”]?{DISTANCE}["'“”]?\s{{0,9}}"""
    r"(?:[:：=]\s{0,9}(?:\{[^{}]*\}?|[^,，;；。{}\[\]\n]*))?\s{0,9}[,，;；。]?\s?"
)


def messages(mission: str, summaries: Sequence[str], rules: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the chat for one ticket; `rules` are the mission's, by id. `ConfigError` without a focus among them.

    The prompt of a mission that is not about RRU leaves out every site distance. A summary counts as many objects as its
    categories together, each as its largest attribute total (readable and unreadable labels together), and at least as 1; an
    unreadable summary counts as 1, `无关图片` as 0.
    """
    if FOCUS not in rules:
        raise ConfigError(f"the rules of {mission} lack {FOCUS}, its focus; guidance must not be empty")
    domain = MISSIONS[mission].domain
    evidence = [_Evidence(text, domain) for text in summaries]
    counts = ", ".join(f"Image{number}(obj={summary.num_objects})" for number, summary in enumerate(evidence, start=1))
    lines = [f"任务: {mission}", *rule_lines(rules)]
    lines.append(f"统计: {counts}；图片数量: {len(evidence)}")
    if domain == "rru" and (distances := _distances(evidence)):
        lines.append(f"站点汇总: {distances}")
    lines += _image_lines(evidence)
    return [{"role": "system", "content": _SYSTEM.format(domain=domain.upper())}, {"role": "user", "content": "\n".join(lines)}]


def rule_lines(rules: Mapping[str, str]) -> list[str]:
    """Return a mission's rules as every prompt of Stage-B shows them, the focus first."""
    return [f"重点: {rules[FOCUS]}", *(f"{rule_id}: {rules[rule_id]}" for rule_id in in_order(rules) if rule_id != FOCUS)]


def image_lines(mission: str, summaries: Sequence[str]) -> list[str]:
    """Return the summaries of a ticket's photos as every prompt of Stage-B shows them, one line each."""
    return _image_lines([_Evidence(text, MISSIONS[mission].domain) for text in summaries])


def _image_lines(evidence: Sequence[_Evidence]) -> list[str]:
    return [f"Image{number}: {summary.text}" for number, summary in enumerate(evidence, start=1)]


class _Evidence:
    """A summary as the prompt shows it: one line of text, its objects counted; `data` is None where it is unreadable."""

    def __init__(self, text: str, domain: Domain) -> None:
        data = parse_summary(text, domain).data
        self.data = data if data is None or domain == "rru" else _data_without_distance(data)
        if self.data is not None:
            self.text = json.dumps(self.data, ensure_ascii=False)
            self.num_objects = sum(map(_num_things, items_of(self.data)))
        else:
            self.text = " ".join((text if domain == "rru" else without_distance(text)).split())
            self.num_objects = 0 if text.strip() in ("", IRRELEVANT) else 1


def _data_without_distance(data: Mapping[str, Any]) -> dict[str, Any] | None:
    def bare(item: Any) -> Any:
        return {key: value for key, value in item.items() if key != DISTANCE} if isinstance(item, Mapping) else item

    kept, stats = bare(data), data[STATS_KEY]
    if isinstance(stats, list):
        kept[STATS_KEY] = [bare(item) for item in stats if not (isinstance(item, Mapping) and item.get(CATEGORY_KEY) == DISTANCE)]
    else:
        kept[STATS_KEY] = bare(stats)
    # A distance that is nested deeper than the form goes is removed from the text instead.
    return None if DISTANCE in json.dumps(kept, ensure_ascii=False) else kept


def _num_things(item: Mapping[str, Any]) -> int:
    totals = {
        key: sum(count for count in counts.values() if isinstance(count, int) and not isinstance(count, bool) and count > 0)
        for key, counts in item.items()
        if isinstance(counts, Mapping)
    }
    labels = totals.pop(TEXT_KEY, 0) + totals.pop(READABLE_KEY, 0)
    return max([1, labels, *totals.values()])


def _distances(evidence: Sequence[_Evidence]) -> str:
    """Return the number of things per site distance, in order of appearance: `站点7(obj=3), 站点12(obj=5)`."""
    counts: dict[str, int] = {}
    for summary in evidence:
        for item in items_of(summary.data or {}):
            value = item.get(DISTANCE)
            if item.get(CATEGORY_KEY) == DISTANCE and isinstance(value, Mapping):
                for distance in value:
                    counts[distance] = counts.get(distance, 0) + summary.num_objects
    return ", ".join(f"站点{distance}(obj={count})" for distance, count in counts.items())


def without_distance(text: str) -> str:
    """Return a text, also broken JSON, without its site distances and otherwise unchanged. Linear in its length.

    Objects whose category is the distance are removed whole (braces in strings do not count), then other mentions with their
    values.
    """
    if DISTANCE not in text:
        return text
    kept, position = [], 0
    for start, end in _distance_objects(text):
        kept.append(text[position:start])
        comma = re.compile(r"\s{0,9},\s{0,9}").match(text, end)
        if comma is None:
            kept[-1] = re.sub(r"\s{0,9},\s{0,9}\Z", "", kept[-1])
        position = comma.end() if comma else end
    kept.append(text[position:])
    return _PAIR.sub("", "".join(kept)).replace(DISTANCE, "")


def _distance_objects(text: str) -> list[tuple[int, int]]:
    """Return the spans of the objects of category 站点距离, in order; an unclosed object reaches to the end of the text."""
    spans: list[tuple[int, int]] = []
    opened: list[tuple[int, list[str]]] = []
    quote = '"' if '"' in text else "'"  # as Python writes objects
    for begin, end in tokens(text, quote=quote):
        if text[begin] == "{":
            opened.append((begin, []))
        elif text[begin] == "}" and opened:
            start, strings = opened.pop()
            if _is_distance(strings):
                spans.append((start, end))
        elif text[begin] == quote and opened:
            opened[-1][1].append(text[begin + 1 : end - 1])
    spans += [(start, len(text)) for start, strings in opened if _is_distance(strings)]
    outer: list[tuple[int, int]] = []
    for start, end in sorted(spans, key=lambda span: (span[0], -span[1])):
        if not outer or start >= outer[-1][1]:
            outer.append((start, end))
    return outer


def _is_distance(strings: Sequence[str]) -> bool:
    return any(pair == (CATEGORY_KEY, DISTANCE) for pair in itertools.pairwise(strings))


# Traditional → simplified for the vocabulary of rules, verdicts and summaries. It is a table of our own so that an answer means
# the same on every machine, whichever packages are installed.
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

_THIRD_STATES = "复核 待定 证据不足 无法判断 无法判定 无法确认 不确定 待确认 待核实 待审 存疑 人工确认 人工审核"
THIRD_STATES = tuple(_THIRD_STATES.split())
"""Ways to say neither 通过 nor 不通过; a verdict has two values."""

_PUNCTUATION = re.compile(r"[\W_]+")


def simplify(text: str) -> str:
    """Return the text in simplified characters, for the task's vocabulary."""
    return text.translate(_SIMPLIFIED)


def plain(text: str) -> str:
    """Return the text for searches: simplified, half-width, without white space."""
    return "".join(simplify(unicodedata.normalize("NFKC", text)).split())


def third_states(text: str) -> list[str]:
    """Return the third states in a text, in the order of `THIRD_STATES`."""
    searched = plain(text)
    return [phrase for phrase in THIRD_STATES if phrase in searched]


@lru_cache(maxsize=4096)  # changes are compared in pairs
def signature(text: str) -> str:
    """Return a key that equal rules share: simplified, lower case, 如果/当 as 若 and 就 as 则, no punctuation or space."""
    words = plain(text).lower().replace("如果", "若").replace("当", "若").replace("就", "则")
    return _PUNCTUATION.sub("", words)
