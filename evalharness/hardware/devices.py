"""Which GPUs a run may use and which worker gets which, as plain functions. Initialises no CUDA and imports no torch.

Cards are named as CUDA_VISIBLE_DEVICES names them: by index, by UUID, or, for a part of a card, by MIG UUID. A user's names
are handed on as they are, so that nothing depends on the order in which CUDA counts cards. NVIDIA cards only.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from evalharness.api.errors import ConfigError
from evalharness.backends import AUTO
from evalharness.config import RunConfig
from evalharness.config.checks import possible_backends

MASK = "CUDA_VISIBLE_DEVICES"
"""The variable that says which cards CUDA sees; it counts when CUDA starts, and never again."""
_LISTING_TIMEOUT_S = 60
CORES_PER_WORKER = 8
"""Cores that one transformers process uses well on a CPU: it batches by itself, and each further process has its own weights."""


@dataclass(frozen=True)
class Card:
    """One card of this machine. `parts` are the UUIDs of its MIG devices; a card that is divided is used by its parts only."""

    index: int
    uuid: str = ""
    parts: tuple[str, ...] = ()


def installed_cards() -> list[Card]:
    """Return this machine's cards as nvidia-smi lists them, without it as /dev does (in a container only those it was given)."""
    if shutil.which("nvidia-smi") is not None:
        try:
            done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=_LISTING_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            done = None
        if done is not None and done.returncode == 0:
            return parse_listing(done.stdout)
    return [Card(index) for index, _ in enumerate(sorted(Path("/dev").glob("nvidia[0-9]*")))]


def parse_listing(listing: str) -> list[Card]:
    """Return the cards that `nvidia-smi -L` lists, each followed by its MIG devices."""
    cards: list[Card] = []
    for line in listing.splitlines():
        if card := re.match(r"GPU (\d+): .*\(UUID: (\S+)\)", line):
            cards.append(Card(int(card[1]), card[2]))
        elif (part := re.match(r"\s+MIG .*\(UUID: (\S+)\)", line)) and cards:
            cards[-1] = Card(cards[-1].index, cards[-1].uuid, (*cards[-1].parts, part[1]))
    return cards


def visible_cards(env: Mapping[str, str], installed: Sequence[Card]) -> list[str]:
    """Return the names of the cards that CUDA would see, in its order; an empty mask, or -1, hides them.

    Raises `ConfigError` for a mask that names what is not there, or one card twice: CUDA would silently see fewer, or none.
    """
    mask = env.get(MASK)
    if not installed:
        return []
    if mask is None:
        return [name for card in installed for name in (card.parts or (str(card.index),))]
    names: list[str] = []
    known: list[str] = []
    for name in (part.strip() for part in mask.split(",")):
        if name in ("", "-1"):  # ends the list, as in CUDA
            break
        found = _find(name, installed)
        if found is None:
            there = ", ".join(f"{card.index} ({card.uuid})" if card.uuid else str(card.index) for card in installed)
            raise ConfigError(f"{MASK}={mask} names {name!r}, which this machine does not have; its GPUs: {there}")
        if found in known:
            raise ConfigError(f"{MASK}={mask} names one GPU twice ({name!r}), and CUDA then sees none; name each once")
        names.append(name)
        known.append(found)
    return names


def _find(name: str, installed: Sequence[Card]) -> str | None:
    """Return what a name of the mask means, the same for all names of a card; None where it is not there."""
    if name.isdecimal():
        return next((f"card {card.index}" for card in installed if card.index == int(name)), None)
    if name.startswith("MIG-"):
        parts = [part for card in installed for part in card.parts]
        # Older drivers name a part by its card's UUID and two numbers; such a name is taken on trust.
        return name if "/" in name or not parts else next((part for part in parts if part.startswith(name)), None)
    uuids = [card for card in installed if card.uuid]
    if name.startswith("GPU-") and not uuids:
        return name  # nothing here lists UUIDs
    matching = [card for card in uuids if card.uuid.startswith(name)]
    return f"card {matching[0].index}" if len(matching) == 1 else None


def uses_cards(run: RunConfig) -> bool:
    """Return whether any engine of the run would run on a GPU if there was one."""
    on_cuda = run.device is None or run.device.startswith("cuda")
    return run.devices != "cpu" and any(name == "vllm" or (name in ("hf", "max") and on_cuda) for name in possible_backends(run))


def cards_per_engine(run: RunConfig) -> int:
    """Return how many cards an engine of the run needs together; they must be visible to it as one mask.

    1 where an engine's cards may be those of other hosts: then one engine takes all that is here, and vLLM counts.
    """
    if "vllm" not in possible_backends(run) or spans_hosts(run):
        return 1
    return int(run.tensor_parallel_size) * int(run.pipeline_parallel_size)


