"""A short campaign: each fault strikes a run once, without workers, and the rows stay those of an undisturbed run."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from benchmarks.fault_campaign.campaign import Campaign
from benchmarks.fault_campaign.faults import FAULTS

pytestmark = pytest.mark.slow


def test_each_fault_strikes_once_and_nothing_is_lost_scored_or_left_behind(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path / "campaign", "fake", ["alone"], FAULTS, seed=7, kept=tmp_path / "problems")
    tally = campaign.run(len(FAULTS), time.monotonic() + 600)
    assert tally.problems == []
    struck = [strike.fault for strike in tally.strikes]
    assert len(struck) == len(FAULTS)
    assert {*struck, "disk"} == set(FAULTS), "a disk of its own needs the right to mount one"
