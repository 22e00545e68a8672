"""Workers and their cards on a machine with real ones, whatever their number. Run: pytest tests/gpu/test_cards_on_gpu.py"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from evalharness.hardware.devices import MASK, installed_cards, visible_cards
from tests.backends.hf_models import make_text_checkpoint
from tests.pytest_plugin.project import HEADER, MARK, Project, Run

CARDS = installed_cards()
VISIBLE = visible_cards(os.environ, CARDS)
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
TEST = "def test_s(case, generation): pass\n"
XDIST = ("-p", "xdist", "-n")

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not VISIBLE, reason="needs an NVIDIA GPU")]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_text_checkpoint(tmp_path_factory.mktemp("cards") / "text")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path / "project")


def run(project: Project, checkpoint: Path, *arguments: str) -> Run:
    return project.run(f"--model={checkpoint}", "--max-new-tokens=8", *arguments, backend="hf", apart=True)


def openings(found: Run) -> list[dict[str, Any]]:
    return [line for line in found.journal if line["kind"] == "engine" and "how" in line]


def test_each_worker_has_a_card_of_its_own_and_a_replacement_the_dead_ones(project: Project, checkpoint: Path) -> None:
    num_cases = 64 * len(VISIBLE)
    dying = f"""
pytestmark = pytest.mark.eval(cases=lambda d: [Case(id=f"c{{i:03}}") for i in range({num_cases})], request=ask)
def test_s(case, generation):
    if case.id == "c040" and not os.path.exists("died"):
        open("died", "w").close()
        os._exit(1)
"""
    found = run(project.write(test_a=HEADER + dying), checkpoint, *XDIST, "auto")
    assert found.counts == {"pass": num_cases}, found.output
    assert found.facts["num_workers"] == len(VISIBLE)
    cards = {line["worker"]: tuple(line["devices"]) for line in openings(found)}
    first = [cards[worker] for worker in sorted(cards) if int(worker.removeprefix("gw")) < len(VISIBLE)]
    assert sorted(first) == sorted((name,) for name in VISIBLE)
    assert {one for worker, one in cards.items() if int(worker.removeprefix("gw")) >= len(VISIBLE)} <= set(first)
    assert {line["settings"]["device"] for line in openings(found)} == {"cuda:0"}


def test_more_workers_than_cards_are_refused_unless_they_share(project: Project, checkpoint: Path) -> None:
    number = str(len(VISIBLE) + 1)
    project.write(test_a=MARK + TEST)
    refused = run(project, checkpoint, *XDIST, number)
    assert (refused.exit_code, refused.opened_no_run) == (pytest.ExitCode.USAGE_ERROR, True)
    assert "--share-devices" in refused.output
    assert run(project, checkpoint, *XDIST, number, "--share-devices").counts == {"pass": 4}


@pytest.mark.skipif(not any(card.uuid for card in CARDS), reason="nvidia-smi lists no UUIDs")
def test_a_mask_of_uuids_is_handed_on_as_it_is(project: Project, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uuid = CARDS[-1].uuid
    monkeypatch.setenv(MASK, uuid)
    found = run(project.write(test_a=MARK + TEST), checkpoint, *XDIST, "auto")
    assert found.counts == {"pass": 4}, found.output
    assert [line["devices"] for line in openings(found)] == [[uuid]]


def test_a_conftest_that_has_started_cuda_is_named(project: Project, checkpoint: Path) -> None:
    project.write(conftest="import torch\ntorch.zeros(1, device='cuda')\n", test_a=MARK + TEST)
    found = run(project, checkpoint, *XDIST, "1")
    assert found.exit_code not in (0, 1)
    assert "CUDA was initialised" in found.output
