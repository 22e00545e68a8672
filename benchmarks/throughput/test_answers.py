"""The eval that `gpu_scaling.py` runs: chats from `<data folder>/prompts.jsonl`, each answered up to the cap, hardly judged.

One row a line: `{"id": "text-00017", "text": "…"}`, with `"image": "photos/17.jpg"` where the chat has a photo; or `"ids"`, a prompt's own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evalharness import Case, GenerationOptions, TextGenerationRequest, TokenGenerationRequest, VlmGenerationRequest

MAX_NEW_TOKENS = 128


def load_cases(folder: Path | None) -> list[Case]:
    """Return one case per line of the prompts, its picture's path made absolute."""
    if folder is None:
        raise ValueError("give the folder that gpu_scaling.py has prepared with --data")
    rows = [json.loads(line) for line in (folder / "prompts.jsonl").read_text(encoding="utf-8").splitlines()]
    return [
        Case(id=row["id"], reference=(row.get("text", row.get("ids")), str(folder / row["image"]) if "image" in row else None))
        for row in rows
    ]


def request(case: Case) -> Any:
    """Return the chat, its photo before the text, or the prompt of ids."""
    text, image = case.reference
    if isinstance(text, list):
        return TokenGenerationRequest(text)
    if image is None:
        return TextGenerationRequest([{"role": "user", "content": text}])
    return VlmGenerationRequest([{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}])


# Nothing ends an answer but the cap: all do the same work, whatever random weights say.
pytestmark = pytest.mark.eval(
    cases=load_cases, request=request, options=GenerationOptions(max_new_tokens=MAX_NEW_TOKENS, eos_token_id=(), seed=0)
)


def test_length(generation, score):
    score(full_length=generation.num_completion_tokens == MAX_NEW_TOKENS)
