"""`evalharness init [DIR]`: writes a new project with an eval, ready to run, from the starters of the package."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalharness.api.errors import DONE, ConfigError, nearest_folder
from evalharness.api.installing import install_command
from evalharness.checkpoints.hub import folder_of, is_hub_name
from evalharness.cli.framework import PATH, command

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

STARTERS = {
    "text": "an eval of short text answers with a judge of your own",
    "json": "prompts whose JSON answers are judged field by field",
}
_SUFFIX = ".in"


def write_project(folder: Path, starter: str, *, model: Path | None = None) -> list[Path]:
    """Write a starter's files below `folder` and return their paths. Raises `ConfigError`, and writes nothing, where a file exists.

    `model` is the checkpoint that the project runs on; None means the starter's scripted answers.
    """
    targets = {folder / name: content for name, content in _files(starter, folder, model)}
    taken = [path for path in targets if os.path.lexists(path)]
    if taken:
        listed = ", ".join(map(str, taken[:5]))
        raise ConfigError(f"{listed} {'exists' if len(taken) == 1 else 'exist'} already, and nothing is overwritten; give an empty folder")
    try:
        for path, content in targets.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(content)
    except OSError as error:
        raise ConfigError(f"{error.filename or folder} cannot be written: {error.strerror}; give another folder") from error
    return list(targets)


def _from_folder(model: Path, folder: Path) -> str:
    return str(model) if is_hub_name(str(model), Path()) else os.path.relpath(model.absolute(), folder.absolute())


def _files(starter: str, folder: Path, model: Path | None) -> Iterator[tuple[str, str]]:
    """Yield name and content of each file."""
    values = {
        "@BACKEND@": json.dumps("fake" if model is None else "hf"),
        "@MODEL@": json.dumps("answers.jsonl" if model is None else _from_folder(model, folder), ensure_ascii=False),
        "@INSTALL@": install_command("vllm"),
        "@WITH@": "runs at once, on the scripted answers in answers.jsonl"
        if model is None
        else "runs on the checkpoint that pyproject.toml names",
    }
    for name, template in _templates(files("evalharness.cli.starters").joinpath(starter), ""):
        content = template.read_text("utf-8")
        for mark, value in values.items():
            content = content.replace(mark, value)
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
    help="; ".join(f"{name}: {what}" for name, what in STARTERS.items()) + " (default: text)",
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
    print(*write_project(folder, template, model=model), sep="\n")
    go = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    print(f"\nnow run: {go}pytest evals")
    return DONE
