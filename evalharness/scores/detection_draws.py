"""COCOeval's metrics of images drawn anew, for intervals: equal to pycocotools' on the drawn images, without matching boxes again.

What a box matches depends on its image alone, so COCOeval matches all once. A draw only changes how often each image counts, and all draws
are summed up together. Among boxes of one confidence, those of a copied image stand together here, and copy by copy there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_DRAWS_AT_ONCE = 64
"""Bounds the memory: a category's boxes times the draws."""
_AREAS = ("all", "small", "medium", "large")
_MOST = (1, 10, 100)
"""Boxes of an image that count, the most certain ones."""


def metrics_of_draws(scorer: Any, times: Any) -> dict[str, list[float | None]]:
    """Return COCOeval's metrics by name, a value for each draw, None where nothing drawn bears on one.

    `scorer`: a COCOeval after `evaluate()`. `times`: how often each of its images, in their order, is drawn: `(images, draws)`.
    """
    times = np.asarray(times, dtype=float)
    num_images, num_areas = len(scorer.params.imgIds), len(scorer.params.areaRng)
    precisions: dict[str, list[Any]] = {area: [] for area in _AREAS}
    recalls: dict[tuple[str, int], list[Any]] = {(area, most): [] for area in _AREAS for most in _MOST}
    for category in range(len(scorer.params.catIds)):
        for place, area in enumerate(_AREAS):
            start = (category * num_areas + place) * num_images
            boxes = _Boxes.of(scorer.evalImgs[start : start + num_images])
            if boxes is None:
                continue
            parts = [times[:, at : at + _DRAWS_AT_ONCE] for at in range(0, times.shape[1], _DRAWS_AT_ONCE)]
            precisions[area].append(np.hstack([_precision(boxes, part, scorer.params.recThrs) for part in parts]))
            for most in _MOST if area == "all" else _MOST[-1:]:
                recalls[area, most].append(_recall(boxes, times, most))
    metrics = {
        "AP": precisions["all"],
        "AP_50": [each[:1] for each in precisions["all"]],
        "AP_75": [each[5:6] for each in precisions["all"]],
    }
    metrics |= {f"AP_{area}": precisions[area] for area in _AREAS[1:]}
    metrics |= {f"AR_{most}": recalls["all", most] for most in _MOST} | {f"AR_{area}": recalls[area, _MOST[-1]] for area in _AREAS[1:]}
    return {name: _means(each, times.shape[1]) for name, each in metrics.items()}


class _Boxes(NamedTuple):
    """What COCOeval says of the boxes of one category and range of areas, by falling confidence, and of its objects."""

    hits: Any
    """Whether a box hits an object, `(thresholds, boxes)`."""
    counts: Any
    """Whether it counts, likewise."""
    images: Any
    """The image of each box."""
    ranks: Any
    """How many boxes of its image are more certain."""
    num_objects: Any
    """Of each image."""

    @classmethod
    def of(cls, found: Sequence[Any]) -> _Boxes | None:
        """Return them from COCOeval's entry of each image, which may be None; None where there is no object."""
        num_objects = np.array([0 if each is None else np.count_nonzero(np.asarray(each["gtIgnore"]) == 0) for each in found])
        known = [(image, each) for image, each in enumerate(found) if each is not None]
        if not num_objects.any():
            return None
        lengths = [len(each["dtScores"]) for _, each in known]
        order = np.argsort(-np.concatenate([each["dtScores"] for _, each in known]), kind="mergesort")
        hits, ignored = (np.concatenate([each[name] for _, each in known], axis=1)[:, order] for name in ("dtMatches", "dtIgnore"))
        counts = ignored == 0
        ranks = np.concatenate([np.arange(length) for length in lengths])[order]
        return cls((hits != 0) & counts, counts, np.repeat([image for image, _ in known], lengths)[order], ranks, num_objects)

    def num_drawn(self, times: Any) -> Any:
        """Return how many objects are drawn, `(draws,)`."""
        images = np.flatnonzero(self.num_objects)
        return self.num_objects[images] @ times[images]


def _recall(boxes: _Boxes, times: Any, most: int) -> Any:
    """Return the recall of so many boxes an image, `(thresholds, draws)`; NaN where no object is drawn."""
    num_hits = np.stack([times[boxes.images[hit]].sum(axis=0) for hit in boxes.hits & (boxes.ranks < most)])
    with np.errstate(invalid="ignore"):
        return num_hits / boxes.num_drawn(times)


def _precision(boxes: _Boxes, times: Any, recalls: Any) -> Any:
    """Return the mean precision over the given recalls `(thresholds, draws)`, NaN where no object is drawn.

    That at a recall is the highest of any box from the one that reaches it on, and only a hit can be that box.
    """
    hits, counts, num_objects = boxes.hits, boxes.counts, boxes.num_drawn(times)
    means: list[Any] = []
    drawn = so_far = None
    for place, (hit, counted) in enumerate(zip(hits, counts, strict=True)):
        is_same = place > 0 and bool((counted == counts[place - 1]).all())
        if is_same and bool((hit == hits[place - 1]).all()):
            means.append(means[-1])
            continue
        if drawn is None or so_far is None or not is_same:
            drawn = times[boxes.images[counted]]
            so_far = drawn.cumsum(axis=0)
        is_hit = hit[counted]
        found = drawn[is_hit].cumsum(axis=0)
        precision = found / (so_far[is_hit] + np.spacing(1))
        best = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
        reached = np.searchsorted(recalls, found / np.maximum(num_objects, 1), side="right")
        means.append((best * np.diff(reached, axis=0, prepend=0)).sum(axis=0) / len(recalls))
    return np.where(num_objects > 0, np.stack(means), np.nan)


def _means(values: Sequence[Any], num_draws: int) -> list[float | None]:
    """Return the means over categories and thresholds, without what is not drawn."""
    if not values:
        return [None] * num_draws
    together = np.concatenate(values)
    known = ~np.isnan(together)
    return [
        float(total / count) if count else None
        for total, count in zip(np.where(known, together, 0).sum(axis=0), known.sum(axis=0), strict=True)
    ]
