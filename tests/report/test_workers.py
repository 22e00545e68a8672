"""The table of workers in report.md."""

from __future__ import annotations

from typing import Any

import pytest

from evalharness.report.markdown import worker_sections


def worker(name: str, **more: Any) -> dict[str, Any]:
    facts = {"devices": None, "num_loads": 2, "num_swaps": 1, "num_units": 3, "load_s": 12.34, "generation_s": 1234.5, "idle_share": 0.0625}
    return {"worker": name, **facts, **more}


def cells(run: dict[str, Any]) -> list[list[str]]:
    *_, table = worker_sections(run)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]


def test_each_worker_has_a_line_with_what_it_did() -> None:
    header, _, first, second = cells({"workers": [worker("gw0", devices=["0", "1"]), worker("gw1", devices=[], idle_share=None)]})
    assert header == ["worker", "devices", "loads", "swaps", "units", "loading (s)", "generating (s)", "idle"]
    assert first == ["gw0", "0, 1", "2", "1", "3", "12.3", "1,234.5", "6.2%"]
    assert (second[1], second[-1]) == ("cpu", "-")


def test_a_process_that_was_given_no_devices_is_said_to_have_the_machines() -> None:
    assert cells({"workers": [worker("gw0"), worker("gw1")]})[2][1] == "not assigned"


@pytest.mark.parametrize("run", [{}, {"workers": []}, {"workers": [worker("main")]}, {"workers": "odd"}], ids=["old", "none", "one", "odd"])
def test_without_several_workers_there_is_no_section(run: dict[str, Any]) -> None:
    assert list(worker_sections(run)) == []


def test_what_is_missing_or_of_the_wrong_type_is_left_out() -> None:
    line = cells({"workers": [{"worker": "gw|0", "num_loads": "many", "num_units": True}, worker("gw1")]})[2]
    assert line[-6:] == ["-"] * 6
