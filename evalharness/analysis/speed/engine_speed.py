"""The speed of each engine of a run, from what run.json or its journals say: figures, what is not known and why, and the limit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from evalharness.analysis.speed.bound import Device, Work, bound, decode_bytes, decode_flops, prefill_flops
from evalharness.analysis.speed.limits import Spent, limit, shares
from evalharness.checkpoints.model_shape import ModelShape, UnknownShape
from evalharness.hardware.cards import limits_of
from evalharness.runs.schema import EngineSpeed, RunFile, Throughput, entries_of, mapping, text_of

_MANY = 1e300


def engine_speeds(run: RunFile) -> list[EngineSpeed]:
    """Return the speed of each engine that generated."""
    return [engine_speed(entry) for entry in entries_of(run.get("throughput")) if entry.get("engine")]


def engine_speed(entry: Throughput) -> EngineSpeed:
    """Return the speed of one engine. Never fails: a run may be another version's, or damaged, and what is missing is said."""
    work, cost, num = _numbers(entry.get("work")), mapping(entry.get("cost")), _numbers(entry)
    unknown: dict[str, str] = {}
    if "answers" not in entry:
        unknown["all but tokens"] = "the run was made by an older version"
    elif not work.get("num_steps"):
        unknown["prefill, decode"] = "this backend does not count its steps"
    asked = _work(_numbers(entry.get("answers")), work)
    prefill_s, decode_s = split_steps(work)
    first_picture, cost_of_step = first_picture_s(work), step_cost(work)
    workers = max(1.0, num.get("num_workers", 1.0))
    rows_at_once = _positive(cost.get("rows_at_once"))
    shape, device = _shape(cost, unknown), _device(cost, unknown)
    if shape is not None and _numbers(entry.get("answers")).get("num_pictures") and not (asked.num_patches and shape.num_vision_layers):
        unknown["vision tower"] = "the bound is without it: its size, or the pictures' sizes, are not known"
    possible = asked.num_prompts / workers
    kv_rows = _kv_rows(cost, asked)
    most = min(value for value in (rows_at_once, possible, kv_rows, _MANY) if value is not None)
    least = bound(shape, device, asked, most) if shape is not None and device is not None and rows_at_once and asked.num_prompts else None
    if rows_at_once is None and "all but tokens" not in unknown:
        unknown["bound"] = "how many answers this backend generates at once is not known"
    steps, seconds = work.get("num_steps", 0.0), num.get("generation_s", 0.0)
    busy = _ratio(work.get("busy_sum"), work.get("busy_looks"))
    energy = work.get("energy_j")
    if busy is None:
        unknown["use of the GPU"] = "NVML was not asked: no GPU of its own, or no driver"
    if energy is None:
        unknown["energy"] = "NVML gives no counter of GPUs that are this engine's alone"
    spent = Spent(
        load_s=num.get("load_s", 0.0),
        tests_s=num.get("tests_s", 0.0),
        idle_s=num.get("idle_s", 0.0),
        generation_s=seconds,
        prefill_s=prefill_s,
        decode_s=decode_s,
        picture_wait_s=work.get("picture_wait_s", 0.0),
        first_picture_s=first_picture or 0.0,
        bound_prefill_s=None if least is None else least.prefill_s,
        bound_decode_s=None if least is None else least.decode_s,
        is_bound_by_memory=least is None or device is None or least.decode_s * device.flops * 0.999 > decode_flops_of(shape, asked),
        busy=busy,
        rows_per_step=_ratio(work.get("step_rows"), steps),
        rows_at_once=rows_at_once,
        rows_possible=possible,
        kv_rows=kv_rows,
        step_s=_ratio(decode_s, steps),
        bound_step_s=None if least is None else _ratio(least.decode_s, least.num_steps),
        num_workers=int(workers),
    )
    name, sentence = limit(spent)
    bound_s = None if least is None else least.seconds
    flops = None if shape is None else prefill_flops(shape, asked) + decode_flops(shape, asked)
    num_bytes = None if shape is None else decode_bytes(shape, asked, steps)
    return {
        "engine": text_of(entry.get("engine")),
        "card": text_of(cost.get("card")) or None,
        "num_cards": int(_positive(cost.get("num_cards")) or 1),
        "num_workers": int(workers),
        "num_prompt_tokens": int(num.get("num_prompt_tokens", 0)),
        "num_completion_tokens": int(num.get("num_completion_tokens", 0)),
        "tokens_per_s": _ratio(num.get("num_completion_tokens"), seconds),
        "generation_s": seconds,
        "load_s": num.get("load_s"),
        "first_picture_s": first_picture,
        "picture_wait_s": work.get("picture_wait_s"),
        "prefill_s": prefill_s,
        "decode_s": decode_s,
        "tests_s": num.get("tests_s"),
        "idle_s": num.get("idle_s"),
        "num_steps": int(steps) or None,
        "rows_per_step": spent.rows_per_step,
        "step_s": None if cost_of_step is None else cost_of_step[0],
        "row_s": None if cost_of_step is None else cost_of_step[1],
        "mfu": _ratio(flops, seconds * device.flops) if device is not None and flops else None,
        "mbu": _ratio(num_bytes, seconds * device.bandwidth) if device is not None and num_bytes else None,
        "bound_s": bound_s,
        "bound_tokens_per_s": _ratio(asked.num_made_tokens, bound_s),
        "share_of_bound": _ratio(bound_s, seconds),
        "busy": busy,
        "energy_j": energy,
        "j_per_token": _ratio(energy, num.get("num_completion_tokens")),
        "watts": _ratio(energy, seconds),
        "shares": {part: round(value, 3) for part, value in shares(spent).items()},
        "unknown": unknown,
        "limited_by": name,
        "limit": sentence,
    }


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


def decode_flops_of(shape: ModelShape | None, work: Work) -> float:
    """Return the FLOPs of generating, 0 where the model is not known."""
    return 0.0 if shape is None else decode_flops(shape, work)


def _shape(cost: Mapping[str, Any], unknown: dict[str, str]) -> ModelShape | None:
    try:
        if not isinstance(cost.get("shape"), Mapping):
            raise UnknownShape(text_of(cost.get("shape_unknown")) or "it was not recorded")
        return ModelShape.from_json(cost["shape"])
    except UnknownShape as error:
        unknown["model"] = str(error)
        return None


def _device(cost: Mapping[str, Any], unknown: dict[str, str]) -> Device | None:
    card = cost.get("card")
    if not isinstance(card, str):
        unknown["card"] = text_of(cost.get("card_unknown")) or "it was not recorded"
        return None
    limits, dtype = limits_of(card), text_of(mapping(cost.get("shape")).get("dtype"))
    flops = None if limits is None else limits.flops(dtype)
    if limits is None or flops is None:
        unknown["card"] = (
            f"{card} is not in the table of known cards" if limits is None else f"{card} has no figure for {dtype or 'its dtype'}"
        )
        return None
    num = _positive(cost.get("num_cards")) or 1.0
    return Device(flops * num, limits.bandwidth * num)


def _kv_rows(cost: Mapping[str, Any], work: Work) -> float | None:
    """Return for how many answers of mean length the engine's memory has room at once."""
    tokens = _positive(cost.get("kv_tokens"))
    if tokens is None or not work.num_prompts:
        return None
    mean = (work.num_prompt_tokens + work.num_made_tokens) / work.num_prompts
    return max(1.0, tokens / mean) if mean else None


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
    return part / whole if part is not None and whole else None
