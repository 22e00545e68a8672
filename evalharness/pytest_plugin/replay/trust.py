"""What the files of a recorded run may decide, for a run may be a stranger's: never whom to ask, what code to run, what is no longer
refused, or which files outside the project to touch. Such values come from the user's own command line, environment or settings.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Any

from evalharness.api.errors import ConfigError, RecordError
from evalharness.api.redaction import redactor
from evalharness.checkpoints.hub import cached_revisions
from evalharness.config import RunConfig
from evalharness.config.kinds import Folder, Option, PathList, Setting, shown
from evalharness.config.options import OPTIONS

# They name an address, bring code, weaken a refusal, or pass anything on to another library.
_DECIDED_BY_THE_USER = (
    "base_url", "trust_remote_code", "allow_pickle", "download", "unsupported_options", "engine_option", "attn_implementation",
    "distributed_executor_backend",
)  # fmt: skip
_PROJECT_FILES = ("pytest.ini", "pyproject.toml", "evalharness.toml", "tox.ini", "setup.cfg", "setup.py", ".git")
OF_THIS_SESSION = ("accept_changes", "report_dir", "executor", "ray_address")
"""Options that a recorded run has no say in at all."""


def is_within(path: Path, folder: Path) -> bool:
    """Return whether a path lies in a folder, links followed."""
    return path.resolve().is_relative_to(folder.resolve())


def check_options(then: RunConfig, now: RunConfig, root: Path, run_id: str) -> None:
    """Raise `ConfigError` for options that a resumed run has, but that only the user decides, unless they are given again."""
    recorded, given_now = then.settings, now.settings
    unconfirmed = [option for option in OPTIONS if _needs_user(option, recorded[option.name], given_now[option.name], root)]
    if not unconfirmed:
        return
    given = " ".join(_as_given(option, getattr(then, option.name)) for option in unconfirmed)
    raise ConfigError(
        f"run {run_id} says {given}, but a run's file does not decide on addresses, code, refusals, and paths outside the project; "
        f"to go on with it, give the same again: {given}"
    )


def _needs_user(option: Option, then: Setting, now: Setting, root: Path) -> bool:
    is_path = isinstance(option.kind, (Folder, PathList))
    if not (is_path or option.name in _DECIDED_BY_THE_USER) or option.name in OF_THIS_SESSION or then.value == option.default:
        return False
    if now.origin != "default" and is_same(option, then, now):
        return False
    paths = map(Path, [then.value] if isinstance(then.value, (str, Path)) else then.value) if is_path else ()
    return not (is_path and all(is_within(path, root) for path in paths))


def is_same(option: Option, then: Setting, now: Setting) -> bool:
    """Return whether a setting has the recorded value, whose secrets were hidden."""
    before, asked = (None if setting.value is None else option.kind.to_json(setting.value) for setting in (then, now))
    return before == asked or before == redactor().data(asked)


def _as_given(option: Option, value: Any) -> str:
    if option.kind.is_flag:
        return option.flag if value else f"--no-{option.flag[2:]}"
    items = value if option.kind.is_list else [value]
    return " ".join(f"{option.flag} {shlex.quote(shown((item,)) if isinstance(item, tuple) else str(item))}" for item in items)


def check_checkpoints(paths: Iterable[str], run: RunConfig, root: Path, run_id: str) -> None:
    """Raise `RecordError` for a checkpoint of a journal that neither lies in the project nor is what `--model` names."""
    cached = {cached_revisions(name, root) for name in run.model}  # it goes on with its revision, whatever the branch has now
    for text in paths:
        path = os.path.normpath(text)
        places = [path, str(Path(path).parent)]  # a training run stands for its checkpoints
        named = any(Path(path).is_relative_to(pattern) or any(fnmatchcase(place, pattern) for place in places) for pattern in run.model)
        if not named and Path(path).parent not in cached and not is_within(Path(path), root):
            raise RecordError(f"a journal of run {run_id} names the checkpoint {text}, which is not of its --model; start a new run")


def project_folders(project: Path | None) -> Sequence[Path]:
    """Return the folders that the paths of evals may be relative to: the given project, else the current folder up to its project's."""
    if project is not None:
        return [project.absolute()]
    here = Path.cwd()
    folders = (here, *here.parents)
    top = next((place for place, folder in enumerate(folders) if any((folder / name).exists() for name in _PROJECT_FILES)), 0)
    return folders[: top + 1]


def eval_file(root: Path, path: str, run_dir: Path) -> Path | None:
    """Return the file of an eval that a journal names, None if the project has none; `RecordError` where it is not the project's."""
    place = PurePosixPath(path)
    if place.is_absolute() or ".." in place.parts or not place.name.endswith(".py"):
        raise RecordError(
            f"a journal of {run_dir} names the eval {path!r}: only Python files of the current project are run, without '..'; "
            "judge its generations by tests of your own with --tests"
        )
    file = root / path
    if not file.is_file():
        return None
    runs = run_dir.absolute().parent
    foreign = run_dir if is_within(root, runs) else runs
    if file.absolute().is_relative_to(foreign.absolute()) or is_within(file, foreign):
        raise RecordError(
            f"{file} lies beside the records of the run, and code that comes with a run is not run; "
            f"if you trust it, name it: evalharness rescore {run_dir} --tests {file}"
        )
    if not is_within(file, root):
        raise RecordError(f"{file} is a link that leads out of the project {root}; name its target with --tests if you trust it")
    return file
