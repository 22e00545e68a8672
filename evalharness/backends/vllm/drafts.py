"""Drafts in vLLM: a proposer of its kind `custom_class`, which runs where the model runs, and a sampler that keeps to the undrafted ids.

A request carries its draft in `SamplingParams.extra_args`. vLLM's interface for proposers shows rows of ids alone; which request a row is
of, and its draft, are read from the model runner (`attach`). Only vLLM's older model runner takes such proposers, and it then schedules
step by step, not ahead.
"""

from __future__ import annotations

import itertools
import time
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from evalharness.api.errors import ConfigError, UnsupportedOption
from evalharness.backends.base import SamplingPlan
from evalharness.backends.drafting import NUM_MATCHED_ELSEWHERE, DraftCounts, Drafter, Pace

if TYPE_CHECKING:
    import torch

LONGEST = 16
"""Drafted tokens that are checked for a row in one step: 31 brought no more, and take twice the memory."""
MAX_ROWS = 256
"""Rows at once; more only make the steps longer that all rows wait for."""
MEMORY_SHARE = 0.08
"""Of a GPU's memory, for the scores of drafted tokens. vLLM does not count them when it measures what it may take for its cache."""
BYTES_PER_SCORE = 16
"""Of one token of the vocabulary at one drafted token: as the model gives it, in float32, with penalties, and what is sampled from."""
_DRAFT = "evalharness_draft"
_PROPOSER = "evalharness.backends.vllm.drafts.JournalProposer"
_NOT_WITH_DRAFTS = ("min_p", "logit_bias")
"""Extra options that vLLM refuses beside any drafts."""


def memory_of(device_type: str) -> tuple[int | None, float]:
    """Return the bytes of a GPU's memory, None for a CPU, and the share of it that vLLM takes unless told otherwise."""
    if device_type == "cpu":
        return None, 1.0
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform

    return int(current_platform.get_device_total_memory()), float(EngineArgs.gpu_memory_utilization)


def check_beside_drafts(plan: SamplingPlan) -> None:
    """Raise `UnsupportedOption` for what vLLM refuses beside drafts."""
    for name in _NOT_WITH_DRAFTS:
        if dict(plan.extra).get(name):
            raise UnsupportedOption(f"option {name} cannot be honoured by vLLM beside drafts; leave out it or --draft-from")


