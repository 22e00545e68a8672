"""The vllm backend on a real GPU: swaps, adapters, killed processes. Run: pytest tests/gpu/test_vllm_on_gpu.py

Compiled, with CUDA graphs, as runs are: a graph holds addresses of weights, so a swap that moved them would answer as before.
Requests go one at a time: bfloat16 rounds by the shape of the batch, and only so must every token be the same.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil
import pytest

from evalharness.api.errors import CapabilityError, UnsupportedOption
from evalharness.api.options import GenerationOptions, ModelLoadConfig, VllmEngineOptions
from evalharness.api.requests import TextGenerationRequest, TokenGenerationRequest
from evalharness.api.scoring import ScoringRequest
from evalharness.api.structured_output import StructuredOutput
from evalharness.api.thinking import DEFAULT_MARKS, ThinkingBudget
from evalharness.backends.vllm._internals import knows_thinking, uses_v2_runner
from evalharness.checkpoints.adapter import read_settings
from evalharness.engine.build import build_engine
from evalharness.engine.engine import Engine
from evalharness.hardware.devices import installed_cards
from evalharness.tasks import stage_a
from fixtures.training.samples import stage_b_messages
from tests import vllm_installed
from tests.backends.hf_models import make_text_checkpoint
from tests.backends.live_models import state_dict
from tests.backends.vllm.test_processes import Script
from tests.backends.vllm_models import make_checkpoint, plan

if TYPE_CHECKING:
    from evalharness.backends.vllm.backend import VllmBackend

FIXTURES = Path(__file__).parents[2] / "fixtures"
CHECKPOINTS = FIXTURES / "checkpoints"
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
Answers = list[tuple[str, Sequence[float]]]

# No question to torch: that would start CUDA in this process, and a process that is forked from it cannot use a GPU.
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not vllm_installed.IS_INSTALLED, reason=vllm_installed.WHY_NOT),
    pytest.mark.skipif(not installed_cards(), reason="needs an NVIDIA GPU"),
]


@pytest.fixture(scope="module", autouse=True)
def _spawned() -> Iterator[None]:
    """Other modules of the session may have started CUDA."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
        yield


def config(checkpoint: Path, adapter: Path | None = None) -> ModelLoadConfig:
    return ModelLoadConfig(str(checkpoint), torch_dtype="bfloat16", adapter_path=None if adapter is None else str(adapter))


def start(values: ModelLoadConfig, *, enforce_eager: bool = False, max_model_len: int = 2048, **extra: Any) -> Engine:
    values_of_vllm = {"max_num_seqs": 8, **extra}  # requests go one at a time: fewer graphs to capture, a quicker start
    options = VllmEngineOptions(
        max_model_len=max_model_len, gpu_memory_utilization=0.3, enforce_eager=enforce_eager, extra=tuple(values_of_vllm.items())
    )
    return build_engine("vllm", values, vllm_options=options)


def asked_alone(engine: Engine, texts: Sequence[TextGenerationRequest], pictures: Sequence[Any] = ()) -> Answers:
    """Return text and log-probabilities of each request."""
    options = GenerationOptions(max_new_tokens=64, temperature=0.0, logprobs=True)
    results = [result for request in texts for result in engine.generate_text_batch([request], options)]
    results += [result for request in pictures for result in engine.generate_vlm_batch([request], options)]
    return [(result.raw_text, [value for value in result.logprobs or () if value is not None]) for result in results]


def default_cases(engine: Engine) -> Answers:
    """Return the answers to some of the default's photos, and to verdicts, which are text alone: some seconds."""
    lines = (FIXTURES / "site_photos" / "RRU线缆_stage_a.jsonl").read_text(encoding="utf-8").splitlines()[:6]
    groups = [json.loads(line)["per_image"].values() for line in lines]
    verdicts = [
        TextGenerationRequest(stage_b_messages("RRU线缆", [one if one == stage_a.IRRELEVANT else json.loads(one) for one in group]))
        for group in groups
    ]
    return asked_alone(engine, verdicts, [stage_a.request(case) for case in stage_a.load_cases(FIXTURES / "site_photos")[::24]])


