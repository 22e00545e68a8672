"""The records of a run as types: rows of samples.jsonl, lines of the journal, run.json and verdicts of gates.

Everything is plain JSON data. Keys that a `total=False` class names may be missing: readers of runs made by other versions, or
of runs that were killed, ask with `get`. Times ending in `_at` are ISO 8601 in UTC; `_s` are seconds; `ended_s` is seconds since 1970.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict, TypeVar, cast

from evalharness.runs.measured import DraftFacts, Durations, EngineCost, EngineSpeed, NoiseFacts, Throughput, WorkerEntry

SCHEMA_VERSION = 1
"""Of run.json and everything beside it; raised when a reader of the version before would misread a run."""

IMPORTED_FROM = ("lm-eval", "lmms-eval", "inspect")
"""Tools whose samples `evalharness import` makes a run of; they stand as its backend."""
OF_OTHER_TOOLS = ("dump", *IMPORTED_FROM)
"""Backends of engines whose answers another tool made: dumps that were scored, and imported samples."""

MAX_DATA_DEPTH = 200
"""Of lists and mappings in details and references: far from the limits of readers, which are recursive, at about 1,000."""

RowOutcome: TypeAlias = Literal["pass", "miss", "fail", "invalid", "error", "skip"]
JUDGED = ("pass", "miss", "fail")
"""Outcomes that say something about the checkpoint: infrastructure failures and invalid cases are never scores."""


class Generation(TypedDict, total=False):
    """One answer as `GenerationResult.to_json` writes it. In memory, the longer parts are read from the journal on access."""

    text: str
    raw_text: str
    """With special tokens."""
    finish_reason: str | None
    """"stop", "length", or "scored" where the response was given and only its log-probabilities were computed; None in rows made
    of other tools' dumps."""
    stop_reason: str | int | None
    num_prompt_tokens: int | None
    """Tokens of the prompt, images included; at least 0."""
    num_completion_tokens: int | None
    token_ids: list[int]
    logprobs: list[float | str | None] | None
    """Natural log, one per completion token; "-inf" for a token that was cut away."""
    logprobs_kind: str | None
    entropies: list[float | str | None] | None
    seed: int | None
    backend: str
    fallback: str | None
    """Why the fallback backend answered; None where the engine's own did."""
    ignored_options: list[str]
    prompt_sha256: str
    prompt_text: str
    weight_version: str | None
    images: list[dict[str, Any]]
    cached: bool
    exact_ids: bool
    thinking: ThinkingFacts | None
    num_bytes_scored: int | None
    """UTF-8 bytes of a given response that its log-probabilities are of, without a first token that has none."""
    shots: list[str]
    """Ids of the worked examples in the prompt. Absent where there were none."""
    prefill: str
    """How the answer was begun. Absent where it was not."""
    join: str
    """"text" where prompt and response were tokenised as one; absent where they were joined as ids."""
    is_greedy: bool
    """Whether a given response is what greedy decoding gives; absent where that was not asked."""
    hidden: list[str]
    """Names of the secrets that stood in the answer and were hidden: it is not judged again. Absent where there were none."""


class ThinkingFacts(TypedDict, total=False):
    """A model's thought before its answer; see `api.thinking.Thinking`."""

    text: str
    answer: str
    is_closed: bool
    num_tokens: int
    is_expected: bool


class CaseFacts(TypedDict, total=False):
    """Facts of a case that the journal stores once, and samples.jsonl repeats in each of its rows."""

    group: str | None
    """Joins cases that belong together: they count as one unit in intervals and paired tests."""
    tags: dict[str, str]
    stratum: int
    """With --until-certain, 1 on the edge, of which more is asked first; absent elsewhere."""


