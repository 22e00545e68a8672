"""The schema of summaries. Run: pytest tests/tasks/stage_a/test_schema.py"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from evalharness.tasks.stage_a.schema import DOMAINS, MISSIONS, violations
from tests.tasks.stage_a_examples import CLAMP, DISTANCE, FIBRE, RADIO, WIRE, bbu, rru, summaries

RIGHT = {"bbu": [bbu(WIRE, FIBRE), bbu(WIRE, 备注=["a", "b"]), bbu()], "rru": [rru(RADIO, CLAMP), rru(CLAMP, 分组统计={"1": 2})]}
RIGHT["rru"].append(rru({"类别": "接地线", "标签": {"有标签": 1}, "组": {"1": 1}}))


@pytest.mark.parametrize("domain", DOMAINS)
@given(st.data())
def test_a_summary_that_keeps_the_rules_has_no_violation(domain: Any, data: st.DataObject) -> None:
    assert [violations(summary, domain) for summary in RIGHT[domain]] == [[]] * 3
    assert violations(data.draw(summaries(domain)), domain) == []


def screw(**keys: Any) -> dict[str, Any]:
    return {"类别": "BBU安装螺丝", "可见性": {"完整": 1}, "符合性": {"符合": 1}, **keys}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param({}, "统计 is missing", id="no-stats"),
        pytest.param({"统计": "x"}, "统计 must be a list, got str", id="stats-type"),
        pytest.param(bbu(分组统计={"1": 1}), "top-level key '分组统计' is not allowed for BBU; allowed: 统计, 备注", id="41-bbu-groups"),
        pytest.param(bbu(dataset="x"), "top-level key 'dataset' is not allowed", id="dataset"),
        pytest.param(bbu(异常="x"), "top-level key '异常' is not allowed", id="anomaly"),
        pytest.param(bbu(备注="x"), "备注 must be a list of non-empty strings", id="notes-type"),
        pytest.param(bbu(备注=["a", "a"]), "备注 says something twice", id="notes-twice"),
        pytest.param(bbu(备注=[""]), "备注 must be a list of non-empty strings", id="notes-blank"),
        pytest.param(bbu(备注=["旧", "不通过"]), "备注 says more than was seen: '不通过' is a verdict", id="notes-verdict"),
        pytest.param(bbu(备注=["无法判断"]), "备注 says more than was seen: '无法判断' is not an observed value", id="notes-third-state"),
        pytest.param(bbu(备注=["见[12, 40]"]), "备注 says more than was seen: '见[12, 40]' holds coordinates", id="notes-coordinates"),
        pytest.param(bbu("x"), "统计[1]: must be an object, got str", id="item-type"),
        pytest.param(bbu(WIRE, {"类别": "猫"}), "统计[2]: 类别 '猫' is unknown for BBU", id="category"),
        pytest.param(bbu(RADIO), "统计[1]: 类别 'RRU设备' is unknown for BBU", id="other-domain"),
        pytest.param(bbu({"类别": {"电线": 1}}), "类别 {'电线': 1} is unknown", id="category-type"),
        pytest.param(bbu({"捆扎": {"整齐": 1}}), "类别 None is unknown", id="no-category"),
        pytest.param(bbu({"类别": "电线"}), "电线 lacks 捆扎", id="43-required"),
        pytest.param(bbu({"类别": "光纤", "弯曲半径": {"合格": 1}}), "光纤 lacks 保护措施 or 套管保护 or 保护", id="43-choice"),
        pytest.param(bbu({"类别": "标签"}), "标签 lacks 文本 or 可读性", id="label"),
        pytest.param(bbu(screw(品牌={"甲": 1})), "BBU安装螺丝 may not have '品牌'", id="extra-key"),
        pytest.param(bbu(screw(符合性="符合")), "符合性: must be an object {value: count}, got '符合'", id="value-type"),
        pytest.param(bbu(screw(符合性={})), "符合性: must be an object {value: count}, got '{}'", id="value-empty"),
        pytest.param(bbu(screw(符合性={"符合": 0})), "count of '符合' must be a positive integer, got 0", id="zero"),
        pytest.param(bbu(screw(符合性={"符合": True})), "must be a positive integer, got True", id="bool"),
        pytest.param(bbu(screw(符合性={"符合": 1.0})), "must be a positive integer, got 1.0", id="float"),
        pytest.param(bbu(screw(符合性={"符合": 10**9})), "must be a positive integer, got 1000000000", id="huge"),
        pytest.param(bbu(screw(符合性={"无法判断": 1})), "'无法判断' is not an observed value", id="third-state"),
        pytest.param(bbu(screw(符合性={"不通过": 1})), "'不通过' is a verdict", id="verdict"),
        pytest.param(bbu(screw(可见性={"[12, 40, 80, 99]": 1})), "holds coordinates", id="coordinates"),
        pytest.param(bbu({"类别": "标签", "文本": {"A 1": 1}}), "text 'A 1' must be written without spaces", id="text-space"),
        pytest.param(bbu({"类别": "标签", "可读性": {"可读": 1}}), "only 不可读 is allowed, got '可读'", id="readable"),
    ],
)
def test_a_bbu_violation_is_named(data: dict[str, Any], reason: str) -> None:
    found = violations(data, "bbu")
    assert len(found) == 1
    assert reason in found[0]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        pytest.param(rru(备注=["a"]), "top-level key '备注' is not allowed for RRU", id="41-rru-notes"),
        pytest.param(bbu({"类别": "站点距离", "站点距离": {"13m": 1}}), "站点距离 must be digits only, got '13m'", id="42-unit"),
        pytest.param(bbu({"类别": "站点距离", "站点距离": {"１３": 1}}), "站点距离 must be digits only", id="42-full-width"),
        pytest.param(bbu({"类别": "站点距离", "站点距离": {"7": 1, "8": 1}}), "站点距离 must be one number, got 2", id="42-two-keys"),
        pytest.param(rru(DISTANCE), "exactly one 站点距离 is needed, got 2", id="42-two-entries"),
        pytest.param(bbu(RADIO), "exactly one 站点距离 is needed, got 0", id="42-none"),
        pytest.param(bbu(RADIO, DISTANCE), "站点距离 must come first", id="42-late"),
        pytest.param(rru({**CLAMP, "组": {"1": 1}}), "紧固件 may not have '组'", id="group"),
        pytest.param(rru(分组统计={"1": "2"}), "分组统计: count of '1' must be a positive integer, got 2", id="groups"),
    ],
)
def test_an_rru_violation_is_named(data: dict[str, Any], reason: str) -> None:
    found = violations(data, "rru")
    assert len(found) == 1
    assert reason in found[0]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["统计", "类别", "文本", "站点距离", "备注", "x"]), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["统计", "备注", "分组统计", "x"]), json_values), st.sampled_from(DOMAINS))
def test_no_json_makes_the_check_raise(data: dict[str, Any], domain) -> None:
    assert all(isinstance(reason, str) for reason in violations(data, domain))


def test_slugs_are_unique_and_typeable() -> None:
    slugs = [mission.slug for mission in MISSIONS.values()]
    assert len(set(slugs)) == len(slugs) == 7
    assert all(slug.isascii() and mission.domain in slug for slug, mission in zip(slugs, MISSIONS.values(), strict=True))
