from __future__ import annotations

import re
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from evalharness.api import errors
from evalharness.api.errors import BROKEN, INTERRUPTED, REFUSED
from evalharness.cli import group, main
from evalharness.cli.hints import GUESSES
from tests.cli.conftest import Command
from tests.processes import python
from tests.test_meta import HEAVY, run_python

COMMANDS = group.list_commands(click.Context(group))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param([], "Commands", id="no-command"),
        pytest.param(["repot", "x"], "'repot' is not a command; did you mean 'report'? Known: init,", id="unknown-command"),
        pytest.param(["zzz"], "'zzz' is not a command. Known: init,", id="unlike-any-command"),
        pytest.param(["report"], "Missing argument 'RUN'", id="no-run"),
        pytest.param(["compare", "a", "b", "--sead", "1"], "No such option '--sead'. Did you mean '--seed'?", id="unknown-option"),
        pytest.param(["compare", "a", "b", "--see", "1"], "No such option '--see'", id="shortened-option"),
        pytest.param(["report", "a", "b"], "Got unexpected extra argument (b)", id="too-much"),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_what_is_right(arguments: list[str], message: str, refused: Command) -> None:
    error = refused(*arguments)
    assert message.partition("Commands")[0] in error
    assert "Usage: evalharness" in error or "is not a command" in error
    assert not arguments or error.splitlines()[-1].startswith("try: evalharness ")


@pytest.mark.parametrize(
    ("name", "message"),
    [pytest.param("nowhere", "nowhere is not a run directory, and ", id="missing"), pytest.param(".", "run.json", id="no-run")],
)
def test_a_folder_that_is_no_run_ends_with_2_and_says_why(tmp_path: Path, name: str, message: str, refused: Command) -> None:
    assert re.match(rf"evalharness: error: .*{re.escape(message)}", refused("report", tmp_path / name))


def test_a_path_that_is_too_long_is_no_fault_of_ours(refused: Command) -> None:
    assert refused("timeline", "a" * 300) == f"evalharness: error: {'a' * 300}: File name too long; give another path\n"


