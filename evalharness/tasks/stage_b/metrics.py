"""What verdicts are worth, over tickets. Positive means pass: the work order is released.

Two documented rates look at the two costly mistakes, over the share that each concerns:

    false_release_rate = fp / (tp + fp)     of what was released, how much should not have been
    false_block_rate   = fn / (tp + fn)     of what should have been released, how much was not

In the rates a ticket without any verdict counts as the mistake of its side: a pass order without one is blocked, and a
fail order without one is no proof of a check. So a checkpoint cannot get good rates by writing nothing that parses. The
cells of `Confusion` keep such tickets apart, and the rates named `…_parsed` leave them out.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from evalharness.tasks.stage_a.data import Label

__all__ = ["Confusion", "confusion", "rates"]


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
        """All tickets that were asked; dropped ones are not among them."""
        return self.tp + self.fn + self.fp + self.tn + self.num_unparsed

    @property
    def num_unparsed(self) -> int:
        """Tickets without any verdict: always wrong."""
        return self.num_unparsed_pass + self.num_unparsed_fail

    @property
    def num_blocked(self) -> int:
        """The documented fn (np): pass orders that were not released, whether by a verdict or for want of one."""
        return self.fn + self.num_unparsed_pass

    @property
    def num_released(self) -> int:
        """The documented fp (ng): fail orders that no verdict stopped."""
        return self.fp + self.num_unparsed_fail

    @property
    def fn_over_tp(self) -> float:
        """Orders blocked wrongly per order released rightly; infinite where none was released rightly, 0 where there is neither."""
        return _over(self.num_blocked, self.tp)

    @property
    def fp_over_tp(self) -> float:
        """Orders released wrongly per order released rightly, likewise."""
        return _over(self.num_released, self.tp)


def confusion(judged: Iterable[tuple[Label, Label | None]]) -> Confusion:
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
    """Return accuracy and the rates, each 0–1; a rate of nothing is 0.

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


def _over(part: int, whole: int) -> float:
    if whole:
        return part / whole
    return math.inf if part else 0.0
