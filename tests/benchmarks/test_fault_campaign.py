"""A short campaign: each fault strikes a run once, without workers, and the rows stay those of an undisturbed run."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from benchmarks.fault_campaign.campaign import Campaign
from benchmarks.fault_campaign.faults import FAULTS, Faults

pytestmark = pytest.mark.slow


def test_each_fault_strikes_once_and_nothing_is_lost_scored_or_left_behind(tmp_path: Path) -> None:
    campaign = Campaign(tmp_path / "campaign", "fake", ["alone"], FAULTS, seed=7, kept=tmp_path / "problems")
    tally = campaign.run(len(FAULTS), time.monotonic() + 600)
    assert tally.problems == []
    struck = [strike.fault for strike in tally.strikes]
    assert len(struck) == len(FAULTS)
    assert {*struck, "disk"} == set(FAULTS), "a disk of its own needs the right to mount one"


def test_a_disk_that_something_else_has_filled_stops_the_campaign_and_says_what_lies_there(tmp_path: Path) -> None:
    faults = Faults(tmp_path, random.Random(1))
    with faults.mounted() as is_mounted:
        if not is_mounted:
            pytest.skip("no right to mount a small disk")
        faults.check_room()
        (faults.disk / "forgotten").write_bytes(bytes(9 << 20))
        with pytest.raises(OSError, match=r"bytes free, 8,388,608 are needed for a run; there lie \{.*'forgotten': 9437184"):
            faults.check_room()
