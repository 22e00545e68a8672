"""The speed of each engine of a run, from what run.json or its journals say: figures, what is not known and why, and the limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

from evalharness.analysis.speed.bound import Bound, Device, Work, bound, decode_bytes, decode_flops, prefill_flops
from evalharness.analysis.speed.limits import Spent, limit, shares
from evalharness.checkpoints.model_shape import ModelShape, UnknownShape
from evalharness.hardware.cards import limits_of
from evalharness.runs.measured import EngineSpeed, Throughput
from evalharness.runs.schema import RunFile, entries_of, mapping, text_of

_COUNTED = 0.9


def engine_speeds(run: RunFile) -> list[EngineSpeed]:
    """Return the speed of each engine that generated."""
    return [engine_speed(entry) for entry in entries_of(run.get("throughput")) if entry.get("engine")]


def engine_speed(entry: Throughput) -> EngineSpeed:
    """Return the speed of one engine. Never fails: a run may be another version's, or damaged, and what is missing is said."""
    made = _Made.of(entry)
    spent = made.spent
    name, sentence = limit(spent)
    cost_of_step, num = step_cost(made.sums), made.numbers
    bound_s = None if made.least is None else made.least.seconds
    capacity = None if made.device is None else (spent.generation_s * made.device.flops, spent.generation_s * made.device.bandwidth)
    return {
        "engine": text_of(entry.get("engine")),
        "card": text_of(made.cost.get("card")) or None,
        "num_cards": int(_positive(made.cost.get("num_cards")) or 1),
        "num_workers": int(made.workers),
        "num_prompt_tokens": int(num.get("num_prompt_tokens", 0)),
        "num_completion_tokens": int(num.get("num_completion_tokens", 0)),
        "tokens_per_s": _ratio(num.get("num_completion_tokens"), spent.generation_s),
        "generation_s": spent.generation_s,
        "load_s": num.get("load_s"),
        "first_picture_s": first_picture_s(made.sums),
        "picture_wait_s": made.sums.get("picture_wait_s"),
        "prefill_s": spent.prefill_s,
        "decode_s": spent.decode_s,
        "tests_s": num.get("tests_s"),
        "idle_s": num.get("idle_s"),
        "num_steps": int(made.sums.get("num_steps", 0)) or None,
        "rows_per_step": spent.rows_per_step,
        "tokens_per_row": _ratio(made.work.num_made_tokens, made.sums.get("step_rows")),
        "step_s": None if cost_of_step is None else cost_of_step[0],
        "row_s": None if cost_of_step is None else cost_of_step[1],
        "mfu": None if capacity is None else _ratio(made.flops, capacity[0]),
        "mbu": None if capacity is None else _ratio(made.num_bytes, capacity[1]),
        "bound_s": bound_s,
        "bound_tokens_per_s": _ratio(made.work.num_made_tokens, bound_s),
        "share_of_bound": _ratio(bound_s, spent.generation_s),
        "busy": spent.busy,
        "energy_j": made.sums.get("energy_j"),
        "j_per_token": _ratio(made.sums.get("energy_j"), num.get("num_completion_tokens")),
        "watts": _ratio(made.sums.get("energy_j"), spent.generation_s),
        "shares": {part: round(value, 3) for part, value in shares(spent).items()},
        "unknown": _unknown(entry, made),
        "limited_by": name,
        "limit": sentence,
    }


