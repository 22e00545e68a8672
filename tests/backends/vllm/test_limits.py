"""What vLLM's V2 model runner has no room for is refused before it ends the engine; read from the source of this vLLM. No engine starts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api.errors import UnsupportedOption
from evalharness.api.thinking import ThinkingBudget
from evalharness.backends.vllm.limits import check_room, knows_thinking, limits_in, uses_v2_runner
from evalharness.backends.vllm.sampling import check_thinking, sampling_params
from tests import vllm_installed
from tests.backends.vllm_models import plan

pytestmark = pytest.mark.skipif(not vllm_installed.IS_INSTALLED, reason=vllm_installed.WHY_NOT)

MANY = list(range(1025))


@pytest.fixture(scope="module")
def tokenizer(tiny_vlm_checkpoint: Path) -> Any:
    from evalharness.backends.torchvision_cpu import register_missing_operators

    register_missing_operators()
    from vllm.tokenizers import get_tokenizer

    return get_tokenizer(str(tiny_vlm_checkpoint))


def check(tokenizer: Any, *extra: tuple[str, Any], **changes: Any) -> None:
    check_room(sampling_params(plan(extra=extra, **changes), vocab_size=2000), tokenizer)


@pytest.mark.parametrize(
    ("extra", "changes", "problem"),
    [
        (("allowed_token_ids", MANY), {}, "option allowed_token_ids cannot be honoured by this vLLM: 1025 token ids, .* takes 1024"),
        (("logit_bias", dict.fromkeys(MANY, 1.0)), {}, "option logit_bias cannot be honoured by this vLLM: 1025 token ids"),
        (("min_new_tokens", 2), {"stop_token_ids": tuple(range(129))}, "option min_new_tokens .* 129 stop ids beside it, .* takes 128"),
        (("bad_words", [f"no{n}" for n in range(129)]), {}, "option bad_words cannot .* vLLM: .*128"),
        (("bad_words", ["never " * 400]), {}, "option bad_words cannot .* vLLM: .*1024"),
    ],
    ids=["allowed", "bias", "min_new_tokens", "words", "word tokens"],
)
def test_more_than_the_v2_runner_takes_is_refused(tokenizer: Any, extra: Any, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(UnsupportedOption, match=problem):
        check(tokenizer, extra, **changes)


def test_as_much_as_it_takes_passes(tokenizer: Any) -> None:
    check(tokenizer, ("allowed_token_ids", MANY[:1024]), ("bad_words", [f"no{n}" for n in range(32)]))
    check(tokenizer, ("logit_bias", dict.fromkeys(MANY[:1024], 1.0)), ("min_new_tokens", 2), stop_token_ids=tuple(range(128)))
    check(tokenizer, stop_token_ids=tuple(range(500)))  # without min_new_tokens nothing is masked


def v2_source(folder: Path, **files: str) -> Path:
    sample = folder / "v1" / "worker" / "gpu" / "sample"
    sample.mkdir(parents=True)
    for name in ("logit_bias", "bad_words"):
        (sample / f"{name}.py").write_text("import torch\n")
    for name, text in files.items():
        (sample / f"{name}.py").write_text(text)
    return folder


def test_limits_of_older_releases_are_constants_of_their_modules(tmp_path: Path) -> None:
    bad_words = "MAX_BAD_WORDS_TOTAL_TOKENS = 64  # of a request\nMAX_NUM_BAD_WORDS = 8\nNAME = 'x'\n"
    assert limits_in(v2_source(tmp_path, bad_words=bad_words)) == {"MAX_BAD_WORDS_TOTAL_TOKENS": 64, "MAX_NUM_BAD_WORDS": 8}


def test_a_v2_runner_without_the_module_keeps_no_budget_of_thoughts(tmp_path: Path) -> None:
    assert not knows_thinking(v2_source(tmp_path / "old"))
    assert knows_thinking(v2_source(tmp_path / "new", thinking_budget=""))


def test_a_budget_of_thoughts_is_refused_where_the_runner_keeps_none(monkeypatch: pytest.MonkeyPatch) -> None:
    marks = SimpleNamespace(reasoning_start_token_ids=[5], reasoning_end_token_ids=[6])
    thinking = plan(thinking=ThinkingBudget((5,), (6,), 4))
    monkeypatch.setattr("evalharness.backends.vllm.sampling.knows_thinking", lambda: True)
    check_thinking(thinking, SimpleNamespace(reasoning_config=marks, use_v2_model_runner=True))
    monkeypatch.setattr("evalharness.backends.vllm.sampling.knows_thinking", lambda: False)
    check_thinking(thinking, SimpleNamespace(reasoning_config=marks, use_v2_model_runner=False))
    with pytest.raises(UnsupportedOption, match="max_thinking_tokens cannot be honoured by the V2 model runner of this vLLM"):
        check_thinking(thinking, SimpleNamespace(reasoning_config=marks, use_v2_model_runner=True))


def test_a_configuration_that_names_no_runner_has_the_old_one() -> None:
    assert not uses_v2_runner(SimpleNamespace())
