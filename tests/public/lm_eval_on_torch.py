"""lm-evaluation-harness's own model class, which notes how far a run of ours on the same checkpoint is from what it computes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from evalharness.api.requests import CompletionRequest
from evalharness.api.scoring import ScoringRequest
from evalharness.backends.torchvision_cpu import register_missing_operators
from evalharness.engine.text_ids import bare_prompt, joined_ids
from tests.public.lm_eval_oracle import RecordedModel

os.environ["TOKENIZERS_PARALLELISM"] = "false"
register_missing_operators()

from lm_eval.models.huggingface import HFLM  # noqa: E402 - needs the operators

Ids: TypeAlias = "tuple[tuple[int, ...], tuple[int, ...]]"
"""Of a prompt, and of the response to be scored."""


class Compared(HFLM):  # type: ignore[misc]
    """Answers as lm-eval does, and notes what a run asked and answered otherwise."""

    def __init__(self, checkpoint: Path, max_new_tokens: int) -> None:
        super().__init__(pretrained=str(checkpoint), dtype="float32", device="cpu", batch_size=1)
        self._max_new_tokens = max_new_tokens
        self.compare_with([])

    def compare_with(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Begin to compare with the rows of a run."""
        self._ours = RecordedModel(rows)
        self.num_prompts = self.num_texts = 0
        self.unequal_prompts: list[str] = []
        self.unequal_texts: list[tuple[str, str]] = []
        self.largest_gap = 0.0

    def ids_of(self, asked: tuple[Any, ...]) -> tuple[Ids, Ids]:
        """Return the ids of one of lm-eval's requests as it makes them, and as the harness does."""
        prompt, response = asked
        request = CompletionRequest(prompt, special_tokens=True)  # as a chat's text has them
        if not isinstance(response, str):
            return (tuple(self.tok_encode(prompt)), ()), (bare_prompt(request, self.tokenizer)[1], ())
        before, behind = self._encode_pair(prompt, response)
        joined = joined_ids(ScoringRequest(request, response, join="text"), prompt, self.tokenizer)
        return (tuple(before), tuple(behind)), (joined.prompt, joined.response)

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        """Return its own sums, compared."""
        found = super().loglikelihood(requests, disable_tqdm=True)
        for request, (total, _) in zip(requests, found, strict=True):
            text = "".join(request.args)
            self._compare_prompt(text, request.args)
            self.largest_gap = max(self.largest_gap, abs(total - self._ours.sums[text]))
        return found

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        """Return its own texts, compared."""
        for request in requests:
            request.args[1]["max_gen_toks"] = self._max_new_tokens
        found = super().generate_until(requests, disable_tqdm=True)
        for request, text in zip(requests, found, strict=True):
            prompt, self.num_texts = request.args[0], self.num_texts + 1
            self._compare_prompt(prompt, request.args)
            if text != self._ours.texts[prompt]:
                self.unequal_texts.append((text, self._ours.texts[prompt]))
        return found

    def _compare_prompt(self, key: str, asked: tuple[Any, ...]) -> None:
        self.num_prompts += 1
        theirs, ours = self.ids_of(asked)
        if theirs != ours or self._ours.tokens[key] != (len(theirs[0]), theirs[1]):
            self.unequal_prompts.append(key)
