"""Prompts and plans for the vLLM backend's tests, and what transformers itself makes of them."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from evalharness.api.options import VlmPreprocessOptions
from evalharness.api.requests import GenerationFailure
from evalharness.backends.base import Completion, Prompt, SamplingPlan
from tests.backends.plans import PLAN

# Each would change greedy ids if it reached vLLM; the last is one that no release knows.
TRAPS: dict[str, Any] = {
    "do_sample": True,
    "temperature": 5.0,
    "top_k": 3,
    "top_p": 0.4,
    "min_p": 0.5,
    "repetition_penalty": 3.0,
    "max_new_tokens": 2,
    "unknown_knob": 1,
}

BUDGET = VlmPreprocessOptions(max_pixels=65_536)
"""The pixel budget of the session's engines on that checkpoint: half of what it declares itself."""

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"


def make_checkpoint(path: Path) -> Path:
    """Write the tiny random Qwen3-VL, its generation_config full of traps, and return its folder."""
    from fixtures.make_tiny_checkpoint import make_tiny_checkpoint

    make_tiny_checkpoint(path)
    declared = json.loads((path / "generation_config.json").read_text())
    (path / "generation_config.json").write_text(json.dumps(declared | TRAPS))
    return path


def plan(**changes: Any) -> SamplingPlan:
    """Return a greedy plan of 16 tokens that ends on the tiny checkpoint's two end-of-sequence ids."""
    return replace(PLAN, **{"max_new_tokens": 16, "stop_token_ids": (642, 640), "seed": 7, **changes})


def chat(text: str, num_images: int = 0) -> str:
    """Return a rendered prompt of one user turn."""
    return f"<|im_start|>user\n{IMAGE * num_images}{text}<|im_end|>\n<|im_start|>assistant\n"


def prompt_of(tokenizer: Any, text: str, index: int = 0, images: Sequence[Image.Image] = (), **changes: Any) -> Prompt:
    """Return a prompt for rendered `text`; `changes` go to its plan."""
    token_ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])
    load_images = (lambda: list(images)) if images else None
    return Prompt(index, text, token_ids, None if images else len(token_ids), plan(**changes), load_images)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return a picture of random pixels."""
    return Image.frombytes("RGB", (width, height), random.Random(seed).randbytes(width * height * 3))


def completions(outputs: Any) -> list[Completion]:
    """Return completions in the order of their prompts; a failure fails the test."""
    done = list(outputs)
    failures = [output for output in done if not isinstance(output, Completion)]
    assert not failures
    return sorted(done, key=lambda completion: completion.index)


def failure(outputs: Any) -> GenerationFailure:
    """Return the failure of the only prompt."""
    (output,) = outputs
    assert not isinstance(output, Completion)
    return output[1]


class Reference:
    """Plain transformers on the same checkpoint, with `BUDGET`: one request at a time, float32."""

    def __init__(self, path: Path) -> None:
        import torch
        from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

        from evalharness.backends.torchvision_cpu import register_missing_operators

        register_missing_operators()
        self._torch = torch
        self._processor = AutoProcessor.from_pretrained(path)
        self.model = Qwen3VLForConditionalGeneration.from_pretrained(path, dtype=torch.float32).eval()

    def inputs(self, text: str, images: Sequence[Image.Image] = ()) -> Any:
        """Return the processor's tensors for one prompt."""
        size = {**dict(self._processor.image_processor.size), "longest_edge": BUDGET.max_pixels}
        inputs = self._processor(text=[text], images=list(images) or None, return_tensors="pt", images_kwargs={"size": size})
        inputs.pop("token_type_ids", None)
        return inputs

    def greedy(
        self, text: str, images: Sequence[Image.Image] = (), max_new_tokens: int = 16, end_ids: Sequence[int] = (642, 640)
    ) -> list[int]:
        """Return the greedy ids, the end-of-sequence id included."""
        inputs = self.inputs(text, images)
        with self._torch.no_grad():
            ids = self.model.generate(
                **inputs,
                max_new_tokens=max_new_tokens,
                do_sample=False,
                temperature=None,
                top_p=None,
                top_k=None,
                min_p=None,
                repetition_penalty=1.0,
                eos_token_id=list(end_ids) or None,
                pad_token_id=640,
            )
        return ids[0, inputs["input_ids"].shape[1] :].tolist()

    def logprobs(self, text: str, token_ids: Sequence[int]) -> list[float]:
        """Return the raw log-probability of each of `token_ids` behind `text`."""
        prompt_ids = self.inputs(text)["input_ids"]
        row = self._torch.cat([prompt_ids, self._torch.tensor([list(token_ids)])], dim=1)
        with self._torch.no_grad():
            logits = self.model(input_ids=row).logits[0].float().log_softmax(-1)
        start = prompt_ids.shape[1] - 1
        return [float(logits[start + position, token_id]) for position, token_id in enumerate(token_ids)]
