"""Worked examples before a question (few-shot): which rows of a pool a case gets. Never the case itself.

    few_shot(rows, k=5)                              # drawn anew for each case, by its id
    few_shot(rows, k=5, sampler="first_n", within="subject")
    few_shot(rows, k=6, balance="label")             # the same number of each label
    few_shot(rows, k=5, sampler="lm_eval")           # the very rows of lm-evaluation-harness

Draws depend on seed and case alone, so that shards, resumed runs and repeats ask the same. lm-evaluation-harness draws for one case after
the other from one generator: there a case's place in its file decides.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from evalharness.api.cases import Case
from evalharness.api.checks import check_integer
from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError, did_you_mean
from evalharness.prompts.rendering import Field, Row, check_field, row_of

Sampler: TypeAlias = Literal["random", "first_n", "lm_eval"]
Pool: TypeAlias = "Sequence[Row] | Callable[[Any], Iterable[Case | Row]]"
LM_EVAL_SEED = 1234
_SPARE = 8  # rows drawn beyond those asked for, in place of the case itself


@dataclass(frozen=True)
class Shot:
    """One worked example: a row of the pool, and its id, which the record of a case names."""

    id: str
    row: Row
    images: Sequence[Any] = ()


@dataclass(frozen=True)
class FewShot:
    """What `few_shot` returns; `of` gives a case's worked examples."""

    pool: Pool
    k: int
    seed: int
    sampler: Sampler = "random"
    balance: str | None = None
    within: str | None = None
    same_split: bool = False
    text: Field | None = None
    target: Field | int | None = None
    choices: Field | Sequence[str] | None = None
    delimiter: str | None = None
    target_delimiter: str | None = None
    prefill: Field | None = None
    _pools: dict[Path | None, list[Shot]] = field(default_factory=dict, repr=False, compare=False)
    _draws: dict[int, _LmEvalDraws] = field(default_factory=dict, repr=False, compare=False)

    def of(self, case: Case) -> list[Shot]:
        """Return the worked examples of a case, in the order of the prompt; `ConfigError` where the pool has too few."""
        if not self.k:
            return []
        row, pool = row_of(case), self._pool(getattr(case, "data_dir", None))
        if self.sampler == "lm_eval":
            return self._as_lm_eval(case, row, pool)
        if self.within is not None:
            pool = [shot for shot in pool if _column(shot.row, self.within) == row.get(self.within)]
        if self.sampler == "first_n":
            order: Iterable[Shot] = pool
        else:
            draw = random.Random(f"{self.seed}\0{case.id}")
            order = _drawn(pool, self.k, draw) if self.balance is None else _balanced(pool, self.balance, draw)
        chosen = _first(order, self.k, row)
        self._check(len(chosen), row)
        return chosen

    def _check(self, num_found: int, row: Row) -> None:
        if num_found < self.k:
            where = f" with {self.within} {row.get(self.within)!r}" if self.within is not None else ""
            raise ConfigError(f"few_shot has k={self.k}, and its pool {num_found} rows{where} beside the case itself; lower k")

    def _pool(self, data_dir: Path | None) -> list[Shot]:
        if data_dir not in self._pools:
            self._pools[data_dir] = list(_shots(self.pool, data_dir))
        return self._pools[data_dir]

    def _as_lm_eval(self, case: Case, row: Row, pool: list[Shot]) -> list[Shot]:
        position = getattr(case, "position", None)
        if position is None:
            raise ConfigError("sampler='lm_eval' draws by a case's place in its file, and this case has none; make cases with cases_from")
        if len(pool) < self.k + self.same_split:
            self._check(max(0, len(pool) - self.same_split), row)
        draws = self._draws.setdefault(id(pool), _LmEvalDraws(pool, self.k, self.seed, same_split=self.same_split))
        drawn = draws.at(position)
        chosen = _first([*drawn, *pool], self.k, row)  # should it draw the case itself, other rows take its place
        self._check(len(chosen), row)
        return chosen


