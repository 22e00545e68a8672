"""The word `latest` for a run: which one of a folder of runs it means. Knows no options, and no pytest.

One meaning for every command and for --baseline: the complete run that ended last; `latest~1` is the one before it. Complete is what
came to its end by itself, with a verdict or without, live, merged or scored again: what broke off would be taken for a worse checkpoint.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from evalharness.api.errors import RecordError
from evalharness.runs.reading import FINISHED, read_run, run_state

__all__ = ["LATEST", "find_latest", "is_latest"]

LATEST = "latest"
_COUNTED = re.compile(r"latest(?:~([1-9][0-9]{0,5}))?")
_MOST_SHOWN = 5


def is_latest(word: str) -> bool:
    """Whether a word counts runs back from the newest; `latest~x` does, too, and is refused by `find_latest`."""
    return word == LATEST or word.startswith(f"{LATEST}~")


def find_latest(word: str, report_dir: Path) -> Path:
    """Return the directory of the run in `report_dir` that `latest`, `latest~1`, … means. Raises `RecordError` where there is none."""
    counted = _COUNTED.fullmatch(word)
    if counted is None:
        raise RecordError(f"{word!r} counts no runs back; legal are latest, latest~1 (the run before it), latest~2 and so on")
    num_back = int(counted[1] or 0)
    ended: list[tuple[str, Path]] = []
    unfinished: dict[str, str] = {}
    for folder in _run_folders(report_dir):
        ended_at, problem = _end(folder)
        if problem:
            unfinished[folder.name] = problem
        else:
            ended.append((ended_at, folder))
    if num_back >= len(ended):
        raise RecordError(f"there is no run {word}: {report_dir} holds {_held(len(ended), unfinished)}; {_advice(len(ended))}")
    return sorted(ended, reverse=True)[num_back][1]


def _run_folders(report_dir: Path) -> Iterable[Path]:
    """Return the run directories, each once: a link to a run beside it is no second run."""
    folders = sorted((path.parent for path in report_dir.glob("*/run.json")), key=lambda folder: (folder.is_symlink(), folder.name))
    return {folder.resolve(): folder for folder in reversed(folders)}.values()


def _end(folder: Path) -> tuple[str, str]:
    """Return when a run came to its end, or "" and why it is no complete one."""
    try:
        run = read_run(folder)
    except RecordError:
        return "", "cannot be read"
    state = run_state(run)
    if state == FINISHED:
        return str(run["finished_at"]), ""
    return "", "running or killed" if state == "running" else state


def _held(num_ended: int, unfinished: Mapping[str, str]) -> str:
    held = f"{num_ended:,} complete run{'' if num_ended == 1 else 's'}"
    if not unfinished:
        return held
    shown = [f"{name}: {state}" for name, state in sorted(unfinished.items())]
    more = f", and {len(shown) - _MOST_SHOWN} more" if len(shown) > _MOST_SHOWN else ""
    return f"{held} and {len(shown)} that did not come to an end ({', '.join(shown[:_MOST_SHOWN])}{more})"


def _advice(num_ended: int) -> str:
    if num_ended:
        furthest = LATEST if num_ended == 1 else f"{LATEST}~{num_ended - 1}"
        return f"count back to {furthest} at most, or give a run directory"
    return "let a run come to its end, or give a run directory"
