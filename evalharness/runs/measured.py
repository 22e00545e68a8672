"""What a run measured of itself, as types: what its engines did with their time, its drafts, its noise.

Parts of run.json and of lines of the journal, as the rest of them in `schema.py`.
"""

from __future__ import annotations

from typing import Any, TypedDict


class EngineCost(TypedDict, total=False):
    """What the limit of an engine depends on; where something is not known, why not."""

    card: str
    """The name of its GPUs."""
    num_cards: int
    card_unknown: str
    shape: dict[str, Any]
    """A `checkpoints.model_shape.ModelShape` as plain data."""
    shape_unknown: str
    rows_at_once: int
    """The most answers that it generates together."""
    kv_tokens: int
    """For how many tokens its memory has room."""


class DraftSums(TypedDict, total=False):
    """What became of one engine's drafts, in tokens, summed over its workers."""

    num_drafted: float
    num_taken: float
    """Of those drafted, the ones that the model made itself."""
    num_tokens: float
    """Of all answers."""
    num_row_steps: float
    """Steps of all answers together; without drafts as many as tokens."""
    num_found: float
    """Answers that had a recorded one to follow."""
    num_answers: float
    saved_s: float
    """Worker-seconds, measured against steps without drafts in between; below 0 where drafts cost time."""


class Throughput(TypedDict, total=False):
    """Tokens and seconds of one engine, summed over its workers; from `load_s` on absent in runs of older versions."""

    engine: str
    generation_s: float
    num_generations: int
    num_prompt_tokens: int
    num_completion_tokens: int
    num_untimed_generations: int
    """Of units that broke, so that their seconds are unknown."""
    num_workers: int
    load_s: float
    """Of starts and swaps."""
    tests_s: float
    """While it was open and had nothing to generate: tests ran."""
    idle_s: float
    """While its workers had no engine open, and others still worked."""
    answers: dict[str, float]
    """Sums over its answers: an `analysis.speed.bound.Work` without what only the engine knows."""
    work: dict[str, float]
    """As in `UnitLine`, summed."""
    drafts: DraftSums
    """Absent where none were checked."""
    cost: EngineCost


class EngineSpeed(TypedDict):
    """How fast an engine was, and how near its cards' limits; None where it is not known. Seconds are summed over workers.

    `unknown` says of what is None why. `busy`: share of generating in which kernels ran. `step_s`, `row_s`: of a step without prompts,
    and of each row in it. `shares`: where all seconds went (`analysis/speed/limits.py`); `limited_by` is the largest, `limit` a sentence.
    """

    engine: str
    card: str | None
    num_cards: int
    """Of each worker."""
    num_workers: int
    num_prompt_tokens: int
    num_completion_tokens: int
    tokens_per_s: float | None
    """Completion tokens, for each worker."""
    generation_s: float
    load_s: float | None
    first_picture_s: float | None
    picture_wait_s: float | None
    prefill_s: float | None
    decode_s: float | None
    tests_s: float | None
    idle_s: float | None
    num_steps: int | None
    rows_per_step: float | None
    tokens_per_row: float | None
    """Tokens that a row got in a step: more than 1 with drafts."""
    step_s: float | None
    row_s: float | None
    mfu: float | None
    """FLOPs of the work over those that the cards could have done while it was generated."""
    mbu: float | None
    """Likewise of bytes: weights once a step, keys and values."""
    bound_s: float | None
    bound_tokens_per_s: float | None
    share_of_bound: float | None
    busy: float | None
    energy_j: float | None
    j_per_token: float | None
    """For each completion token."""
    watts: float | None
    shares: dict[str, float]
    unknown: dict[str, str]
    limited_by: str
    limit: str


class WorkerEntry(TypedDict):
    """How one worker spent its time."""

    worker: str
    devices: list[str] | None
    num_loads: int
    num_swaps: int
    num_units: int
    load_s: float
    generation_s: float
    idle_share: float | None
    """0 to 1."""


class Durations(TypedDict):
    """How long an engine took for an eval; units that broke are left out."""

    engine: str
    eval: str
    num_outcomes: int
    generation_s: float


class NoiseEntry(TypedDict):
    """How much one score of a test differs between runs of one checkpoint, by the repeats of some cases."""

    eval: str
    test: str
    engine: str
    metric: str
    """A score or a rate of cases; "answer" for the answers themselves."""
    flip_rate: float
    """The chance that two runs give a case different values, 0 to 1, with its 95 % interval."""
    low: float | None
    high: float | None
    variance: float
    """Of a case's value from run to run; 0 for "answer", as those below are."""
    covariance: float
    """Of two cases of one group."""
    between: float
    """Variance of whole runs beyond that; 0 unless repeats differ as a whole by more than chance."""
    freedom: float | None
    """How well the variances are known, as degrees of freedom; None where nothing flips."""
    floor: float
    """How far noise alone moves the mean between two runs of all cases of the test, with a chance of 95 %."""
    num_cases: int
    num_runs: int
    """The first and its repeats."""
    flips: dict[str, float]
    """Cases with different values, and which share of their pairs of runs differs."""


class NoiseFacts(TypedDict):
    """What --noise has measured. `elsewhere`: share of repeats whose answers another worker gave than the first time."""

    repeats: int
    num_judged: int
    """Tests of repeats with a verdict, and those `num_lost` without one."""
    num_lost: int
    elsewhere: float
    measured: list[NoiseEntry]


class DraftFacts(TypedDict):
    """The argument of --draft-from, the run that it stands for, and why there were no drafts all the same."""

    asked: str
    run: str | None
    """None for this run's own answers."""
    rate_without: float | None
    """Tokens of answers per second of a worker on engines of this run's backends: in that run, or if it had drafts in the one before."""
    why_off: str
