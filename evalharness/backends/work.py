"""Running sums of what a backend does: the difference of two looks is the work between them.

A decoding step costs one call, whatever its rows; nothing is done for each token.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping

SUMS = (
    # Steps that gave tokens: how many, their seconds and rows; rows whose first token came, so that the step read their prompts; steps in
    # which such rows were beside others.
    *("num_steps", "step_s", "step_rows", "new_rows", "shared_steps"),
    # Of the steps without a new row: the sums that a least-squares line of seconds by rows is made of.
    *("plain_steps", "plain_s", "plain_rows", "plain_row_squares", "plain_row_seconds"),
    # Tokens of prompts that were in a cache; patches of pictures, and the squares of each picture's number.
    *("num_kept_tokens", "num_patches", "sum_patch_squares"),
    # Seconds with room for a prompt whose pictures were not ready; from an engine's first pictures to the first token after them.
    *("picture_wait_s", "first_picture_s", "num_first_pictures"),
)


class WorkSums:
    """The sums of one backend. Kept by the thread that generates."""

    def __init__(self) -> None:
        self._sums = dict.fromkeys(SUMS, 0.0)
        self._last_s: float | None = None
        self._num_rows = 0
        self._first_picture_at: float | None = None
        self._has_pictures = False

    def read(self) -> dict[str, float]:
        """Return the sums so far."""
        return dict(self._sums)

    def start(self) -> None:
        """Note that there is something to do; nothing if there was already."""
        if self._last_s is None:
            self._last_s = time.monotonic()

    def stop(self) -> None:
        """Note that nothing is left to do: what passes from here on is no step."""
        self._last_s, self._num_rows = None, 0

    def step(self, num_rows: int, now: float) -> None:
        """Note that a step gave tokens to so many rows, at this time of the monotonic clock."""
        sums, since = self._sums, self._last_s
        num_new = max(0, num_rows - self._num_rows)
        self._last_s, self._num_rows = now, num_rows
        if since is None or num_rows == 0:
            return
        step_s = max(0.0, now - since)
        sums["num_steps"] += 1
        sums["step_s"] += step_s
        sums["step_rows"] += num_rows
        sums["new_rows"] += num_new
        sums["shared_steps"] += 0 < num_new < num_rows
        if num_new == 0:
            sums["plain_steps"] += 1
            sums["plain_s"] += step_s
            sums["plain_rows"] += num_rows
            sums["plain_row_squares"] += num_rows * num_rows
            sums["plain_row_seconds"] += num_rows * step_s
        elif self._first_picture_at is not None:
            sums["first_picture_s"] += max(0.0, now - self._first_picture_at)
            sums["num_first_pictures"] += 1
            self._first_picture_at = None

    def leave(self, num_rows: int) -> None:
        """Note that rows have ended since the last step."""
        self._num_rows = max(0, self._num_rows - num_rows)

    def keep(self, num_tokens: int | None) -> None:
        """Note that tokens of a prompt were in a cache."""
        self._sums["num_kept_tokens"] += num_tokens or 0

    def add(self, sums: Mapping[str, float]) -> None:
        """Add sums of other names, such as those of drafts (`drafting.DraftCounts`)."""
        for name, value in sums.items():
            self._sums[name] = self._sums.get(name, 0.0) + value

    def pictures(self, since: float, *, is_waited_for: bool) -> None:
        """Note that a prompt's pictures are ready, which began to be made at this time; `is_waited_for`: there was room for them."""
        if not self._has_pictures:
            self._has_pictures, self._first_picture_at = True, time.monotonic()
        if is_waited_for:
            self._sums["picture_wait_s"] += time.monotonic() - since

    def patches(self, grids: Iterable[tuple[int, int, int]]) -> None:
        """Note a prompt's pictures, each by its patches: time, height, width."""
        for frames, height, width in grids:
            self._sums["num_patches"] += frames * height * width
            self._sums["sum_patch_squares"] += frames * (height * width) ** 2  # frames do not look at each other
