"""The `evalharness` command: what is done with a run once it is there. Runs themselves are started with pytest, or by `watch`.

Exit codes: 0 done, 1 it could not be done (the message says why) or what it judged did not pass, 2 the command line is wrong.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

import evalharness
from evalharness.commands import bless, compare, merge, report, rescore, summary, watch
from evalharness.errors import EvalHarnessError

__all__ = ["main"]

_COMMANDS = (report, rescore, merge, compare, bless, summary, watch)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. Raises `SystemExit` 2 for a wrong command line, as argparse does."""
    words, for_pytest = _split(list(sys.argv[1:] if arguments is None else arguments))
    options = _parser().parse_args(words)
    options.for_pytest = for_pytest
    command: Callable[[argparse.Namespace], int] = options.command
    try:
        return command(options)
    except EvalHarnessError as error:
        from evalharness.report.safe_text import one_line  # a message may quote what a model or a file name says

        print(f"evalharness: error: {one_line(str(error), 2000)}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # who reads, `head` perhaps, has seen enough; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return what is ours and what a command that starts pytest hands on, after `--`: argparse cannot tell them apart by itself."""
    if words[:1] != ["watch"] or "--" not in words:
        return words, []
    place = words.index("--")
    return words[:place], words[place + 1 :]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="evalharness",
        description="Work with the runs of evals. A run is started with pytest: pytest evals --model PATH",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"evalharness {evalharness.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in _COMMANDS:
        command.add(commands)
    return parser