class Row(CaseFacts, total=False):
    """One test on one case and engine: a line of samples.jsonl."""

    nodeid: str
    eval: str
    test: str
    case_id: str
    engine: str
    checkpoint: str
    backend: str
    outcome: RowOutcome
    problem: str | None
    """The message of the assertion or the failure; None for a pass."""
    cause: str
    """Name of the request error of an invalid sample."""
    scores: dict[str, float]
    """Finite numbers by name; a rate is 0 to 1."""
    details: dict[str, Any]
    """Plain data that the test recorded with `details`."""
    reference: Any
    """The case's reference where it is plain JSON data."""
    reference_sha256: str | None
    """The start of the SHA-256 of any other reference; None where its content cannot be known."""
    generation: Generation | None
    """The first sample; None where it failed or the test never ran."""
    generations: list[Generation | None]
    """All samples, where there are several."""
    steps: list[list[Generation | None]]
    """Answers of the steps before the last request, by step."""
    prompt_sha256: str | None
    options: Any
    """The decoding options, one mapping; a list of them where samples differ."""
    num_samples: int
    """In the journal only."""
    run_id: str
    worker: str | None
    started_at: str | None
    """None for a test that never ran."""
    duration_s: float | None


OutcomeKind: TypeAlias = Literal["generation", "failure", "step", "step_failure"]


class OutcomeLine(TypedDict, total=False):
    """A journal line of kind generation, step, failure or step_failure; `generation` is the line's last key."""

    engine: str
    eval: str
    case_id: str
    sample: int
    step: int
    request: int
    steps: list[int]
    """Number of requests of each step."""
    copied: bool
    """Taken over from the journal of a worker that died."""
    in_step: bool
    """The score of a request that was answered in the last step."""
    failure: Literal["invalid", "error"]
    problem: str
    cause: str | None
    generation: dict[str, Any]


class Collected(TypedDict, total=False):
    """The journal line of kind collected: the tests and engines of the run."""

    engines: list[EngineEntry]
    nodeids: list[str]


class ProblemLine(TypedDict):
    """A journal line of kind problem or worker_exit."""

    problem: str


class CrashLine(TypedDict):
    """A line of journal/crashes.jsonl: a unit that a worker left unfinished."""

    worker: str
    engine: str
    path: str
    shard: int
    nodeids: list[str]
    """Its remaining tests."""
    isolation: dict[str, Any] | None
    """Which cases are isolated, where one of the unit's may be to blame: a `CrashIsolation` as plain data."""
    gave_up: bool
    """Whether the worker ended itself because its engine was beyond repair."""


class EngineLine(TypedDict, total=False):
    """A journal line of kind engine_start or engine; without `load_s` when the engine was closed."""

    id: str
    settings: dict[str, Any]
    worker: str
    how: Literal["load", "swap", "kept"]
    load_s: float
    swapped_from: str
    cold_because: str
    ended_s: float
    devices: list[str] | None
    cost: EngineCost
    closed_s: float
    """When no test needed it any more, in seconds since 1970; in the line that has no `load_s`."""


class UnitLine(TypedDict, total=False):
    """A journal line of kind unit or unit_start."""

    engine: str
    eval: str
    ahead: bool
    generation_s: float
    ended_s: float
    num_outcomes: int
    work: dict[str, float]
    """Sums of what the engine did meanwhile: `backends/work.py`, and of its GPUs `energy_j` (joules), `busy_sum` over `busy_looks`."""


class EvalEntry(TypedDict, total=False):
    """One eval module in run.json."""

    name: str
    path: str
    """Relative to pytest's rootdir."""
    tests: dict[str, list[str]]
    """The gates of each test."""
    num_cases: int
    notices: list[str]
    plugins: list[str]
    takes_coordinates: bool
    """Whether one of its tests takes the fixture `coordinates`."""
    directions: dict[str, str]
    """"lower" or "none" by score; a score that is missing is better the higher it is."""
    code: dict[str, dict[str, str]]
    """By test without its parameters: hashes of the project's definitions that load, ask and judge its cases, by `file::name`."""


class EvalLine(EvalEntry, total=False):
    """The journal line of kind eval."""

    cases: dict[str, CaseFacts]
    options: list[dict[str, Any]]
    """Decoding options of each sample."""
    num_all_cases: int
    """With those that --limit and --shard leave out."""
    num_all_tests: int
    """Of all cases on all engines of the run, with those that were deselected (-k, --lf, node ids)."""


