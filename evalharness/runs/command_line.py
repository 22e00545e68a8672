"""The command line as a run's records show it: without values that may be secrets.

Values of this package's options and of pytest's, paths and node ids are shown. Any other option shows only its name, and so does a setting
given with `-o`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from evalharness.config.options import ARGUMENTS

HIDDEN = "…"

_FLAG_NAMES = """
    --exitfirst --lf --last-failed --ff --failed-first --nf --new-first --cache-clear --sw --stepwise --sw-skip --stepwise-skip
    --sw-reset --stepwise-reset --strict --strict-config --strict-markers --runxfail --pdb --trace --verbose --quiet --no-header
    --no-summary --no-fold-skipped --force-short-summary --disable-warnings --disable-pytest-warnings --showlocals --no-showlocals
    --xfail-tb --fulltrace --full-trace --collectonly --collect-only --co --pyargs --noconftest --keepduplicates --keep-duplicates
    --collect-in-virtualenv --continue-on-collection-errors --doctest-modules --doctest-ignore-import-errors
    --doctest-continue-on-failure --disable-plugin-autoload --traceconfig --trace-config --setuponly --setup-only --setupshow
    --setup-show --setupplan --setup-plan --version --help --markers --fixtures --funcargs --fixtures-per-test
"""
_VALUED_NAMES = """
    --maxfail --capture --cache-show --lfnf --last-failed-no-failures --durations --durations-min --verbosity --report-chars --tb
    --show-capture --color --code-highlight --junitxml --junit-xml --junitprefix --junit-prefix --pythonwarnings --max-warnings
    --ignore --ignore-glob --deselect --confcutdir --import-mode --doctest-report --doctest-glob --config-file --rootdir --basetemp
    --assert --log-level --log-format --log-date-format --log-cli-level --log-cli-format --log-cli-date-format --log-file
    --log-file-mode --log-file-level --log-file-format --log-file-date-format --log-auto-indent --log-disable --debug --pdbcls
    --numprocesses --dist --maxprocesses
"""
_FLAGS, _VALUED = frozenset(_FLAG_NAMES.split()), frozenset(_VALUED_NAMES.split())
_SHORT_FLAGS = "xsvqlhV"
_SHORT_VALUED = "kmrWcpn"
_SETTINGS = ("-o", "--override-ini")


def _own_options() -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of this package's flags and of its options with a value."""
    flags = {name for option in ARGUMENTS if option.kind.is_flag for name in (option.flag, option.flag.replace("--", "--no-", 1))}
    return frozenset(flags), frozenset(option.flag for option in ARGUMENTS if not option.kind.is_flag)


def shown_command(arguments: Iterable[str], root: Path) -> list[str]:
    """Return the arguments, the program first, with `…` in place of anything that may be secret.

    After an unknown option, an argument is shown only if it names a file below `root` or the current folder: otherwise it may be the
    option's value.
    """
    program, *parts = arguments
    return [program, *_shown(parts, root)]


def _shown(parts: list[str], root: Path) -> Iterator[str]:
    flags, valued = _own_options()
    before = ""  # what the next part is to the one before it: "value", "setting", "unknown", or "" for nothing
    for part in parts:
        name, equals, value = part.partition("=")
        if before in ("value", "setting"):
            yield part if before == "value" else _shown_setting(part)
            before = ""
        elif part in _SETTINGS:
            yield part
            before = "setting"
        elif name == "--override-ini":
            yield f"{name}={_shown_setting(value)}"
        elif part.startswith("-o"):
            yield f"-o{_shown_setting(part[2:])}"
        elif part in _FLAGS or part in flags or part in ("-", "--"):
            yield part
            before = ""
        elif name in _VALUED or name in valued:
            yield part
            before = "" if equals else "value"
        elif part.startswith("--"):
            yield f"{name}={HIDDEN}" if equals else name
            before = "" if equals else "unknown"
        elif part.startswith("-"):
            shown, before = _shown_short(part)
            yield shown
        else:
            yield part if before != "unknown" or _is_path(part, root) else HIDDEN
            before = ""


def _shown_setting(text: str) -> str:
    name, equals, _ = text.partition("=")
    return f"{name}={HIDDEN}" if equals else HIDDEN


def _shown_short(part: str) -> tuple[str, str]:
    """Return a group of one-letter options such as `-xvk`, and how it uses the next argument."""
    for position, letter in enumerate(part[1:], 1):
        if letter in _SHORT_VALUED:
            return part, "" if part[position + 1 :] else "value"
        if letter == "o":
            value = part[position + 1 :]
            return part[: position + 1] + (_shown_setting(value) if value else ""), "" if value else "setting"
        if letter not in _SHORT_FLAGS:
            return part[: position + 1] + (HIDDEN if part[position + 1 :] else ""), "unknown"
    return part, ""


def _is_path(part: str, root: Path) -> bool:
    path = part.partition("::")[0]
    try:
        return bool(path) and (Path(path).exists() or (root / path).exists())
    except (OSError, ValueError):
        return False
