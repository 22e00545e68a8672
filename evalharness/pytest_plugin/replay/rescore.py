"""Starts the pytest session that scores a recorded run again."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

import evalharness.pytest_plugin
from evalharness.api.errors import RecordError
from evalharness.api.exit_codes import BROKEN, REFUSED
from evalharness.config import RunConfig
from evalharness.config.config_option import Setting
from evalharness.config.options import OPTIONS
from evalharness.pytest_plugin.replay.original_cases import likely_roots
from evalharness.pytest_plugin.replay.session import RescoringSession
from evalharness.pytest_plugin.replay.stored_tests import StoredTestsSession
from evalharness.pytest_plugin.session import NEW_SESSION, STATE, EvalSession
from evalharness.runs.recorded import RecordedRun

__all__ = ["rescore_run"]

_MAX_RUN_ID_CHARS = 80
_CODES = {
    int(pytest.ExitCode.INTERNAL_ERROR): BROKEN,
    int(pytest.ExitCode.USAGE_ERROR): REFUSED,
    int(pytest.ExitCode.NO_TESTS_COLLECTED): REFUSED,
}
"""What a command ends with where pytest's own code would be none of those that it promises."""


def rescore_run(
    run_dir: Path,
    *,
    tests: Path | None = None,
    data: Path | None = None,
    report_dir: Path | None = None,
    run_id: str | None = None,
    spot: str | None = None,
) -> int:
    """Run the tests of a recorded run again on its generations and return the exit code; the new run has its own folder.

    `tests` is a module whose tests judge every stored generation instead. `data` stands for the folder that the run's cases
    came from, `report_dir` (default: the run's own) gets the folder `run_id`. Raises `RecordError` or `ConfigError`.
    """
    recorded = RecordedRun.read(run_dir)
    if (recorded.run.get("rescored") or {}).get("tests"):
        origin = recorded.run["rescored"].get("run_id")
        raise RecordError(f"{run_dir} was made with --tests from run {origin}; score that run again")
    given = {"data": data, "report_dir": report_dir or run_dir.absolute().parent, "run_id": run_id, "spot": spot}
    run = _config(recorded, {name: value for name, value in given.items() if value is not None})
    session = RescoringSession if tests is None else StoredTestsSession
    if tests is None:
        root, paths = _modules(recorded)
        _check_data(run)
        where = [f"--rootdir={root}", *(str(root / path) for path in paths)]
    else:
        where = [str(_tests_module(tests))]
    plugin = _Rescoring(lambda root: session(recorded, run, root))
    # The module itself, not its name with -p. Either way pytest would warn that the package, which has no assertions of tests,
    # was imported before it could be rewritten: of the entry point of an installed package, too.
    where += ["-W", "ignore:Module already imported so cannot be rewritten; evalharness:pytest.PytestAssertRewriteWarning"]
    code = int(pytest.main(where, plugins=[evalharness.pytest_plugin, plugin]))
    return _CODES.get(code, code)


def _config(recorded: RecordedRun, given: Mapping[str, object]) -> RunConfig:
    """Return the run's options, but for those that are `given` now and for the name of the new run."""
    settings = dict(recorded.config.settings)
    start = re.sub(r"-rescored-[0-9a-f]{6}$", "", recorded.run_id)[:_MAX_RUN_ID_CHARS]
    settings["run_id"] = Setting(f"{start}-rescored-{os.urandom(3).hex()}", "default")
    for option in OPTIONS:
        if option.name in given:
            value = option.kind.read(str(given[option.name]), label=option.flag, base=Path.cwd(), is_text=True)
            settings[option.name] = Setting(value, "command line")
    baseline = recorded.run.get("baseline")
    if isinstance(baseline, dict) and baseline.get("path") and "baseline" in settings:  # "latest" may be another one now
        settings["baseline"] = replace(settings["baseline"], value=baseline["path"])
    return RunConfig(settings)


def _check_data(run: RunConfig) -> None:
    if run.data is not None and not Path(run.data).is_dir():
        raise RecordError(f"the run's cases came from {run.data}, which is no folder; say with --data where they are now")


def _modules(recorded: RecordedRun) -> tuple[Path, list[str]]:
    """Return the folder that the run's paths are relative to, and the eval modules that are there."""
    paths = list(recorded.records.evals)
    if not paths:
        raise RecordError(f"run {recorded.run_id} was killed before it had said what its evals are; nothing can be scored again")
    for root in likely_roots(recorded):
        found = [path for path in paths if (root / path).is_file()]
        if found:
            return root, found
    raise RecordError(
        f"the evals of run {recorded.run_id} are not here: {', '.join(paths)}; run this in the project that they belong to, "
        "or judge the generations by other tests with --tests"
    )


def _tests_module(path: Path) -> Path:
    if not path.is_file() or path.suffix != ".py":
        what = "Python file" if path.is_file() else "file"
        raise RecordError(f"--tests {path} is no {what}; give a module with tests, such as evals/test_degeneration.py")
    return path.absolute()


class _Rescoring:
    """The plugin that makes a session one on recorded generations, in one process whatever the project's settings say."""

    def __init__(self, new_session: Callable[[Path], EvalSession]) -> None:
        self._new_session = new_session

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> None:
        """Take back what `-n` in a project's addopts has set up: nothing here is worth a second process."""
        for name, value in {"numprocesses": 0, "dist": "no", "distload": False, "tx": []}.items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Tell the plugin what kind of session this is."""
        config.stash[NEW_SESSION] = self._new_session

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leave out what the recorded run had left out, and tests that are no evals'."""
        state = config.stash[STATE]
        assert isinstance(state, RescoringSession)
        left_out = [item for item in items if not state.is_wanted(item)]
        if left_out:
            config.hook.pytest_deselected(items=left_out)
            items[:] = [item for item in items if state.is_wanted(item)]
