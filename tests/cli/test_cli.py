from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest

from evalharness.api import errors
from evalharness.api.errors import BROKEN, INTERRUPTED, REFUSED
from evalharness.cli import group, main
from tests.test_meta import HEAVY, run_python

COMMANDS = group.list_commands(click.Context(group))


def test_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"evalharness {version('evalharness')}\n"


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
def test_a_wrong_command_line_ends_with_2_and_says_what_is_right(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == REFUSED
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Usage: evalharness" in printed.err
    assert (message in printed.err) == (message != "Commands")
    assert "--help shows" in printed.err


@pytest.mark.parametrize(
    ("name", "message"),
    [pytest.param("nowhere", "nowhere is not a run directory, and ", id="missing"), pytest.param(".", "run.json", id="no-run")],
)
def test_a_folder_that_is_no_run_ends_with_2_and_says_why(
    tmp_path: Path, name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(tmp_path / name)]) == REFUSED
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("evalharness: error: ")
    assert message in printed.err


def test_a_path_that_is_too_long_is_no_fault_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["timeline", "a" * 300]) == REFUSED
    assert capsys.readouterr().err == f"evalharness: error: {'a' * 300}: File name too long; give another path\n"


def test_a_wrong_command_line_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    assert [main([word]) for word in ("\x1b[31m", "--\x1b[31m")] == [REFUSED, REFUSED]
    assert main(["report", "\x1b]0;x\x07[red]"]) == REFUSED
    printed = capsys.readouterr().err
    assert not {"\x1b", "\x07"} & set(printed)
    assert "[red]" in printed


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


class TestHelp:
    def test_all_commands_are_listed_by_section(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["--help"]) == 0
        printed = capsys.readouterr().out
        assert [line for line in printed.splitlines() if line.endswith(":")][:2] == ["Options:", "Start:"]
        assert all(f"\n  {name} " in printed for name in COMMANDS)

    @pytest.mark.parametrize("name", COMMANDS)
    def test_a_command_shows_examples_defaults_and_exit_codes(self, name: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([name, "-h"]) == 0
        printed = capsys.readouterr().out
        assert f"Usage: evalharness {name} " in printed
        assert f"\nExamples:\n  evalharness {name}" in printed
        assert "\nExit codes:\n  0   " in printed
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
    done = subprocess.run([sys.executable, "-m", "evalharness", "--version"], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (0, f"evalharness {version('evalharness')}\n")