def test_a_wrong_command_line_cannot_steer_the_terminal(refused: Command) -> None:
    message = refused("\x1b[31m") + refused("--\x1b[31m") + refused("report", "\x1b]0;x\x07[red]")
    assert not {"\x1b", "\x07"} & set(message)
    assert "[red]" in message


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        pytest.param(errors.BackendError("the card is gone"), BROKEN, "evalharness: error: the card is gone", id="backend"),
        pytest.param(errors.RecordError("no such run"), REFUSED, "evalharness: error: no such run", id="refused"),
        pytest.param(KeyboardInterrupt(), INTERRUPTED, "evalharness: error: stopped by Ctrl-C", id="ctrl-c"),
        pytest.param(ZeroDivisionError("\x1b[31m"), BROKEN, "ZeroDivisionError: \\x1b[31m", id="fault"),
    ],
)
def test_the_exit_code_tells_a_wrong_input_from_something_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: BaseException, code: int, message: str
) -> None:
    def broken(run_dir: Path) -> bool:
        raise error

    monkeypatch.setattr("evalharness.report.writing.rebuild_run", broken)
    assert main(["report", str(tmp_path)]) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "command"),
    [
        pytest.param(["run", "evals"], "pytest evals --model PATH", id="run"),
        pytest.param(["--model", "hf", "--tasks", "gsm8k"], "pytest evals --model PATH", id="options-of-a-run"),
        pytest.param(["--tasks", "list"], "pytest evals --model PATH", id="options-of-another-harness"),
        pytest.param(["eval"], "pytest evals --model PATH", id="eval"),
        pytest.param(["resume", "r"], "pytest evals --resume RUN", id="resume"),
        pytest.param(["ls"], "evalharness list", id="ls"),
        pytest.param(["view"], "evalharness open", id="view"),
        pytest.param(["serve"], "evalharness open", id="serve"),
        pytest.param(["diff", "a", "b"], "evalharness compare latest~1 latest", id="diff"),
        pytest.param(["repot"], "evalharness report --help", id="typo"),
        pytest.param(["zzz"], "evalharness --help", id="nothing-like-it"),
        pytest.param(["report"], "evalharness report latest", id="no-run"),
        pytest.param(["show"], "evalharness show latest", id="no-run-and-no-case"),
        pytest.param(["report", "nowhere"], "pytest evals --model PATH", id="no-run-at-all"),
        pytest.param(["import", "lm-eval", "nowhere"], "evalharness import --help", id="nothing-to-import"),
        pytest.param(["compare", "./a", "./b"], "evalharness compare --help", id="no-such-side"),
        pytest.param(["init", "--template", "chta"], "evalharness init --help", id="choice"),
        pytest.param(["init", "--model", "nowhere"], "evalharness init --help", id="wrong-value"),
    ],
)
def test_the_last_line_of_an_error_is_the_command_that_helps(
    words: list[str], command: str, refused: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").touch()
    assert refused(*words).splitlines()[-1] == f"try: {command}"


def test_a_choice_says_what_was_meant(refused: Command) -> None:
    assert "'chta' is not one of 'text', 'json', 'image', 'chat', 'choices', 'tools'. Did you mean 'chat'?" in refused(
        "init", "--template", "chta"
    )


def test_every_guess_leads_to_a_command_that_is_there(refused: Command) -> None:
    guesses = [word for words, _, _ in GUESSES for word in words.split()]
    assert len(guesses) == len(set(guesses))
    assert not set(guesses) & set(COMMANDS)
    for _, _, command in GUESSES:
        program, word, *_ = command.split()
        assert program == "pytest" or word in COMMANDS or word.startswith("--")


CODES = {"doctor": [0, 1, 2, 10], "rescore": [0, 1, 2, 10], "merge": [0, 1, 2, 10], "compare": [0, 1, 2, 10], "generate": [0, 1, 2, 10]} | {
    "watch": [0, 1, 2, 10],
    "import": [0, 1, 2, 10],
}
"""Commands that can end with 1: something that they looked at did not pass."""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_and_documentation_name_the_codes_of_each_command(name: str) -> None:
    command = group.get_command(click.Context(group), name)
    codes = command.exit_codes
    assert list(codes) == CODES.get(name, [0, 2, 10])
    (line,) = [line for line in Path("docs/command_line.md").read_text("utf-8").splitlines() if line.startswith(f"| `{name}` |")]
    assert line == f"| `{name}` | {codes[0]} | {codes.get(1, '')} |".replace("  ", " ")


class TestHelp:
    def test_all_commands_are_listed_by_section(self, printed: Command) -> None:
        shown = printed("--help")
        assert [line for line in shown.splitlines() if line.endswith(":")][:2] == ["Options:", "Start:"]
        assert all(f"\n  {name} " in shown for name in COMMANDS)

    @pytest.mark.parametrize("name", COMMANDS)
    def test_a_command_shows_examples_defaults_and_exit_codes(self, name: str, printed: Command) -> None:
        shown = printed(name, "-h")
        for part in (f"Usage: evalharness {name} ", f"\nExamples:\n  evalharness {name}", "\nExit codes:\n  0   "):
            assert part in shown
        command = group.get_command(click.Context(group), name)
        for option in command.params:
            if isinstance(option, click.Option) and not option.is_flag and not option.required:
                assert "default" in (option.help or ""), f"{option.name} does not say its default"

    def test_it_loads_nothing_heavy(self) -> None:
        code = f"""
import sys
from evalharness.cli import main
main(["--help"])
print(*[name for name in {(*HEAVY, "rich", "pytest", "jinja2")!r} if name in sys.modules])"""
        assert run_python(code).splitlines()[-1] == ""


def test_the_module_runs_as_the_command() -> None:
    assert python("-m", "evalharness", "--version") == (0, f"evalharness {version('evalharness')}\n")