def draft_arguments(arguments: Mapping[str, Any], vocab_size: int, memory_bytes: int | None, default_share: float) -> dict[str, Any]:
    """Return the arguments of `vllm.LLM` that turn drafts on, beside `arguments`; `ConfigError` where others than ours are on.

    `memory_bytes`: of one GPU, None on a CPU. `default_share`: of it, what vLLM takes unless told otherwise.
    """
    if "speculative_config" in arguments:
        raise ConfigError("--engine-option speculative_config has drafts of its own; leave out it or --draft-from")
    rows, longest = min(MAX_ROWS, int(arguments.get("max_num_seqs") or MAX_ROWS)), LONGEST
    made: dict[str, Any] = {}
    if memory_bytes is not None:
        num_scores = int(MEMORY_SHARE * memory_bytes / (BYTES_PER_SCORE * vocab_size))
        longest = max(1, min(longest, num_scores // rows - 1))
        rows = max(1, min(rows, num_scores // (longest + 1)))
        made["gpu_memory_utilization"] = round((arguments.get("gpu_memory_utilization") or default_share) - MEMORY_SHARE, 4)
        if "compilation_config" not in arguments and not arguments.get("enforce_eager"):
            made["compilation_config"] = {"cudagraph_capture_sizes": _graph_sizes(rows, longest + 1)}
    speculative = {"method": "custom_class", "model": _PROPOSER, "num_speculative_tokens": longest}
    return {**made, "max_num_seqs": rows, "speculative_config": speculative}


def _graph_sizes(rows: int, width: int) -> list[int]:
    """Return the numbers of tokens for which vLLM captures its step: multiples of `width`, as it wants them, up to all rows' drafts.

    Its own end at 512 tokens. What is beyond is launched kernel by kernel: 50 ms a step, measured on an H200.
    """
    numbers = [number * scale for scale in (1, 2, 4, 8, 16, 32, 64, 128) for number in (4, 5, 6, 7)]
    return [width * number for number in sorted({1, 2, 3, *numbers, rows}) if number <= rows]


def with_draft(ids: Sequence[int], vocab_size: int) -> dict[str, Any]:
    """Return the fields of `SamplingParams` that carry a draft; none where another tokenizer's ids would not fit."""
    return {"extra_args": {_DRAFT: array("i", ids).tobytes()}} if ids and max(ids) < vocab_size else {}


def attach(runner: Any) -> None:
    """Let the proposer of this model runner read its requests, and have sampled rows sampled as without drafts."""
    runner.drafter.runner = runner
    runner.rejection_sampler = SameSampler(runner.rejection_sampler)


class JournalProposer:
    """What vLLM asks after every step for the tokens that it may check in the next; made by vLLM."""

    def __init__(self, vllm_config: Any) -> None:
        self.runner: Any = None
        self._max_model_len: int = vllm_config.model_config.max_model_len
        self._drafter = Drafter(vllm_config.speculative_config.num_speculative_tokens)
        self._pace = Pace()
        self._last: tuple[float, frozenset[str], int] = (0.0, frozenset(), 0)
        self._lengths: dict[str, int] = {}
        self._limits: dict[str, range] = {}
        """Lengths, prompt included, at which an answer may have drafts."""

    def load_model(self, *_: Any) -> None:
        """Do nothing: there is no model."""

    def propose(self, sampled_token_ids: Any, num_tokens_no_spec: Any, token_ids_cpu: Any, **_: Any) -> list[list[int]]:
        """Return the drafts of all rows; called after each step with every row's ids and their number."""
        if self.runner is None or not isinstance(sampled_token_ids, list):
            return [[] for _ in sampled_token_ids]
        names: list[str] = self.runner.input_batch.req_ids[: len(sampled_token_ids)]
        lengths, drafter, num_all = self._lengths, self._drafter, 0
        ends = num_tokens_no_spec[: len(names)].tolist()
        for row, (name, end, sampled) in enumerate(zip(names, ends, sampled_token_ids, strict=True)):
            before = lengths.get(name)
            if before is None:
                before = self._begin(name, row, token_ids_cpu)
            if end > before:  # what was sampled now, unless vLLM has not asked behind every step
                drafter.take(name, sampled if end - before == len(sampled) else token_ids_cpu[row, before:end].tolist())
                lengths[name] = end
                num_all += end - before
        self._note_step(frozenset(names), num_all)
        self._end_gone(names)
        if not self._pace.wants_drafts():
            return [[] for _ in names]
        limits, drafter.worth = self._limits, self._pace.worth
        drafts = [
            drafter.draft(name, limits[name].stop - end) if sampled and end in limits[name] else []
            for name, end, sampled in zip(names, ends, sampled_token_ids, strict=True)
        ]
        self._last = (*self._last[:2], sum(map(len, drafts)))
        return drafts

    def _begin(self, name: str, row: int, token_ids: Any) -> int:
        """Begin an answer; return the length of its prompt."""
        params = self.runner.requests[name].sampling_params
        num_prompt = int(self.runner.input_batch.num_prompt_tokens[row])
        draft: array[int] = array("i")
        draft.frombytes((params.extra_args or {}).get(_DRAFT, b""))
        prompt_end = token_ids[row, max(0, num_prompt - NUM_MATCHED_ELSEWHERE) : num_prompt].tolist()
        self._drafter.begin(name, prompt_end, draft, frozenset(params.stop_token_ids or ()))
        # One more token is always made. What vLLM counts by steps is left to it: behind a draft, a stop or a thought's end comes elsewhere.
        first = self._max_model_len if getattr(params, "thinking_token_budget", None) is not None else num_prompt + params.min_tokens
        last = min(num_prompt + (params.max_tokens or self._max_model_len), self._max_model_len) - 1
        self._limits[name] = range(first, last)
        self._lengths[name] = num_prompt
        return num_prompt

    def _end_gone(self, names: Sequence[str]) -> None:
        if len(self._lengths) > len(names):
            for name in set(self._lengths).difference(names):
                if name not in self.runner.requests:  # else it was put aside for want of room, and comes back
                    self._drafter.end(name)
                    del self._lengths[name], self._limits[name]

    def _note_step(self, names: frozenset[str], num_new: int) -> None:
        """Note how long the last step took, if it did nothing but go on with the same rows."""
        now = time.perf_counter()
        since, last_names, num_drafted = self._last
        if names and names <= last_names and num_new >= len(names):
            self._pace.note(len(names), num_new, now - since, num_drafted)
        self._last = (now, names, 0)

    def take_counts(self) -> dict[str, Any]:
        """Return the counts since they were taken last."""
        counts, self._drafter.counts = self._drafter.counts, DraftCounts()
        counts.saved_s, counts.lost_s = self._pace.saved_s, self._pace.lost_s
        self._pace.saved_s = self._pace.lost_s = 0.0
        return asdict(counts)


class SameSampler:
    """Takes a drafted token where it is the one that would have been sampled, with the row's own generator.

    vLLM's way takes it by chance and draws another otherwise: the distribution is the same, and so is how often drafts are taken, but the
    answers of a seed are not. Greedy rows are left to vLLM.
    """

    def __init__(self, sampler: Any) -> None:
        self._vllms = sampler

    def __call__(self, metadata: Any, draft_probs: Any, logits: torch.Tensor, sampling: Any) -> Any:
        """Return vLLM's `SamplerOutput`; `logits`: of every drafted token and the one behind each draft, `(tokens + rows, vocabulary)`."""
        if sampling.all_greedy or not sampling.generators:
            return self._vllms(metadata, draft_probs, logits, sampling)
        import torch
        from vllm.v1.outputs import SamplerOutput
        from vllm.v1.sample.rejection_sampler import PLACEHOLDER_TOKEN_ID

        sampler = self._vllms.sampler
        raw = logits[metadata.target_logits_indices].to(torch.float32)
        raw_behind = logits[metadata.bonus_logits_indices].to(torch.float32)
        scores = torch.empty(logits.shape, dtype=torch.float32, device=logits.device)
        scores[metadata.target_logits_indices] = self._vllms.apply_logits_processors(raw.clone(), sampling, metadata)
        scores[metadata.bonus_logits_indices] = sampler.apply_logits_processors(raw_behind.clone(), sampling, True)
        lengths = list(metadata.num_draft_tokens)
        drafted = metadata.draft_token_ids.tolist()
        first_drafted = list(itertools.accumulate(lengths, initial=0))
        first_score = list(itertools.accumulate((length + 1 for length in lengths), initial=0))
        made = torch.full((len(lengths), metadata.max_spec_len + 1), int(PLACEHOLDER_TOKEN_ID), dtype=torch.int32)
        going = list(range(len(lengths)))
        for place in range(metadata.max_spec_len + 1):
            if not going:
                break
            here = torch.tensor([first_score[row] + place for row in going], device=scores.device)
            tokens = _sampled(sampler, scores[here], sampling, going)
            made[going, place] = torch.tensor(tokens, dtype=torch.int32)
            going = [
                row
                for row, token in zip(going, tokens, strict=True)
                if place < lengths[row] and drafted[first_drafted[row] + place] == token
            ]
        made = made.to(logits.device)
        logprobs = None
        if sampling.max_num_logprobs is not None:
            logprobs = self._vllms._get_logprobs_tensors(sampling.max_num_logprobs, metadata, logits, raw, raw_behind, made)
        return SamplerOutput(sampled_token_ids=made, logprobs_tensors=logprobs)


def _sampled(sampler: Any, scores: torch.Tensor, sampling: Any, rows: Sequence[int]) -> list[int]:
    """Return the tokens of these rows as vLLM's sampler draws them; each draws from its generator once."""
    import torch

    index = torch.tensor(rows, device=scores.device)
    temperature = sampling.temperature[index]
    is_greedy = temperature < 1e-5
    greedy = scores.argmax(dim=-1)
    scores = scores / torch.where(is_greedy, torch.ones_like(temperature), temperature).unsqueeze(-1)
    generators = {place: sampling.generators[row] for place, row in enumerate(rows) if row in sampling.generators}
    cut = {name: None if getattr(sampling, name) is None else getattr(sampling, name)[index] for name in ("top_k", "top_p")}
    drawn, _ = sampler.topk_topp_sampler(scores, generators, cut["top_k"], cut["top_p"])
    return [int(token) for token in torch.where(is_greedy, greedy, drawn.long()).tolist()]
