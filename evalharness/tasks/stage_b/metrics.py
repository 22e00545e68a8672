"""Rates of verdicts over tickets, votes on one ticket, and decode grids. Positive means pass: the work order is released.

Two documented rates measure the two costly mistakes:

    false_release_rate = fp / (tp + fp)     share of the released orders that should not have been released
    false_block_rate   = fn / (tp + fn)     share of the orders to be released that were not

In these rates a ticket without any verdict counts as the mistake of its label: a pass order without one is blocked, a fail
order without one was not stopped. So a checkpoint cannot get good rates by writing nothing that parses. `Confusion` counts
such tickets apart, and the rates named `…_parsed` leave them out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.api.options import DecodeOptions, GenerationOptions, StopOptions
from evalharness.tasks.stage_a.data import Label


@dataclass(frozen=True)
class Confusion:
    """Tickets by label and prediction; those without any verdict are in none of the first four cells."""

    tp: int = 0
    fn: int = 0
    fp: int = 0
    tn: int = 0
    num_unparsed_pass: int = 0
    num_unparsed_fail: int = 0

    @property
    def num_tickets(self) -> int:
        """All judged tickets, without the dropped ones."""
        return self.tp + self.fn + self.fp + self.tn + self.num_unparsed

    @property
    def num_unparsed(self) -> int:
        """Tickets without any verdict: always wrong."""
        return self.num_unparsed_pass + self.num_unparsed_fail

    @property
    def num_blocked(self) -> int:
        """The documented fn (np): pass orders that were not released, by a verdict or for lack of one."""
        return self.fn + self.num_unparsed_pass

    @property
    def num_released(self) -> int:
        """The documented fp (ng): fail orders that no verdict stopped."""
        return self.fp + self.num_unparsed_fail


def confusion(judged: Iterable[tuple[str, str | None]]) -> Confusion:
    """Return the cells of (label, prediction) pairs; a prediction of None is a ticket without any verdict."""
    counts = Counter(judged)
    return Confusion(
        tp=counts["pass", "pass"],
        fn=counts["pass", "fail"],
        fp=counts["fail", "pass"],
        tn=counts["fail", "fail"],
        num_unparsed_pass=counts["pass", None],
        num_unparsed_fail=counts["fail", None],
    )


def rates(cells: Confusion) -> dict[str, float]:
    """Return accuracy and the rates, each 0–1; 0 where the denominator is 0.

    `fn_rate` and `fp_rate` are shares of all tickets, not of a class.
    """
    n, blocked, released = cells.num_tickets, cells.num_blocked, cells.num_released
    return {
        "accuracy": _share(cells.tp + cells.tn, n),
        "fn_rate": _share(blocked, n),
        "fp_rate": _share(released, n),
        "false_release_rate": _share(released, cells.tp + released),
        "false_block_rate": _share(blocked, cells.tp + blocked),
        "false_release_rate_parsed": _share(cells.fp, cells.tp + cells.fp),
        "false_block_rate_parsed": _share(cells.fn, cells.tp + cells.fn),
        "unparsed_rate": _share(cells.num_unparsed, n),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


_REQUIRED = ("temperature", "top_p", "max_new_tokens")
_OPTIONAL = ("repetition_penalty", "no_repeat_ngram_size", "seed", "stop", "max_prompt_tokens")


@dataclass(frozen=True)
class Ballot:
    """The votes on one ticket. An answer without a verdict is `num_invalid` and carries no vote."""

    num_pass: int
    num_fail: int
    num_invalid: int

    @property
    def num_valid(self) -> int:
        """How many answers carry a vote."""
        return self.num_pass + self.num_fail

    @property
    def prediction(self) -> Label | None:
        """The majority of the votes; "fail" for a tie, None without any vote."""
        if not self.num_valid:
            return None
        return "pass" if self.num_pass > self.num_fail else "fail"

    @property
    def agreement(self) -> float:
        """Share of the votes on the side that has more of them, 0.5–1; 0 without votes."""
        return max(self.num_pass, self.num_fail) / self.num_valid if self.num_valid else 0.0

    @property
    def difficulty(self) -> float:
        """1 − agreement, 0–0.5; 0.5 without votes."""
        return 1 - self.agreement if self.num_valid else 0.5

    def hard_wrong(self, label: str) -> float:
        """Return the agreement on a wrong prediction, 0 where the prediction is right."""
        return 0.0 if self.prediction == label else self.agreement


def cast(votes: Iterable[Label | None]) -> Ballot:
    """Return the ballot of the answers' verdicts, None for an answer without one; order does not matter."""
    counts = Counter(votes)
    return Ballot(counts["pass"], counts["fail"], counts[None])


def decode_grid(grid: Sequence[Mapping[str, Any]], samples_per_decode: int = 1) -> list[GenerationOptions]:
    """Return one options object per answer: every setting of the grid × samples; sample i of a setting has its seed + i.

    A setting needs temperature, top_p and max_new_tokens; repetition_penalty, no_repeat_ngram_size, seed, stop (strings)
    and max_prompt_tokens are optional. Several samples of a setting without a seed count from 0; greedy settings give one
    answer each, as more would be equal. The harness derives one seed per case from each seed. Answers are decoded with
    clean-up of spaces, as Stage-B always does.
    """
    if isinstance(samples_per_decode, bool) or not isinstance(samples_per_decode, int) or samples_per_decode < 1:
        raise ConfigError(f"samples_per_decode must be an int of at least 1, got {samples_per_decode!r}")
    if not grid:
        raise ConfigError("the decode grid is empty; give at least one setting")
    answers = []
    for place, setting in enumerate(grid):
        options = _options(f"grid[{place}]", setting)
        options.check_num_samples(f"grid[{place}]: samples_per_decode", samples_per_decode)
        if samples_per_decode == 1:
            answers.append(options)
        else:
            answers += [replace(options, seed=(options.seed or 0) + number) for number in range(samples_per_decode)]
    return answers


def _options(where: str, setting: Mapping[str, Any]) -> GenerationOptions:
    missing = [name for name in _REQUIRED if setting.get(name) is None]
    if missing:
        raise ConfigError(f"{where} lacks {', '.join(missing)}; a setting needs {', '.join(_REQUIRED)}")
    unknown = [name for name in setting if name not in (*_REQUIRED, *_OPTIONAL)]
    if unknown:
        raise ConfigError(f"{where} has an unknown {unknown[0]!r}; known: {', '.join((*_REQUIRED, *_OPTIONAL))}")
    values = {name: value for name, value in setting.items() if value is not None}
    stop = StopOptions.from_mapping({"stop": values.pop("stop", ())})
    return GenerationOptions.from_mapping({**values, "stop": stop, "decode": DecodeOptions(clean_up_tokenization_spaces=True)})