def few_shot(
    pool: Pool,
    k: int,
    *,
    seed: int | None = None,
    sampler: Sampler = "random",
    balance: str | None = None,
    within: str | None = None,
    same_split: bool = False,
    text: Field | None = None,
    target: Field | int | None = None,
    choices: Field | Sequence[str] | None = None,
    delimiter: str | None = None,
    target_delimiter: str | None = None,
    prefill: Field | None = None,
) -> FewShot:
    """Return which `k` rows of a pool stand before each question.

    `pool`: rows, or a function like an eval's `cases`, called with the data folder; it stays in memory. `sampler`: "random" draws for each
    case by `seed` (0) and the case's id; "first_n" takes the first; "lm_eval" draws as lm-evaluation-harness does with `seed` (1234), where
    `same_split` says that its few-shot split is its test split. `balance`: a column of which all values come equally often. `within`: a
    column that shots and case have in common. The rest overrides what the template says of itself, for shots.
    """
    check_integer("few_shot.k", k, minimum=0)
    samplers = get_args(Sampler)
    if sampler not in samplers:
        meant = did_you_mean(str(sampler), samplers) or "."
        raise ContractValueError(f"few_shot.sampler is {sampler!r}{meant} Known: {', '.join(samplers)}")
    if sampler != "random" and balance is not None:
        raise ContractValueError(f"few_shot.balance draws, and sampler={sampler!r} does not; leave one of them out")
    if sampler == "lm_eval" and within is not None:
        raise ContractValueError(
            "few_shot.within is for the other samplers: lm-evaluation-harness has a task for each; make an eval for each"
        )
    if same_split and sampler != "lm_eval":
        raise ContractValueError("few_shot.same_split is for sampler='lm_eval'; the case itself is never among its shots")
    for name, value in (("text", text), ("target", target), ("choices", choices), ("prefill", prefill)):
        if value is not None and not isinstance(value, (int, list, tuple)):
            check_field(f"few_shot.{name}", value)
    if seed is None:
        seed = LM_EVAL_SEED if sampler == "lm_eval" else 0
    check_integer("few_shot.seed", seed)
    return FewShot(pool, k, seed, sampler, balance, within, same_split, text, target, choices, delimiter, target_delimiter, prefill)


def _shots(pool: Pool, data_dir: Path | None) -> Iterator[Shot]:
    for place, one in enumerate(pool(data_dir) if callable(pool) else pool):
        if isinstance(one, Case):
            yield Shot(one.id, dict(row_of(one)), tuple(getattr(one, "images", ())))
        elif isinstance(one, Mapping):
            yield Shot(str(one["id"]) if isinstance(one.get("id"), (str, int)) else f"#{place}", one)
        else:
            raise ContractTypeError(f"few_shot's pool must hold rows (mappings) or cases, got {one!r} ({type(one).__name__})")


def _column(row: Row, name: str) -> Any:
    if name not in row:
        raise ConfigError(f"few_shot's pool has no column {name!r}{did_you_mean(name, list(row)) or ';'} it has: {', '.join(row)}")
    return row[name]


def _first(order: Iterable[Shot], k: int, row: Row) -> list[Shot]:
    """Return the first shots that differ from a case's row and from each other."""
    chosen: list[Shot] = []
    for shot in order:
        if len(chosen) == k:
            break
        if shot.row != row and not any(shot is other for other in chosen):
            chosen.append(shot)
    return chosen


def _drawn(pool: list[Shot], k: int, draw: random.Random) -> Iterator[Shot]:
    places = draw.sample(range(len(pool)), min(len(pool), k + _SPARE))
    yield from (pool[place] for place in places)
    yield from pool


def _balanced(pool: list[Shot], column: str, draw: random.Random) -> Iterator[Shot]:
    """Yield shots so that each number of them has all values of a column as often, as far as they go round."""
    by_value: dict[str, list[Shot]] = {}
    for shot in pool:
        by_value.setdefault(repr(_column(shot.row, column)), []).append(shot)
    classes = [draw.sample(shots, len(shots)) for shots in by_value.values()]
    draw.shuffle(classes)
    while classes:
        for shots in classes:
            yield shots.pop()
        classes = [shots for shots in classes if shots]


class _LmEvalDraws:
    """The draws of lm-evaluation-harness's default sampler, one case after the other from one generator.

    Where the pool is the split that is asked, it draws one row more and takes the case out, or draws again from the others should a copy
    of it be left.
    """

    def __init__(self, pool: list[Shot], k: int, seed: int, *, same_split: bool) -> None:
        self._pool, self._k, self._same_split = pool, k, same_split
        self._draw = random.Random(seed)
        self._made: list[list[Shot]] = []

    def at(self, position: int) -> list[Shot]:
        """Return the draw for the case at a place, from 0."""
        while len(self._made) <= position:
            self._made.append(self._next(len(self._made)))
        return self._made[position]

    def _next(self, position: int) -> list[Shot]:
        drawn = self._draw.sample(self._pool, self._k + self._same_split)
        if not self._same_split or position >= len(self._pool):
            return drawn
        case = self._pool[position].row
        others = [shot for shot in drawn if shot.row != case]
        if len(others) < self._k:
            return self._draw.sample([shot for shot in self._pool if shot.row != case], self._k)
        return others[: self._k]