def spans_hosts(run: RunConfig) -> bool:
    """Return whether the GPUs of vLLM's engine may be those of other hosts, so that they cannot be counted here."""
    if "vllm" not in possible_backends(run):
        return False
    return run.distributed_executor_backend in ("ray", "external_launcher") or int(dict(run.engine_option).get("nnodes") or 1) > 1


def _chosen(run: RunConfig, visible: Sequence[str]) -> list[str]:
    if run.devices is None:
        return list(visible)
    numbers = [int(part.removeprefix("gpu:")) for part in run.devices.split(",")]
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"--devices {run.devices} names a GPU twice; name each once")
    if missing := [number for number in numbers if number >= len(visible)]:
        there = f"gpu:0 to gpu:{len(visible) - 1} ({MASK} order)" if visible else "none; leave --devices out or give --devices cpu"
        raise ConfigError(f"--devices {run.devices}: there is no gpu:{missing[0]}; visible GPUs: {there}")
    return [visible[number] for number in numbers]


def worker_cards(run: RunConfig, env: Mapping[str, str], installed: Sequence[Card], num_workers: int) -> list[tuple[str, ...]] | None:
    """Return the cards of each worker, () for none; None where the environment is to stay as it is.

    `num_workers` 0 is a run in one process, which keeps all cards that were chosen. Raises `ConfigError` where there are too
    few cards, unless they may be shared.
    """
    if run.devices == "cpu":
        return [()] * max(1, num_workers)
    if not uses_cards(run):
        return None
    cards = _chosen(run, visible_cards(env, installed))
    if not cards or (num_workers == 0 and run.devices is None):
        return None
    needed = cards_per_engine(run)
    if needed > len(cards):
        sizes = f"--tensor-parallel-size {run.tensor_parallel_size}"
        if run.pipeline_parallel_size != 1:
            sizes += f" with --pipeline-parallel-size {run.pipeline_parallel_size}"
        raise ConfigError(f"{sizes} needs {needed} GPUs, but {_listed(cards)} may be used; lower it")
    if spans_hosts(run) and num_workers > 1:
        raise ConfigError(f"{num_workers} workers would share an engine that spans hosts; give -n 1, or leave -n out")
    if num_workers == 0 or spans_hosts(run):
        return [tuple(cards)]
    if run.device is not None and run.device not in ("cuda", "cuda:0"):
        raise ConfigError(
            f"--device {run.device} with -n: each worker has its own GPUs, the first of which it calls cuda:0; "
            f"choose GPUs with --devices gpu:{run.device.rpartition(':')[2]}"
        )
    num_slots = len(cards) // needed
    if num_workers > num_slots and not run.share_devices:
        raise ConfigError(
            f"{num_workers} workers need {num_workers * needed} GPUs, but {_listed(cards)} may be used; give -n {num_slots} or -n auto, "
            "or let workers share GPUs with --share-devices (vLLM then also needs a lower --gpu-memory-utilization)"
        )
    return [tuple(cards[slot * needed : (slot + 1) * needed]) for slot in (worker % num_slots for worker in range(num_workers))]


def _listed(cards: Sequence[str]) -> str:
    return f"{len(cards)} ({', '.join(cards)})"


def auto_num_workers(run: RunConfig, env: Mapping[str, str], installed: Sequence[Card], num_cores: int) -> int | None:
    """Return how many workers `-n auto` starts: one per GPU, or group of GPUs, that an engine needs; None: what xdist thinks.

    On a CPU an engine takes all cores by itself, so there is one of vLLM (which binds its threads to cores), and one of
    transformers for every eight cores. A backend without weights is for xdist to count.
    """
    if spans_hosts(run):
        return 1
    if uses_cards(run) and (cards := _chosen(run, visible_cards(env, installed))):
        return max(1, len(cards) // cards_per_engine(run))
    real = {*possible_backends(run)} - {"fake"}
    if AUTO in run.backend and "hf" in real:
        real -= {"vllm"}  # what auto takes on a CPU
    if not real:
        return None
    return 1 if "vllm" in real else max(1, num_cores // CORES_PER_WORKER)


def cuda_is_initialised(modules: Mapping[str, Any]) -> bool:
    """Return whether this process has started CUDA with torch; `modules` are the loaded ones, torch is not loaded for it."""
    cuda = getattr(modules.get("torch"), "cuda", None)
    return cuda is not None and bool(cuda.is_initialized())


def num_cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