def cold(values: ModelLoadConfig, **options: Any) -> Iterator[Engine]:
    engine = start(values, **options)
    try:
        yield engine
    finally:
        engine.close()


def assert_same(found: Answers, wanted: Answers, tolerance: float = 1e-3) -> None:
    assert [text for text, _ in found] == [text for text, _ in wanted]
    for (_, one), (_, other) in zip(found, wanted, strict=True):
        assert one == pytest.approx(other, abs=tolerance)


@pytest.fixture(scope="module")
def swapped() -> dict[str, Answers]:
    """What one engine, started on `early`, answered as one checkpoint after another."""
    found: dict[str, Answers] = {}
    middle = CHECKPOINTS / "middle"
    for engine in cold(config(CHECKPOINTS / "early")):
        found["early"] = default_cases(engine)
        for name, values in (
            ("final", config(CHECKPOINTS / "final")),
            ("lora-helps", config(middle, CHECKPOINTS / "lora-helps")),
            ("lora-hurts", config(middle, CHECKPOINTS / "lora-hurts")),
            ("middle", config(middle)),
            ("early again", config(CHECKPOINTS / "early")),
        ):
            assert engine.weights.why_not_swap(values) is None
            engine.weights.swap(values)
            found[name] = default_cases(engine)
    return found


def test_every_checkpoint_and_adapter_answers_differently(swapped: dict[str, Answers]) -> None:
    names = ("early", "final", "lora-helps", "lora-hurts", "middle")
    assert len({tuple(text for text, _ in swapped[name]) for name in names}) == len(names)


def test_there_and_back_answers_as_before(swapped: dict[str, Answers]) -> None:
    assert_same(swapped["early again"], swapped["early"])


@pytest.mark.parametrize(
    ("name", "checkpoint", "adapter"), [("final", "final", None), ("lora-helps", "middle", "lora-helps")], ids=["checkpoint", "adapter"]
)
def test_a_swap_answers_as_a_cold_start(swapped: dict[str, Answers], name: str, checkpoint: str, adapter: str | None) -> None:
    for engine in cold(config(CHECKPOINTS / checkpoint, None if adapter is None else CHECKPOINTS / adapter)):
        assert_same(swapped[name], default_cases(engine))


