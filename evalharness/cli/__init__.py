"""The `evalharness` command: works on finished runs and asks checkpoints. Runs are started with pytest, or by `watch`.

Uses click, as typer is built on it and takes twice as long to import. Exit codes are those of `api/errors.py`.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Sequence

import click

from evalharness.api.errors import BROKEN, DONE, INTERRUPTED, REFUSED, BackendError, EvalHarnessError, did_you_mean
from evalharness.api.redaction import redactor, remember_options
from evalharness.cli.completion import RunName
from evalharness.cli.framework import CommandGroup, UnknownCommand
from evalharness.cli.hints import command_for

_SECTIONS = {
    "Start": ("init:init", "doctor:doctor"),
    "Runs": (
        "browse:list",
        "browse:open",
        "top:top",
        "show:show",
        "speed:speed",
        "finished_runs:report",
        "finished_runs:rescore",
        "finished_runs:merge",
        "finished_runs:summary",
        "export:export",
        "interop:import",
        "sql:sql",
    ),
    "Comparisons": ("compare:compare", "compare:bless", "compare:timeline"),
    "Checkpoints": ("generate:generate", "watch:watch", "rules:rules"),
}
"""Heading of the help → "module:command" of `evalharness.cli.commands`."""
_MESSAGE_CHARS = 2000


@click.group(
    "evalharness",
    cls=CommandGroup,
    sections=_SECTIONS,
    epilog="evalharness COMMAND --help shows options, defaults and examples. Exit codes: 0 done; 1 something did not pass; 2 nothing was "
    "done, because the command line or a file that it names is wrong; 10 the machine, the network or the code failed; 130 stopped by "
    "Ctrl-C.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="evalharness", message="evalharness %(version)s")
def group() -> None:
    """Inspect, compare and export the runs of your evals, and ask checkpoints. Runs are started with pytest: pytest evals --model PATH"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; every error goes to stderr as a message."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # escapes characters that the terminal lacks
    remember_options(sys.argv[1:] if arguments is None else arguments)
    try:
        code = group.main(None if arguments is None else list(arguments), prog_name="evalharness", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _usage_error(error)
    except EvalHarnessError as error:
        _say_error(str(error), command_for(error, _running(sys.argv[1:] if arguments is None else arguments)), error.lines)
        return BROKEN if isinstance(error, BackendError) else REFUSED
    except (click.Abort, KeyboardInterrupt):
        _say_error("stopped by Ctrl-C")
        return INTERRUPTED
    except BrokenPipeError:  # the reader, `head` perhaps, closed the pipe; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        if not isinstance(error, OSError) or error.errno != errno.ENAMETOOLONG:  # any of many calls on a path can meet it first
            return _crash()
        _say_error(f"{error.filename}: {error.strerror}; give another path")
        return REFUSED
    return code if isinstance(code, int) else DONE


def _usage_error(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and context is not None:
        click.echo(context.get_help(), err=True)
        return REFUSED
    if isinstance(error, UnknownCommand):
        _say_error(error.format_message(), error.command)
        return REFUSED
    usage = [] if context is None else context.get_usage().splitlines()
    path = "evalharness" if context is None else context.command_path
    _say_error(error.format_message() + _meant_choice(error), f"{path} latest" if _lacks_a_run_alone(error) else f"{path} --help", usage)
    return REFUSED


def _meant_choice(error: click.ClickException) -> str:
    choices = getattr(getattr(getattr(error, "param", None), "type", None), "choices", ())
    word = re.match("'(.*)' is not one of", error.message)
    hint = did_you_mean(word[1], choices) if word is not None else ""
    return hint.replace("; did", " Did", 1)


def _lacks_a_run_alone(error: click.ClickException) -> bool:
    if not isinstance(error, click.MissingParameter) or error.ctx is None or error.param is None:
        return False
    return isinstance(error.param.type, RunName) and sum(param.required for param in error.ctx.command.params) == 1


def _running(arguments: Sequence[str]) -> str:
    return next((f"evalharness {word}" for word in arguments if word in group.commands_by_name), "evalharness")


def _say_error(message: str, command: str = "", lines: Sequence[str] = ()) -> None:
    from evalharness.report.text import one_line, terminal_text  # a message may quote a model's text or a file's name

    print(f"evalharness: error: {one_line(redactor().text(message), _MESSAGE_CHARS)}", file=sys.stderr)
    for line in lines:
        print(f"  {terminal_text(redactor().text(line), _MESSAGE_CHARS)}", file=sys.stderr)
    if command:
        print(f"try: {terminal_text(redactor().text(command), _MESSAGE_CHARS)}", file=sys.stderr)


def _crash() -> int:
    import traceback

    from evalharness.report.text import terminal_text

    for line in redactor().text(traceback.format_exc()).splitlines():
        print(terminal_text(line, _MESSAGE_CHARS), file=sys.stderr)
    _say_error(
        "this is a fault of evalharness or of a library, not of your input; please report it with the lines above", "evalharness doctor"
    )
    return BROKEN
