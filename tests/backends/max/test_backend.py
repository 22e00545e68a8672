"""The max backend where no other backend's tests look. Run, where MAX is installed: pytest tests/backends/max/test_backend.py

What all backends share is in tests/contract (-k '[max'); docs/max.md says how to make an environment for MAX.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from evalharness.api.errors import BackendError, CheckpointError, ConfigError, MissingDependency
from evalharness.api.options import GenerationOptions, ModelLoadConfig, VllmEngineOptions, VlmPreprocessOptions
from evalharness.api.requests import GenerationFailure, GenerationResult
from evalharness.backends.max.backend import max_seed
from evalharness.engine.backend_contract import FREE, TEXTS, ask, generate
from evalharness.engine.build import build_backend
from evalharness.engine.engine import Engine
from tests.backends.max_models import IS_INSTALLED, WHY_NOT

if TYPE_CHECKING:
    from evalharness.backends.max.backend import MaxBackend

needs_max = pytest.mark.skipif(not IS_INSTALLED, reason=WHY_NOT)
ASKED = [ask(text) for text in TEXTS]


def build(path: Path, max_model_len: int | None = None, **config: Any) -> Any:
    options = VllmEngineOptions(max_model_len=max_model_len)
    return build_backend("max", ModelLoadConfig(str(path), **config), VlmPreprocessOptions(), options)


def test_neighbouring_seeds_share_no_numbers() -> None:
    keys = [max_seed(seed) for seed in range(1000)]
    assert len({key + step for key in keys for step in range(100)}) == 100_000
    assert all(0 < key < 2**64 for key in keys)


def test_without_max_the_error_says_how_to_install_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        MissingDependency, match=r"needs Modular's MAX, which is not installed here; in an env.*: pip install -e '.*\[max\]'$"
    ):
        build(tmp_path)


def test_importing_the_backend_costs_nothing() -> None:
    code = "import sys, evalharness.backends.max.backend as m; print(sorted({'max', 'torch', 'transformers'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def declared(source: Path, out: Path, **changes: Any) -> Path:
    """Return a copy of a checkpoint without weights, its config.json changed."""
    out.mkdir()
    for path in source.iterdir():
        if path.suffix != ".safetensors":
            (out / path.name).write_bytes(path.read_bytes())
    (out / "config.json").write_text(json.dumps({**json.loads((source / "config.json").read_text()), **changes}))
    return out


ADAPTER = Path(__file__).parents[3] / "fixtures" / "checkpoints" / "lora-helps"
QWEN3 = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}
BLOOM = {"architectures": ["BloomForCausalLM"], "model_type": "bloom"}
REFUSED = {
    "adapter": ({}, {"adapter_path": str(ADAPTER)}, ConfigError, "backend 'max' loads no adapters"),
    "device": ({}, {"device": "cuda:99"}, ConfigError, "device 'cuda:99' is not there for MAX"),
    "context": ({}, {"max_model_len": 5000}, ConfigError, "max_model_len 5000 is more than the checkpoint's context of 4096"),
    "would crash": (QWEN3, {"device": "cpu"}, CheckpointError, "MAX .* would end this process where it starts Qwen3ForCausalLM on a CPU"),
    "unknown": (BLOOM, {"device": "cpu"}, CheckpointError, "MAX .* does not run BloomForCausalLM"),
}


@needs_max
@pytest.mark.parametrize(("changes", "options", "error", "problem"), REFUSED.values(), ids=REFUSED)
def test_what_max_cannot_run_is_refused(
    max_text_checkpoint: Path, tmp_path: Path, changes: Any, options: Any, error: type[Exception], problem: str
) -> None:
    with pytest.raises(error, match=problem):
        build(declared(max_text_checkpoint, tmp_path / "changed", **changes), **options)


@needs_max
def test_a_checkpoint_that_sees_is_refused(tiny_vlm_checkpoint: Path) -> None:
    with pytest.raises(CheckpointError, match="backend 'max': it takes images, and MAX in this process runs text models only"):
        build(tiny_vlm_checkpoint)


@pytest.fixture
def engine(max_text_backend: MaxBackend) -> Engine:
    return Engine(max_text_backend)


@pytest.fixture
def pipeline(max_text_backend: MaxBackend) -> Any:
    """MAX's own, behind the backend."""
    return max_text_backend._model.pipeline


@pytest.fixture(scope="module")
def hf_engine(max_text_checkpoint: Path) -> Iterator[Engine]:
    pytest.importorskip("torch")
    backend = build_backend(
        "hf", ModelLoadConfig(str(max_text_checkpoint), torch_dtype="float32", device="cpu"), VlmPreprocessOptions(), VllmEngineOptions()
    )
    yield Engine(backend)
    backend.close()


GREEDY = {
    "free": FREE,
    "default ends": GenerationOptions(max_new_tokens=64),
    "penalty": replace(FREE, repetition_penalty=1.3),
    "min new tokens": replace(FREE, eos_token_id=None, extra_generation_kwargs={"min_new_tokens": 12}),
}


@pytest.mark.parametrize("options", GREEDY.values(), ids=GREEDY.keys())
def test_greedy_results_are_those_of_hf(engine: Engine, hf_engine: Engine, options: GenerationOptions) -> None:
    mine, theirs = (generate(one, ASKED, options) for one in (engine, hf_engine))
    assert [replace(result, backend="") for result in mine] == [replace(result, backend="") for result in theirs]


