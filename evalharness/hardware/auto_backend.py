"""The backend that `--backend auto` takes for a checkpoint, and why: one that really works on this machine. Imports no engine itself.

On a GPU vLLM comes first: there it is 20 times as fast as transformers (a 4B model on an H100: 17,200 against 742 tokens/s). On a CPU
transformers comes first: vLLM is 1.3 times as fast there (SmolLM2-135M, 64 chats: 41 against 54 s), but starts in 28 s. A backend that
cannot be imported, or does not know the checkpoint's architecture, is skipped. Servers, MAX and scripts must be named.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from evalharness.api.errors import CheckpointError
from evalharness.api.options import ModelLoadConfig
from evalharness.checkpoints.gguf import gguf_file_of, read_gguf
from evalharness.checkpoints.hub import located
from evalharness.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evalharness.config.checks import CANDIDATES, BackendConstraints
from evalharness.hardware.devices import installed_cards, visible_cards

_TIMEOUT_S = 300
_MARK = "evalharness-probe:"
"""`MARK` of backends/probe.py, which is not imported here: it belongs to another process."""


@dataclass(frozen=True)
class Probed:
    """What came of importing a backend, in seconds. `problem` says why it cannot be used; then there are neither facts nor refusals.

    `refusals`: by folder of weights why it cannot be taken, None where it can.
    """

    took_s: float
    problem: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    refusals: Mapping[str, str | None] = field(default_factory=dict)


def weights_folder(info: CheckpointInfo) -> str:
    """Return the folder that a backend would load: of an adapter its base's."""
    return str(info.path if info.base is None else info.base.path)


def probe_backend(name: str, infos: Iterable[CheckpointInfo]) -> Probed:
    """Return what a backend's probe found: some seconds, as libraries are really imported."""
    command = [sys.executable, "-m", "evalharness.backends.probe", name, *dict.fromkeys(map(weights_folder, infos))]
    started = time.monotonic()
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return Probed(_TIMEOUT_S, f"its import took longer than {_TIMEOUT_S} s")
    took_s = time.monotonic() - started
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        if line.startswith(_MARK):
            answer = json.loads(line.removeprefix(_MARK))
            return Probed(took_s, None, answer["facts"], answer["checkpoints"])
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"its import ended with exit code {done.returncode}"]
    return Probed(took_s, re.sub(r"^evalharness\.api\.errors\.\w+: ", "", lines[-1]))


_LIBRARIES = {"vllm": "vllm", "hf": "transformers"}
_BLIND = "it was built without CUDA, or sees no GPU"


@dataclass(frozen=True)
class Chosen:
    """A backend and, in words, why it was taken."""

    backend: str
    why: str


def choose_backends(
    constraints: BackendConstraints,
    infos: Sequence[CheckpointInfo | None],
    *,
    has_cards: bool,
    probe: Callable[[str, Sequence[CheckpointInfo]], Probed] = probe_backend,
) -> list[Chosen]:
    """Return the backend for each checkpoint; None stands for any. Raises `CheckpointError`, with every reason, where none can take one.

    `has_cards`: whether the run may use a GPU. Each backend that comes into question is imported once, in a process of its own; none
    where options leave one only.
    """
    if len(constraints.candidates) == 1:
        verb = "is" if len(constraints.narrowed_by) == 1 else "are"
        only = Chosen(constraints.candidates[0], f"{' and '.join(constraints.narrowed_by)} {verb} honoured by it alone")
        return [only] * len(infos)
    on_card = has_cards and constraints.cpu is None
    order = CANDIDATES if on_card else CANDIDATES[::-1]
    where = "there is a GPU" if on_card else f"it is to run on the CPU ({constraints.cpu})" if constraints.cpu else "there is no GPU"
    probed = cache(lambda name: probe(name, [info for info in infos if info is not None]))
    return [_choose(info, order, where, probed, needs_card=on_card) for info in infos]


def choose_backend(config: ModelLoadConfig) -> Chosen:
    """Return the backend for one checkpoint that is not part of a run. Raises `CheckpointError` where none can take it."""
    config = located(config)
    of_hf = [name for name in ("device", "device_map", "attn_implementation") if getattr(config, name) is not None]
    cpu = "device cpu" if str(config.device).startswith("cpu") else None
    constraints = BackendConstraints(("hf",), tuple(of_hf), cpu) if of_hf else BackendConstraints()
    info = inspect_checkpoint(
        config.adapter_path or config.model_name_or_path,
        trust_remote_code=config.trust_remote_code,
        allow_pickle=config.allow_pickle,
        base_model=Path(config.model_name_or_path) if config.adapter_path else None,
    )
    return choose_backends(constraints, [info], has_cards=bool(visible_cards(os.environ, installed_cards())))[0]


def _choose(info: CheckpointInfo | None, order: Sequence[str], where: str, probed: Callable[[str], Probed], *, needs_card: bool) -> Chosen:
    passed_over: dict[str, str] = {}
    for name in order:
        problem = _problem(name, info, probed(name))
        if problem is None and needs_card and not probed(name).facts.get("num_cards"):
            problem = _BLIND
        if problem is None:
            return Chosen(name, _reason(name, info, where, probed(name), passed_over))
        passed_over[name] = problem
    for name, problem in reversed(passed_over.items()):  # hf first, as on a CPU
        if problem == _BLIND:
            return Chosen(name, _reason(name, info, "there is a GPU that nothing here can use", probed(name), passed_over))
    reasons = "; ".join(f"{name}: {problem}" for name, problem in passed_over.items())
    raise CheckpointError(f"--backend auto found nothing here that can take {'a checkpoint' if info is None else info.path}: {reasons}")


def _problem(name: str, info: CheckpointInfo | None, probed: Probed) -> str | None:
    """Return why a backend cannot take a checkpoint here, None where it can."""
    if probed.problem is not None:
        return f"it cannot be used ({probed.problem})"
    if info is None:
        return None
    refusal = probed.refusals.get(weights_folder(info))
    if refusal is not None:
        return refusal
    if name == "hf" and info.adapter is not None and find_spec("peft") is None:
        return "adapters need peft, which is not installed"
    if info.variant == "vlm" and probed.facts.get("torchvision_problem"):
        return f"torchvision cannot be imported, so image requests cannot run ({probed.facts['torchvision_problem']})"
    return None


def _reason(name: str, info: CheckpointInfo | None, where: str, probed: Probed, passed_over: Mapping[str, str]) -> str:
    library = f"{_LIBRARIES[name]} {probed.facts.get(_LIBRARIES[name], '')}"
    runs = f"{where}, and {library} {'works' if info is None else f'runs {architecture_of(info)}'}"
    return "; ".join([runs, *(f"not {other}: {problem}" for other, problem in passed_over.items() if other != name)])


def architecture_of(info: CheckpointInfo) -> str:
    """Return the classes that config.json names, else the kind of model; of a GGUF file its family."""
    gguf_file = gguf_file_of(weights_folder(info))
    if gguf_file is not None:
        return f"GGUF files of {read_gguf(gguf_file).architecture}"
    config = json.loads((Path(weights_folder(info)) / "config.json").read_bytes())
    return ", ".join(config.get("architectures") or [str(config.get("model_type"))])