@dataclass(frozen=True)
class _Made:
    """What one engine made, as far as its record is one; `why_no_shape`, `why_no_device`: why these are not known."""

    numbers: Mapping[str, float]
    sums: Mapping[str, float]
    """Of its work; none where only a part of it was counted."""
    cost: Mapping[str, Any]
    work: Work
    shape: ModelShape | None
    device: Device | None
    why_no_shape: str
    why_no_device: str

    @classmethod
    def of(cls, entry: Throughput) -> _Made:
        """Return what the entry of run.json says."""
        cost, sums = mapping(entry.get("cost")), {} if _is_counted_in_part(entry) else _numbers(entry.get("work"))
        (shape, why_no_shape), (device, why_no_device) = _shape(cost), _device(cost)
        return cls(_numbers(entry), sums, cost, _work(_numbers(entry.get("answers")), sums), shape, device, why_no_shape, why_no_device)

    @property
    def workers(self) -> float:
        return max(1.0, self.numbers.get("num_workers", 1.0))

    @property
    def flops(self) -> float | None:
        return None if self.shape is None else prefill_flops(self.shape, self.work) + decode_flops(self.shape, self.work)

    @property
    def num_bytes(self) -> float | None:
        steps = self.sums.get("num_steps", 0.0)
        return decode_bytes(self.shape, self.work, steps) if self.shape is not None and steps else None

    @property
    def rows_possible(self) -> float:
        """How many answers each worker could have generated at once, had it room for all."""
        return self.work.num_prompts / self.workers

    @property
    def kv_rows(self) -> float | None:
        """For how many answers of mean length the engine's memory has room at once."""
        tokens, work = _positive(self.cost.get("kv_tokens")), self.work
        mean = _ratio(work.num_prompt_tokens + work.num_made_tokens, work.num_prompts)
        return max(1.0, tokens / mean) if tokens and mean else None

    @cached_property
    def least(self) -> Bound | None:
        """The least that the cards need."""
        rows = _positive(self.cost.get("rows_at_once"))
        if self.shape is None or self.device is None or rows is None or not self.work.num_prompts:
            return None
        return bound(self.shape, self.device, self.work, min(rows, self.rows_possible, self.kv_rows or rows))

    @cached_property
    def spent(self) -> Spent:
        """Where its seconds went."""
        sums, num, least = self.sums, self.numbers, self.least
        prefill_s, decode_s = split_steps(sums)
        steps = sums.get("num_steps", 0.0)
        return Spent(
            load_s=num.get("load_s", 0.0),
            tests_s=num.get("tests_s", 0.0),
            idle_s=num.get("idle_s", 0.0),
            generation_s=num.get("generation_s", 0.0),
            prefill_s=prefill_s,
            decode_s=decode_s,
            picture_wait_s=sums.get("picture_wait_s", 0.0),
            first_picture_s=first_picture_s(sums) or 0.0,
            bound_prefill_s=None if least is None else least.prefill_s,
            bound_decode_s=None if least is None else least.decode_s,
            is_bound_by_memory=least is None or least.waits_for_memory,
            busy=_ratio(sums.get("busy_sum"), sums.get("busy_looks")),
            rows_per_step=_ratio(sums.get("step_rows"), steps),
            rows_at_once=_positive(self.cost.get("rows_at_once")),
            rows_possible=self.rows_possible,
            kv_rows=self.kv_rows,
            step_s=_ratio(decode_s, steps),
            bound_step_s=None if least is None else _ratio(least.decode_s, least.num_steps),
        )


def _is_counted_in_part(entry: Throughput) -> bool:
    """Return whether steps were counted of some answers only: each answer was a new row of some step."""
    work, answers = _numbers(entry.get("work")), _numbers(entry.get("answers"))
    return bool(work.get("num_steps")) and work.get("new_rows", 0.0) < _COUNTED * answers.get("num_answers", 0.0)


def _unknown(entry: Throughput, made: _Made) -> dict[str, str]:
    """Return what is not known of an engine, and why."""
    unknown: dict[str, str] = {}
    if "answers" not in entry:
        unknown["all but tokens"] = "the run was made by an older version"
    elif _is_counted_in_part(entry):
        unknown["prefill, decode"] = "steps are known of a part of the answers only"
    elif not made.sums.get("num_steps"):
        unknown["prefill, decode"] = "this backend does not count its steps"
    if made.why_no_shape:
        unknown["model"] = made.why_no_shape
    if made.why_no_device:
        unknown["card"] = made.why_no_device
    elif "answers" in entry and _positive(made.cost.get("rows_at_once")) is None:
        unknown["limit"] = "how many answers this backend generates at once is not known"
    has_pictures = _numbers(entry.get("answers")).get("num_pictures")
    if made.shape is not None and has_pictures and not (made.work.num_patches and made.shape.num_vision_layers):
        unknown["vision tower"] = "the limit is without it: its size, or the pictures' sizes, are not known"
    if made.spent.busy is None:
        unknown["use of the GPU"] = "NVML was not asked: no GPU of its own, or no driver"
    if made.sums.get("energy_j") is None:
        unknown["energy"] = "NVML gives no counter of GPUs that are this engine's alone"
    return unknown


