"""A LoRA trained by policy gradient: one loop, the engine that samples chosen by a flag.

    python fixtures/make_tiny_checkpoint.py tiny
    python docs/policy_gradient.py tiny                                    # samples from the model in training
    python docs/policy_gradient.py tiny --inference-engine vllm            # from vLLM in this process
    python docs/policy_gradient.py tiny --inference-engine vllm --inference-url http://127.0.0.1:8000

The reward of a sample is the share of its tokens with an even id: nothing anyone wants, and quickly learnt.
"""

from __future__ import annotations

import argparse
import time

import torch

from evalharness.training import HuggingFaceBackend, InferenceModule, create_engine

PROMPTS = [[5, 6, 7], [40, 41], [9, 300, 17, 4]]
NUM_SAMPLES, MAX_TOKENS = 16, 8


def reward(token_ids: list[int]) -> float:
    """Return the share of even ids."""
    return sum(token_id % 2 == 0 for token_id in token_ids) / len(token_ids)


def train(path: str, name: str, url: str | None, num_steps: int) -> list[float]:
    """Return the mean reward of each step."""
    torch.manual_seed(0)
    policy = InferenceModule(backend=HuggingFaceBackend(path, dtype="float32"))
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict  # once torch and transformers are loaded

    lora = LoraConfig(r=8, lora_alpha=16, target_modules=["q_proj", "v_proj", "down_proj"])
    model = get_peft_model(policy.backend.model, lora)
    if name == "pytorch":
        engine = create_engine(name, model)
    else:
        engine = create_engine(name, path, url=url, **({"dtype": "float32"} if url is None else {}))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    history = []
    with engine:
        for step in range(num_steps):
            started = time.perf_counter()
            groups = engine.generate(PROMPTS, NUM_SAMPLES, MAX_TOKENS, temperature=1.0, top_p=1.0)
            rewards = torch.tensor([[reward(sample.token_ids) for sample in group] for group in groups])
            advantages = (rewards - rewards.mean(dim=1, keepdim=True)).flatten()[:, None]
            prompts = [prompt for prompt in PROMPTS for _ in range(NUM_SAMPLES)]
            logprobs = policy.get_logprobs(prompts, [sample.token_ids for group in groups for sample in group])
            loss = -(logprobs * advantages).sum() / len(prompts)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            engine.sync_from_state_dict(get_peft_model_state_dict(model), adapter_config=lora)
            history.append(rewards.mean().item())
            print(f"step {step:2d}  reward {history[-1]:.3f}  {time.perf_counter() - started:.2f} s", flush=True)
    return history


def main() -> None:
    """Train as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--inference-engine", default="pytorch")
    parser.add_argument("--inference-url")
    parser.add_argument("--steps", type=int, default=20)
    given = parser.parse_args()
    train(given.model, given.inference_engine, given.inference_url, given.steps)


if __name__ == "__main__":  # vLLM starts processes that import this file
    main()
