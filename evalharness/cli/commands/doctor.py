"""`evalharness doctor [CHECKPOINT…]`: what works here, what does not, and what to do about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

from evalharness.api.errors import ConfigError
from evalharness.api.exit_codes import DONE, NOT_PASSED
from evalharness.cli.framework import command
from evalharness.cli.run_options import project_root

__all__ = ["doctor"]


@command(
    "doctor",
    examples=[
        "evalharness doctor",
        "evalharness doctor runs/sft-42 fixtures/checkpoints/lora-helps --backend vllm",
        "evalharness doctor --json",
    ],
    exit_codes={DONE: "no problem found; there may be warnings", NOT_PASSED: "a problem found"},
)
@click.argument("checkpoints", nargs=-1, metavar="[CHECKPOINT…]")
@click.option(
    "--backend",
    "backends",
    multiple=True,
    metavar="NAME",
    help="A backend that must work, or auto; may be given several times (default: any real one)",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object (default: for people)")
def doctor(checkpoints: Sequence[str], backends: Sequence[str], as_json: bool) -> int:
    """Look at machine, project, checkpoints and backends: what works, what does not and why.

    CHECKPOINT is a checkpoint, a LoRA adapter, the folder of a training run, or a pattern: says what it is, whether each backend can
    take it, and which one --backend auto takes. Backends are really imported, each in a process of its own, which takes some seconds; no
    weights are loaded.
    """
    from evalharness.api.redaction import redactor
    from evalharness.backends import AUTO, known_backends, unknown_backend
    from evalharness.cli.commands.diagnosis import diagnose
    from evalharness.cli.commands.doctor_terminal import print_check
    from evalharness.report.console import open_console
    from evalharness.report.wording import plural

    for name in backends:
        if name not in (*known_backends(), AUTO):
            raise ConfigError(f"--backend {unknown_backend(name, AUTO)}")
    console, found, section = open_console(), [], ""
    for check in diagnose(checkpoints, project_root(Path.cwd()), backends=backends):
        found.append(check)
        if not as_json:
            print_check(console, check, new_section=check.section != section)
            section = check.section
    problems = [check for check in found if check.status == "problem"]
    if as_json:
        print(redactor().json_line(json.dumps({"ok": not problems, "checks": [check.to_json() for check in found]}, indent=1)))
    else:
        num_warnings = sum(check.status == "warning" for check in found)
        print(f"{plural(len(problems), 'problem')}, {plural(num_warnings, 'warning')}")
    return NOT_PASSED if problems else DONE
