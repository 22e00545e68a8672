"""The campaign of benchmarks/noise_false_alarms.py in small: the same seed, the same runs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.noise_false_alarms import Checkpoint, false_alarms, found


def test_a_drop_is_found_and_noise_is_none(tmp_path: Path) -> None:
    checkpoint = Checkpoint("groups", num_cases=120, near_ties=0.1, seed=3)
    known, unknown = false_alarms(checkpoint, 3, 3, 40, tmp_path)
    assert (known.runs, known.by_any) == (3, 0)
    assert sum(known.floors) > 0 == sum(unknown.floors)
    assert known.thresholds <= unknown.thresholds
    share, stated = found(checkpoint, 0.35, 2, 3, 40, tmp_path)
    assert share == 1.0
    assert stated > 0.9
