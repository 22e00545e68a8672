"""Shared parts of all subcommands: the layout of their help, options of a run, names of runs, and a stdout of their own."""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import click

from evalharness.api.errors import BROKEN, DONE, NOT_PASSED, REFUSED, RecordError, did_you_mean
from evalharness.cli.hints import guess
from evalharness.config import RunConfig, resolve
from evalharness.config.foreign_options import instead_of
from evalharness.config.kinds import Option, Setting
from evalharness.config.options import ARGUMENTS, EVALS_OWN, OPTIONS
from evalharness.config.sources import project_root
from evalharness.report.text import one_line
from evalharness.runs.run_file import LATEST, find_latest, is_latest

_MAX_PATH_CHARS = 500

PATH = click.Path(path_type=Path)
_EXIT_CODES = {
    DONE: "done",
    REFUSED: "nothing was done, because the command line or a file that it names is wrong; the message says what to do",
    BROKEN: "a fault of evalharness, of a library or of the machine; the traceback tells",
}
RUN_CODES = {
    DONE: "every gate and every other test passed",
    NOT_PASSED: "a gate or a test failed",
    REFUSED: "nothing was run; the message says why",
    BROKEN: "a case ended as an error, or the run has problems",
}
"""Exit codes of a command that makes a run: those of pytest with this plugin."""
_RUNS = (
    "A run is named by its directory, by its name in the report folder, or as latest: the complete run that ended last (latest~1: the run "
    "before it)."
)


class Command(click.Command):
    """A command whose help ends with how runs are named (`takes_runs`), examples, and the meanings of its exit codes."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str] = (),
        exit_codes: Mapping[int, str] | None = None,
        takes_runs: bool = False,
        **keywords: Any,
    ) -> None:
        super().__init__(*args, **keywords)
        self.examples = tuple(examples)
        self.exit_codes = dict(sorted({**_EXIT_CODES, **(exit_codes or {})}.items()))
        self.takes_runs = takes_runs

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections; lines of examples are never broken, so that they can be copied."""
        if self.takes_runs:
            with formatter.section("Runs"):
                formatter.write_text(_RUNS)
        with formatter.section("Examples"):
            formatter.write("".join(f"{' ' * formatter.current_indent}{line}\n" for line in self.examples))
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in self.exit_codes.items()])


def command(name: str, *, examples: Sequence[str], **keywords: Any) -> Callable[[Any], Command]:
    """Return the decorator that makes a `Command` of a function; `exit_codes` names those that differ from the usual meanings."""
    return click.command(name, cls=Command, examples=examples, **keywords)


class UnknownCommand(click.UsageError):
    """A first word that is no command; `command` is what was probably meant."""

    def __init__(self, word: str, known: Sequence[str], ctx: click.Context, shown: str = "") -> None:
        why, self.command = guess(word) or ("", "evalharness --help")
        meant = did_you_mean(word, known)
        if meant and not why:
            self.command = f"evalharness {meant.split(chr(39))[1]} --help"
        hint = f": {why}" if why else f"{meant or '.'} Known: {', '.join(known)}."
        super().__init__(f"{shown or word!r} is not a command{hint}", ctx)


