"""The `evalharness` command: what is done with a run once it is there, and by hand. Runs are started with pytest, or by `watch`.

Click rather than typer, which is made of it and takes twice as long to import. `evalharness/api/errors.py` says what the exit
codes mean.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence

import click

from evalharness.api.errors import BROKEN, DONE, INTERRUPTED, REFUSED, BackendError, EvalHarnessError
from evalharness.cli.framework import CommandGroup

__all__ = ["main"]

_PLACE = "evalharness.cli.commands."
_SECTIONS = {
    "Runs": {
        "report": _PLACE + "finished_runs:report",
        "rescore": _PLACE + "finished_runs:rescore",
        "merge": _PLACE + "finished_runs:merge",
        "summary": _PLACE + "finished_runs:summary",
        "export": _PLACE + "export:export",
    },
    "Comparing": {
        "compare": _PLACE + "compare:compare",
        "bless": _PLACE + "compare:bless",
        "timeline": _PLACE + "compare:timeline",
    },
    "By hand": {
        "init": _PLACE + "init:init",
        "generate": _PLACE + "generate:generate",
        "show": _PLACE + "show:show",
        "doctor": _PLACE + "doctor:doctor",
    },
    "Training runs": {
        "watch": _PLACE + "watch:watch",
    },
}
_MESSAGE_CHARS = 2000


@click.group(
    "evalharness",
    cls=CommandGroup,
    sections=_SECTIONS,
    epilog="evalharness COMMAND --help shows options, defaults and examples. Exit codes: 0 done, 1 something did not pass, 2 nothing was "
    "done, as the command line or what it names is wrong, 10 machine, network or code broke, 130 stopped by Ctrl-C.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
)
@click.version_option(package_name="evalharness", message="evalharness %(version)s")
def group() -> None:
    """Work with evals of checkpoints and with their runs. A run is started with pytest: pytest evals --model PATH"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; whatever goes wrong is said on stderr."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="backslashreplace")  # a terminal that lacks a character gets it escaped
    try:
        code = group.main(None if arguments is None else list(arguments), prog_name="evalharness", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _usage_error(error)
    except EvalHarnessError as error:
        _say_error(str(error))
        return BROKEN if isinstance(error, BackendError) else REFUSED
    except (click.Abort, KeyboardInterrupt):
        _say_error("stopped by Ctrl-C")
        return INTERRUPTED
    except BrokenPipeError:  # who reads, `head` perhaps, has seen enough; nothing may be written at exit either
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:  # which of many looks at a path meets it first is chance
            return _crash()
        _say_error(f"{error.filename}: {error.strerror}; give another path")
        return REFUSED
    except Exception:
        return _crash()
    return code if isinstance(code, int) else DONE


def _usage_error(error: click.ClickException) -> int:
    context = getattr(error, "ctx", None)
    if isinstance(error, click.exceptions.NoArgsIsHelpError) and context is not None:
        click.echo(context.get_help(), err=True)
        return REFUSED
    _say_error(error.format_message())
    if context is not None:
        click.echo(context.get_usage(), err=True)
        click.echo(f"{context.command_path} --help shows what is legal, with examples", err=True)
    return REFUSED


def _say_error(message: str) -> None:
    from evalharness.report.text import one_line  # a message may quote what a model or a file name says

    print(f"evalharness: error: {one_line(message, _MESSAGE_CHARS)}", file=sys.stderr)


def _crash() -> int:
    import traceback

    from evalharness.api.redaction import redactor
    from evalharness.report.text import terminal_text

    for line in redactor().text(traceback.format_exc()).splitlines():
        print(terminal_text(line, _MESSAGE_CHARS), file=sys.stderr)
    _say_error("this is a fault of evalharness or of a library, not of your input; please report it with the lines above")
    return BROKEN
