"""`evalharness init [DIR]`: a new project with an eval of one's own, ready to run."""

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
from evalharness.cli.framework import command

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

__all__ = ["STARTERS", "init", "write_project"]


# A new project with an eval of one's own, from the starters of the package

STARTERS = {
    "text": "an eval with a judge of your own, of short text answers",
    "json": "prompts of your own whose answers are JSON, judged field by field",
}
_SUFFIX = ".in"


def write_project(folder: Path, starter: str, *, model: Path | None = None) -> list[Path]:
    """Write a starter's files below `folder` and return their paths. `ConfigError`, and nothing written, where one is there already.

    `model` is the checkpoint that the project runs on; None: the scripted answers that the starter brings.
    """
    targets = {folder / name: content for name, content in _files(starter, folder, model)}
    taken = [path for path in targets if os.path.lexists(path)]
    if taken:
        listed = ", ".join(map(str, taken[:5]))
        raise ConfigError(f"{listed} {'is' if len(taken) == 1 else 'are'} there already, and nothing is overwritten; give an empty folder")
    try:
        for path, content in targets.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8", newline="\n") as file:
                file.write(content)
    except OSError as error:
        raise ConfigError(f"{error.filename or folder} cannot be written: {error.strerror}; give a folder that can") from error
    return list(targets)


def _files(starter: str, folder: Path, model: Path | None) -> Iterator[tuple[str, str]]:
    """Yield name and content of each file."""
    values = {
        "@BACKEND@": json.dumps("fake" if model is None else "hf"),
        "@MODEL@": json.dumps(
            "answers.jsonl" if model is None else os.path.relpath(model.absolute(), folder.absolute()), ensure_ascii=False
        ),
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
@click.argument("folder", metavar="[DIR]", default=Path(), type=click.Path(path_type=Path))
@click.option(
    "--template",
    default="text",
    type=click.Choice(list(STARTERS)),
    help="; ".join(f"{name}: {what}" for name, what in STARTERS.items()) + " (default: text)",
)
@click.option(
    "--model", type=click.Path(path_type=Path), metavar="PATH", help="Checkpoint that the project runs on (default: none, scripted answers)"
)
def init(folder: Path, template: str, model: Path | None) -> int:
    """Write a new project with an eval of your own, ready to run.

    DIR is made if it is not there (default: the current folder). Nothing that is there is overwritten.
    """
    if model is not None and not model.is_dir():
        raise ConfigError(f"--model {model} is no folder; the nearest that exists is {nearest_folder(model)}")
    for path in write_project(folder, template, model=model):
        print(path)
    go = "" if folder.resolve() == Path.cwd() else f"cd {shlex.quote(str(folder))} && "
    print(f"\nnow run: {go}pytest evals")
    return DONE
