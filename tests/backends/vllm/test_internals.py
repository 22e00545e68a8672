"""What `vllm/_internals.py` uses of this vLLM is there; what its V2 model runner has no room for is refused. Reads its source."""

from __future__ import annotations

import dataclasses
import importlib.util
import inspect
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from evalharness.api.errors import UnsupportedOption
from evalharness.api.thinking import ThinkingBudget
from evalharness.backends import PLACEMENT_GROUP
from evalharness.backends.vllm._internals import (
    check_room,
    in_placement_group,
    inspecting_with,
    known_engine_arguments,
    knows_thinking,
    limits_in,
    result_queue,
    uses_v2_runner,
)
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


def lacks(part: str) -> str:
    """Return what a test says where this vLLM has no such part."""
    import vllm

    return f"vLLM {vllm.__version__} has no {part}: mend backends/vllm/_internals.py"


def test_the_parts_that_are_read_from_the_source_are_there() -> None:
    folder = Path((importlib.util.find_spec("vllm").submodule_search_locations or [""])[0])
    assert {"model", "worker_extension_cls"} <= set(known_engine_arguments() or ()), lacks("engine/arg_utils.py: EngineArgs")
    for name in ("MAX_NUM_ALLOWED_TOKEN_IDS", "MAX_NUM_LOGIT_BIAS_TOKENS", "MAX_NUM_STOP_TOKEN_IDS"):
        assert limits_in(folder).get(name), lacks(f"v1/worker/gpu/sample/logit_bias.py: {name}")


@pytest.mark.engine
def test_an_engine_is_given_the_places_that_ray_has_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed")
    from vllm.engine import arg_utils

    code = inspect.getsource(arg_utils.EngineArgs.create_engine_config)
    assert "if is_in_ray_actor():" in code, lacks("engine/arg_utils.py: is_in_ray_actor")
    assert "ray.util.get_current_placement_group()" in code, lacks("engine/arg_utils.py: the current placement group")
    with in_placement_group():
        assert not arg_utils.is_in_ray_actor(), "none is reserved"
    monkeypatch.setenv(PLACEMENT_GROUP, "0b" * 18)
    with in_placement_group():
        assert arg_utils.is_in_ray_actor()
        assert ray.util.get_current_placement_group().id.hex() == "0b" * 18
    assert not arg_utils.is_in_ray_actor()


@pytest.mark.vllm
def test_the_parts_of_a_running_engine_are_there(vllm_vlm_backend: Any) -> None:
    from vllm import SamplingParams
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.models import registry

    fields = (field.name for field in dataclasses.fields(EngineArgs))
    assert known_engine_arguments() == tuple(sorted(name for name in fields if not name.startswith("_"))), lacks("fields in EngineArgs")
    llm = vllm_vlm_backend._engine._llm
    assert isinstance(getattr(registry, "_SUBPROCESS_COMMAND", None), list), lacks("model_executor.models.registry._SUBPROCESS_COMMAND")
    with inspecting_with("pass"):
        assert registry._SUBPROCESS_COMMAND[1:] == ["-c", "pass"]
    assert None not in result_queue(llm), lacks("engine_core.outputs_queue, or output_queue_thread")
    assert callable(getattr(getattr(llm, "renderer", None), "render_cmpl", None)), lacks("LLM.renderer.render_cmpl")
    assert hasattr(llm.llm_engine.engine_core, "shutdown"), lacks("llm_engine.engine_core.shutdown")
    assert callable(getattr(SamplingParams, "_validate_structured_outputs", None)), lacks("SamplingParams._validate_structured_outputs")