class _PartOfEval(TypedDict):
    eval: str
    what: Literal["cases", "tests"]
    num: int
    of: int


class PartOfEval(_PartOfEval, total=False):
    """An eval that a run does not hold whole: `num` of `of` cases, or tests, are in it."""

    until_certain: bool
    """Whether the run stopped there by --until-certain: its cases are then a weighted draw, and its end depends on their answers. Of
    several engines, `num` is of the one that stopped first."""
    drawn_from: int
    """Cases that were drawn from, where `-k`, `--lf`, `--limit` or node ids had selected a part before."""


class EngineEntry(TypedDict, total=False):
    """One engine in run.json: its spec, and from `settings` on how it was loaded."""

    id: str
    backend: str
    checkpoint: str
    checkpoint_path: str
    fingerprint: str | None
    variant: str | None
    options_not_taken: list[str]
    dtype: str | None
    base_path: str | None
    base_fingerprint: str | None
    adapter_fingerprint: str | None
    stamp: str | None
    chosen: str | None
    quantization: dict[str, Any] | None
    training: dict[str, Any] | None
    hub: dict[str, Any] | None
    base_hub: dict[str, Any] | None
    settings: dict[str, Any]
    template_sha256: str | None
    num_loads: int
    load_s: float | None
    """Mean of all loads."""
    num_swaps: int
    swap_s: float | None
    cold_because: list[str]


class MetricLimits(TypedDict):
    """One metric when a run stopped: its mean in the baseline, and the difference to it, estimated over all cases, with its limits."""

    metric: str
    base: float
    difference: float
    low: float
    high: float


class CertainFacts(TypedDict):
    """What --until-certain had proved of a test on an engine when it stopped, or that all cases were asked without a proof."""

    claim: Literal["regressed", "harmless", ""]
    margin: float
    num_cases: int
    """Cases of the proof; those in flight when it was found are in the rows, but not in it."""
    num_groups: int
    of_cases: int
    proved: str
    """The claim "harmless" as a sentence; empty for others."""
    metrics: list[MetricLimits]
    """The one that could have lost most first; their limits hold whenever the run stopped."""


class SliceVerdict(TypedDict):
    """A slice in which a gate failed: the tag's value, what was measured (None for nothing), and the rows that were counted."""

    value: str
    measured: float | None
    n: int


class GateVerdict(TypedDict, total=False):
    """The verdict of one gate on one test and engine."""

    eval: str
    test: str
    engine: str
    expression: str
    metric: str
    value: float | None
    threshold: float | None
    n: int
    """Rows that were counted, or pairs of them."""
    passed: bool | None
    """None where a `no_regression` gate was skipped for want of a baseline, or --until-certain left cases out that a gate needs."""
    judged: bool
    """False where the gate neither passed nor failed, as its cases did not all run or all ended in an error; `passed` is not True."""
    asked: bool
    reason: str
    """Why it did not pass; empty where it did."""
    baseline: str
    notes: list[str]
    could_have_shown: float | None
    """The smallest difference that the comparison could have detected."""
    floor: float
    """What noise alone does to the value, with a chance of 95 %: of one run, or, against a baseline, of the difference of two."""
    flip_rate: float
    """The chance that another run of the checkpoint would get the other verdict, by the noise of its metric."""
    flip_interval: list[float] | None
    """Its 95 % interval; None where there is none."""
    within_noise: list[str]
    """What was taken for no difference as it lies within the floor, in words."""
    end: str
    """"low" or "high" for a gate on an end of the metric's interval; missing for one on the metric itself."""
    measure: str
    """"p95", "min", "max" or "sum" of single values, "drop" or "rise" against the baseline, or "speed"; missing for a mean, a rate or an
    aggregate."""
    tag: str
    """The tag of a gate on slices; `value` and `n` are then those of the worst. Missing for one on all cases."""
    failed_slices: list[SliceVerdict]
    """The worst first."""
    certain: CertainFacts
    """What --until-certain had proved, of a gate `no_regression`."""


