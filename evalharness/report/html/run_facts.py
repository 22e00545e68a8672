"""What a page says of the run itself: options with their origins, what ran where, and how one case is run again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from evalharness.report.collecting import mapping, text_of
from evalharness.report.settings import run_facts, value_text
from evalharness.report.tables import records
from evalharness.runs.command_line import HIDDEN

__all__ = ["option_lines", "rerun_commands", "run_facts"]

# Options that say where and how much was run, not what a case was asked.
_NOT_OF_A_CASE = (
    "backend",
    "model",
    "dtype",
    "limit",
    "shard",
    "spot",
    "run_id",
    "resume",
    "report_dir",
    "report_html",
    "baseline",
    "wait",
)
_NOR_THESE = ("devices", "share_devices", "hang_timeout")
_SECRET = re.compile(r"(?:^|_)(?:keys?|token|secrets?|password|passwd|credentials?|auth\w*)$", re.IGNORECASE)


def option_lines(run: Mapping[str, Any]) -> tuple[list[tuple[str, str, str]], list[tuple[str, str, str]]]:
    """Return name, value and origin of the options that were set, and of those that have their default.

    No option holds a secret; one whose name says that it does is shown without its value all the same.
    """
    chosen: list[tuple[str, str, str]] = []
    default: list[tuple[str, str, str]] = []
    for name, option in mapping(run.get("config")).items():
        entry = mapping(option)
        origin = text_of(entry.get("origin")) or "default"
        value = HIDDEN if _SECRET.search(name) and entry.get("value") is not None else value_text(entry.get("value"))
        (default if origin == "default" else chosen).append((name, value, origin))
    return chosen, default


def rerun_commands(run: Mapping[str, Any]) -> dict[str, str]:
    """Return, by engine, what stands behind `pytest NODEID` to ask one case again, quoted for a shell: the engine, and what was set."""
    settings = list(_set_for_cases(run))
    commands: dict[str, str] = {}
    for engine in records(dict(run), "engines"):
        parts = ["--model", text_of(engine.get("checkpoint_path")), "--backend", text_of(engine.get("backend"))]
        if engine.get("dtype"):
            parts += ["--dtype", text_of(engine["dtype"])]
        commands[text_of(engine.get("id"))] = shlex.join([*parts, *settings])
    return commands


def _set_for_cases(run: Mapping[str, Any]) -> Iterator[str]:
    for name, option in mapping(run.get("config")).items():
        entry = mapping(option)
        value, origin = entry.get("value"), text_of(entry.get("origin"))
        given = origin.startswith(("command line", "environment"))
        if not given or value is None or name in (*_NOT_OF_A_CASE, *_NOR_THESE) or _SECRET.search(name):
            continue
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            yield flag if value else flag.replace("--", "--no-", 1)
        elif isinstance(value, (str, int, float)):
            yield from (flag, str(value))
        elif isinstance(value, list):
            yield from (word for part in value for word in (flag, text_of(part)))