class CommandGroup(click.Group):
    """Commands by section, each "module:command"; a module is imported when its command runs or is listed."""

    def __init__(self, *args: Any, sections: Mapping[str, Sequence[str]], **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._sections = {title: [place.split(":")[1] for place in places] for title, places in sections.items()}
        self._modules = {name: module for places in sections.values() for module, name in (place.split(":") for place in places)}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        return list(self._modules)

    @property
    def commands_by_name(self) -> Mapping[str, str]:
        """The module of each command by its name."""
        return self._modules

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported now; None for an unknown name."""
        if cmd_name not in self._modules:
            return None
        module = import_module(f"evalharness.cli.commands.{self._modules[cmd_name]}")
        return next(value for value in vars(module).values() if isinstance(value, click.Command) and value.name == cmd_name)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Return the arguments behind the options; an option that stands before every command and is a run's is refused as such."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if instead_of(error.option_name) or error.option_name in {option.flag for option in ARGUMENTS}:
                raise UnknownCommand("run", list(self._modules), ctx, error.option_name) from None
            raise

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names. Raises `UsageError`, with the closest name, for an unknown one."""
        word = args[0]
        if word not in self._modules and not word.startswith("-"):
            raise UnknownCommand(word, list(self._modules), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list of commands per section."""
        width = max(map(len, self._modules))
        for title, names in self._sections.items():
            commands = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [(f"{name:{width}}", entry.get_short_help_str(limit=200)) for name, entry in commands if entry is not None]
                )


def run_options(*names: str, defaults: Mapping[str, str]) -> Callable[[Any], Any]:
    """Return the decorator that adds these options of a run, in this order; `defaults` names those that differ from a run's."""
    by_name = {option.name: option for option in ARGUMENTS}

    def decorate(function: Any) -> Any:
        for name in reversed(names):
            function = _click_option(by_name[name], defaults.get(name))(function)
        return function

    return decorate


def _click_option(option: Option, default: str | None) -> Callable[[Any], Any]:
    text = option.help.replace(EVALS_OWN, "")
    if default is not None:
        text = f"{text.partition(' (default:')[0]} (default: {default})"
    if option.kind.is_flag:
        return click.option(f"{option.flag}/--no-{option.flag[2:]}", option.name, default=None, help=text)
    return click.option(option.flag, option.name, multiple=option.kind.is_list, metavar=option.metavar, help=text)


def resolve_options(values: Mapping[str, Any]) -> RunConfig:
    """Return the config of the values that click parsed: None, or () for a list, where the option was not given.

    Every other option keeps its default: settings files set options such as `data` for runs, not for these commands.
    """
    cli = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value not in (None, ())}
    run = resolve(cli, os.environ, project_root(Path.cwd()))
    defaults = {option.name: Setting(option.default, "default") for option in OPTIONS if option.name not in values}
    return RunConfig.from_settings({**run.settings, **defaults})


def find_run(word: str, *, whole: bool = False, quiet: bool = False) -> Path:
    """Return the run directory that `word` names: `latest` or `latest~1`, a path, or the name of a run in the report folder.

    `latest` never means a folder of that name, which is `./latest`; with `whole` partial runs do not count. What it stands for is said on
    stderr, unless `quiet`. Raises `RecordError` where the word names no run.
    """
    if is_latest(word):
        notes: list[str] = []
        run_dir = find_latest(word, report_folder(), whole=whole, notes=notes)
        shown = "; ".join([str(run_dir), *notes])  # nobody blesses or exports by guess
        if not quiet:
            print(f"evalharness: {word} is {one_line(shown, _MAX_PATH_CHARS)}", file=sys.stderr)
        return run_dir
    reports = report_folder()
    if Path(word).is_dir() and _is_path(word, reports):
        return Path(word)
    names = run_names(reports)
    if word in names:
        return reports / word
    problem = (
        f"{word} is not a run directory, and {reports} has no run of that name{did_you_mean(word, [*names, LATEST]) or ';'} "
        "give a run directory, the name of a run in that folder, or latest"
    )
    raise RecordError(problem).helped_by("evalharness list" if names else "pytest evals --model PATH")


_NAME = re.compile(r"(?!.*\.json$)[\w.-]+")
"""What is the name of a run unless such a path exists; a baseline is named by its file."""


def _is_path(word: str, reports: Path) -> bool:
    """Return whether a word is a path; a folder that is no run, such as one of tests, is none where a run has its name."""
    return Path(word).exists() and (_is_run(Path(word)) or word not in run_names(reports) or not _is_run(reports / word))


def _is_run(folder: Path) -> bool:
    return any((folder / name).exists() for name in ("run.json", "samples.jsonl", "journal"))


def expand_run(text: str) -> str:
    """Return RUN, or RUN:ENGINE, with the path in place of the name of a run or, behind it, of a baseline; paths and patterns as they are.

    For commands that judge runs against each other: partial ones are not `latest`. Raises `RecordError` for a name that no run has.
    """
    from evalharness.analysis.judge import BASELINE_FOLDER

    word, colon, engine = text.partition(":")
    reports = report_folder()
    is_name = is_latest(word) or (_NAME.fullmatch(word) is not None and not any(_is_path(path, reports) for path in (text, word)))
    kept = project_root(Path.cwd()) / BASELINE_FOLDER / f"{word}.json"
    if is_name and not colon and word not in run_names(reports) and kept.is_file():
        return str(kept)
    return f"{find_run(word, whole=True)}{colon}{engine}" if is_name else text


def report_folder() -> Path:
    """Return the folder that runs go to, as settings and environment say."""
    return resolve({}, os.environ, project_root(Path.cwd())).report_dir


def run_names(report_dir: Path) -> list[str]:
    """Return the names of the folders in a report folder."""
    return sorted(path.name for path in report_dir.iterdir() if path.is_dir()) if report_dir.is_dir() else []


@contextlib.contextmanager
def own_stdout() -> Iterator[TextIO]:
    """Yield a stream to stdout. What anything else prints there meanwhile, child processes included, goes to stderr."""
    ours = sys.stdout
    try:
        is_process_wide = ours.fileno() == 1
    except (AttributeError, io.UnsupportedOperation):
        is_process_wide = False
    if not is_process_wide:
        with contextlib.redirect_stdout(sys.stderr):
            yield ours
        return
    ours.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with (
            open(kept, "w", encoding=ours.encoding, errors="backslashreplace", closefd=False) as stream,
            contextlib.redirect_stdout(sys.stderr),
        ):
            yield stream
    finally:
        os.dup2(kept, 1)
        os.close(kept)
