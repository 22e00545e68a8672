"""The least seconds in which a card could have made a run's answers: what must be computed and read, at the card's own limits.

    seconds = FLOPs of reading prompts and pictures / FLOP/s  +  steps x max(FLOPs of a step / FLOP/s, bytes of a step / bandwidth)

Each token costs two FLOPs a parameter that it goes through and four an attention channel and token that it looks at (two on average while
a prompt is read, as each token sees those before it). A step reads all weights once, whatever its rows, and the keys and values of every
row. Steps are as few as rows at once allow. What an engine keeps from earlier prompts is not computed again. Drafts may beat this bound:
they make several tokens a step.
"""

from __future__ import annotations

from dataclasses import dataclass

from evalharness.checkpoints.model_shape import ModelShape


@dataclass(frozen=True)
class Work:
    """What an engine was asked for, in sums over its answers, so that works add up.

    `num_prompt_tokens` with pictures expanded; `num_kept_tokens` of them were in the engine's cache. `sum_prompt_squares`: of prompts'
    lengths. `num_made_tokens` were generated; `sum_context`: over these, of the tokens that each looked at. `longest`: the most tokens
    of one answer. `num_patches`, `sum_patch_squares`: of pictures.
    """

    num_prompts: float = 0
    num_prompt_tokens: float = 0
    num_kept_tokens: float = 0
    sum_prompt_squares: float = 0
    num_made_tokens: float = 0
    sum_context: float = 0
    longest: float = 0
    num_patches: float = 0
    sum_patch_squares: float = 0

    @classmethod
    def of_equal(cls, num: int, num_prompt: int, num_made: int) -> Work:
        """Return the work of `num` prompts of `num_prompt` tokens with answers of `num_made`."""
        context = num * (num_prompt * num_made + num_made * num_made / 2)
        return cls(num, num * num_prompt, 0, num * num_prompt**2, num * num_made, context, num_made)


@dataclass(frozen=True)
class Device:
    """FLOP/s of the model's dtype, and bytes per second, of all cards of one engine together."""

    flops: float
    bandwidth: float


@dataclass(frozen=True)
class Bound:
    """The least seconds, FLOPs and bytes of some work; `num_steps` of decoding, over all engines."""

    prefill_s: float
    decode_s: float
    flops: float
    num_bytes: float
    num_steps: float
    waits_for_memory: bool
    """Whether its decoding waits for memory, not for arithmetic."""

    @property
    def seconds(self) -> float:
        """The least seconds."""
        return self.prefill_s + self.decode_s


def prefill_flops(shape: ModelShape, work: Work) -> float:
    """Return the FLOPs of reading prompts and pictures."""
    computed = max(0.0, work.num_prompt_tokens - work.num_kept_tokens)
    share = computed / work.num_prompt_tokens if work.num_prompt_tokens else 0.0
    attention = 2 * shape.attention_width * share * _looked_at(shape, work.sum_prompt_squares, work.num_prompt_tokens)
    return 2 * shape.active_params * computed + attention + vision_flops(shape, work)


def _looked_at(shape: ModelShape, sum_squares: float, num_tokens: float) -> float:
    """Return the squares of lengths over all layers; a layer with a window of w costs 2 x w a token at most."""
    return shape.num_full_layers * sum_squares + shape.num_window_layers * min(sum_squares, 2 * shape.window * num_tokens)


def vision_flops(shape: ModelShape, work: Work) -> float:
    """Return the FLOPs of the vision tower: every patch of a picture looks at all of them."""
    weights = 2 * (shape.num_vision_params + shape.num_merger_params / shape.merge) * work.num_patches
    return weights + 4 * shape.num_vision_layers * shape.vision_width * work.sum_patch_squares


def decode_flops(shape: ModelShape, work: Work) -> float:
    """Return the FLOPs of generating."""
    return 2 * (shape.active_params + shape.num_head_params) * work.num_made_tokens + 4 * shape.attention_width * _context(shape, work)


def _context(shape: ModelShape, work: Work) -> float:
    """Return the tokens that generated ones look at, over all layers."""
    in_window = min(work.sum_context, shape.window * work.num_made_tokens)
    return shape.num_full_layers * work.sum_context + shape.num_window_layers * in_window


def step_weight_bytes(shape: ModelShape, num_rows: float) -> float:
    """Return the bytes of weights that a step of so many rows reads: of experts, those that some row is likely to take."""
    if not shape.num_experts:
        return shape.weight_bytes
    touched = 1 - (1 - shape.experts_per_token / shape.num_experts) ** num_rows
    return shape.weight_bytes + shape.expert_bytes * touched


def decode_bytes(shape: ModelShape, work: Work, num_steps: float) -> float:
    """Return the bytes that so many steps of generating read."""
    if num_steps <= 0:
        return 0.0
    return num_steps * step_weight_bytes(shape, work.num_made_tokens / num_steps) + shape.kv_bytes * _context(shape, work)


def fewest_steps(work: Work, num_rows: float) -> float:
    """Return how few steps make all tokens with so many rows at once; the longest answer needs one for each of its tokens."""
    rows = min(num_rows, work.num_prompts) if work.num_prompts else num_rows
    return max(work.num_made_tokens / rows, work.longest) if rows > 0 else 0.0


def bound(shape: ModelShape, device: Device, work: Work, num_rows: float) -> Bound:
    """Return the least seconds of the work on one engine with up to `num_rows` rows at once, or summed over several alike."""
    num_steps = fewest_steps(work, num_rows)
    reading, making = prefill_flops(shape, work), decode_flops(shape, work)
    num_bytes = decode_bytes(shape, work, num_steps)
    computing_s, moving_s = making / device.flops, num_bytes / device.bandwidth
    decode_s, waits = max(computing_s, moving_s), moving_s > computing_s
    return Bound(reading / device.flops, decode_s, reading + making, num_bytes, num_steps, waits)
