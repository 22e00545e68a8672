"""The code of the document that asked for an InferenceModule runs as it stands there (inference_module.md has its blocks).

Only what it has of one machine is replaced: names of models, GPUs. `rl_primitives` is our room `training`, and beside it stand-ins for
that library's other modules, which are no part of this one.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from evalharness import training
from evalharness.api.errors import CapabilityError
from evalharness.engine.engine import Engine
from evalharness.training import InferenceModule

if TYPE_CHECKING:
    from evalharness.backends.vllm.backend import VllmBackend

DOCUMENT = (Path(__file__).parent / "inference_module.md").read_text("utf-8")
BLOCKS = dict(re.findall(r"^## (.*?)\n\n```python\n(.*?)^```$", DOCUMENT, re.DOTALL | re.MULTILINE))
HERE = {'device="cuda"': 'device="cpu"', "tensor_parallel_size=4": "tensor_parallel_size=1"}
MODELS = ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-2-70b-hf", "gpt2")


class BaseEnvironment:
    """Of another module of that library."""

    def __init__(self, inference: InferenceModule) -> None:
        self.inference = inference


class RolloutManager:
    """Of another module of that library: steps its environment."""

    def __init__(self, env: Any, num_parallel: int) -> None:
        self.env = env

    def collect_rollouts(self, min_trajectories: int) -> list[str]:
        return [self.env.step(SimpleNamespace(prompt="Hello", response=None)).response for _ in range(2)]


class BackpropModule:
    """Of another module of that library: a policy gradient by plain gradient descent."""

    def __init__(self, model: Any, ref_model: Any) -> None:
        self.model = model

    def compute_loss(self, batch: Any, logprobs: Any, rewards: Any) -> Any:
        return -(logprobs * rewards).mean()

    def update(self, loss: Any) -> None:
        loss.backward()
        for parameter in self.model.parameters():
            if parameter.grad is not None:
                parameter.data -= parameter.grad


@pytest.fixture
def run(tiny_vlm_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, torch_in_one_thread: None) -> Any:
    """Runs a block, by its heading, and returns the names that it leaves; those given are there before."""
    library = ModuleType("rl_primitives")
    others = {each.__name__: each for each in (BaseEnvironment, RolloutManager, BackpropModule)}
    vars(library).update({**vars(training), **others})
    monkeypatch.setitem(sys.modules, "rl_primitives", library)
    monkeypatch.setitem(sys.modules, "rl_primitives.inference", training)

    def run(heading: str, **names: Any) -> Any:
        code = BLOCKS[heading]
        for model in MODELS:
            code = code.replace(f'"{model}"', repr(str(tiny_vlm_checkpoint)))
        for there, here in HERE.items():
            code = code.replace(there, here)
        names = {"__package__": "rl_primitives", "InferenceModule": InferenceModule, **names}
        exec(compile(code, f"document 003, {heading}", "exec"), names)
        return SimpleNamespace(**names)

    return run


@pytest.fixture(scope="module")
def policy(tiny_vlm_checkpoint: Path) -> Any:
    return InferenceModule(str(tiny_vlm_checkpoint), device="cpu", dtype="float32")


PAIRS = {"prompts": ["Hello", "The sky is"], "responses": ["world", " blue"]}


def test_all_names_come_from_one_place(run: Any) -> None:
    assert run("2. Module Integration").GenerationResult is training.InferenceResult
    assert run("Import Validation").InferenceModule is InferenceModule


def test_the_huggingface_constructor(run: Any) -> None:
    assert str(run("HuggingFace Backend").inference.backend.model.dtype) == "torch.bfloat16"


def test_the_generation_api(run: Any, policy: InferenceModule) -> None:
    after = run("2. Generation API", inference=policy, **PAIRS)
    assert len(after.texts) == 2
    assert after.logits.shape == (*after.logprobs.shape, policy.backend.model.get_input_embeddings().num_embeddings)


def test_the_divergence_is_zero_to_itself_and_its_gradient_reaches_the_weights(run: Any, policy: InferenceModule, torch: Any) -> None:
    model = policy.backend.model
    names = {"F": torch.nn.functional, **PAIRS}
    assert run("KL Divergence Calculation", policy=policy, reference=policy, **names).kl_div.item() == pytest.approx(0, abs=1e-4)

    class Other(InferenceModule):
        def get_logits(self, prompts: Any, responses: Any, *, grad: bool | None = None) -> Any:
            return policy.get_logits(prompts, responses, grad=grad).detach().roll(1, dims=-1)

    model.zero_grad()
    run("KL Divergence Calculation", policy=policy, reference=Other(backend=policy.backend), **names).kl_div.backward()
    assert model.get_input_embeddings().weight.grad.count_nonzero() > 0


def test_the_policy_gradient_reaches_the_weights(run: Any, policy: InferenceModule, torch: Any) -> None:
    model = policy.backend.model
    model.zero_grad()
    advantages = torch.tensor([[1.0], [-1.0]])
    run("Policy Gradient", inference=policy, rewards=None, compute_advantages=lambda rewards: advantages, **PAIRS).policy_loss.backward()
    assert model.get_input_embeddings().weight.grad.count_nonzero() > 0


def test_tools(run: Any, policy: InferenceModule) -> None:
    after = run("4. Tool Calling", inference=policy)
    assert len(after.tool_calls) == len(after.result.texts) == 1


def test_caching(run: Any) -> None:
    inference = run("5. Caching").inference
    assert len(inference.generation_cache) == 0
    inference.generate("Hello", temperature=0.0, max_new_tokens=2)
    assert len(inference.generation_cache) == 1
    inference.generation_cache.clear()
    assert len(inference.generation_cache) == 0


def test_an_environment_and_its_rollouts(run: Any, policy: InferenceModule) -> None:
    environment = run("With Environment Module").MyEnvironment
    assert len(run("With RolloutManager", MyEnvironment=environment).trajectories) == 2


def test_a_training_loop_changes_the_policy(run: Any, torch: Any) -> None:
    batches = [{"prompts": ["Hello", "The sky is"]}] * 2
    policy = run("With BackpropModule", dataloader=batches, reference_model=None, rewards=torch.tensor([[1.0], [-1.0]])).policy_inference
    before = run("With BackpropModule", dataloader=[], reference_model=None).policy_inference
    assert policy.get_logprobs(["Hello"], [" you"], grad=False).tolist() != before.get_logprobs(["Hello"], [" you"], grad=False).tolist()


@pytest.mark.vllm
@pytest.mark.slow
def test_on_vllm(
    run: Any, policy: InferenceModule, vllm_vlm_backend: VllmBackend, monkeypatch: pytest.MonkeyPatch, tiny_vlm_checkpoint: Path
) -> None:
    asked = []

    def build_engine(backend: str, config: Any, *, vllm_options: Any, **others: Any) -> Engine:
        asked.append((backend, config.model_name_or_path, vllm_options.tensor_parallel_size, vllm_options.gpu_memory_utilization))
        return Engine(vllm_vlm_backend)  # the session's, as a start takes a minute; these options start one as well

    monkeypatch.setattr("evalharness.training.opening.build_engine", build_engine)
    inference = run("vLLM Backend").inference
    assert asked == [("vllm", str(tiny_vlm_checkpoint), 1, 0.9)]
    assert run("4. Tool Calling", inference=inference).result.metadata[0]["backend"] == "vllm"
    assert inference.generate("Hello", max_new_tokens=4, return_logprobs=True).logprobs.shape[0] == 1
    theirs, ours = (each.get_logprobs(**PAIRS, grad=False).flatten().tolist() for each in (inference, policy))
    assert theirs == pytest.approx(ours, abs=1e-3)
    with pytest.raises(CapabilityError, match="backend 'vllm' gives no logits"):
        run("2. Generation API", inference=inference, **PAIRS)
