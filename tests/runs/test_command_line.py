from __future__ import annotations

from pathlib import Path

import pytest

from evalharness.config.options import OPTIONS
from evalharness.runs.command_line import HIDDEN, shown_command

SECRET = "hf_SECRET"


def shown(root: Path, *arguments: str) -> list[str]:
    return shown_command(["pytest", *arguments], root)[1:]


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param([f"--x-token={SECRET}"], id="joined"),
        pytest.param(["--x-token", SECRET], id="apart"),
        pytest.param(["--x-token", SECRET, "evals"], id="apart-then-path"),
        pytest.param(["-o", f"something={SECRET}"], id="setting"),
        pytest.param([f"-osomething={SECRET}"], id="setting-joined"),
        pytest.param(["-xo", f"something={SECRET}"], id="setting-grouped"),
        pytest.param([f"--override-ini=something={SECRET}"], id="setting-long-joined"),
        pytest.param(["--override-ini", f"something={SECRET}"], id="setting-long"),
        pytest.param(["-o", SECRET], id="setting-without-name"),
        pytest.param([f"-Z{SECRET}"], id="unknown-letter-joined"),
        pytest.param(["-Z", SECRET], id="unknown-letter"),
        pytest.param(["-xZ", SECRET], id="unknown-letter-grouped"),
        pytest.param([f"--timeout-key={SECRET}", "--run-id", "a"], id="before-ours"),
        pytest.param([f"--tx=ssh={SECRET}@host"], id="of-another-plugin"),
        pytest.param([f"--pastebin={SECRET}"], id="unlisted"),
    ],
)
def test_a_value_that_may_be_secret_is_not_shown(tmp_path: Path, arguments: list[str]) -> None:
    assert SECRET not in " ".join(shown(tmp_path, *arguments))


def test_the_name_of_what_is_hidden_is_shown(tmp_path: Path) -> None:
    assert shown(tmp_path, "--x-token=abc", "--y", "abc", "-o", "name=abc", "-oname=abc") == [
        f"--x-token={HIDDEN}", "--y", HIDDEN, "-o", f"name={HIDDEN}", f"-oname={HIDDEN}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["evals", "evals/test_a.py::test_b[hf:x-é c]"], id="paths"),
        pytest.param(["-k", "a or b", "-m", "not slow", "-n", "4", "-p", "no:cacheprovider", "-W", "error", "-c", "x.ini"], id="letters"),
        pytest.param(["-ka", "-n4", "-rA", "-xvvs", "-xk", "a", "evals"], id="grouped"),
        pytest.param(["--tb=short", "--maxfail", "3", "--lf", "evals", "--junitxml=out.xml"], id="pytest-long"),
        pytest.param(["--", "evals"], id="ended"),
        pytest.param(
            [part for option in OPTIONS for part in ([option.flag] if option.kind.is_flag else [option.flag, "value"])], id="ours-apart"
        ),
        pytest.param([f"{option.flag}=value" for option in OPTIONS if not option.kind.is_flag], id="ours-joined"),
        pytest.param([option.flag.replace("--", "--no-", 1) for option in OPTIONS if option.kind.is_flag], id="ours-taken-back"),
    ],
)
def test_what_says_what_was_run_is_shown(tmp_path: Path, arguments: list[str]) -> None:
    assert shown(tmp_path, *arguments) == arguments


def test_a_path_behind_an_unknown_flag_is_shown_if_it_is_there(tmp_path: Path) -> None:
    (tmp_path / "evals").mkdir()
    assert shown(tmp_path, "--x-flag", "evals", "--x-flag", "evals::test_a") == ["--x-flag", "evals", "--x-flag", "evals::test_a"]


def test_pytests_own_options_are_known_with_and_without_value() -> None:
    """A new pytest's options are hidden until they are listed; those listed must be what they are said to be."""
    from _pytest.config import get_config

    from evalharness.runs.command_line import _FLAGS, _VALUED

    parser = get_config([])._parser
    takes_value = {
        name: option.attrs().get("nargs") != 0
        for group in (*parser._groups, parser._anonymous)
        for option in group.options
        for name in option.names()
    }
    assert {name for name in _FLAGS if takes_value.get(name, False)} == set()
    assert {name for name in _VALUED if not takes_value.get(name, True)} == set()