def test_a_text_model_with_a_head_of_its_own_answers_as_a_cold_start(tmp_path: Path) -> None:
    folders = [make_text_checkpoint(tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two"))]
    for folder in folders:
        (folder / "chat_template.jinja").write_text(TEMPLATE)
    requests = [TextGenerationRequest([{"role": "user", "content": f"number {number} " * (1 + number % 5)}]) for number in range(16)]
    found: list[Answers] = []
    for number, folder in enumerate(folders):
        for engine in cold(config(folder), enforce_eager=True, max_model_len=256):
            found.append(asked_alone(engine, requests))
            if number == 0:
                engine.weights.swap(config(folders[1]))
                found.append(asked_alone(engine, requests))
    first, swapped_in, second = found
    assert [text for text, _ in first] != [text for text, _ in second]
    assert_same(swapped_in, second)


def test_a_killed_process_leaves_no_engine_and_no_memory_behind(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    free_before = torch.cuda.mem_get_info()[0]
    script = Script(make_checkpoint(tmp_path / "tiny"))
    try:
        script.wait_for("generating")
        assert len(script.look()) >= 1
        assert torch.cuda.mem_get_info()[0] < free_before - 2**30
    finally:
        script.process.kill()
        script.process.wait(timeout=30)
        left = script.left_after(20)
        for process in left:
            process.kill()
        psutil.wait_procs(left, timeout=10)
        assert script.process.stdout is not None
        script.process.stdout.close()
        script.errors.close()
    assert left == []
    assert torch.cuda.mem_get_info()[0] > free_before - 2**30


@pytest.fixture(scope="module")
def sleeper() -> Iterator[Engine]:
    yield from cold(config(CHECKPOINTS / "early"), enable_sleep_mode=True)


PROMPT = TokenGenerationRequest(list(range(30, 60)))


def ids_of(engine: Engine, **options: Any) -> tuple[int, ...]:
    values: dict[str, Any] = {"max_new_tokens": 16, "temperature": 0.0, "eos_token_id": (), "seed": 0, **options}
    return engine.generate_token_batch([PROMPT], GenerationOptions(**values))[0].token_ids


def test_the_cards_sampler_does_what_extra_options_say(sleeper: Engine) -> None:
    allowed = [50, 60, 70]
    assert set(ids_of(sleeper, extra_generation_kwargs={"allowed_token_ids": allowed})) <= set(allowed)
    assert set(ids_of(sleeper, extra_generation_kwargs={"logit_bias": {77: 100.0}})) == {77}
    word = sleeper.backend.tokenizer.decode([77])
    assert 77 not in ids_of(sleeper, extra_generation_kwargs={"logit_bias": {77: 100.0}, "bad_words": [word]})
    end = ids_of(sleeper)[0]
    assert len(ids_of(sleeper, eos_token_id=end)) == 1
    assert len(ids_of(sleeper, eos_token_id=end, extra_generation_kwargs={"min_new_tokens": 5})) >= 5
    drawn = [ids_of(sleeper, temperature=1.0, seed=seed) for seed in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_more_than_the_sampler_has_room_for_is_refused_and_the_engine_lives(sleeper: Engine) -> None:
    config = sleeper.backend._engine.config  # type: ignore[attr-defined]
    if not uses_v2_runner(config):
        pytest.skip("this vLLM runs the model in its older runner, which has no such limits")
    with pytest.raises(UnsupportedOption, match="option allowed_token_ids cannot be honoured by this vLLM: 1040 token ids"):
        ids_of(sleeper, extra_generation_kwargs={"allowed_token_ids": list(range(20, 1060))})
    start_ids, end_ids = (tuple(sleeper.backend.tokenizer.encode(mark, add_special_tokens=False)) for mark in DEFAULT_MARKS)
    budget = plan(thinking=ThinkingBudget(start_ids, end_ids, 4))
    if knows_thinking():
        sleeper.backend.check_plan(budget)
    else:
        with pytest.raises(UnsupportedOption, match="max_thinking_tokens cannot be honoured by the V2 model runner"):
            sleeper.backend.check_plan(budget)
    assert len(ids_of(sleeper)) == 16


def test_an_answer_is_held_to_a_structure(sleeper: Engine) -> None:
    request = TextGenerationRequest([{"role": "user", "content": "yes or no?"}])
    options = GenerationOptions(max_new_tokens=16, temperature=0.0, structured=StructuredOutput(choice=("yes", "no")))
    assert sleeper.generate_text_batch([request], options)[0].text in ("yes", "no")


def test_what_was_generated_is_scored_alike(sleeper: Engine) -> None:
    options = GenerationOptions(max_new_tokens=24, temperature=0.0, eos_token_id=(), logprobs=True)
    [made] = sleeper.generate_token_batch([PROMPT], options)
    [scored] = sleeper.get_logprobs([list(PROMPT.prompt_token_ids)], [list(made.token_ids)]).rows()
    assert scored == pytest.approx(list(made.logprobs or ()), abs=0.1)  # bfloat16: one pass over all rounds otherwise than one by one


def test_choices_that_share_their_prompt_are_scored_as_without_sharing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float32, compiled, in the runner that a GPU has: contexts around the border of a block, twice, so that all was read before."""
    contexts = [[100 + (7 * place + length) % 90 for place in range(length)] for length in (15, 16, 17, 31, 32, 33, 70)]
    responses = ([60, 61], [60, 61, 62] * 20, [60, 61], [63], [64, 65, 66] * 12)
    requests = [ScoringRequest(context, response) for context in contexts for response in responses]
    values = ModelLoadConfig(str(make_text_checkpoint(tmp_path / "text")), torch_dtype="float32")
    for engine in cold(values, max_num_seqs=64, max_model_len=256):
        shared, alone = scored_with_and_without_sharing(engine, requests, monkeypatch)
        for place, request in enumerate(requests):
            assert len(alone[place].logprobs) == len(request.response)
            for found in shared:
                assert found[place].logprobs == pytest.approx(alone[place].logprobs, abs=2e-3)  # seen: 3e-4 at -8


def scored_with_and_without_sharing(engine: Engine, requests: Sequence[ScoringRequest], patch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Return what an engine gives twice while prompts are shared, which must have happened, and once without."""
    backend = cast("VllmBackend", engine.backend)
    assert backend._prefixes.is_possible
    read: list[int] = []
    keep = backend.work.keep
    patch.setattr(backend.work, "keep", lambda num: (read.append(num or 0), keep(num)))
    shared = [dict(engine.stream(requests, GenerationOptions())) for _ in range(2)]
    assert sum(read) > 0
    read.clear()
    patch.setattr(backend._prefixes, "is_possible", False)
    alone = dict(engine.stream(requests, GenerationOptions()))
    assert sum(read) == 0
    return shared, alone


def test_sleep_gives_the_cards_memory_back_and_wakes_with_the_same_answers(sleeper: Engine) -> None:
    torch = pytest.importorskip("torch")
    before = default_cases(sleeper)
    free_awake = torch.cuda.mem_get_info()[0]
    sleeper.weights.sleep()
    assert torch.cuda.mem_get_info()[0] > free_awake + 2**30  # most of it was the cache
    with pytest.raises(CapabilityError, match="backend 'vllm' sleeps"):
        default_cases(sleeper)
    sleeper.weights.wake()
    assert torch.cuda.mem_get_info()[0] < free_awake + 2**30
    assert_same(default_cases(sleeper), before)


@pytest.fixture(scope="module")
def reloaded(sleeper: Engine) -> dict[str, Answers]:
    """What the engine that can sleep answered on weights that it read from files, and with an adapter: each something else."""
    found: dict[str, Answers] = {}
    for name, base, adapter in (
        ("early", "early", None),
        ("middle", "middle", None),
        ("lora-helps", "middle", CHECKPOINTS / "lora-helps"),
        ("final", "final", None),
    ):
        sleeper.weights.reload(str(CHECKPOINTS / base), adapter_path=None if adapter is None else str(adapter))
        found[name] = default_cases(sleeper)
    assert len({tuple(text for text, _ in answers) for answers in found.values()}) == len(found)
    return found


def test_weights_are_changed_before_the_cache_takes_its_memory(sleeper: Engine, reloaded: dict[str, Answers]) -> None:
    sleeper.weights.reload(str(CHECKPOINTS / "early"))
    sleeper.weights.sleep()
    with pytest.raises(CapabilityError, match="backend 'vllm' sleeps"):
        sleeper.weights.reload(str(CHECKPOINTS / "final"))
    sleeper.weights.wake("weights")
    sleeper.weights.reload(str(CHECKPOINTS / "final"))
    with pytest.raises(CapabilityError, match="backend 'vllm' sleeps"):
        default_cases(sleeper)
    sleeper.weights.wake("kv_cache")
    assert_same(default_cases(sleeper), reloaded["final"])


def test_a_trainers_tensors_on_the_card_answer_as_their_checkpoint(sleeper: Engine, reloaded: dict[str, Answers]) -> None:
    tensors = {name: tensor.to("cuda") for name, tensor in state_dict(CHECKPOINTS / "final").items()}
    sleeper.weights.reload(str(CHECKPOINTS / "early"))
    sleeper.weights.sync_from_state_dict(tensors)
    assert_same(default_cases(sleeper), reloaded["final"])
    sleeper.weights.reload(str(CHECKPOINTS / "middle"))
    sleeper.weights.sync_from_state_dict(state_dict(CHECKPOINTS / "lora-helps"), adapter_config=read_settings(CHECKPOINTS / "lora-helps"))
    assert_same(default_cases(sleeper), reloaded["lora-helps"])


def test_an_engine_that_can_sleep_answers_as_one_that_cannot(swapped: dict[str, Answers], reloaded: dict[str, Answers]) -> None:
    for name, answers in reloaded.items():
        # Its memory is another allocator's, and bfloat16 rounds by it: equal texts, log-probabilities 0.028 apart on an H200.
        assert_same(answers, swapped[name], tolerance=0.1)
