"""Gives each process of a run its GPUs, by environment, before anything in it can touch CUDA.

A worker's mask is part of the specification that xdist starts it from, so it is set before pytest is imported there, and
a replacement, which is started from the same specification, takes over the dead one's GPUs.
"""

from __future__ import annotations

import ast
import fnmatch
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from evalharness.api.errors import ConfigError, EvalHarnessError
from evalharness.api.redaction import redactor
from evalharness.config import RunConfig
from evalharness.hardware.devices import (
    MASK,
    Card,
    auto_num_workers,
    cuda_is_initialised,
    installed_cards,
    num_cores,
    uses_cards,
    visible_cards,
    worker_cards,
)
from evalharness.pytest_plugin.options import asked_on_command_line, resolve_run_config
from evalharness.runs.run_file import read_run


def will_collect_evals(config: pytest.Config) -> bool:
    """Return whether an option of the plugin was given, or a module on the command line has an eval marker."""
    if asked_on_command_line(config):
        return True
    folder = config.invocation_params.dir
    names, skipped = config.getini("python_files"), config.getini("norecursedirs")
    paths = [folder / argument.partition("::")[0] for argument in config.args]
    return any(holds_evals(module) for path in paths for module in _modules(path, names, skipped))


def _modules(path: Path, names: Sequence[str], skipped: Sequence[str]) -> Iterator[Path]:
    if path.is_file():
        yield path
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not any(fnmatch.fnmatch(name, pattern) for pattern in skipped)]
        for name in files:
            if name.endswith(".py") and any(fnmatch.fnmatch(name, pattern) for pattern in names):
                yield Path(folder, name)


def holds_evals(module: Path) -> bool:
    """Return whether a module's own code marks the module or one of its tests as an eval. Nothing is imported."""
    try:
        source = module.read_bytes()
        if b"mark.eval" not in source:
            return False
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return False  # whatever is wrong with it, collection says
    return any(map(_marks_eval, tree.body))


def _marks_eval(node: ast.stmt) -> bool:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return any(map(_names_mark, node.decorator_list))
    if isinstance(node, ast.Assign):
        return any(isinstance(target, ast.Name) and target.id == "pytestmark" for target in node.targets) and _names_mark(node.value)
    return False


def _names_mark(tree: ast.expr) -> bool:
    """Return whether an expression contains `….mark.eval`."""
    return any(
        isinstance(node, ast.Attribute) and node.attr == "eval" and isinstance(node.value, ast.Attribute) and node.value.attr == "mark"
        for node in ast.walk(tree)
    )


_OWN_COUNT = "PYTEST_XDIST_AUTO_NUM_WORKERS"
SLOTS = pytest.StashKey[list[tuple[str, ...]]]()
"""The GPUs of each process that runs evals; absent where the environment stays as it is."""
_OWN_MASK = pytest.StashKey[pytest.MonkeyPatch]()


@pytest.hookimpl(optionalhook=True, tryfirst=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return the number of workers for `-n auto` with evals; for other tests, or if xdist's own variable is set, xdist decides."""
    if os.environ.get(_OWN_COUNT) or not will_collect_evals(config):
        return None
    run = _with_earlier_options(resolve_run_config(config))
    try:
        if run.executor == "ray":
            from evalharness.pytest_plugin.distributed.ray_workers import auto_num_workers as auto_in_cluster, cluster_of

            return auto_in_cluster(run, cluster_of(config, run))
        return auto_num_workers(run, os.environ, _installed(run), num_cores())
    except ConfigError as error:
        raise pytest.UsageError(redactor().text(str(error))) from error


def _with_earlier_options(run: RunConfig) -> RunConfig:
    """Return the options of the resumed run with those of this command line; errors in them are left to `--resume`."""
    if run.resume is None:
        return run
    try:
        then = RunConfig.from_json(read_run(Path(run.report_dir) / run.resume)["config"])
    except (ValueError, KeyError, TypeError, AttributeError, EvalHarnessError):
        return run
    given_now = {name: setting for name, setting in run.settings.items() if setting.origin.startswith(("command line", "environment"))}
    return RunConfig.from_settings({**then.settings, **given_now})


def _installed(run: RunConfig) -> list[Card]:
    return installed_cards() if uses_cards(run) else []


def plan_cards(config: pytest.Config, run: RunConfig, num_workers: int) -> None:
    """Assign GPUs to processes; too few GPUs, or CUDA initialised already, is a usage error."""
    if run.executor == "ray" or not (num_workers or run.devices) or not will_collect_evals(config):
        return
    try:
        slots = worker_cards(run, os.environ, _installed(run), num_workers)
    except ConfigError as error:
        raise pytest.UsageError(redactor().text(str(error))) from error
    if slots is None:
        return
    if cuda_is_initialised(sys.modules):
        raise pytest.UsageError(
            "CUDA was initialised before GPUs could be given out, by a conftest.py or plugin that ran CUDA code when it was imported; "
            "move that code into a fixture or a function"
        )
    config.stash[SLOTS] = slots


def take_cards(config: pytest.Config) -> tuple[str, ...] | None:
    """Limit this process, which runs evals itself, to its GPUs and return them; None if its environment stays as it is.

    `return_mask` undoes it.
    """
    if SLOTS not in config.stash:
        return None
    cards = config.stash[SLOTS][0]
    config.stash[_OWN_MASK] = patch = pytest.MonkeyPatch()
    patch.setenv(MASK, ",".join(cards))
    return cards


def return_mask(config: pytest.Config) -> None:
    """Restore the mask that was set before `take_cards`."""
    if _OWN_MASK in config.stash:
        config.stash[_OWN_MASK].undo()


def give_cards_to_workers(config: pytest.Config, specs: Sequence[Any]) -> None:
    """Write each worker's GPUs into the specification that xdist starts it from.

    Workers on other machines keep their own environment, as does a worker whose --tx sets its own mask.
    """
    if SLOTS in config.stash:
        slots = config.stash[SLOTS]
        for number, spec in enumerate(spec for spec in specs if spec.popen):
            spec.env.setdefault(MASK, ",".join(slots[number]))


def card_problem(cards: tuple[str, ...] | None, worker: str) -> str | None:
    """Return why no engine can open on this process's GPUs, once all modules are imported; None if there is no such reason."""
    if cards is None:
        return None
    mask = os.environ.get(MASK)
    if mask != ",".join(cards):
        return (
            f"{MASK} was changed to {mask!r} in process {worker}, which was given {','.join(cards)!r}, by a conftest.py or test module; "
            "take that out and choose GPUs with --devices"
        )
    if cards and cuda_is_initialised(sys.modules):
        return (
            f"CUDA was initialised in process {worker} before any engine was opened, by a conftest.py or test module that ran CUDA code "
            "when it was imported; move that code into a fixture or a function"
        )
    return None


def refuse_unplanned(config: pytest.Config, run: RunConfig, num_workers: int) -> None:
    """Refuse to run evals on GPUs that several workers share because evals were not detected before collection."""
    if run.executor == "ray" or SLOTS in config.stash or num_workers < 2 or not uses_cards(run) or will_collect_evals(config):
        return
    try:
        visible = visible_cards(os.environ, installed_cards())
    except ConfigError as error:
        raise pytest.UsageError(redactor().text(str(error))) from error
    if visible:
        numbers = ",".join(f"gpu:{number}" for number in range(len(visible)))
        raise pytest.UsageError(
            f"these evals get their marker from another module, so GPUs were not given to workers; say which to use: --devices {numbers}"
        )
