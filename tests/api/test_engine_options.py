"""How an engine is made: what excludes each other, what is off by default. Run: pytest tests/api/test_engine_options.py"""

from __future__ import annotations

from typing import Any

import pytest

from evalharness.api.errors import ContractValueError
from evalharness.api.options import ChatTemplateOptions, ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions


def test_options_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ContractValueError, match=r"^preprocess\.min_pixels \(10\) must not exceed preprocess\.max_pixels \(9\)"):
        VlmPreprocessOptions(min_pixels=10, max_pixels=9)
    with pytest.raises(ContractValueError, match=r"^chat_template\.continue_final_message and .*add_generation_prompt exclude"):
        ChatTemplateOptions(continue_final_message=True)
    assert ChatTemplateOptions(add_generation_prompt=False, continue_final_message=True).continue_final_message


def test_thinking_and_remote_code_and_pickles_are_off_by_default() -> None:
    assert not ChatTemplateOptions().enable_thinking
    assert not ModelLoadConfig("x").trust_remote_code
    assert not ModelLoadConfig("x").allow_pickle
    assert not VllmEngineOptions().trust_remote_code


@pytest.mark.parametrize("variant", ["VLM", "Vlm", "vlm"])
def test_the_variant_is_read_in_any_case(variant: Any) -> None:
    assert ModelLoadConfig("x", variant=variant).variant == "vlm"