def split_steps(work: Mapping[str, float]) -> tuple[float | None, float | None]:
    """Return the seconds of prefill and of decode, None for both where no step was counted.

    Steps that read prompts make tokens for other rows, too: what these would have taken by themselves, as steps without a prompt do, is
    decode, the rest prefill.
    """
    steps, step_s = work.get("num_steps", 0.0), work.get("step_s", 0.0)
    if not steps:
        return None, None
    plain_s = work.get("plain_s", 0.0)
    mixed_s = max(0.0, step_s - plain_s)
    going_rows = max(0.0, work.get("step_rows", 0.0) - work.get("new_rows", 0.0) - work.get("plain_rows", 0.0))
    fixed, each = step_cost(work) or (0.0, 0.0)
    decode_s = 0.0 if going_rows == 0 else min(mixed_s, work.get("shared_steps", 0.0) * fixed + going_rows * each)
    return mixed_s - decode_s, plain_s + decode_s


def first_picture_s(work: Mapping[str, float]) -> float | None:
    """Return how much longer engines took for their first picture than for later prompts; None where that cannot be told."""
    num, seconds = work.get("num_first_pictures", 0.0), work.get("first_picture_s", 0.0)
    others = work.get("num_steps", 0.0) - work.get("plain_steps", 0.0) - num
    if not num or others <= 0:
        return None
    mean = max(0.0, work.get("step_s", 0.0) - work.get("plain_s", 0.0) - seconds) / others
    return max(0.0, seconds - num * mean)


def step_cost(work: Mapping[str, float]) -> tuple[float, float] | None:
    """Return seconds of a step without prompts, and of each of its rows, by least squares; never negative. None where there was none."""
    num, total, rows = work.get("plain_steps", 0.0), work.get("plain_s", 0.0), work.get("plain_rows", 0.0)
    if not num or not rows:
        return None
    spread = num * work.get("plain_row_squares", 0.0) - rows * rows
    if spread <= 1e-9 * rows * rows:  # all steps were alike
        return 0.0, total / rows
    each = (num * work.get("plain_row_seconds", 0.0) - rows * total) / spread
    fixed = (total - each * rows) / num
    if each < 0:
        return total / num, 0.0
    return (fixed, each) if fixed >= 0 else (0.0, total / rows)


def _shape(cost: Mapping[str, Any]) -> tuple[ModelShape | None, str]:
    try:
        if not isinstance(cost.get("shape"), Mapping):
            raise UnknownShape(text_of(cost.get("shape_unknown")) or "it was not recorded")
        return ModelShape.from_json(cost["shape"]), ""
    except UnknownShape as error:
        return None, str(error)


def _device(cost: Mapping[str, Any]) -> tuple[Device | None, str]:
    card = cost.get("card")
    if not isinstance(card, str):
        return None, text_of(cost.get("card_unknown")) or "it was not recorded"
    limits, dtype = limits_of(card), text_of(mapping(cost.get("shape")).get("dtype"))
    flops = None if limits is None else limits.flops(dtype)
    if limits is None:
        return None, f"{card} is not in the table of known cards"
    if flops is None:
        return None, f"{card} has no figure for {dtype or 'its dtype'}"
    num = _positive(cost.get("num_cards")) or 1.0
    return Device(flops * num, limits.bandwidth * num), ""


def _work(answers: Mapping[str, float], work: Mapping[str, float]) -> Work:
    known = {**work, **answers}
    return Work(**{field.name: known.get(field.name, 0.0) for field in fields(Work)})


def _numbers(values: object) -> dict[str, float]:
    """Return the finite numbers that are at least 0: a run may be damaged."""
    known = values if isinstance(values, Mapping) else {}
    return {str(name): float(value) for name, value in known.items() if _is_fit(value)}


def _is_fit(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e30 and math.isfinite(value)


def _positive(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and _is_fit(value) and value > 0 else None


def _ratio(part: float | None, whole: float | None) -> float | None:
    ratio = part / whole if part is not None and whole else None
    return ratio if ratio is not None and math.isfinite(ratio) else None
