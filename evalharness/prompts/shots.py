"""Worked examples before a question (few-shot): which rows of a pool a case gets. Never the case itself.

    few_shot("train.parquet", k=5)                              # drawn anew for each case, by its id
    few_shot("dev/*_dev.csv", k=5, sampler="first_n", within="subject")
    few_shot("train.jsonl", k=6, balance="label")               # the same number of each label
    few_shot("train.parquet", k=5, sampler="lm_eval")           # the very rows of lm-evaluation-harness

Draws depend on seed and case alone, so that shards, resumed runs and repeats ask the same. lm-evaluation-harness draws for one case after
the other from one generator: there a case's place in its file decides.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from evalharness.api.cases import Case
from evalharness.api.checks import check_integer, check_text, named_parameters
from evalharness.api.errors import ConfigError, ContractTypeError, ContractValueError, did_you_mean
from evalharness.api.images import StoredBytes
from evalharness.data import RowCase, cases_from
from evalharness.data.finding import given_folder
from evalharness.prompts.rendering import Field, Row, check_field, row_of

Sampler: TypeAlias = Literal["random", "first_n", "lm_eval"]
Pool: TypeAlias = "str | Path | Sequence[Row] | Callable[[Any], Iterable[Case | Row]]"
LM_EVAL_SEED = 1234
_SPARE = 8  # rows drawn beyond those asked for, in place of the case itself


@dataclass(frozen=True, eq=False)
class Shot:
    """One worked example: a row of the pool, and its id, which the record of a case names. `origin`: where it stands, if in a file."""

    id: str
    row: Row
    images: Sequence[Any] = ()
    origin: Any = None


class _Pool:
    """The rows of a pool in memory, found by the value of a column."""

    def __init__(self, shots: list[Shot]) -> None:
        self.shots = shots
        self._by_column: dict[tuple[str, str | None, str], dict[str, list[Shot]]] = {}

    def by_value(self, column: str, within: str | None = None, value: Any = None) -> dict[str, list[Shot]]:
        """Return the shots by the value of a column, of all or of those with a value in another column."""
        key = (column, within, repr(value))
        if key not in self._by_column:
            grouped: dict[str, list[Shot]] = {}
            for shot in self.within(within, value):
                grouped.setdefault(repr(_column(shot.row, column)), []).append(shot)
            self._by_column[key] = grouped
        return self._by_column[key]

    def within(self, column: str | None, value: Any) -> list[Shot]:
        """Return the shots with a value in a column; all without a column."""
        return self.shots if column is None else self.by_value(column).get(repr(value), [])


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
    _pools: dict[Path | None, _Pool] = field(default_factory=dict, repr=False, compare=False)
    _draws: dict[Path | None, _LmEvalDraws] = field(default_factory=dict, repr=False, compare=False)

    def check_data(self, data_dir: Path | None) -> None:
        """Raise `MissingData` or `ConfigError` where the pool has no rows; only its first one is read."""
        if self.k and next(_shots(self.pool, data_dir), None) is None:
            raise ConfigError("few_shot's pool has no rows; give it some, or k=0")

    def of(self, case: Case, row: Row) -> list[Shot]:
        """Return the worked examples of a case with this row, in the order of the prompt; `ConfigError` where the pool has too few."""
        if not self.k:
            return []
        data_dir = getattr(case, "data_dir", None)
        if data_dir not in self._pools:
            self._pools[data_dir] = _Pool(list(_shots(self.pool, data_dir)))
        value = None if self.within is None else _column(row, self.within, "the case")
        pool = self._pools[data_dir]
        shots = pool.within(self.within, value)
        chosen = _first(self._order(case, data_dir, pool, shots, value), self.k, row, _origin(case))
        if len(chosen) < self.k:
            where = "" if self.within is None else f" with {self.within} {value!r}"
            raise ConfigError(f"few_shot has k={self.k}, and its pool {len(chosen)} rows{where} beside the case itself; lower k")
        return chosen

    def _order(self, case: Case, data_dir: Path | None, pool: _Pool, shots: list[Shot], value: Any) -> Iterable[Shot]:
        if self.sampler == "first_n" or len(shots) < self.k + self.same_split:
            return shots
        if self.sampler == "lm_eval":
            if data_dir not in self._draws:
                self._draws[data_dir] = _LmEvalDraws(shots, self.k, self.seed, same_split=self.same_split)
            # Should it draw the case itself, other rows take its place.
            return itertools.chain(self._draws[data_dir].at(_position(case)), shots)
        draw = random.Random(f"{self.seed}\0{case.id}")
        if self.balance is not None:
            return _balanced(list(pool.by_value(self.balance, self.within, value).values()), self.k, draw)
        places = draw.sample(range(len(shots)), min(len(shots), self.k + _SPARE))
        return itertools.chain((shots[place] for place in places), shots)


@named_parameters(
    num_fewshot="k", n="k", doc_to_text="text", doc_to_target="target", doc_to_choice="choices", fewshot_delimiter="delimiter", split="pool"
)
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

    `pool`: a file or glob in the data folder, rows, or a function like an eval's `cases`; it stays in memory. `sampler`: "random" draws for
    each case by `seed` (0) and the case's id; "first_n" takes the first; "lm_eval" draws as lm-evaluation-harness does with `seed` (1234),
    where `same_split` says that its few-shot split is its test split. `balance`: a column of which all values come equally often.
    `within`: a column that shots and case have in common. The rest overrides what the template says of itself, for shots.
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
    for name, word in (("balance", balance), ("within", within), ("delimiter", delimiter), ("target_delimiter", target_delimiter)):
        check_text(f"few_shot.{name}", word, optional=True)
    if seed is None:
        seed = LM_EVAL_SEED if sampler == "lm_eval" else 0
    check_integer("few_shot.seed", seed)
    return FewShot(pool, k, seed, sampler, balance, within, same_split, text, target, choices, delimiter, target_delimiter, prefill)


def _shots(pool: Pool, data_dir: Path | None) -> Iterator[Shot]:
    if isinstance(pool, (str, Path)):
        pool = cases_from(pool)
    elif not callable(pool) and not isinstance(pool, Sequence):
        raise ContractTypeError(f"few_shot's pool must be a file, rows or a function like an eval's cases, got {pool!r}")
    folder = None if data_dir is None else given_folder(data_dir)  # --data may be the cases' own file, or split
    for place, one in enumerate(pool(folder) if callable(pool) else pool):
        if isinstance(one, Case):
            if one.invalid is None:
                yield Shot(one.id, dict(row_of(one)), tuple(getattr(one, "images", ())), _origin(one))
        elif isinstance(one, Mapping):
            yield Shot(str(one["id"]) if isinstance(one.get("id"), (str, int)) else f"#{place}", one)
        else:
            raise ContractTypeError(f"few_shot's pool must hold rows (mappings) or cases, got {one!r} ({type(one).__name__})")


def _origin(case: Case) -> Any:
    return (case.file.folder, case.file.name, case.place) if isinstance(case, RowCase) else None


def _position(case: Case) -> int:
    position = getattr(case, "position", None)
    if not isinstance(position, int):
        raise ConfigError("sampler='lm_eval' draws by a case's place in its file, and this case has none; make cases with cases_from")
    return position


def _column(row: Row, name: str, whose: str = "few_shot's pool") -> Any:
    if name not in row:
        raise ConfigError(f"{whose} has no column {name!r}{did_you_mean(name, list(row)) or ';'} it has: {', '.join(row)}")
    return row[name]


def _first(order: Iterable[Shot], k: int, row: Row, origin: Any) -> list[Shot]:
    """Return the first shots that differ from each other and are not the case itself, known by its row and where it stands."""
    chosen: list[Shot] = []
    for shot in order:
        if len(chosen) == k:
            break
        if shot not in chosen and (origin is None or shot.origin != origin) and not _same(shot.row, row):
            chosen.append(shot)
    return chosen


def _same(one: Row, other: Row) -> bool:
    """Return whether two rows hold the same, in whichever files they stand."""
    values = [(one.get(name), other.get(name)) for name in {*one, *other} if name != "__file__"]
    values.sort(key=lambda pair: isinstance(pair[0], StoredBytes))  # bytes are read only where all else is equal
    return all(itertools.starmap(_same_value, values))


def _same_value(one: Any, other: Any) -> bool:
    if isinstance(one, StoredBytes) and isinstance(other, StoredBytes):
        return one.read() == other.read()
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_same_value, one, other))
    return bool(one == other)


def _balanced(classes: list[list[Shot]], k: int, draw: random.Random) -> Iterator[Shot]:
    """Yield shots so that each number of them has all classes as often, as far as they go round."""
    num_each = k // max(1, len(classes)) + 1 + _SPARE
    drawn = [draw.sample(shots, min(len(shots), num_each)) for shots in classes]
    draw.shuffle(drawn)
    yield from (shot for turn in itertools.zip_longest(*drawn) for shot in turn if shot is not None)
    yield from (shot for shots in classes for shot in shots)


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
        others = [shot for shot in drawn if not _same(shot.row, case)]
        if len(others) < self._k:
            return self._draw.sample([shot for shot in self._pool if not _same(shot.row, case)], self._k)
        return others[: self._k]
