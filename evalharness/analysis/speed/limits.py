"""Where an engine's seconds went, and one sentence on what limits it: the largest share. All seconds are summed over its workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from evalharness.api.wording import plural

_FEW_ROWS = 0.5
"""A step of less than this share of the rows that could run at once is a small one."""


@dataclass(frozen=True)
class Spent:
    """Seconds of an engine, each None where it was not measured. `generation_s` holds those from `prefill_s` to `picture_wait_s`.

    `bound_prefill_s`, `bound_decode_s`: the least seconds that its cards need for the work. `is_bound_by_memory`: whether decoding at
    that limit waits for memory, not for arithmetic.
    """

    load_s: float = 0.0
    tests_s: float = 0.0
    idle_s: float = 0.0
    generation_s: float = 0.0
    prefill_s: float | None = None
    decode_s: float | None = None
    picture_wait_s: float = 0.0
    first_picture_s: float = 0.0
    bound_prefill_s: float | None = None
    bound_decode_s: float | None = None
    is_bound_by_memory: bool = True
    busy: float | None = None
    rows_per_step: float | None = None
    rows_at_once: float | None = None
    rows_possible: float | None = None
    """How many answers could have run at once: cases for each worker, and what `kv_rows` have room in memory."""
    kv_rows: float | None = None
    step_s: float | None = None
    bound_step_s: float | None = None

    @property
    def total_s(self) -> float:
        """All seconds."""
        return self.load_s + self.tests_s + self.idle_s + self.generation_s


def shares(spent: Spent) -> dict[str, float]:
    """Return where all seconds went, by name: they add up to `total_s`.

    "card" is what the cards need at their own limits. What generating took beyond that and beyond waiting for pictures is "prefill" and
    "decode", in proportion to what each took beyond its own limit; "generation" where its parts were not measured.
    """
    parts = {"loading": spent.load_s, "tests": spent.tests_s, "idle": spent.idle_s}
    left = spent.generation_s
    bound_s = (spent.bound_prefill_s or 0.0) + (spent.bound_decode_s or 0.0)
    waiting = max(spent.picture_wait_s, 0.0), max(spent.first_picture_s, 0.0)
    for name, seconds in (("card", bound_s), ("first picture", waiting[1]), ("pictures", max(0.0, waiting[0]))):
        parts[name] = min(left, seconds)
        left -= parts[name]
    if spent.prefill_s is None or spent.decode_s is None:
        return {**parts, "generation": left}
    beyond = max(0.0, spent.prefill_s - (spent.bound_prefill_s or 0.0)), max(0.0, spent.decode_s - (spent.bound_decode_s or 0.0))
    share = beyond[0] / sum(beyond) if sum(beyond) else 0.0
    return {**parts, "prefill": left * share, "decode": left * (1 - share)}


def limit(spent: Spent) -> tuple[str, str]:
    """Return what limits an engine: the name of its largest share, and a sentence, which also says what limits while it generates."""
    parts = shares(spent)
    name = max(parts, key=lambda part: parts[part])
    if spent.total_s <= 0 or parts[name] <= 0:
        return "nothing", "nothing was generated, so nothing limits"
    sentence = _sentence(name, parts[name], spent.total_s, spent)
    if name in _OUTSIDE and spent.generation_s > 0:
        inner = max((part for part in parts if part not in _OUTSIDE), key=lambda part: parts[part])
        sentence += f"; while it generates, {_sentence(inner, parts[inner], spent.generation_s, spent)}"
    return name, sentence


def _sentence(name: str, seconds: float, of_s: float, spent: Spent) -> str:
    how = "longest" if spent.bound_decode_s is None else "longer than the card needs"
    return f"{_SENTENCES[name].format(how)} ({seconds:,.1f} of {of_s:,.1f} s){''.join(_details(name, spent))}"


_OUTSIDE = ("loading", "tests", "idle")
"""What takes time in which an engine does not generate."""
_SENTENCES = {
    "loading": "starting engines and loading weights takes longest",
    "tests": "tests are slower than the engine, which waits for them",
    "idle": "workers have nothing to do while others still work: fewer workers, or smaller units (more modules), would do",
    "card": "the card's own limit: fewer steps (drafts) or fewer cases are what is left",
    "first picture": "the first picture: what an engine prepares once when it sees one",
    "pictures": "waiting for pictures: they are opened and resized more slowly than the engine takes them",
    "generation": "generating; its parts are not measured on this backend",
    "prefill": "prefill: reading prompts takes {}",
    "decode": "decode: its steps take {}",
}


def _details(name: str, spent: Spent) -> Iterator[str]:
    if name == "card" and spent.bound_prefill_s is not None and spent.bound_decode_s is not None:
        if spent.bound_prefill_s > spent.bound_decode_s:
            yield "; of it, most is the arithmetic of prompts"
        else:
            yield f"; of it, most is {'reading memory' if spent.is_bound_by_memory else 'the arithmetic'} of decoding"
    if name not in ("decode", "generation", "prefill"):
        return
    if name == "decode":
        yield from _step(spent)
    if spent.busy is not None:
        yield from _use(spent, spent.busy)
    elif name == "decode" and spent.bound_decode_s is not None:
        yield "; whether CPU or kernels is not measured (no NVML)"
    if name == "decode":
        yield from _rows(spent)


def _use(spent: Spent, busy: float) -> Iterator[str]:
    """Say what the card does meanwhile: it idles while the CPU prepares steps, or its kernels are slower than the card."""
    idle_s, busy_s = spent.generation_s * (1 - busy), spent.generation_s * busy
    parts = [(idle_s, f"the card idles {idle_s:,.1f} s (the CPU's work for each step and row)")]
    if spent.bound_prefill_s is not None and spent.bound_decode_s is not None:
        beyond_s = max(0.0, busy_s - spent.bound_prefill_s - spent.bound_decode_s)
        parts.append((beyond_s, f"its kernels take {beyond_s:,.1f} s longer than it needs"))
    else:
        parts.append((busy_s, f"its kernels take {busy_s:,.1f} s"))
    yield f"; {' and '.join(text for _, text in sorted(parts, reverse=True))}"


def _step(spent: Spent) -> Iterator[str]:
    if spent.step_s is None or spent.rows_per_step is None:
        return
    needs = "" if spent.bound_step_s is None else f", of which the card needs {spent.bound_step_s * 1000:,.1f}"
    yield f"; a step of {plural(round(spent.rows_per_step), 'row')} takes {spent.step_s * 1000:,.1f} ms{needs}"


def _rows(spent: Spent) -> Iterator[str]:
    """Say why steps have few rows, where they have: each reads all weights for few tokens."""
    rows, most = spent.rows_per_step, spent.rows_at_once
    if rows is None or most is None or rows >= _FEW_ROWS * most:
        return
    if spent.kv_rows is not None and spent.kv_rows < _FEW_ROWS * most:
        yield f"; its memory has room for about {spent.kv_rows:,.0f} answers at once"
    elif spent.rows_possible is not None and spent.rows_possible < most:
        yield f"; there are only {spent.rows_possible:,.0f} answers for each worker, where {most:,.0f} can run at once"
