"""`evalharness init [DIR]`: a new project with an eval of one's own, ready to run."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from evalharness.api.errors import ConfigError
from evalharness.api.exit_codes import DONE
from evalharness.api.suggestions import nearest_folder
from evalharness.cli.commands.starting import STARTERS, write_project
from evalharness.cli.framework import command

__all__ = ["init"]


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