class _Aggregate(TypedDict):
    eval: str
    test: str
    engine: str
    metric: str
    value: float


class Aggregate(_Aggregate, total=False):
    """A value that an eval's `aggregate` or `across` returned, or one over the evals of a suite, whose name is then that of the eval."""

    low: float
    """The lower end of its 95 % interval; missing where there is none."""
    high: float
    draws: list[float | None]
    """The value of each draw of the bootstrap, so that two runs can be compared; missing without one."""
    num_groups: int
    """Independent observations that were drawn from."""
    members: list[str]
    """Of a suite: its evals that have the metric."""


class TableEntry(TypedDict):
    """A table that an eval's `tables` or `across` returned."""

    eval: str
    test: str
    engine: str
    title: str
    rows: list[dict[str, Any]]


class OutputFile(TypedDict):
    """A file that an eval's `outputs` wrote; `path` is relative to the run directory."""

    eval: str
    engine: str
    path: str
    num_bytes: int


class BaselineFacts(TypedDict):
    """The argument of --baseline, and the file or run directory that it stands for."""

    asked: str
    path: str | None
    problem: str | None


class RunFile(TypedDict, total=False):
    """run.json. Written when the run starts and again when it ends; fields from `finished_at` on are written at the end."""

    schema_version: int
    run_id: str
    command: list[str]
    started_at: str
    config: dict[str, Any]
    """Each option's value and origin."""
    num_workers: int
    baseline: BaselineFacts | None
    drafts: DraftFacts
    """Absent without --draft-from."""
    notices: list[str]
    idle_options: list[str]
    """Options of the command line that changed nothing, and why."""
    rescored: Any
    resumptions: list[dict[str, Any]]
    python: str
    platform: str
    versions: dict[str, str]
    hardware: dict[str, Any]
    git: dict[str, Any] | None
    interpreter: str
    finished_at: str | None
    duration_s: float
    interrupted: str | None
    rebuilt: bool
    """The run was killed, and its records were made from the journal."""
    exit_code: int
    engines: list[EngineEntry]
    evals: list[EvalEntry]
    noise: NoiseFacts
    """Only of a run with --noise."""
    partial: list[PartOfEval]
    """The evals of which only a part was selected or asked; absent in runs of older versions."""
    gates: list[GateVerdict]
    aggregates: list[Aggregate]
    tables: list[TableEntry]
    outputs: list[OutputFile]
    counts: dict[str, int]
    """Rows by outcome."""
    throughput: list[Throughput]
    workers: list[WorkerEntry]
    durations: list[Durations]
    speed: list[EngineSpeed]
    problems: list[str]
    earlier_problems: list[str]


_Mapping = TypeVar("_Mapping", bound=Mapping[str, Any])


def entries_of(entries: Sequence[_Mapping] | None) -> list[_Mapping]:
    """Return the entries of a list that are non-empty objects; none where it is not a list."""
    return [cast("_Mapping", entry) for entry in items_of(entries) if isinstance(entry, Mapping) and entry]


def items_of(value: object) -> list[Any]:
    """Return the value if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def mapping(value: _Mapping | None) -> _Mapping:
    """Return the value if it is an object, else an empty one."""
    return value if isinstance(value, (dict, Mapping)) else cast("_Mapping", {})  # dict: an abstract class is slow to ask


def generations_of(row: Row) -> list[Generation]:
    """Return the generations of a row: all samples where there are several, else the one, else none."""
    several = row.get("generations")
    samples = [sample for sample in several if isinstance(sample, Mapping)] if isinstance(several, list) else []
    single = row.get("generation")
    return samples or ([single] if isinstance(single, (dict, Mapping)) else [])


def number_of(value: object) -> float | None:
    """Return a finite number or a truth value as a float, None for anything else."""
    if not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def text_of(value: str | float | None) -> str:
    """Return a name as text: "" for None; anything else that is not a string as Python shows it."""
    return value if isinstance(value, str) else "" if value is None else str(value)