def test_logprobs_and_entropies_are_those_of_hf_whatever_changes_the_choice(engine: Engine, hf_engine: Engine) -> None:
    for options in (FREE, replace(FREE, repetition_penalty=1.3)):
        mine, theirs = (generate(one, ASKED, replace(options, logprobs=True, entropies=True)) for one in (engine, hf_engine))
        for one, other in zip(mine, theirs, strict=True):
            assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
            assert one.entropies == pytest.approx(other.entropies, abs=1e-4)


@pytest.mark.parametrize("option", ["presence_penalty", "frequency_penalty"])
def test_penalties_beyond_hfs_are_honoured(engine: Engine, option: str) -> None:
    plain, punished = (generate(engine, ASKED, replace(FREE, extra_generation_kwargs={option: value})) for value in (0.0, 2.0))
    assert sum(len(set(result.token_ids)) for result in punished) > sum(len(set(result.token_ids)) for result in plain)


def test_more_rows_than_the_cache_has_room_for_take_turns(engine: Engine, pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generate(engine, ASKED, FREE)
    monkeypatch.setattr(engine.backend, "_num_pages", 5)
    most, execute = [0], pipeline.execute

    def counting(inputs: Any) -> Any:
        most[0] = max(most[0], len(inputs.flat_batch))
        return execute(inputs)

    monkeypatch.setattr(pipeline, "execute", counting)
    assert generate(engine, ASKED, FREE) == expected
    assert 1 < most[0] <= 5


def test_what_comes_while_rows_run_begins_beside_them(engine: Engine) -> None:
    long, short = (replace(FREE, max_new_tokens=num_tokens) for num_tokens in (200, 4))
    polls = iter([None, None, None, engine.prepare_join([ASKED[1]], [short], 1)])
    assert [index for index, _ in engine.stream([ASKED[0]], long, next_job=lambda: next(polls, None))] == [1, 0]


def test_a_prompt_that_max_cannot_begin_is_an_error_and_takes_no_other_along(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    import max.pipelines.context as context

    expected, made = generate(engine, ASKED[:3], FREE), context.TextContext

    def refusing(*, tokens: Any, **more: Any) -> Any:
        if tokens.prompt_length == expected[1].num_prompt_tokens:
            raise ValueError("no room for it")
        return made(tokens=tokens, **more)

    monkeypatch.setattr(context, "TextContext", refusing)
    outcomes = dict(engine.stream(ASKED[:3], FREE))
    assert outcomes[1].kind == "error"
    assert outcomes[1].problem == "MAX cannot begin this prompt: ValueError: no room for it"
    assert [outcomes[0], outcomes[2]] == [expected[0], expected[2]]


def test_a_row_on_which_max_fails_is_an_error_and_takes_no_other_along(
    engine: Engine, pipeline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = generate(engine, ASKED, FREE)
    execute, poison = pipeline.execute, expected[3].prompt_text
    length = expected[3].num_prompt_tokens

    def failing(inputs: Any) -> Any:
        if any(context.tokens.prompt_length == length and context.tokens.generated_length == 5 for context in inputs.flat_batch):
            raise RuntimeError("the kernel fell over")
        return execute(inputs)

    monkeypatch.setattr(pipeline, "execute", failing)
    outcomes = dict(engine.stream(ASKED, FREE))
    monkeypatch.undo()
    for position, said in enumerate(expected):
        outcome = outcomes[position]
        if said.num_prompt_tokens == length:
            assert isinstance(outcome, GenerationFailure), poison
            assert (outcome.kind, outcome.problem) == ("error", "MAX failed on this prompt: RuntimeError: the kernel fell over")
        else:
            assert isinstance(outcome, GenerationResult)
            assert outcome == said
    assert generate(engine, ASKED, FREE) == expected


def test_all_pages_are_free_again_after_rows_that_were_given_up(engine: Engine, pipeline: Any) -> None:
    stream = engine.stream(ASKED, [replace(FREE, max_new_tokens=4 if not position else 900) for position in range(len(ASKED))])
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    count = pipeline.kv_manager.block_count()
    assert count.total - count.free <= 1  # a page of MAX's own, for rows that are none


def test_a_second_stream_is_refused_while_one_runs(max_text_backend: MaxBackend) -> None:
    first = Engine(max_text_backend).stream(ASKED, replace(FREE, max_new_tokens=900, eos_token_id=None))
    next(first)
    with pytest.raises(BackendError, match="this engine is generating already"):
        list(max_text_backend.generate([]))
    first.close()  # type: ignore[attr-defined]


def test_tables_can_be_made_in_the_same_process(max_text_backend: MaxBackend) -> None:
    pytest.importorskip("pyarrow")
    import pandas

    table = pandas.DataFrame({"a": ["x"], "b": ["y"]})  # a segmentation fault where pyarrow comes after MAX's model
    assert list(table[["b", "a"]].columns) == ["b", "a"]


def test_facts_are_plain(max_text_backend: MaxBackend) -> None:
    facts = json.loads(json.dumps(dict(max_text_backend.describe())))
    assert (facts["device"], facts["dtype"], facts["max_model_len"]) == ("cpu", "float32", 4096)
    assert facts["max"].startswith("26.")
