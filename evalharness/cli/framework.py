"""What all subcommands share: how their help looks, and a kind of value that click lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from evalharness.api.exit_codes import BROKEN, DONE, MEANINGS, NOT_PASSED, REFUSED
from evalharness.api.suggestions import did_you_mean

__all__ = ["RUN_CODES", "Command", "CommandGroup", "command", "seconds"]

_USUAL = {code: MEANINGS[code] for code in (DONE, NOT_PASSED, REFUSED, BROKEN)}
RUN_CODES = {
    DONE: "every gate passed and every other test",
    NOT_PASSED: "a gate or a test failed",
    REFUSED: "nothing was run; the message says why",
    BROKEN: "a case ended as an error, or the run has problems",
}
"""What the codes say of a command that makes a run: those of pytest with this plugin."""


class Command(click.Command):
    """A command whose help ends with examples and with what its exit codes say."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), exit_codes: Mapping[int, str] | None = None, **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self.examples = tuple(examples)
        self.exit_codes = {**_USUAL, **(exit_codes or {})}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the two sections; lines of examples are never broken, so that they can be copied."""
        if self.examples:
            with formatter.section("Examples"):
                formatter.write("".join(f"{' ' * formatter.current_indent}{line}\n" for line in self.examples))
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in self.exit_codes.items()])


def command(
    name: str, *, examples: Sequence[str], exit_codes: Mapping[int, str] | None = None, **keywords: Any
) -> Callable[[Any], Command]:
    """Return the decorator that makes a `Command` of a function; `exit_codes` says what differs from the usual meanings."""
    return click.command(name, cls=Command, examples=examples, exit_codes=exit_codes, **keywords)


class CommandGroup(click.Group):
    """Commands by section, name and "module:attribute"; a module is imported when its command runs or is listed."""

    def __init__(self, *args: Any, sections: Mapping[str, Mapping[str, str]], **keywords: Any) -> None:
        super().__init__(*args, **keywords)
        self._sections = sections
        self._places = {name: place for section in sections.values() for name, place in section.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of the help."""
        return list(self._places)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, imported now; None for a name that is none."""
        if cmd_name not in self._places:
            return None
        module, _, attribute = self._places[cmd_name].partition(":")
        loaded: click.Command = getattr(import_module(module), attribute)
        return loaded

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that the first word names, or say which one may have been meant."""
        word = args[0]
        if word not in self._places and not word.startswith("-"):
            raise click.UsageError(
                f"{word!r} is no command{did_you_mean(word, self._places) or '.'} Known: {', '.join(self._places)}.", ctx
            )
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one list of commands per section."""
        width = max(map(len, self._places))
        for title, places in self._sections.items():
            found = [(name, self.get_command(ctx, name)) for name in places]
            rows = [(f"{name:{width}}", command.get_short_help_str(limit=200)) for name, command in found if command is not None]
            with formatter.section(title):
                formatter.write_dl(rows)


def seconds(text: Any) -> float:
    """Return seconds above 0; the `type` of an option."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise click.BadParameter(f"must be seconds above 0, got {text!r}")
    return value
