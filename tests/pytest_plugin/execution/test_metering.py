"""What is measured of an engine's work, by difference, and what is noted of the GPUs and the model that it depends on."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from evalharness.backends.work import WorkSums
from evalharness.engine.engine import Engine
from evalharness.pytest_plugin.execution.metering import EngineMeter, cards_of, cost_of

CHECKPOINT = Path(__file__).parents[3] / "fixtures" / "checkpoints" / "final"


@dataclass
class Card:
    """A card whose counter can be set."""

    name: str = "NVIDIA H200"
    joules: float | None = 0.0
    shares: list[float | None] = field(default_factory=list)

    def energy_j(self) -> float | None:
        return self.joules

    def busy(self) -> float | None:
        return self.shares.pop(0) if self.shares else None


def meter(work: WorkSums, *cards: Card) -> EngineMeter:
    made = EngineMeter()
    made.attach(cast("Engine", SimpleNamespace(work=work.read)), cast("Any", cards))
    made.restart()
    return made


def test_work_and_energy_are_those_since_the_last_look() -> None:
    work, card, other = WorkSums(), Card(joules=100.0), Card(joules=50.0)
    work.keep(3)
    measured = meter(work, card, other)
    work.keep(4)
    card.joules, other.joules = 130.0, 55.0
    assert measured.take() == {"num_kept_tokens": 4.0, "energy_j": 35.0}
    assert measured.take() == {}


def test_energy_of_cards_that_do_not_tell_is_not_known() -> None:
    measured = meter(WorkSums(), Card(joules=None), Card(joules=5.0))
    assert measured.take() == {}


def test_use_is_looked_at_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    measured = meter(WorkSums(), Card(shares=[0.25, 0.75, None, 1.0]))
    for now[0] in (100.0, 100.5, 101.1, 102.2):
        measured.look()
    assert measured.take() == {"busy_looks": 2.0, "busy_sum": 1.0}


def test_a_process_without_an_engine_measures_nothing() -> None:
    measured = EngineMeter()
    measured.restart()
    measured.look()
    assert measured.take() == {}


@pytest.mark.parametrize(
    ("facts", "given", "names", "why"),
    [
        ({"device": "cuda", "arguments": {"tensor_parallel_size": 2}}, ("2", "3", "5"), ["2", "3"], ""),
        ({"device": "cuda:1"}, ("2", "3"), ["3"], ""),
        ({"device": "cuda"}, None, ["6"], ""),
        ({"device": "cpu"}, ("2",), [], "it ran on cpu"),
        ({"device": "cuda:1"}, ("2",), [], "the driver (NVML) does not tell which GPU it is"),
        ({"device": "cuda:0", "device_map": {"": 0}}, ("2",), [], "its layers are spread over devices"),
        ({}, ("2",), [], "the backend does not say what it runs on"),
    ],
)
def test_an_engine_has_the_first_of_its_process_cards(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], given: tuple[str, ...] | None, names: list[str], why: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6, 7")
    monkeypatch.setattr("evalharness.hardware.nvml.nvml_cards", lambda names: [Card(name) for name in names or ()])
    cards, problem = cards_of(facts, given)
    assert ([card.name for card in cards], problem) == (names, why)


def test_what_the_limit_depends_on_is_noted_or_why_it_is_not_known() -> None:
    spec = cast("Any", SimpleNamespace(base_path=None, checkpoint_path=str(CHECKPOINT)))
    facts = {"dtype": "float32", "max_num_seqs": 256, "num_kv_blocks": 100, "kv_block_size": 16}
    cost = cost_of(spec, facts, cast("Any", [Card(), Card()]), "")
    assert (cost["card"], cost["num_cards"], cost["rows_at_once"], cost["kv_tokens"]) == ("NVIDIA H200", 2, 256, 1600)
    assert cost["shape"]["dtype"] == "float32"
    mixed = cost_of(spec, {**facts, "arguments": {"quantization": "fp8"}}, cast("Any", [Card(), Card("NVIDIA L4")]), "")
    assert mixed["card_unknown"] == "its GPUs differ"
    assert "packed" in mixed["shape_unknown"]
    none = cost_of(cast("Any", SimpleNamespace(base_path=None, checkpoint_path="echo")), {}, [], "it ran on cpu")
    assert (none["card_unknown"], none["shape_unknown"]) == ("it ran on cpu", "it has no config.json")


@pytest.mark.parametrize(
    ("given", "order", "found"),
    [(["0"], None, []), (None, None, []), (["0"], "PCI_BUS_ID", ["NVIDIA H200"]), (["GPU-1"], None, ["NVIDIA H200"])],
    ids=["number", "all", "same order", "uuid"],
)
def test_a_number_names_no_gpu_of_a_host_where_they_differ(
    monkeypatch: pytest.MonkeyPatch, given: list[str] | None, order: str | None, found: list[str]
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("CUDA_DEVICE_ORDER", raising=False)
    if order is not None:
        monkeypatch.setenv("CUDA_DEVICE_ORDER", order)
    installed = [Card(), Card("NVIDIA A10")]
    monkeypatch.setattr("evalharness.hardware.nvml.nvml_cards", lambda names: installed if names is None else installed[: len(names)])
    cards, problem = cards_of({"device": "cuda"}, given)
    assert [card.name for card in cards] == found
    assert ("CUDA_DEVICE_ORDER=PCI_BUS_ID" in problem) is (not found)
